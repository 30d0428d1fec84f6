"""A schema registry over HTTP in the tests' own process: it keeps Confluent's protocol as far as a reader needs it.

Its answers are those of Confluent's API reference: the paths, the names in the JSON, and the codes of errors.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Registry:
    """The schemas, and how the registry behaves.

    Attributes:
        url: The address.
        answers: Codes to answer the next requests with, in place of what they ask for.
        login: The header `Authorization` that it wants; None if it wants none.
        requests: The paths of all requests.
        authorizations: Their headers `Authorization`.
    """

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = []
        self.login: str | None = None
        self.requests: list[str] = []
        self.authorizations: list[str | None] = []
        self._schemas: dict[int, dict[str, Any]] = {}
        self._versions: dict[str, list[int]] = {}

    def add(self, schema: str, subject: str = "t-value", **more: Any) -> int:
        """Register a schema, and return its id; the same schema has the same id."""
        found = {"schema": schema, **more}
        number = next((number for number, each in self._schemas.items() if each == found), len(self._schemas) + 1)
        self._schemas[number] = found
        versions = self._versions.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def copy(self, number: int, other: int) -> None:
        """Register a schema under another id, as a second registry would have it."""
        self._schemas[other] = self._schemas[number]

    def require_basic(self, user: str, password: str) -> None:
        """Answer only to this user."""
        self.login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def answer(self, path: str) -> tuple[int, Any]:
        """Return the code and the JSON for a path."""
        if self.answers:
            code = self.answers.pop(0)
            return code, {"error_code": code, "message": "as the test says"}
        if path == "/schemas/types":
            return 200, ["JSON", "PROTOBUF", "AVRO"]
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            schema = self._schemas.get(int(found[1]))
            return (200, schema) if schema else (404, {"error_code": 40403, "message": f"Schema {found[1]} not found"})
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
            subject = unquote(found[1])
            versions = self._versions.get(subject)
            if versions is None:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            if int(found[2]) > len(versions):
                return 404, {"error_code": 40402, "message": f"Version {found[2]} not found."}
            number = versions[int(found[2]) - 1]
            return 200, {"subject": subject, "version": int(found[2]), "id": number, **self._schemas[number]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """Run a registry for the block, over TLS if there is a context."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            registry.requests.append(path)
            registry.authorizations.append(self.headers["Authorization"])
            if registry.login is not None and self.headers["Authorization"] != registry.login:
                code, body = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                code, body = registry.answer(path)
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
