"""`stream-merge diff` as users run it, against a MariaDB of all types whose log a sink has merged.

The database gets the rows that were in the captured one.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stream_merge import debezium, merge_sink
from stream_merge.sql import quote
from tests.debezium.captures import read_expected
from tests.debezium.mariadb import KEYS, PLAIN, decode
from tests.end_to_end.compared import compare, write_compared
from tests.services.mariadb import PASSWORD, MariaDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.slow]

CAPTURED = json.loads((PLAIN / "capture.json").read_text())
TABLES = ("zoo", "accounts", "lines", "odd_keys", "nokey", "wiped", "ci_keys")
ODD = "odd_names"
DATABASE = "shop"
ADDRESSES = {"mariadb": "", "mysql": "?allowPublicKeyRetrieval=true"}


def captured(table: str) -> dict[str, Any]:
    """Return what the capture says of a table: `table`, its name in the database, and `columns`, their types."""
    named = {value["table"]: value for value in CAPTURED["tables"].values()}
    return named.get(table) or next(value for name, value in named.items() if name.startswith("we.ird"))


def literal(value: Any, declared: str) -> str:
    """Return a value of the captured contents as MariaDB's SQL."""
    if value is None:
        return "NULL"
    if "binary" in declared or "blob" in declared:
        return f"FROM_BASE64('{value}')"
    if declared.startswith("bit"):
        return f"b'{int(value) if isinstance(value, bool) else value}'"
    if declared in ("point", "geometry"):
        return f"ST_GeomFromWKB(FROM_BASE64('{value['wkb']}'))"
    if declared.startswith(("datetime", "timestamp")):
        return f"'{value.replace('T', ' ').rstrip('Z')}'"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return repr(value)


def create(mariadb: MariaDB, table: str) -> None:
    """Create a table with the captured rows."""
    found = captured(table)
    name = quote(found["table"])
    [ddl] = [ddl for ddl in CAPTURED["ddl"] if ddl.startswith((f"CREATE TABLE {name} (", f"CREATE TABLE {table} ("))]
    generated = set(re.findall(r"`(\w+)` \w+(?:\(\d+\))? AS ", ddl))
    columns: Mapping[str, str] = {key: kind for key, kind in found["columns"].items() if key not in generated}
    script = [f"{ddl};"]
    for text, times in read_expected(PLAIN, table).items():
        row = json.loads(text)
        values = ", ".join(literal(row[key], kind) for key, kind in columns.items())
        script += [f"INSERT INTO {name} ({', '.join(map(quote, columns))}) VALUES ({values});"] * times
    mariadb.execute("\n".join(script), DATABASE)


def fill(spark: SparkSession, table: str, path: str) -> None:
    """Merge the captured log of a table."""
    options = {"keys": KEYS[table], **debezium.MERGE_OPTIONS} if KEYS[table] else debezium.KEYLESS_MERGE_OPTIONS
    properties = {"delta.columnMapping.mode": "name"}
    sink = merge_sink(path, create_if_missing=True, table_properties=properties, **options)
    sink.merge(decode(spark, table).persist())


def diff(mariadb: MariaDB, driver: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"jdbc:{driver}://127.0.0.1:{mariadb.port}/{ADDRESSES[driver]}"
    return compare(folder, "--jdbc", url, "--user", mariadb.user, *arguments, password=PASSWORD)


@pytest.fixture
def database(mariadb: MariaDB) -> MariaDB:
    """Return a server with an empty database."""
    mariadb.execute(f"DROP DATABASE IF EXISTS `{DATABASE}`; CREATE DATABASE `{DATABASE}`;")
    return mariadb


def test_tables_of_all_types_equal_the_database(spark: SparkSession, database: MariaDB, tmp_path: Path):
    for table in (*TABLES, ODD):
        create(database, table)
        fill(spark, table, str(tmp_path / "lake" / table))
    # As text, MariaDB rounds them to six digits; so does Debezium in a snapshot, so that they are not in the capture.
    database.execute("CREATE TABLE floats (id INT PRIMARY KEY, f FLOAT);", DATABASE)
    database.execute("INSERT INTO floats VALUES (1, 16777216), (2, 0.1234567);", DATABASE)
    floats = spark.createDataFrame([(1, 16777216.0), (2, 0.1234567)], "id INT, f FLOAT")
    floats.write.format("delta").save(str(tmp_path / "lake" / "floats"))
    topics = [f"my.{DATABASE}.{table}" for table in (*TABLES, "floats")]
    write_compared(tmp_path, topics=topics, source=rf"re:my\.{DATABASE}\.(?P<table>\w+)")
    done = diff(database, "mariadb", tmp_path, "--pipeline", "pipeline.toml", "--wait", "0")
    lines = done.stdout.splitlines()
    assert (done.returncode, [line for line in lines if ": different" in line]) == (0, []), done.stdout + done.stderr
    assert len([line for line in lines if ": equal" in line]) == len(topics)
    # Both are structs in the Delta table.
    assert [line.split()[2] for line in lines if line.startswith("  not compared, ")] == ["pt", "ge"]
    assert PASSWORD not in done.stdout + done.stderr

    name = captured(ODD)["table"]
    database.execute(f"UPDATE {quote(name)} SET `tick``s` = `tick``s` + 1 WHERE `the.key` = 1;", DATABASE)
    named = f'{DATABASE}."{name}"'
    done = diff(database, "mysql", tmp_path, f"./lake/{ODD}", "--table", named, "--wait", "1")
    assert done.returncode == 5, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "columns that differ" in line] == [
        "  columns that differ: tick`s in 1 row"
    ]
