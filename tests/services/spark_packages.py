"""Settings by which Spark gets its Kafka source where a repository lacks a part of it."""

from __future__ import annotations

from importlib.metadata import version

from tests.services.maven import copy_jars
from tests.services.processes import Unavailable

TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
OLDER_TOKEN_PROVIDER = "4.0.0"


def kafka_conf() -> dict[str, str]:
    """Return what a pipeline's `[spark.conf]` needs for the Kafka source to be had; normally nothing.

    Mirrors of Maven's repository may lack the token provider of the newest Spark, which the Kafka source loads but uses
    for Kerberos alone. One of an older Spark stands in for it then.

    Raises:
        Unavailable: That is not to be had either.
    """
    try:
        copy_jars("token-provider", [f"{TOKEN_PROVIDER}:{version('pyspark')}"], alone=True)
    except Unavailable:
        jars = copy_jars("token-provider", [f"{TOKEN_PROVIDER}:{OLDER_TOKEN_PROVIDER}"], alone=True)
        return {
            "spark.jars.excludes": TOKEN_PROVIDER,
            "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        }
    return {}
