"""The client of a schema registry, against a real HTTP server in this process that keeps the registry's protocol."""

import json
import logging
import socket
import ssl
import subprocess

import pytest

from stream_merge import ConfigError
from stream_merge.debezium import SchemaRegistry
from stream_merge.errors import SchemaRegistryError
from tests.debezium.registry_server import serving

INNER = {"type": "record", "name": "Inner", "namespace": "n", "fields": [{"name": "i", "type": "int"}]}


@pytest.fixture
def server():
    with serving() as registry:
        yield registry


def closed_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def test_a_schema_is_asked_for_once(server):
    number = server.add('"string"')
    registry = SchemaRegistry(url=f"{server.url}/")
    assert [registry.schema(number).connect for _ in range(3)] == [{"type": "string", "optional": False}] * 3
    assert server.requests == [f"/schemas/ids/{number}"]


def test_an_unknown_schema_is_asked_for_again(server):
    registry = SchemaRegistry(url=server.url)
    assert registry.schema(1) == "the registry has no schema 1"
    server.add('"long"')
    assert registry.schema(1).connect["type"] == "int64"
    assert registry.schema(0) == "the registry has no schema 0; ids of 8 bytes need id_size=8"


def test_references_are_followed_to_their_ends(server):
    server.add(json.dumps(INNER), "inner/one")
    middle = {"type": "record", "name": "Middle", "namespace": "n", "fields": [{"name": "m", "type": "Inner"}]}
    inner = {"name": "n.Inner", "subject": "inner/one", "version": 1}
    server.add(json.dumps(middle), "middle", references=[inner])
    outer = {
        "type": "record",
        "name": "o.O",
        "fields": [{"name": "m", "type": "n.Middle"}, {"name": "i", "type": "n.Inner"}],
    }
    both = [{"name": "n.Middle", "subject": "middle", "version": 1}, inner]
    registry = SchemaRegistry(url=server.url)
    found = registry.schema(server.add(json.dumps(outer), "outer", references=both))
    assert found.sql == "STRUCT<`m`: STRUCT<`m`: STRUCT<`i`: INT>>, `i`: STRUCT<`i`: INT>>"
    lost = server.add(json.dumps(outer), references=[{"name": "n.Middle", "subject": "gone", "version": 3}])
    why = f"schema {lost} cannot be used: the registry has no version 3 of gone, to which it refers"
    assert registry.schema(lost) == why


def test_schemas_of_other_kinds_are_refused(server):
    protobuf = server.add('syntax = "proto3";', schemaType="PROTOBUF")
    registry = SchemaRegistry(url=server.url)
    assert registry.schema(protobuf) == "schema 1 cannot be used: it is of the type PROTOBUF, and only AVRO is decoded"


def test_answers_that_may_change_are_waited_for(server):
    server.answers = [503, 429, 500]
    registry = SchemaRegistry(url=server.url)
    registry.check()
    assert server.requests == ["/schemas/types"] * 4


def test_the_next_address_is_tried_when_one_does_not_answer(server):
    number = server.add('"int"')
    registry = SchemaRegistry(url=[f"http://127.0.0.1:{closed_port()}", server.url])
    assert registry.schema(number).connect["type"] == "int32"


@pytest.mark.parametrize("answers", [[503] * 50, None])
def test_a_registry_that_does_not_answer_is_given_up_in_time(server, answers):
    server.answers = answers or []
    url = server.url if answers else f"http://127.0.0.1:{closed_port()}"
    registry = SchemaRegistry(url=url.replace("//", "//reader:s3cret@"), timeout=1)
    reason = "503 Service Unavailable" if answers else "Connection refused"
    with pytest.raises(SchemaRegistryError, match=f"{url} did not answer for 1 seconds: .*{reason}") as caught:
        registry.check()
    assert caught.value.retriable
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "login", [{"user": "key", "password": "s3:cret"}, {"token": "s3cret-token"}, {"in_url": "key:s3%3Acret@"}]
)
def test_the_login_is_sent_and_never_shown(server, login, caplog):
    caplog.set_level(logging.DEBUG)
    if "token" in login:
        server.login = "Bearer s3cret-token"
    else:
        server.require_basic("key", "s3:cret")
    server.answers = [503]
    url = server.url.replace("//", f"//{login.pop('in_url', '')}")
    registry = SchemaRegistry(url=url, **login)
    registry.check()
    assert server.authorizations == [server.login] * len(server.requests)
    server.login = "Bearer other"
    with pytest.raises(SchemaRegistryError, match="answers 401: refuses the login; correct user") as caught:
        registry.check()
    assert not caught.value.retriable
    shown = f"{registry!r} {caught.value} {caplog.text}"
    assert "127.0.0.1" in shown
    assert not any(secret in shown for secret in ("s3:cret", "s3%3Acret", "s3cret"))


def test_what_is_no_registry_is_named(server):
    registry = SchemaRegistry(url=f"{server.url}/other")
    with pytest.raises(SchemaRegistryError, match=r"/other answers 404: has no such path; correct the URL") as caught:
        registry.schema(1)
    assert not caught.value.retriable


def test_certificates_are_checked_on_both_sides(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    with serving(context) as server:
        ours = {"ca_file": str(certificate), "certificate_file": str(certificate), "key_file": str(key)}
        SchemaRegistry(url=server.url, **ours).check()
        with pytest.raises(SchemaRegistryError, match=r"cannot be trusted .*correct ca_file or certificate_file"):
            SchemaRegistry(url=server.url).check()
        with pytest.raises(SchemaRegistryError) as refused:
            SchemaRegistry(url=server.url, ca_file=str(certificate), timeout=0.5).check()
        assert server.url in str(refused.value)
    with pytest.raises(ConfigError, match=r"ca_file, certificate_file or key_file of the schema registry: .*No such"):
        SchemaRegistry(url="https://127.0.0.1:1", ca_file=str(tmp_path / "none.pem")).check()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"url": "registry:8081"}, "url is not an address"),
        ({"url": []}, "url is empty"),
        ({"url": "http://:s3cret@"}, "url is not an address"),
        ({"url": "http://r", "id_size": 5}, "id_size is 5; it can be 4, 8"),
        ({"url": "http://r", "token": "s3cret", "user": "a"}, "token excludes user and password"),
        ({"url": "http://r", "token": "s3cret\n"}, "token has characters that no header can have"),
        ({"url": "http://r", "password": "s3cret"}, "password needs user"),
        ({"url": "http://r", "key_file": "k"}, "key_file needs certificate_file"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, fault):
    with pytest.raises(ConfigError, match=fault) as caught:
        SchemaRegistry(**options)
    assert "s3cret" not in str(caught.value)
