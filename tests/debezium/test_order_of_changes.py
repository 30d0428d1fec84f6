"""The order of changes: by what their database tells of it, whatever the order in which their records come."""

import json

from tests.debezium.records import decode, envelope, record
from tests.debezium.test_records import COLUMNS, KEY, MYSQL, ROW, one


def mysql(**source):
    return {**MYSQL, **source}


def order_of(spark, *messages, keys=("id",), **options):
    """Return the places in which `sequence` puts the messages, all of one key."""
    records = [record(KEY, message, offset) for offset, message in enumerate(messages)]
    rows = decode(spark, *records, columns=COLUMNS, keys=keys, **options)
    return [row["_change"]["offset"] for row in sorted(rows, key=lambda row: tuple(row["_change"]["sequence"]))]


def test_snapshot_rows_rank_before_changes_with_a_lower_position(spark):
    messages = [
        envelope("u", ROW, lsn=50, snapshot="false"),
        envelope("r", ROW, lsn=90, snapshot="last"),
        envelope("r", ROW, lsn=60, snapshot="incremental"),
    ]
    assert order_of(spark, *messages) == [1, 0, 2]
    assert order_of(spark, *messages, snapshot_first=False) == [0, 2, 1]


def test_changes_of_one_transaction_with_one_lsn_keep_their_order(spark):
    def change(op, total_order):
        images = {"after": ROW} if op != "d" else {"before": ROW}
        return {**envelope(op, **images, lsn=50), "transaction": {"id": "7:50", "total_order": total_order}}

    assert order_of(spark, change("u", 3), change("c", 1), change("u", 2)) == [1, 2, 0]
    assert order_of(spark, change("c", 1), change("d", 1)) == [1, 0]


def test_postgresql_s_changes_are_in_the_order_of_their_commits(spark):
    """The insert of a row that takes the key of a row which another transaction deletes meanwhile has the lower lsn."""

    def change(op, lsn, last_commit, **source):
        images = {"before": ROW} if op == "d" else {"after": ROW}
        return envelope(op, **images, lsn=lsn, sequence=json.dumps([last_commit, str(lsn)]), **source)

    messages = [
        change("c", 120, "150"),
        change("d", 130, "110"),
        change("u", 125, "150"),
        change("u", 60, None),
        change("u", 90, "80"),
        change("r", 200, None, snapshot="true"),
    ]
    assert order_of(spark, *messages) == [5, 3, 4, 1, 0, 2]
    flat = {**ROW, "__op": "u", "__lsn": 120, "__source_sequence": '["150","120"]'}
    sequence = one(spark, KEY, flat)["_change"]["sequence"]
    assert (sequence["position"], sequence["part"]) == (150, 120)
    without = one(spark, KEY, envelope("u", ROW, lsn=120))["_change"]["sequence"]
    assert (without["position"], without["part"]) == (120, 0)


def test_postgresql_s_incremental_snapshot_is_older_than_what_is_committed_after_it(spark):
    def change(op, lsn, last_commit, **source):
        images = {"before": ROW} if op == "d" else {"after": ROW}
        return envelope(op, **images, lsn=lsn, sequence=json.dumps([str(last_commit), str(lsn)]), **source)

    chunk = {"snapshot": "incremental"}
    # A read-only snapshot is sent at a commit, with its place: the transaction was still running then.
    assert order_of(spark, change("u", 155, 160), change("r", 160, 160, **chunk), change("u", 90, 80)) == [2, 1, 0]
    # Or at a change of the row.
    assert order_of(spark, change("d", 170, 160), change("r", 170, 160, **chunk), change("c", 170, 160)) == [1, 0, 2]


def test_mysql_s_compressed_transactions_have_one_position(spark):
    def change(op, total_order, row=0):
        images = {"before": ROW} if op == "d" else {"after": ROW}
        source = mysql(file="binlog.000003", pos=429, row=row)
        return {**envelope(op, **images, **source), "transaction": {"id": "3e11fa47:23", "total_order": total_order}}

    assert order_of(spark, change("d", 2), change("c", 1), change("c", 3), change("u", 5), change("u", 4, 1)) == [
        1, 0, 2, 4, 3,
    ]  # fmt: skip


def test_mysql_s_chunk_that_a_change_ends_is_older_than_the_change(spark):
    place = mysql(file="binlog.000003", pos=429, row=0)
    deleted, row = envelope("d", before=ROW, **place), envelope("r", ROW, **{**place, "snapshot": "incremental"})
    assert order_of(spark, deleted, row) == [1, 0]
    assert order_of(spark, envelope("c", ROW, **place), row, deleted) == [1, 2, 0]


def oracle(op, scn, commit_scn, total_order=None, **source):
    images = {"before": ROW} if op == "d" else {"after": ROW}
    source = {"connector": "oracle", "scn": str(scn), "commit_scn": commit_scn, "ssn": 0, **source}
    return {**envelope(op, **images, **source), "transaction": {"id": "1", "total_order": total_order}}


def test_oracle_s_changes_are_in_the_order_of_their_commits(spark):
    messages = [
        oracle("u", 100, "130"),
        oracle("r", 120, "121", snapshot="incremental"),
        oracle("d", 110, "115"),
        oracle("u", 105, "130", 3),
        oracle("u", 105, "130", 2),
        # As a version has it that tells of no commit.
        oracle("u", 90, None),
        oracle("u", 95, "95:1:00,96:2:00"),
        oracle("r", 500, None, snapshot="true"),
        # Without the number in the transaction.
        oracle("u", 109, "130"),
        oracle("u", 108, "130"),
    ]
    assert order_of(spark, *messages) == [7, 5, 6, 2, 1, 0, 4, 3, 9, 8]


def sql_server(op, change, commit, number=1, **source):
    def lsn(place):
        return None if place is None else "{:08x}:{:08X}:{:04x}".format(*place)

    images = {"before": ROW} if op == "d" else {"after": ROW}
    source = {"connector": "sqlserver", "snapshot": "false", "event_serial_no": number, **source}
    return envelope(op, **images, change_lsn=lsn(change), commit_lsn=lsn(commit), **source)


def test_sql_server_s_changes_are_in_the_order_of_their_commits(spark):
    messages = [
        sql_server("u", (0x27, 0x100, 1), (0x28, 0x130, 2), 2),
        sql_server("r", (0x27, 0x120, 1), (0x27, 0x121, 9), snapshot="incremental"),
        sql_server("d", (0x27, 0x110, 3), (0x27, 0x121, 8)),
        # Of one transaction: by log file, block, slot, and event.
        sql_server("u", (0x28, 0x1, 1), (0x28, 0x130, 2)),
        sql_server("u", (0x27, 0x100, 0xFFFF), (0x28, 0x130, 2)),
        sql_server("u", (0x27, 0xFFFFFFFF, 0), (0x28, 0x130, 2)),
        sql_server("u", (0x27, 0x100, 1), (0x28, 0x130, 2), 1),
        sql_server("u", (0x27FFFFFF, 0x1, 1), (0x7FFFFFFF, 0xFFFFFFFF, 1)),
        sql_server("r", None, (0x30, 1, 1), None, snapshot="true"),
        sql_server("u", (0x27, 0x101, 0), (0x28, 0x130, 2)),
    ]
    assert order_of(spark, *messages) == [8, 2, 1, 6, 0, 4, 9, 5, 3, 7]


def test_mysql_s_log_is_ordered_across_its_files(spark):
    messages = [
        envelope("u", ROW, **mysql(file="binlog.000010", pos=4)),
        envelope("u", ROW, **mysql(file="binlog.000009", pos=1500)),
        envelope("u", ROW, **mysql(file="binlog.000009", pos=500, row=1)),
        envelope("u", ROW, **mysql(file="binlog.000009", pos=500, row=0)),
        envelope("r", ROW, **mysql(file="binlog.000009", pos=499, snapshot="true")),
    ]
    assert order_of(spark, *messages) == [4, 3, 2, 1, 0]


def test_a_second_snapshot_of_mysql_ranks_after_the_changes_that_it_contains(spark):
    messages = [
        envelope("r", ROW, **mysql(file="binlog.000010", pos=9, snapshot="true")),
        envelope("u", ROW, **mysql(file="binlog.000009", pos=500)),
        envelope("r", ROW, **mysql(file="binlog.000009", pos=9, snapshot="last")),
        envelope("u", ROW, **mysql(file="binlog.000010", pos=50)),
    ]
    assert order_of(spark, *messages) == [2, 1, 0, 3]
    assert order_of(spark, *messages, snapshot_first=True) == [2, 0, 1, 3]


def test_sql_server_s_and_oracle_s_logs_are_ordered(spark):
    def lsn(value, event=1):
        return envelope(
            "u", ROW, connector="sqlserver", change_lsn=value, commit_lsn="00000fff:0:0", event_serial_no=event
        )

    ordered = [lsn("00000027:00000758:0005"), lsn("00000027:00000758:000a"), lsn("00000027:00000758:000a", 2)]
    assert order_of(spark, lsn("00000028:00000001:0001"), *reversed(ordered)) == [3, 2, 1, 0]
    oracle = [
        envelope("u", ROW, connector="oracle", scn="12345678902", ssn=0),
        envelope("u", ROW, connector="oracle", scn="999"),
    ]
    assert order_of(spark, *oracle) == [1, 0]
    # Two changes by one transaction, which has them in another order than this.
    in_one = [
        {**envelope("u", ROW, connector="oracle", scn="999", ssn=0), "transaction": {"id": "7", "total_order": number}}
        for number in (10, 9)
    ]
    assert order_of(spark, *in_one) == [1, 0]


def test_changes_of_an_unknown_connector_are_ordered_by_offset(spark):
    unknown = [envelope("u", ROW, connector="other", ts_ms=9), envelope("u", ROW, connector="other", ts_ms=1)]
    assert order_of(spark, *unknown) == [0, 1]
    assert order_of(spark, envelope("u", ROW, lsn=9), envelope("u", ROW, lsn=1), order="offset") == [0, 1]
