"""An S3 server, a proxy before it, and what a driver needs to reach it."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.object_store.s3_proxy import S3Proxy
from tests.services.maven import copy_jars
from tests.services.processes import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SWITCH = "STREAM_MERGE_TEST_OBJECT_STORE"
BUCKET = "lake"
START_SECONDS = 60

HADOOP = "3.5.0"
"""The Hadoop of pyspark 4.2."""
ANALYTICS = "1.3.1"
AWS_SDK = "2.35.4"
"""What hadoop-aws names. Its own choice, the bundle of all services, is some 600 MB; these modules are 15."""
UNUSED_JARS = ("slf4j", "commons-logging", "netty-buffer", "netty-codec", "netty-common", "netty-handler")
"""Spark has them."""


@pytest.fixture(scope="session")
def moto_python() -> str:
    """Return the Python that has moto, the S3 server."""
    value = os.environ.get(SWITCH)
    if not value:
        pytest.skip(f"set {SWITCH} to 1, or to a Python that has moto: pip install 'moto[s3,server]'")
    python = sys.executable if value == "1" else value
    found = subprocess.run([python, "-c", "import moto.server"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.fail(f"{python} has no moto, which {SWITCH} asks for: pip install 'moto[s3,server]'")
    return python


@pytest.fixture(scope="session")
def s3_jars(moto_python: str) -> list[str]:
    """Return the jars of Hadoop's S3 client."""
    if version("pyspark").split(".")[:2] < ["4", "2"]:
        pytest.skip("Hadoop has conditional PUTs since 3.5, which comes with Spark 4.2")
    try:
        connector = copy_jars(
            "hadoop-aws",
            [
                f"org.apache.hadoop:hadoop-aws:{HADOOP}",
                f"software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:{ANALYTICS}",
            ],
            alone=True,
        )
        sdk = copy_jars(
            "aws-sdk", [f"software.amazon.awssdk:{name}:{AWS_SDK}" for name in ("s3", "s3-transfer-manager", "sts")]
        )
    except Unavailable as reason:
        pytest.fail(f"{SWITCH} asks for what cannot be had: {reason}")
    jars = [*connector.glob("*.jar"), *sdk.glob("*.jar")]
    return [str(jar) for jar in sorted(jars) if not jar.name.startswith(UNUSED_JARS)]


@pytest.fixture
def s3(moto_python: str, tmp_path: Path) -> Iterator[S3Proxy]:
    """Return a proxy before a new S3 server with one bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (tmp_path / "s3.log").open("w") as log:
        server = subprocess.Popen(
            [moto_python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _make_bucket(port)
        proxy = S3Proxy(port)
        yield proxy
        proxy.close()
    finally:
        server.kill()
        server.wait()


def _make_bucket(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("PUT", f"/{BUCKET}")
            assert connection.getresponse().status == 200
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
        finally:
            connection.close()


@pytest.fixture
def s3_conf(spark: SparkSession, s3: S3Proxy, s3_jars: list[str]) -> dict[str, str]:
    """Return the settings of a driver that reaches the server, with Delta's default LogStore."""
    from stream_merge.packages import log_store_jar
    from tests.streaming.child_session import child_conf

    conf = child_conf(spark)
    jars = [*filter(None, conf.get("spark.jars", "").split(",")), *s3_jars, log_store_jar()]
    return {
        **conf,
        "spark.jars": ",".join(jars),
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": "secret",
        # An answer that is lost as often as the client asks is to be lost within seconds.
        "spark.hadoop.fs.s3a.attempts.maximum": "2",
        "spark.hadoop.fs.s3a.retry.limit": "2",
        "spark.hadoop.fs.s3a.retry.interval": "100ms",
    }
