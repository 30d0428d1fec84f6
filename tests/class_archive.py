"""Write what the tests' JVMs start with: a class path with Delta Lake, and an archive of a merge's classes.

`python -m tests.class_archive FILE` does it; `make test` lets each JVM of the tests use the files. From the archive
JVMs start in two thirds of the time. A JVM that it does not fit, of another version or with another class path, starts
without it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark import SparkContext

from stream_merge import merge_sink
from stream_merge.packages import delta_package
from tests.conftest import SESSION_CONF
from tests.jvm.jars import FILE_SYSTEM, class_path_conf, description
from tests.streaming.child_session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_JARS = Path(pyspark.__file__).parent / "jars"


def main() -> None:
    """Write the archive that the argument names, and beside it what the class path needs."""
    archive = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        jars = [*file_system(archive.parent, Path(folder, "classes")), *delta_jars(Path(folder, "warehouse"))]
        conf = {**SESSION_CONF, **class_path_conf(jars), "spark.driver.memory": "1g"}
        conf["spark.driver.extraJavaOptions"] += f" '-XX:ArchiveClassesAtExit={archive}' -Xlog:cds*=off"
        merge_some(conf, Path(folder))
    description(archive).write_text(json.dumps({"package": delta_package(), "jars": jars}, indent=1))


def file_system(target: Path, classes: Path) -> list[str]:
    """Compile the file system that starts no processes, and return its jar; none where there is no compiler."""
    if shutil.which("javac") is None:
        return []
    sources = [str(source) for source in sorted((Path(__file__).parent / "jvm").glob("*.java"))]
    command = ["javac", "--release", "17", "-cp", f"{SPARK_JARS}/*", "-d", str(classes), *sources]
    subprocess.run(command, check=True)
    jar = target / f"{FILE_SYSTEM}.jar"
    with zipfile.ZipFile(jar, "w") as entries:
        for file in sorted(classes.iterdir()):
            entries.write(file, file.name)
    return [str(jar)]


def delta_jars(warehouse: Path) -> list[str]:
    """Return the jars of Delta's package that Spark does not have itself."""
    spark = start_session({**SESSION_CONF, "spark.jars.packages": delta_package()}, warehouse)
    jars = [jar.removeprefix("file://") for jar in spark.sparkContext.getConf().get("spark.jars", "").split(",")]
    end(spark)
    of_spark = {_without_version(jar.stem) for jar in SPARK_JARS.glob("*.jar")}
    # Ivy puts the group before the name.
    return [jar for jar in jars if _without_version(Path(jar).stem.partition("_")[2]) not in of_spark]


def _without_version(name: str) -> str:
    return re.sub(r"-\d.*", "", name)


def merge_some(conf: dict[str, str], folder: Path) -> None:
    """Load the classes of a session with these settings: stream into tables of both kinds, and merge into them."""
    spark = start_session(conf, folder / "warehouse")
    source = str(folder / "source")
    spark.sql("SELECT CAST(1 AS INT) AS id, 2 AS n, 3L AS s, 'd' AS op").write.json(source)
    stream = spark.readStream.schema("id INT, n INT, s BIGINT, op STRING").json(source)
    for number, vectors in enumerate(("true", "false")):
        sink = merge_sink(
            str(folder / f"target_{number}"),
            keys="id",
            sequence_by="s",
            delete_when="op = 'd'",
            except_columns="op",
            create_if_missing=True,
            table_properties={"delta.enableDeletionVectors": vectors},
        )
        writer = stream.writeStream.foreachBatch(sink).trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / f"checkpoint_{number}")).start().awaitTermination()
        rows = [(1, 1, 4, "u"), (2, 1, 4, "u")]
        sink.merge(spark.createDataFrame(rows, "id INT, n INT, s BIGINT, op STRING"))
        spark.read.format("delta").load(str(folder / f"target_{number}")).collect()
    end(spark)


def end(spark: SparkSession) -> None:
    """End the session and its JVM, which then writes its archive, so that the next session gets another JVM."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    # A JVM of Spark's ends when its input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(300)


if __name__ == "__main__":
    main()
