"""Which packages Spark fetches, and what is said of those that it cannot fetch."""

import logging
import subprocess
import threading

import pytest

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.pipeline import DeltaSource, FilesSource, KafkaSource, SparkSettings
from stream_merge.cli.file.secrets import Secrets
from stream_merge.cli.query.packages import find_packages, merged, source_packages
from stream_merge.cli.run.session import DEFAULT_CONF, JvmOutput, explain_start_failure, find_settings, launch_settings
from stream_merge.packages import log_store_jar

KAFKA = KafkaSource(format="kafka", bootstrap_servers="localhost:9092", topics=["orders"])
UNRESOLVED = """\
:: problems summary ::
:::: WARNINGS
		module not found: com.example#nothing;1.0
		::::::::::::::::::::::::::::::::::::::::::::::
		::          UNRESOLVED DEPENDENCIES         ::
		::::::::::::::::::::::::::::::::::::::::::::::
		:: com.example#nothing;1.0: not found
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: com.example#nothing;1.0: not found]
	at org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:518)
"""


@pytest.fixture(autouse=True)
def _versions(monkeypatch):
    versions = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}
    monkeypatch.setattr("stream_merge.cli.query.packages.version", versions.__getitem__)
    monkeypatch.setattr("stream_merge.packages.version", versions.__getitem__)


def test_the_source_decides_which_packages_there_are():
    files = {"format": "files", "path": "./x", "schema": "id INT"}
    avro = FilesSource.model_validate({**files, "file_format": "avro"})
    assert source_packages(KAFKA, "4.0.1") == ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1"]
    assert source_packages(avro, "4.2.0") == ["org.apache.spark:spark-avro_2.13:4.2.0"]
    assert source_packages(FilesSource.model_validate(files), "4.2.0") == []
    assert source_packages(DeltaSource(format="delta", table="t"), "4.2.0") == []
    assert source_packages(KAFKA, "4.0.1", has_registry=True) == [
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1",
        "org.apache.spark:spark-avro_2.13:4.0.1",
    ]
    assert find_packages(SparkSettings(), KAFKA) == [
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    ]


def test_a_package_of_the_file_replaces_the_chosen_one_of_the_same_artifact():
    chosen = ["io.delta:delta-spark_4.2_2.13:4.4.0", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"]
    assert merged(chosen, ["io.delta:delta-spark_2.13:4.0.1", "com.example:more:1"]) == [
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "io.delta:delta-spark_2.13:4.0.1",
        "com.example:more:1",
    ]


def test_the_jar_of_our_log_store_comes_with_its_name():
    name = {"spark.delta.logStore.s3a.impl": "streammerge.ConditionalCreateLogStore"}
    assert find_settings(SparkSettings(conf=name), name="shop")["spark.jars"] == log_store_jar()
    more = SparkSettings(conf={**name, "spark.jars": "/more.jar"})
    assert find_settings(more, name="shop")["spark.jars"] == f"/more.jar,{log_store_jar()}"
    other = SparkSettings(conf={"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"})
    assert "spark.jars" not in find_settings(other, name="shop")


def test_java_gets_bounds_for_avro_beside_the_options_of_the_file():
    own = SparkSettings(conf={"spark.executor.defaultJavaOptions": "-Xss4m"})
    found = find_settings(own, name="shop", source=KAFKA, has_registry=True)
    limit = "-Dorg.apache.avro.limits.string.maxLength=134217728 "
    assert found["spark.driver.defaultJavaOptions"].startswith(limit)
    assert found["spark.executor.defaultJavaOptions"].startswith(limit)
    assert found["spark.executor.defaultJavaOptions"].endswith(" -Xss4m")
    assert "org.apache.spark:spark-avro_2.13:4.2.0" in found["spark.jars.packages"].split(",")


def test_none_are_chosen_where_the_cluster_has_them():
    settings = SparkSettings(choose_packages=False, packages=["com.example:more:1"])
    assert find_packages(settings, KAFKA) == ["com.example:more:1"]


def test_settings_of_the_file_go_over_the_defaults_and_lists_are_joined():
    settings = SparkSettings.model_validate(
        {
            "master": "local[3]",
            "conf": {
                "spark.ui.showConsoleProgress": True,
                "spark.sql.shuffle.partitions": 7,
                "spark.sql.extensions": "com.example.Extension",
                "spark.jars.packages": "com.example:more:1",
            },
        }
    )
    found = find_settings(settings, name="shop", source=KAFKA, defaults={"spark.ui.enabled": "false"})
    assert found == {
        **DEFAULT_CONF,
        "spark.app.name": "stream-merge shop",
        "spark.master": "local[3]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "true",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,com.example.Extension",
        "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0,org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,"
        "com.example:more:1",
    }


def test_a_secret_that_is_part_of_a_package_keeps_no_package_back():
    secrets = Secrets()
    for value in ("kafka", "s3cret", "spark"):
        secrets.add(value)
    settings = find_settings(SparkSettings(), name="shop", source=KAFKA) | {
        "spark.hadoop.fs.s3a.secret.key": "s3cret",
    }
    launched = launch_settings(settings, secrets)
    assert launched["spark.jars.packages"] == settings["spark.jars.packages"]
    assert "spark.hadoop.fs.s3a.secret.key" not in launched
    assert set(settings) - set(launched) == {
        "spark.hadoop.fs.s3a.secret.key",
        *(name for name in ("spark.sql.catalog.spark_catalog", "spark.sql.extensions") if "spark" in settings[name]),
    }


def test_the_password_of_a_repository_is_not_shown_among_the_arguments():
    secrets = Secrets()
    secrets.add("s3cret")
    settings = {"spark.jars.repositories": "https://reader:s3cret@packages.invalid/all"}
    with pytest.raises(PipelineError, match=r"spark\.jars\.ivySettings") as caught:
        launch_settings(settings, secrets)
    assert "s3cret" not in str(caught.value)
    open_ones = {"spark.jars.repositories": "https://packages.invalid/s3cret"}
    assert launch_settings(open_ones, secrets) == open_ones


@pytest.mark.parametrize("option", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"])
def test_a_secret_among_the_options_of_java_is_refused(option):
    secrets = Secrets()
    secrets.add("s3cret")
    with pytest.raises(PipelineError, match="@/path/of/the/file") as caught:
        launch_settings({option: "-Djavax.net.ssl.trustStorePassword=s3cret"}, secrets)
    assert option in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE
    # Parts of texts that happen to be the same are no secret: a user's name is the name of a folder, too.
    secrets.add("kafka")
    for harmless in (
        "-Xss4m",
        "-Djava.security.auth.login.config=/etc/kafka/jaas.conf -Xss4m",
        "@/etc/kafka/java-options",
    ):
        assert launch_settings({option: harmless}, secrets) == {option: harmless}
    for secret in ("-Dproxy.pass='s3cret' -Xss4m", "-Xss4m -Da.token=key:s3cret", '-Da.b="s3cret"'):
        with pytest.raises(PipelineError):
            launch_settings({option: secret}, secrets)


def test_a_package_that_no_repository_has_is_named():
    error = explain_start_failure(
        UNRESOLVED.splitlines(), "com.example:nothing:1.0", "[JAVA_GATEWAY_EXITED] Java gateway"
    )
    assert str(error) == (
        "Spark could not fetch the packages com.example:nothing:1.0: no repository has them. Check the names and the "
        "network; "
        '"spark.jars.ivySettings" and "spark.jars.repositories" in [spark.conf] set other repositories.'
    )
    assert error.exit_code is ExitCode.CANNOT_START


def test_a_package_whose_jar_is_missing_is_named():
    """The repository has the description of the package, and not the package."""
    downloads = (
        "download failed: com.example#nothing;1.0!nothing.jar, download failed: "
        "org.example#more_2.13;2!more_2.13.jar(bundle)"
    )
    lines = [
        "\t[FAILED     ] com.example#nothing;1.0!nothing.jar:  (0ms)",
        f'Exception in thread "main" java.lang.RuntimeException: [{downloads}]',
    ]
    error = explain_start_failure(lines, "com.example:nothing:1.0", "[JAVA_GATEWAY_EXITED] Java gateway")
    assert str(error).startswith(
        "Spark could not fetch the packages com.example:nothing:1.0, org.example:more_2.13:2: no repository has them. "
        "Check "
    )
    assert error.exit_code is ExitCode.CANNOT_START


def test_a_repository_that_cannot_be_reached_is_told_apart():
    lines = [
        "Server access error at url https://repo.example/x.pom (java.net.UnknownHostException)",
        *UNRESOLVED.splitlines(),
    ]
    assert "com.example:nothing:1.0: no repository can be reached." in str(explain_start_failure(lines, "", ""))


def test_another_failure_of_the_start_is_told_by_the_line_that_says_it():
    lines = ["Picked up JAVA_TOOL_OPTIONS", "Error: Could not create the Java Virtual Machine.", "\tat x"]
    assert str(explain_start_failure(lines, "", "[JAVA_GATEWAY_EXITED]")) == (
        "Spark did not start: Error: Could not create the Java Virtual Machine. --log-level debug shows its output."
    )
    assert str(explain_start_failure([], "", "[JAVA_GATEWAY_EXITED] exited.\nmore")) == (
        "Spark did not start: [JAVA_GATEWAY_EXITED] exited. --log-level debug shows its output."
    )


def test_what_the_jvm_writes_goes_to_the_log_and_a_broker_that_is_away_is_told_once(caplog):
    line = (
        "26/11/22 10:00:00 WARN NetworkClient: [AdminClient clientId=adminclient-1] Connection to node -1 "
        "(kafka/10.0.0.5:9092) could not be established. Node may not be available."
    )
    output = JvmOutput()
    script = f"echo 'fetching packages'; echo '{line}' >&2; echo '{line}' >&2"
    caplog.set_level(logging.DEBUG)
    with output.captured() as streams:
        process = subprocess.Popen(["sh", "-c", script], **streams)
    process.wait()
    output.wait()
    assert list(output.lines) == ["fetching packages", line, line]
    # py4j tells, too, when it collects the garbage of another test's session.
    own = [record for record in caplog.records if record.name in ("spark", "stream_merge.cli")]
    assert [(record.name, record.levelname, record.getMessage()) for record in own] == [
        ("spark", "DEBUG", "fetching packages"),
        ("spark", "DEBUG", line),
        ("stream_merge.cli", "WARNING", "no Kafka broker answers at kafka/10.0.0.5:9092; still trying"),
        ("spark", "DEBUG", line),
    ]
    assert "jvm-output" not in [thread.name for thread in threading.enumerate()]


def test_a_broker_that_advertises_an_address_that_does_not_exist_is_told_once(caplog):
    line = (
        "26/11/24 10:00:00 WARN NetworkClient: [AdminClient clientId=adminclient-1] Error connecting to node "
        "kafka:9092 (id: 1 rack: "
        "null)\njava.net.UnknownHostException: kafka"
    )
    output = JvmOutput()
    with output.captured() as streams:
        process = subprocess.Popen(["printf", "%s\\n", line, line], **streams)
    process.wait()
    output.wait()
    assert [record.getMessage() for record in caplog.records if record.name == "stream_merge.cli"] == [
        "the Kafka broker advertises the address kafka:9092, which this machine cannot resolve; still trying. Correct "
        "its advertised.listeners, or make the name known here"
    ]
