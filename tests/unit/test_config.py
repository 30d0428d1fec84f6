"""The options of a sink: each fault has its sentence, and all faults come in one error."""

import pickle
from datetime import timedelta

import pytest

from stream_merge import ConfigError, StreamMergeError, merge_sink
from stream_merge.options import with_learnt

CREATE = {"create_if_missing": True}
KEYLESS = {"before": "old", "sequence_by": "lsn", "delete_when": "op = 'd'"}


def faults_of(target="lake.customers", **options):
    try:
        merge_sink(target, **options)
    except ConfigError as error:
        return list(error.faults)
    return []


def learn(rows, remembered):
    return {"keys": "id"}


def test_what_is_learnt_is_checked_when_it_is_known():
    assert faults_of(learn=learn, sequence_by="a", tie_break_by="b", null_keys="match") == []
    assert faults_of(learn=learn, keys="id", on="true", before="b", locator="guess") == [
        "learn brings what identifies a row; leave keys out",
        "learn brings what identifies a row; leave on out",
        "learn brings what identifies a row; leave before out",
        "locator='guess' is not one of scan, index",
    ]
    assert faults_of(learn="keys") == ["learn is a str, not a function"]
    sink = merge_sink("lake.{table}", learn=learn)
    assert pickle.loads(pickle.dumps(sink)).config == sink.config
    config = with_learnt(merge_sink("t", learn=learn, except_columns="a").config, {"keys": "id", "except_columns": "b"})
    assert (config.learn, config.keys, config.except_columns) == (None, ("id",), ("a", "b"))
    config = with_learnt(merge_sink("t", learn=learn, columns="a").config, {"keys": "id", "except_columns": "b"})
    assert (config.columns, config.except_columns) == (("a",), ())


@pytest.mark.parametrize(
    "options",
    [
        {"keys": "id"},
        {"keys": ["id", "region"], "sequence_by": ["updated_at", "lsn"], "delete_when": "op = 'd'"},
        {"on": "target.id = source.id"},
        {"keys": "id", "null_keys": "match"},
        {"keys": "id", "null_keys": "quarantine", "quarantine": "lake.rejected"},
        {"on": "true", "quarantine": "lake.rejected", "expect": {"positive": "n > 0"}, "max_quarantined_share": 0},
        {"keys": "id", "quarantine": "lake.rejected", "error_column": "_change.error", "max_quarantined_share": 1},
        {"keys": "id", "output_mode": "Complete", "overwrite_schema": True},
        {"keys": "id", "output_mode": "update", "merge_schema": True},
        {"keys": "id", "output_mode": "append", "strategy": "copy_on_write", "locator": "scan"},
        {"keys": "id", "max_commit_retries": 0},
        {"keys": "id", "schema_changes": "lenient", "columns": ["a"]},
        {**KEYLESS, "schema_changes": "error"},
        {"keys": "id", "skip_unchanged": True, "merge_schema": True},
        {"keys": "id", "max_commit_retries": 1000},
        {"keys": "id", "source_alias": "s", "target_alias": "t"},
        {"keys": "id", "partition_by": "region", "table_properties": {"delta.enableChangeDataFeed": "true"}, **CREATE},
        {"keys": "id", "cluster_by": ["id", "region"], **CREATE},
        {
            **KEYLESS,
            "truncate_when": "op = 't'",
            "tie_break_by": "part",
            "except_columns": ["old"],
            "merge_schema": True,
        },
    ],
)
def test_good_options_have_no_fault(options):
    assert faults_of(**options) == []


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "give exactly one of keys, on and before"),
        ({"keys": []}, "give exactly one of keys, on and before"),
        ({"keys": "id", "on": "target.id = source.id"}, "give exactly one of keys, on and before"),
        ({"keys": ["id", "region", "id"]}, "keys names a column twice: id, region, id"),
        ({"keys": "id", "sequence_by": ["lsn", "lsn"]}, "sequence_by names a column twice: lsn, lsn"),
        ({"keys": ["id", ""]}, "keys has an empty column name"),
        ({"keys": "id", "sequence_by": [""]}, "sequence_by has an empty column name"),
        ({"on": "true", "sequence_by": "lsn"}, "sequence_by needs keys"),
        ({**KEYLESS, "keys": "id"}, "give exactly one of keys, on and before"),
        ({**KEYLESS, "on": "true"}, "give exactly one of keys, on and before"),
        (
            {"before": "old", "delete_when": "op = 'd'"},
            "before needs sequence_by, which identifies an event",
        ),
        ({"before": "old", "sequence_by": "lsn"}, "before needs delete_when, which tells removals from updates"),
        (
            {**KEYLESS, "tombstone_retention": timedelta(0)},
            "before needs a tombstone_retention: a removal waits for a row that arrives late",
        ),
        (
            {**KEYLESS, "unchanged_columns": "unset"},
            "unchanged_columns needs keys, and a sink with before has none; leave it out",
        ),
        (
            {**KEYLESS, "ignore_null_updates": True},
            "ignore_null_updates needs keys, and a sink with before has none; leave it out",
        ),
        (
            {**KEYLESS, "null_keys": "match"},
            "null_keys='match' needs keys, and a sink with before has none; leave it out",
        ),
        ({"on": "true", "delete_when": "op = 'd'"}, "delete_when needs keys"),
        ({"on": "true", "null_keys": "match"}, "null_keys='match' needs keys"),
        ({"keys": "id", "output_mode": "upsert"}, "output_mode='upsert' is not one of append, update, complete"),
        ({"keys": "id", "null_keys": "drop"}, "null_keys='drop' is not one of error, match, quarantine"),
        (
            {"keys": "id", "strategy": "fast"},
            "strategy='fast' is not one of insert_only, merge_on_read, copy_on_write, overwrite",
        ),
        ({"keys": "id", "locator": "guess"}, "locator='guess' is not one of scan, index"),
        ({"keys": "id", "source_alias": "the source"}, "source_alias='the source' is not a plain identifier"),
        ({"keys": "id", "target_alias": ""}, "target_alias='' is not a plain identifier"),
        ({"keys": "id", "source_alias": "T", "target_alias": "t"}, "source_alias and target_alias are both 'T'"),
        ({"keys": "id", "max_commit_retries": -1}, "max_commit_retries=-1 is not between 0 and 1000"),
        ({"keys": "id", "max_commit_retries": 1001}, "max_commit_retries=1001 is not between 0 and 1000"),
        ({"target": " ", "keys": "id"}, "target is empty"),
        ({"keys": "id", "app_id": ""}, "app_id is empty"),
        (
            {"keys": "id", "null_keys": "quarantine"},
            'null_keys="quarantine" needs quarantine, the table that takes the rows',
        ),
        (
            {"keys": "id", "max_quarantined_share": 0.5},
            "max_quarantined_share needs quarantine, the table that takes the rows",
        ),
        ({"keys": "id", "quarantine": " "}, "quarantine is empty"),
        ({"keys": "id", "quarantine": "lake.customers"}, "quarantine is the target"),
        (
            {"keys": "id", "quarantine": "lake.rejected", "output_mode": "complete"},
            "quarantine, error_column and expect do not work in output mode complete, where each batch repeats the "
            "same rows; use update",
        ),
        ({"keys": "id", "quarantine": "q", "error_column": " "}, "error_column is empty"),
        ({"keys": "id", "quarantine": "q", "expect": {"": "n > 0"}}, "expect has an empty name or condition: ''"),
        ({"keys": "id", "quarantine": "q", "expect": {"a": ""}}, "expect has an empty name or condition: 'a'"),
        (
            {"keys": "id", "quarantine": "q", "max_quarantined_share": 1.1},
            "max_quarantined_share=1.1 is not between 0 and 1",
        ),
        (
            {"keys": "id", "quarantine": "q", "max_quarantined_share": float("nan")},
            "max_quarantined_share=nan is not between 0 and 1",
        ),
        (
            {"keys": "id", "overwrite_schema": True, "merge_schema": True},
            "overwrite_schema and merge_schema exclude each other; set one of them",
        ),
        (
            {"keys": "id", "schema_changes": "evolve", "merge_schema": True},
            "schema_changes='evolve' says what becomes of new columns; leave merge_schema out",
        ),
        ({"keys": "id", "schema_changes": "x"}, "schema_changes='x' is not one of evolve, lenient, ignore, error"),
        ({"on": "true", "schema_changes": "evolve"}, "schema_changes needs keys"),
        (
            {"keys": "id", "skip_unchanged": True, "check_cardinality": False},
            "skip_unchanged needs check_cardinality: one of several matches of a row may change it",
        ),
        ({"keys": "id", "partition_by": "day"}, "partition_by describes a new table; set create_if_missing=True"),
        ({"keys": "id", "cluster_by": "day"}, "cluster_by describes a new table; set create_if_missing=True"),
        (
            {"keys": "id", "table_properties": {"delta.appendOnly": "true"}},
            "table_properties describes a new table; set create_if_missing=True",
        ),
        (
            {"keys": "id", "partition_by": "day", "cluster_by": "id", **CREATE},
            "partition_by and cluster_by exclude each other; give one of them",
        ),
    ],
)
def test_each_fault_has_its_sentence(options, fault):
    assert faults_of(**options) == [fault]


def test_all_faults_come_in_one_error():
    with pytest.raises(ConfigError) as raised:
        merge_sink(
            "",
            sequence_by=["lsn", "lsn"],
            null_keys="drop",
            output_mode="upsert",
            source_alias="1",
            max_commit_retries=-1,
            partition_by="day",
        )
    expected = (
        "give exactly one of keys, on and before",
        "sequence_by names a column twice: lsn, lsn",
        "sequence_by needs keys",
        "null_keys='drop' needs keys",
        "output_mode='upsert' is not one of append, update, complete",
        "null_keys='drop' is not one of error, match, quarantine",
        "source_alias='1' is not a plain identifier",
        "max_commit_retries=-1 is not between 0 and 1000",
        "target is empty",
        "partition_by describes a new table; set create_if_missing=True",
    )
    assert raised.value.faults == expected
    assert str(raised.value) == "; ".join(expected)


def test_a_wrong_option_is_a_value_error_and_an_error_of_the_library():
    with pytest.raises(ValueError, match="give exactly one of keys, on and before"):
        merge_sink("lake.customers")
    with pytest.raises(StreamMergeError, match="give exactly one of keys, on and before"):
        merge_sink("lake.customers")


def test_own_clauses_exclude_delete_when():
    sink = merge_sink("lake.customers", keys="id", delete_when="op = 'd'")
    with pytest.raises(ConfigError) as raised:
        sink.when_matched_update_all()
    assert raised.value.faults == (
        "delete_when belongs to the default clauses; express it in your own clauses instead",
    )


def test_a_single_column_name_is_a_list_of_one():
    config = merge_sink("lake.customers", keys="id", sequence_by="lsn", partition_by="day", **CREATE).config
    assert (config.keys, config.sequence_by, config.partition_by) == (("id",), ("lsn",), ("day",))


def test_each_clause_method_returns_a_new_sink():
    base = merge_sink("lake.stock", on="target.sku = source.sku")
    deleting = base.when_matched_delete(condition="source.qty = 0")
    updating = base.when_matched_update(set={"qty": "source.qty"})
    assert base.config.clauses == ()
    assert [clause.action.value for clause in deleting.config.clauses] == ["delete"]
    assert [clause.action.value for clause in updating.config.clauses] == ["update"]


def test_a_sink_keeps_its_clauses_through_pickling():
    sink = (
        merge_sink("lake.stock", on="target.sku = source.sku", user_metadata="nightly")
        .when_matched_delete(condition="source.qty = 0")
        .when_matched_update(set={"qty": "target.qty + source.qty"}, condition="source.qty > 0")
        .when_matched_update_all()
        .when_not_matched_insert(values={"sku": "source.sku"}, condition="source.qty > 0")
        .when_not_matched_insert()
        .when_not_matched_by_source_update(set={"stale": "true"}, condition="target.stale = false")
        .when_not_matched_by_source_delete()
    )
    copy = pickle.loads(pickle.dumps(sink))
    assert copy.config == sink.config
    assert [(clause.when.value, clause.action.value, clause.condition) for clause in copy.config.clauses] == [
        ("matched", "delete", "source.qty = 0"),
        ("matched", "update", "source.qty > 0"),
        ("matched", "update_all", None),
        ("not_matched", "insert", "source.qty > 0"),
        ("not_matched", "insert_all", None),
        ("not_matched_by_source", "update", "target.stale = false"),
        ("not_matched_by_source", "delete", None),
    ]
    assert copy.config.clauses[1].assignments == {"qty": "target.qty + source.qty"}


def test_a_sink_keeps_its_expectations_through_pickling():
    expectations = {"positive": "n > 0"}
    sink = merge_sink("lake.stock", keys="id", quarantine="lake.rejected", expect=expectations, error_column="error")
    expectations["later"] = "n > 1"
    copy = pickle.loads(pickle.dumps(sink))
    assert copy.config == sink.config
    assert copy.config.expect == {"positive": "n > 0"}


def test_a_sink_is_named_after_its_target():
    assert str(merge_sink("lake.customers", keys="id")) == "MergeSink[lake.customers]"
