"""Values from the environment: where they go, and that nothing shows them."""

import io
import logging

import pytest

from stream_merge.cli.file.secrets import Secrets, substitute

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="shop" password="p4ss\'word";'


def filled(data, **environ):
    """Return the values with the environment filled in, the faults, and the secrets."""
    secrets = Secrets()
    values, faults = substitute(data, environ, secrets)
    return values, faults, secrets


def secrets_of(*values):
    secrets = Secrets()
    for value in values:
        secrets.add(value)
    return secrets


def test_values_are_filled_wherever_a_text_stands():
    data = {"a": {"b": ["${X}", "x${X}y${X}"]}, "list": [{"${X}": "${X:-other}"}], "n": 5, "yes": True}
    values, faults, _ = filled(data, X="value")
    assert values == {"a": {"b": ["value", "xvaluey" + "value"]}, "list": [{"${X}": "value"}], "n": 5, "yes": True}
    assert faults == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${MISSING:-default}", "default"),
        ("${MISSING:-}", ""),
        ("${MISSING:-a:-b}", "a:-b"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("$${X}", "${X}"),
        ("$$${X}", "$${X}"),
        ("$X", "$X"),
        ("100 $", "100 $"),
        ("${DOLLAR}", "${X}"),
    ],
)
def test_forms_of_references(text, value):
    values, faults, _ = filled({"a": text}, X="value", EMPTY="", DOLLAR="${X}")
    assert (values, faults) == ({"a": value}, [])


def test_faults_have_the_location_of_their_option():
    _, faults, _ = filled({"a": [{"b": "${X} ${Y}"}], "c": "${-}", "d": "${X"}, Y="")
    missing = "the environment has no variable X; set it, or give a default: ${X:-default}"
    syntax = "${ begins the name of an environment variable, ${NAME} or ${NAME:-default}; write $${ for a plain ${"
    assert faults == [(("a", 0, "b"), missing), (("c",), syntax), (("d",), syntax)]


def test_values_of_the_environment_are_masked_and_defaults_are_not():
    _, _, secrets = filled({"a": "${X}", "b": "${Y:-default}", "c": "${SHORT}"}, X="value", SHORT="abc")
    assert secrets.mask("a value, a default and abc; valuevalue") == "a ***, a default and abc; ******"


def test_values_of_options_whose_name_says_so_are_masked():
    options = {
        "kafka.ssl.keystore.password": "hunter22",
        "kafka.sasl.jaas.config": JAAS,
        "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n",
        "kafka.ssl.truststore.location": "/etc/kafka/key.jks",
        "fs.s3a.secret.key": "AKIA/wJalr+",
        "fs.s3a.aws.credentials.provider": "org.Provider",
        "token.enabled": "true",
        "token.port": "9092",
        "kafka.security.protocol": "SASL_SSL",
    }
    _, _, secrets = filled({"source": {"options": options}})
    assert secrets.mask(f"login with {JAAS}") == "login with ***"
    assert secrets.mask("hunter22 p4ss'word AKIA/wJalr+ org.Provider") == "*** *** *** ***"
    assert secrets.mask("key MIIEvQIBADANBg of /etc/kafka/key.jks") == "key *** of /etc/kafka/key.jks"
    assert secrets.mask("true 9092 SASL_SSL username shop") == "true 9092 SASL_SSL username shop"


def test_what_json_and_urls_make_of_a_value_is_masked():
    secrets = secrets_of('pa"ss\\ü/&')
    assert secrets.mask('{"a": "pa\\"ss\\\\ü/&"} {"a": "pa\\"ss\\\\\\u00fc/&"} ?x=pa%22ss%5C%C3%BC%2F%26') == (
        '{"a": "***"} {"a": "***"} ?x=***'
    )


def test_the_longest_value_goes_first_and_lines_of_a_value_are_masked():
    secrets = secrets_of("secret", "secretive", "-----BEGIN KEY-----\nMIIEvQIBADANBg\nshort\n")
    assert secrets.mask("secretive secret") == "*** ***"
    assert secrets.mask("line: MIIEvQIBADANBg, short") == "line: ***, short"


def test_nothing_is_masked_without_secrets():
    assert Secrets().mask("text") == "text"
    assert secrets_of("abc", "").mask("abc") == "abc"


def test_secrets_do_not_show_themselves():
    secrets = secrets_of("hunter22")
    secrets.mask("x")
    assert "hunter22" not in repr(secrets)
    assert "hunter22" not in str(secrets)


@pytest.fixture
def logged():
    """Return a logger whose handler masks the value `hunter22`, and a function that gives what was written."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s %(extra)s", defaults={"extra": ""}))
    handler.addFilter(secrets_of("hunter22").filter())
    logger = logging.getLogger("stream_merge_test_of_secrets")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, stream.getvalue
    logger.removeHandler(handler)


def test_log_records_are_masked(logged):
    logger, text = logged
    logger.warning("password %s of %d", "hunter22", 5)
    logger.getChild("below").warning("%(a)s", {"a": ["hunter22"]})
    logger.warning("", extra={"extra": "hunter22"})
    logger.warning("100 %")
    assert text() == "WARNING password *** of 5 \nWARNING ['***'] \nWARNING  ***\nWARNING 100 % \n"


def test_exceptions_of_log_records_are_masked(logged):
    logger, text = logged
    passwords = {}
    try:
        try:
            passwords["hunter22"]
        except KeyError as error:
            raise ValueError("no hunter22") from error
    except ValueError:
        logger.exception("failed", stack_info=True)
    assert "hunter22" not in text()
    assert "KeyError: '***'" in text()
    assert "ValueError: no ***" in text()
    assert "Stack (most recent call last)" in text()


def test_a_record_whose_arguments_do_not_fit_is_shown_masked(logged):
    logger, text = logged
    logger.warning("%s and %s", "hunter22")
    assert text() == "WARNING %s and %s ('***',) \n"
