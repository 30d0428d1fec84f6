"""The Spark jobs that ran, as the UI has them. Not by their number: Spark forgets the oldest of more than a
thousand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def items(spark: SparkSession, seq: Any) -> Iterator[Any]:
    """Iterate over a Scala collection."""
    yield from spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(seq)


def jobs_since(spark: SparkSession, since: int) -> list[Any]:
    """Return what the UI knows of the jobs from this id on."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    jobs = items(spark, spark.sparkContext._jsc.sc().statusStore().jobsList(None))
    return [job for job in jobs if job.jobId() >= since]


def job_descriptions(spark: SparkSession, since: int) -> list[str]:
    """Return the descriptions of the jobs from this id on."""
    options = [job.description() for job in jobs_since(spark, since)]
    return [option.get() if option.isDefined() else "" for option in options]


def next_job_id(spark: SparkSession) -> int:
    """Return the id that the next job will have."""
    return max((job.jobId() for job in jobs_since(spark, 0)), default=-1) + 1
