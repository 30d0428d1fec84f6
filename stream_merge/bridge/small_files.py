"""Reads and writes small text files in any storage that Spark can reach, without a Spark job."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import java_class


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return the content of a file; None if it does not exist.

    Raises:
        Py4JJavaError: It cannot be read.
    """
    jvm: Any = spark._jvm
    file, system = _located(spark, path)
    if not system.exists(file):
        return None
    stream = system.open(file)
    try:
        return bytes(java_class(jvm, "org.apache.commons.io.IOUtils").toByteArray(stream)).decode()
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, replacing an existing one; a process killed meanwhile may leave half of it.

    Raises:
        Py4JJavaError: It cannot be written.
    """
    file, system = _located(spark, path)
    stream = system.create(file, True)
    try:
        stream.write(text.encode())
    finally:
        stream.close()


def _located(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    file = java_class(jvm, "org.apache.hadoop.fs.Path")(path)
    return file, file.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
