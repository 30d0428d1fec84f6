"""Write the classes that a merge loads into an archive, from which later JVMs start in two thirds of the time.

`python -m tests.class_archive FILE` does it; `make test` lets each JVM of the tests use the file. A JVM that it does
not fit, of another version or with another class path, starts without it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from stream_merge import merge_sink
from stream_merge.packages import delta_package
from tests.conftest import SESSION_CONF
from tests.streaming.child_session import start_session


def main() -> None:
    """Write the archive that the argument names."""
    conf = {**SESSION_CONF, "spark.jars.packages": delta_package(), "spark.driver.memory": "1g"}
    conf["spark.driver.extraJavaOptions"] += f" '-XX:ArchiveClassesAtExit={sys.argv[1]}' -Xlog:cds*=off"
    with tempfile.TemporaryDirectory() as folder:
        spark = start_session(conf, Path(folder, "warehouse"))
        source = str(Path(folder, "source"))
        spark.sql("SELECT CAST(1 AS INT) AS id, 2 AS n, 3L AS s, 'd' AS op").write.json(source)
        stream = spark.readStream.schema("id INT, n INT, s BIGINT, op STRING").json(source)
        for number, vectors in enumerate(("true", "false")):
            sink = merge_sink(
                str(Path(folder, f"target_{number}")),
                keys="id",
                sequence_by="s",
                delete_when="op = 'd'",
                except_columns="op",
                create_if_missing=True,
                table_properties={"delta.enableDeletionVectors": vectors},
            )
            writer = stream.writeStream.foreachBatch(sink).trigger(availableNow=True)
            writer.option("checkpointLocation", str(Path(folder, f"checkpoint_{number}"))).start().awaitTermination()
            rows = [(1, 1, 4, "u"), (2, 1, 4, "u")]
            sink.merge(spark.createDataFrame(rows, "id INT, n INT, s BIGINT, op STRING"))
            spark.read.format("delta").load(str(Path(folder, f"target_{number}"))).collect()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        # The JVM writes the archive when it ends, which it does when its input is closed.
        jvm.stdin.close()
        jvm.wait(300)


if __name__ == "__main__":
    main()
