"""Which sink takes the rows of which source, without any rows."""

import pickle
import re

import pytest

from stream_merge import ConfigError, merge_router, merge_sink
from stream_merge.errors import CommitConflictError, ConstraintViolationError, RouterError, UnknownSourceError
from stream_merge.routing.routes import MAX_SOURCES, MadeSinks, find_sinks


def sink(target="lake.orders", **options):
    return merge_sink(target, keys="id", **options)


def targets(sinks, *names):
    found = find_sinks(merge_router(sinks).config.sinks, names, MadeSinks())
    return {name: None if sink is None else sink.config.target for name, sink in found.items()}


def test_by_name_and_not_by_a_part_of_it():
    sinks = {"shop.orders": sink("lake.orders"), "shop.items": sink("lake.items")}
    assert targets(sinks, "shop.orders", "shop.items", "shopXorders", "shop.orders2", "") == {
        "shop.orders": "lake.orders",
        "shop.items": "lake.items",
        "shopXorders": None,
        "shop.orders2": None,
        "": None,
    }


def test_a_pattern_matches_the_whole_name_and_fills_target_and_quarantine():
    pattern = re.compile(r"(?P<db>\w+)\.public\.(?P<table>[\w.]+)")
    template = sink("lake_{db}.{table}", null_keys="quarantine", quarantine="lake_{db}.{table}_rejected")
    sinks = merge_router({pattern: template, "shop.public.orders": sink("lake.special")}).config.sinks
    found = find_sinks(sinks, ["shop.public.items", "shop.public.orders", "shop.private.items"], MadeSinks())
    assert found["shop.public.items"].config.target == "lake_shop.items"
    assert found["shop.public.items"].config.quarantine == "lake_shop.items_rejected"
    assert found["shop.public.items"].config.keys == ("id",)
    assert found["shop.public.orders"].config.target == "lake.special", "an exact name goes before patterns"
    assert found["shop.private.items"] is None
    with pytest.raises(ConfigError, match=r"'a\.b' cannot replace \{table\} in lake_\{db\}\.\{table\}"):
        find_sinks(sinks, ["shop.public.a.b"], MadeSinks())


@pytest.mark.parametrize("value", ["..", "a/b", "a b", "`", "orders; DROP TABLE orders", ""])
def test_a_name_from_the_data_cannot_become_anything_but_a_part_of_a_name(value):
    sinks = {re.compile("(?P<table>.*)"): sink("/data/{table}")}
    with pytest.raises(ConfigError, match="must match letters, digits, _ and - only"):
        targets(sinks, value)


def test_a_name_that_two_patterns_match_is_an_error_with_all_others():
    sinks = {
        re.compile(r"shop\..*"): sink("lake.a"),
        re.compile(r".*\.orders"): sink("lake.b"),
    }
    assert targets(sinks, "shop.items", "store.orders") == {"shop.items": "lake.a", "store.orders": "lake.b"}
    with pytest.raises(ConfigError) as caught:
        targets(sinks, "shop.orders", "shop.items", "shop.x.orders")
    assert caught.value.faults == tuple(
        rf"'{name}' matches the pattern 'shop\\..*' and the pattern '.*\\.orders'; "
        "narrow a pattern, or name the source itself"
        for name in ("shop.orders", "shop.x.orders")
    )


def test_names_of_one_sink_and_of_one_filled_target_have_one_sink():
    one = sink()
    template = sink("lake.{table}")
    sinks = {
        "a": one,
        "b": one,
        re.compile(r"shop\d\.(?P<table>\w+)"): template,
        re.compile(r"store\.(?P<table>\w+)"): template,
    }
    names = ["a", "b", "shop1.items", "shop2.items", "store.items", "store.carts"]
    found = find_sinks(merge_router(sinks).config.sinks, names, MadeSinks())
    assert found["a"] is found["b"] is one
    assert found["shop1.items"] is found["shop2.items"] is found["store.items"]
    assert found["store.carts"].config.target == "lake.carts"


def test_a_function_is_asked_once_for_each_name():
    asked = []

    def sink_of(name):
        asked.append(name)
        return None if name.startswith("_") else sink(f"lake.{name}")

    made = MadeSinks()
    first = find_sinks(sink_of, ["orders", "_internal"], made)
    second = find_sinks(sink_of, ["orders", "_internal"], made)
    assert first["orders"] is second["orders"]
    assert (first["_internal"], asked.count("orders")) == (None, 1)


def test_the_sinks_that_a_router_makes_are_bounded():
    made = MadeSinks()
    first = find_sinks(sink, ["lake.first"], made)["lake.first"]
    for number in range(MAX_SOURCES):
        find_sinks(sink, [f"lake.t{number}"], made)
    assert find_sinks(sink, [f"lake.t{MAX_SOURCES - 1}"], made)[f"lake.t{MAX_SOURCES - 1}"] is not None
    assert find_sinks(sink, ["lake.first"], made)["lake.first"] is not first


def test_a_function_that_fails_or_returns_something_else():
    def sink_of(name):
        return {"number": 3}[name]

    with pytest.raises(ConfigError) as caught:
        targets(sink_of, "number", "other")
    assert caught.value.faults == (
        "the function of sinks returned a int for 'number'; return a sink or None",
        "the function of sinks raised KeyError for 'other': 'other'",
    )


FAULTS = {
    "sinks is empty": {"sinks": {}},
    "sinks is a list": {"sinks": [sink()]},
    "sinks is a MergeSink": {"sinks": sink()},
    "the sink of 'a' is a str": {"sinks": {"a": "lake.orders"}},
    "a key of sinks is a int": {"sinks": {1: sink()}},
    "lake.orders is the target of two sinks": {"sinks": {"a": sink(), "b": sink()}},
    "has a placeholder that is not a named group": {"sinks": {re.compile("(?P<table>.*)"): sink("lake.{name}")}},
    "by is empty": {"by": " "},
    "prepare is a str": {"prepare": "upper"},
    "max_parallel=0 is less than 1": {"max_parallel": 0},
    "unknown='drop' is not one of error, ignore": {"unknown": "drop"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_when_the_router_is_made(fault):
    with pytest.raises(ConfigError) as caught:
        merge_router(**{"sinks": {"a": sink()}, **FAULTS[fault]})
    assert len(caught.value.faults) == 1
    assert fault in caught.value.faults[0]


def test_all_faults_are_in_one_error():
    with pytest.raises(ConfigError) as caught:
        merge_router({"a": sink(), "b": 1}, max_parallel=-1, unknown="")
    assert len(caught.value.faults) == 3


def test_sinks_of_different_patterns_have_a_target_for_each_name():
    sinks = {
        re.compile(r"(?P<table>a\w*)"): sink("lake.{table}"),
        re.compile(r"(?P<table>b\w*)"): sink("lake.{table}", skip_unchanged=True),
    }
    assert targets(sinks, "ab", "ba") == {"ab": "lake.ab", "ba": "lake.ba"}


def test_braces_mean_nothing_without_named_groups():
    assert targets({"a": sink("/data/{x}"), re.compile("b+"): sink("/data/{y}")}, "a", "bb") == {
        "a": "/data/{x}",
        "bb": "/data/{y}",
    }


def test_a_router_is_pickled_without_its_caches():
    one = sink()
    router = merge_router({"a": one, "b": one, re.compile("c.*"): sink("lake.c")}, by="name", unknown="ignore")
    copy = pickle.loads(pickle.dumps(router))
    assert (copy.config.by, copy.config.unknown, str(copy)) == ("name", "ignore", "MergeRouter[3]")
    assert copy.config.sinks["a"] is copy.config.sinks["b"]
    assert copy.config.sinks[re.compile("c.*")].config == router.config.sinks[re.compile("c.*")].config


def test_the_router_does_not_follow_the_callers_mapping():
    sinks = {"a": sink()}
    router = merge_router(sinks)
    sinks["b"] = sink("lake.b")
    assert list(router.config.sinks) == ["a"]


def test_the_errors_name_what_failed():
    conflict = CommitConflictError("lake.orders", 3, "ConcurrentAppendException")
    error = RouterError("batch 4", {"orders": conflict}, ["orders (table lake.orders): conflict"], pending=["items"])
    assert error.retriable
    assert error.failures == {"orders": conflict}
    assert "1 of 2 source(s) failed; orders (table lake.orders): conflict; " in str(error)
    assert "before it merged items" in str(error)
    mixed = {"orders": conflict, "items": ConstraintViolationError("qty")}
    assert not RouterError("batch 4", mixed, []).retriable

    unknown = UnknownSourceError("batch 4", {None: 2, **{f"t{number}": 1 for number in range(12)}})
    assert "no sink for NULL (2 row(s)), 't0' (1 row(s))" in str(unknown)
    assert "and 3 more" in str(unknown)
    assert unknown.sources["t11"] == 1
