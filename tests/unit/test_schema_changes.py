"""What the columns of a batch ask of a table, from two schemas and the mode alone."""

import re
from itertools import pairwise

import pytest
from pyspark.sql import types as T

from stream_merge.batch.schema_changes import NOTHING, SchemaChanges, decoded_type, find_schema_changes
from stream_merge.widening import is_widened, keeps_text, wider

NAMES = {
    kind.simpleString(): kind
    for kind in (
        T.ByteType(),
        T.ShortType(),
        T.IntegerType(),
        T.LongType(),
        T.FloatType(),
        T.DoubleType(),
        T.StringType(),
        T.BooleanType(),
        T.BinaryType(),
        T.DateType(),
        T.TimestampType(),
        T.TimestampNTZType(),
        T.NullType(),
    )
}


def split(text):
    """Return the parts between commas outside brackets."""
    depths, depth = [], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        depths.append(depth)
    cuts = [-1, *(place for place, letter in enumerate(text) if letter == "," and not depths[place]), len(text)]
    return [text[start + 1 : end].strip() for start, end in pairwise(cuts)]


def type_of(text):
    """Return a type from the text that Spark prints; Spark itself needs a JVM for this."""
    if text in NAMES:
        return NAMES[text]
    kind, inner = re.fullmatch(r"(\w+)[<(](.*)[>)]", text).groups()
    match kind:
        case "decimal":
            return T.DecimalType(*map(int, inner.split(",")))
        case "array":
            return T.ArrayType(type_of(inner))
        case "map":
            return T.MapType(*map(type_of, split(inner)))
        case "struct":
            return struct_of(inner.replace(":", " "))


def struct_of(text):
    fields = [re.fullmatch(r"(\w+) (.*?)( not null)?", part).groups() for part in split(text)]
    return T.StructType([T.StructField(name, type_of(kind), not is_required) for name, kind, is_required in fields])


@pytest.mark.parametrize(
    ("kept", "sent", "expected"),
    [
        ("tinyint", "smallint", "smallint"),
        ("int", "bigint", "bigint"),
        ("bigint", "int", "bigint"),
        ("float", "double", "double"),
        ("double", "float", "double"),
        ("int", "double", "double"),
        ("int", "float", "double"),
        ("smallint", "float", "double"),
        ("float", "smallint", "float"),
        ("float", "int", "double"),
        ("double", "int", "double"),
        # Neither holds the values of the other.
        ("double", "bigint", None),
        ("bigint", "double", None),
        ("bigint", "float", None),
        ("decimal(8,2)", "decimal(12,2)", "decimal(12,2)"),
        ("decimal(12,4)", "decimal(8,2)", "decimal(12,4)"),
        ("decimal(8,2)", "decimal(8,4)", "decimal(10,4)"),
        ("decimal(38,2)", "decimal(38,4)", None),
        ("int", "decimal(5,2)", "decimal(12,2)"),
        ("bigint", "decimal(20,0)", "decimal(20,0)"),
        ("bigint", "decimal(5,0)", "decimal(20,0)"),
        ("decimal(5,2)", "int", "decimal(12,2)"),
        ("decimal(20,0)", "bigint", "decimal(20,0)"),
        ("decimal(5,2)", "double", None),
        ("double", "decimal(5,2)", None),
        ("date", "timestamp_ntz", "timestamp_ntz"),
        ("timestamp_ntz", "date", "timestamp_ntz"),
        ("date", "timestamp", None),
        ("timestamp", "timestamp_ntz", None),
        ("int", "string", None),
        ("boolean", "int", None),
        ("binary", "string", None),
        ("struct<a:int,b:string>", "struct<A:bigint,c:date>", "struct<a:bigint,b:string,c:date>"),
        ("struct<a:int>", "struct<a:string>", None),
        ("array<int>", "array<bigint>", "array<bigint>"),
        ("map<string,int>", "map<string,double>", "map<string,double>"),
        ("array<int>", "int", None),
        ("struct<a:int,b:void>", "struct<a:int,b:array<string>>", "struct<a:int,b:array<string>>"),
        ("struct<a:int,b:date>", "struct<a:int,b:void>", "struct<a:int,b:date>"),
    ],
)
def test_the_type_that_holds_both(kept, sent, expected):
    found = wider(type_of(kept), type_of(sent))
    assert (found and found.simpleString()) == expected


def found(table, source, mode, **more):
    return find_schema_changes(struct_of(table), struct_of(source), mode, **more)


def test_nothing_is_asked_of_a_table_that_holds_the_batch():
    for mode in ("evolve", "lenient", "error"):
        # A column that the sink never wrote is another writer's.
        assert found("id int, n bigint, t string, own int", "ID int, N int, T date", mode) == NOTHING
    for mode in (None, "ignore"):
        assert found("id int, n int, gone int", "id int, n string, new int", mode, gone={"gone"}) == NOTHING


TABLE = "id int, n int, gone string not null, d decimal(8,2) not null, s struct<a:int>"
SOURCE = "id bigint, N bigint, d string, new date, s struct<a:int,b:int>"


@pytest.mark.parametrize("mode", ["evolve", "lenient"])
def test_a_column_without_a_type_is_not_added(mode):
    source = T.StructType([*struct_of("k int, a date, v int").fields, T.StructField("N", T.NullType())])
    expected = SchemaChanges(added=(source["a"],), untyped=("N",))
    assert find_schema_changes(struct_of("k int, v bigint"), source, mode) == expected
    assert find_schema_changes(struct_of("k int, v bigint, n date, a date"), source, mode) == NOTHING
    assert list(expected.texts()) == ["a (DATE) is new"]


def test_a_column_without_a_type_is_new_where_nothing_may_change():
    source = T.StructType([*struct_of("k int").fields, T.StructField("N", T.NullType())])
    assert [*find_schema_changes(struct_of("k int"), source, "error").texts()] == ["N (VOID) is new"]


def test_a_struct_may_lack_fields():
    changes = found("id int, l array<struct<a:int,b:int>>", "id int, l array<struct<a:int>>", "evolve")
    assert changes == SchemaChanges(incomplete=("l",))
    assert list(changes.texts()) == ["l has fewer fields in the source than in the table"]
    assert (changes.needs_evolution, NOTHING.needs_evolution) == (True, False)


@pytest.mark.parametrize("mode", ["evolve", "error"])
def test_columns_are_added_widened_and_dropped(mode):
    changes = found(TABLE, SOURCE, mode, gone={"gone", "elsewhere"}, fixed={"id"})
    assert [(each.name, each.dataType.simpleString()) for each in changes.added] == [("new", "date")]
    widened = {name: kind.simpleString() for name, kind in changes.widened.items()}
    assert widened == {"id": "bigint", "n": "bigint", "s": "struct<a:int,b:int>"}
    assert [each.name for each in changes.dropped] == ["gone"]
    assert changes.nullable == ("gone",)
    assert [(name, kept.simpleString(), sent.simpleString()) for name, kept, sent in changes.misfits] == [
        ("d", "decimal(8,2)", "string")
    ]
    assert not changes.replaced
    assert list(changes.texts()) == [
        "new (DATE) is new",
        "id needs the wider type BIGINT",
        "n needs the wider type BIGINT",
        "s needs the wider type STRUCT<A:INT,B:INT>",
        "d is STRING in the source and DECIMAL(8,2) in the table, which cannot hold all its values",
        "gone is no column of the source any more",
    ]


def test_what_does_not_widen_gets_a_column_of_its_own_if_it_may():
    changes = found("id int, D decimal(8,2) not null, k int", "id int, d string, k string", "lenient", fixed={"k"})
    assert changes.replaced == {"d": "d__string"}
    assert [(each.name, each.dataType.simpleString()) for each in changes.added] == [("d__string", "string")]
    assert changes.nullable == ("D",)
    # No other column can stand for a key.
    assert [name for name, _, _ in changes.misfits] == ["k"]
    # From then on the column is there, and is no dropped one.
    table = "id int, d decimal(8,2), d__string string"
    again = found(table, "id int, d string", "lenient", gone={"d__string"})
    assert again == SchemaChanges(replaced={"d": "d__string"})
    # The source's own column of this name goes before.
    assert found(table, "id int, d string, D__string int", "lenient").replaced == {}
    # Back in its old type.
    back = found(table, "id int, d decimal(8,2)", "lenient", gone={"d__string"})
    assert [each.name for each in back.dropped] == ["d__string"]


def test_a_table_that_must_not_have_type_widening_only_gets_new_columns_and_fields():
    table, source = (
        "id int, n int, s struct<a:int>, t struct<a:int>",
        ("id int, n bigint, s struct<a:int,b:int>, t struct<a:bigint,b:int>"),
    )
    evolved = found(table, source, "evolve", can_widen=False)
    assert (list(evolved.widened), [name for name, _, _ in evolved.misfits]) == (["s"], ["n", "t"])
    lenient = found(table, source, "lenient", can_widen=False)
    assert lenient.replaced == {"n": "n__bigint", "t": "t__struct_a_bigint_b_int"}


@pytest.mark.parametrize(
    ("kept", "sent", "types"),
    [
        ("int", "bigint", ("bigint", "bigint", "int", "bigint")),
        ("bigint", "int", ("bigint", "bigint", "bigint", "bigint")),
        ("decimal(20,4)", "string", ("decimal(20,4)", "string", "decimal(20,4)", "string")),
        ("string", "date", ("string", "string", "string", "string")),
        # What decoding would cut off or round without an error, the sink finds.
        ("date", "timestamp", ("timestamp", "timestamp", "timestamp", "timestamp")),
        ("date", "timestamp_ntz", ("timestamp_ntz", "timestamp_ntz", "timestamp_ntz", "timestamp_ntz")),
        ("double", "bigint", ("bigint", "bigint", "bigint", "bigint")),
        ("float", "double", ("double", "double", "double", "double")),
        ("float", "string", ("string", "string", "string", "string")),
        ("double", "decimal(20,0)", ("decimal(20,0)", "decimal(20,0)", "decimal(20,0)", "decimal(20,0)")),
        ("bigint", "double", ("double", "double", "double", "double")),
        ("int", "decimal(38,10)", ("decimal(38,10)", "decimal(38,10)", "decimal(38,10)", "decimal(38,10)")),
        ("float", "int", ("double", "double", "int", "double")),
    ],
)
def test_values_are_decoded_in_the_type_that_the_column_will_have(kept, sent, types):
    modes = ("evolve", "lenient", "ignore", "error")
    assert tuple(decoded_type(type_of(kept), type_of(sent), mode).simpleString() for mode in modes) == types


@pytest.mark.parametrize(
    ("kept", "kind", "widened", "same_text"),
    [
        ("a int", "a int", False, True),
        ("a int", "a bigint, b double", True, True),
        ("a int, b int", "b double, a int", True, False),
        ("A int, b date", "a decimal(12,2), b date", True, True),
        ("a array<struct<x:int>>", "a array<struct<x:double,y:int>>", True, False),
        ("a map<int,float>", "a map<int,double>", True, False),
        ("a map<int,float>", "a map<bigint,float>", True, True),
        ("a date", "a timestamp_ntz", True, False),
        ("a struct<x:int,y:void>", "a struct<x:int,y:int>", False, True),
        ("a struct<x:int>", "a struct<x:int,y:int>", False, True),
    ],
)
def test_what_a_wider_type_changes(kept, kind, widened, same_text):
    types = struct_of(kept), struct_of(kind)
    assert (is_widened(*types), keeps_text(*types)) == (widened, same_text)
