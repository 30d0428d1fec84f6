"""Holds how a broker is reached, as it was given and as it is written: secrets are written as names of variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import KafkaSource, RegistrySettings, SparkSettings
from stream_merge.cli.file.secrets import Secrets, is_secret, substitute

_REGISTRY = "registry."
_SPARK = "spark."
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_JAAS = re.compile(r"jaas", re.IGNORECASE)
_GIVEN = re.compile(r"([\w.]+)\s*=\s*[\"']?[^\"'\s;]")
_HARMLESS = re.compile(
    r"username|user|principal|scope|clientid|servicename|(use)?keytab|storekey|useticketcache|renewticket|debug",
    re.IGNORECASE,
)
_TAKEN = {
    "subscribe": "--topics",
    "subscribepattern": "--topics",
    "assign": "--topics",
    "startingoffsets": "starting_offsets in the file that is written",
    "endingoffsets": "nothing, since a stream has no end",
    "kafka.bootstrap.servers": "--bootstrap-servers",
    "registry.url": "--registry",
}
"""Options that are given in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How a broker and a registry are reached.

    Attributes:
        source: The broker, with the values of the environment filled in; its topics are not set.
        registry: The registry of schemas, if there is one, likewise.
        spark: Settings of Spark, likewise.
        lake: The folder of the tables, likewise.
        written: The options as they are to be written, by section and name; no value of it is a secret.
        to_set: Names of environment variables that the file needs, and that are not set to what was given.
        secrets: What must not be shown.
    """

    source: KafkaSource = field(repr=False)
    registry: RegistrySettings | None = field(repr=False)
    spark: SparkSettings = field(repr=False)
    lake: str
    written: Mapping[str, Mapping[str, str]]
    to_set: Mapping[str, str] = field(repr=False)
    secrets: Secrets


def read_connection(
    *,
    bootstrap_servers: str,
    options: Iterable[str],
    registry: str | None,
    lake: str,
    environ: Mapping[str, str],
) -> Connection:
    """Return a connection from the arguments of a command.

    A value may refer to the environment, `${NAME}`, and is written so. One that is a secret, by its name or by what is
    in it, is written as a reference to a variable, even if it was given as it is.

    Args:
        bootstrap_servers: The brokers.
        options: Each as NAME=VALUE: of Spark's Kafka source, or, with the prefix `registry.` or `spark.`, of the
            registry and of Spark.
        registry: The address of the registry.
        lake: The folder of the tables.
        environ: The environment.

    Raises:
        PipelineError: An option is given in another way, or refers to a variable that is not set.
    """
    given: dict[str, dict[str, str]] = {
        "source": {"bootstrap_servers": bootstrap_servers},
        "source.options": {},
        "registry": {} if registry is None else {"url": registry},
        "spark.conf": {},
        "lake": {"lake": lake},
    }
    for section, name, value in map(_split, options):
        given[section][name] = value
    if given["registry"] and registry is None:
        raise PipelineError("An option of the registry needs its address: --registry URL.", ExitCode.USAGE)
    secrets = Secrets()
    filled, faults = substitute(given, environ, secrets)
    if faults:
        location, sentence = faults[0]
        raise PipelineError(f"{location[-1]}: {sentence}.", ExitCode.USAGE)
    written: dict[str, dict[str, str]] = {}
    to_set: dict[str, str] = {}
    for section, values in given.items():
        written[section] = {}
        for name, value in values.items():
            text = filled[section][name]
            if _is_literal_secret(name, value):
                variable = _variable_of(section, name, text, environ)
                secrets.add(text)
                written[section][name] = f"${{{variable}}}"
                if environ.get(variable) != text:
                    to_set[variable] = text
            else:
                written[section][name] = value
    return Connection(
        source=KafkaSource(
            format="kafka",
            bootstrap_servers=filled["source"]["bootstrap_servers"],
            topics=["?"],
            options=filled["source.options"],
        ),
        registry=_registry_of(filled["registry"]),
        spark=SparkSettings(conf=filled["spark.conf"]),
        lake=_checked_lake(filled["lake"]["lake"]),
        written=written,
        to_set=to_set,
        secrets=secrets,
    )


def _split(option: str) -> tuple[str, str, str]:
    """Return section, name and value of an option."""
    name, equals, value = option.partition("=")
    name = name.strip()
    if not equals or not name or not value:
        raise PipelineError(
            f"--option {name or '?'} is not written as NAME=VALUE, for example "
            "--option kafka.security.protocol=SASL_SSL.",
            ExitCode.USAGE,
        )
    other = _TAKEN.get(name.lower())
    if other is not None:
        raise PipelineError(f"--option {name} is given by {other}; leave it out.", ExitCode.USAGE)
    if name.startswith(_REGISTRY):
        return "registry", name.removeprefix(_REGISTRY), value
    return ("spark.conf" if name.startswith(_SPARK) else "source.options"), name, value


def _registry_of(filled: Mapping[str, str]) -> RegistrySettings | None:
    from pydantic import ValidationError

    if not filled:
        return None
    try:
        return RegistrySettings.model_validate(
            {name: int(value) if value.isdigit() and name == "id_size" else value for name, value in filled.items()}
        )
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, fault["loc"]))
        raise PipelineError(f"--option registry.{name}: {fault['msg']}.", ExitCode.USAGE) from None


def _checked_lake(lake: str) -> str:
    folder = lake.strip()
    if _has_password(folder):
        raise PipelineError(
            "--lake has a password; give it as an option of Spark, such as --option "
            "'spark.hadoop.fs.s3a.secret.key=${SECRET_KEY}'.",
            ExitCode.USAGE,
        )
    if not folder or "{" in folder or "}" in folder:
        raise PipelineError(
            "--lake must be the path of a folder, without braces, which would be placeholders in a target.",
            ExitCode.USAGE,
        )
    return folder


def _is_literal_secret(name: str, value: str) -> bool:
    """Return whether a value has a secret that is not a reference to the environment."""
    plain = _REFERENCE.sub("", value)
    if name == "url" and _has_password(plain):
        return True
    if plain == value or not is_secret(name, value):
        return is_secret(name, value)
    if not _JAAS.search(name):
        return plain.strip() != ""
    # What surrounds the references is a login module and its options, of which few are known to be harmless.
    return any(not _HARMLESS.fullmatch(option) for option in _GIVEN.findall(plain))


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return False


def _variable_of(section: str, name: str, value: str, environ: Mapping[str, str]) -> str:
    """Return a variable that has the value, or the name of one that is to have it."""
    same = sorted(variable for variable, text in environ.items() if text == value and variable.isidentifier())
    if same:
        return same[0]
    words = name if section in ("source.options", "spark.conf") else f"{section}.{name}"
    return re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_").upper()
