"""Reads schemas from a registry that speaks Confluent's protocol."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from http.client import HTTPException
from threading import Lock
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

from stream_merge.debezium.avro_schemas import AvroSchemaError, Translated, translate
from stream_merge.errors import ConfigError, SchemaRegistryError

logger: logging.Logger = logging.getLogger("stream_merge")

_SCHEMA_NOT_FOUND = 40403
_REFERENCE_NOT_FOUND = (40401, 40402, 40403)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_REQUEST_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_WRONG_PATH = "correct the URL (of Apicurio Registry, it ends in /apis/ccompat/v7)"


class _UnknownSchemaError(Exception):
    """The registry has no such schema."""


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry with Confluent's HTTP protocol: Confluent's own, Apicurio's (`/apis/ccompat/v7`), Karapace.

    Schemas never change, so each is read once and kept as long as this object: make one, and use it for all batches.
    No attribute with a secret is shown, and none is logged.

    Attributes:
        url: Its address, `http://` or `https://`; several addresses of one registry are tried in turn. A user and a
            password in it are used like `user` and `password`.
        user: User, or API key, for HTTP's basic authentication.
        password: Its password, or API secret.
        token: A bearer token, in place of user and password.
        ca_file: PEM file of the authorities that sign the registry's certificate; those of the system by default.
        certificate_file: PEM file of a client certificate.
        key_file: PEM file of its key, if that is not in `certificate_file`.
        key_password: The password of the key.
        id_size: Bytes of a schema's id in the records: 4, or 8 as Apicurio's converters before version 3 write it.
        timeout: Seconds for which a request is repeated if the registry does not answer, or answers 429 or 5xx.
    """

    url: str | Sequence[str]
    _: KW_ONLY
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    id_size: int = 4
    timeout: float = 60.0
    _logins: Sequence[str | None] = field(default=(), init=False, repr=False, compare=False)
    _schemas: dict[int, Translated] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lock: Any = field(default_factory=Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = [] if self.id_size in (4, 8) else [f"id_size is {self.id_size!r}; it can be 4, 8"]
        given = [self.url] if isinstance(self.url, str) else list(self.url)
        if not given:
            faults.append("url is empty; name the address of the schema registry")
        if any(_without_login(url) is None for url in given):
            faults.append("url is not an address that begins with http:// or https://")
        if self.token is not None and self.user is not None:
            faults.append("token excludes user and password; give one of them")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            # HTTP's client would refuse it with an error that shows it.
            faults.append("token has characters that no header can have, such as a line break")
        if self.password is not None and self.user is None:
            faults.append("password needs user")
        if self.key_file is not None and self.certificate_file is None:
            faults.append("key_file needs certificate_file")
        if faults:
            raise ConfigError(faults)
        # The login of an address must not be shown with it.
        object.__setattr__(self, "_logins", tuple(_login(url) for url in given))
        object.__setattr__(self, "url", tuple(_without_login(url) or "" for url in given))

    def schema(self, schema_id: int) -> Translated | str:
        """Return the schema with this id, or why values cannot be decoded with it.

        Raises:
            SchemaRegistryError: The registry cannot be asked.
        """
        with self._lock:
            if schema_id in self._schemas:
                return self._schemas[schema_id]
            try:
                found = self._get(f"/schemas/ids/{schema_id}", (_SCHEMA_NOT_FOUND,))
                self._schemas[schema_id] = translate(_avro_of(found), list(self._references(found, set())))
            except _UnknownSchemaError:
                hint = "; ids of 8 bytes need id_size=8" if schema_id == 0 and self.id_size == 4 else ""
                # It is asked for again with the next batch: the registry may be behind.
                return f"the registry has no schema {schema_id}{hint}"
            except AvroSchemaError as error:
                return f"schema {schema_id} cannot be used: {error}"
            return self._schemas[schema_id]

    def check(self) -> None:
        """Check that the registry answers, and that it accepts the login.

        Raises:
            SchemaRegistryError: It does not.
        """
        self._get("/schemas/types", ())

    def _references(self, found: dict[str, Any], seen: set[tuple[str, object]]) -> Sequence[str]:
        """Return the schemas that one refers to, and those that they refer to."""
        schemas: list[str] = []
        for reference in found.get("references") or ():
            subject, version = str(reference.get("subject")), reference.get("version")
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
            try:
                referred = self._get(path, _REFERENCE_NOT_FOUND)
            except _UnknownSchemaError:
                raise AvroSchemaError(
                    f"the registry has no version {version} of {subject}, to which it refers"
                ) from None
            text = _avro_of(referred)
            schemas += [*self._references(referred, seen), text]
        return schemas

    def _get(self, path: str, not_found: Sequence[int]) -> Any:
        """Return the JSON that the registry answers.

        Args:
            path: What is asked for.
            not_found: The registry's codes for "there is no such thing".

        Raises:
            _UnknownSchemaError: It answers with one of the codes.
            SchemaRegistryError: It does not answer in time, or something else.
        """
        until = time.monotonic() + self.timeout
        pause = _FIRST_PAUSE
        attempt = 0
        while True:
            place = attempt % len(self.url)
            address = self.url[place]
            try:
                return self._answer(address, path, self._logins[place], max(1.0, until - time.monotonic()))
            except HTTPError as error:
                with error:
                    if error.code not in _TRANSIENT:
                        raise _refused(error, address, not_found) from None
                failure = f"{error.code} {error.reason}"
            except (URLError, OSError, HTTPException) as error:
                reason = error.reason if isinstance(error, URLError) else error
                if isinstance(reason, ssl.SSLError) and not isinstance(reason, ssl.SSLEOFError):
                    raise SchemaRegistryError(
                        f"the schema registry {address} cannot be trusted or does not trust us: {reason}; correct "
                        "ca_file or certificate_file",
                        retriable=False,
                    ) from None
                failure = str(reason) or type(reason).__name__
            attempt += 1
            if time.monotonic() + pause > until:
                raise SchemaRegistryError(
                    f"the schema registry {address} did not answer for {self.timeout:g} seconds: {failure}",
                    retriable=True,
                )
            logger.debug("the schema registry %s does not answer: %s", address, failure)
            if attempt % len(self.url) == 0:
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _answer(self, address: str, path: str, login: str | None, seconds: float) -> Any:
        request = Request(f"{address}{path}", headers={"Accept": _ACCEPT})
        authorization = self._authorization or login
        if authorization is not None:
            # Such a header is not sent to the address of a redirection.
            request.add_unredirected_header("Authorization", authorization)
        with self._opener.open(request, timeout=min(_REQUEST_SECONDS, seconds)) as response:
            body = response.read()
        try:
            return json.loads(body)
        except ValueError:
            raise SchemaRegistryError(
                f"{address} does not answer like a schema registry; {_WRONG_PATH}", retriable=False
            ) from None

    @property
    def _authorization(self) -> str | None:
        if self.token is not None:
            return f"Bearer {self.token}"
        return None if self.user is None else _basic(self.user, self.password or "")

    @cached_property
    def _opener(self) -> OpenerDirector:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file, self.key_password)
        except OSError as error:
            raise ConfigError([f"ca_file, certificate_file or key_file of the schema registry: {error}"]) from None
        return build_opener(HTTPSHandler(context=context))


def _avro_of(found: Any) -> str:
    """Return the schema in an answer of the registry.

    Raises:
        AvroSchemaError: It is of another kind.
        SchemaRegistryError: There is none.
    """
    kind = found.get("schemaType", "AVRO") if isinstance(found, dict) else None
    if kind not in (None, "AVRO"):
        raise AvroSchemaError(f"it is of the type {kind}, and only AVRO is decoded")
    if kind is None or not isinstance(found.get("schema"), str):
        raise SchemaRegistryError(
            f"the registry's answer has no schema: {json.dumps(found)[:80]}; {_WRONG_PATH}", retriable=False
        )
    schema: str = found["schema"]
    return schema


def _refused(error: HTTPError, address: str, not_found: Sequence[int]) -> Exception:
    """Return the exception for an answer that another attempt would get again."""
    try:
        told = json.loads(error.read())
    except (ValueError, OSError, HTTPException):
        told = None
    code = told.get("error_code") if isinstance(told, dict) else None
    if error.code == 404 and code in not_found:
        return _UnknownSchemaError()
    if error.code in (401, 403):
        sentence = "refuses the login; correct user and password, or token"
    elif error.code == 404:
        sentence = f"has no such path; {_WRONG_PATH}"
    elif 300 <= error.code < 400:
        sentence = "redirects; correct the URL"
    else:
        sentence = str(told.get("message") or error.reason) if isinstance(told, dict) else str(error.reason)
    return SchemaRegistryError(f"the schema registry {address} answers {error.code}: {sentence}", retriable=False)


def _without_login(url: str) -> str | None:
    """Return an address without user and password, or None if it is none."""
    try:
        parts = urlsplit(url.strip().rstrip("/"))
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return None
    if not is_address or parts.query or parts.fragment:
        return None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _login(url: str) -> str | None:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return None
    return None if parts.username is None else _basic(unquote(parts.username), unquote(parts.password or ""))


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
