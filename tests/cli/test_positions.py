"""The lines of all values in a TOML file."""

import sys

import pytest

from stream_merge.cli.file.positions import find_lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALL_OF_TOML = r'''
# comment [x]
top = 1
dotted.key."with space".'x' = { inline = [1, { deep = 2 }], "a b" = "#not a comment" }
[ table . "quoted.name" ]  # comment
text = """
[not.a.header]
""" # key = 1
literal = \'\'\'
"""
\'\'\'
quotes = """a""\""""" # three at the end
path = 'C:\x'
"escaped\u00e9\"" = 1979-05-27 07:32:00
list = [ # comment ]
  1,
  # comment
  "a]", [ "b",
    "c" ],
]
empty = []
none = {}
[table]
late = true
[[array]]
a = 1
[array.sub]
b = 2
[[array.inner]]
[[array.inner]]
c = { d.e = 1, f = """
x""" }
[[array]]
[array.sub]
b = 3
[[array.inner]]
g = -1.5e3
'''.replace("\\'", "'")


def walk(value, location=()):
    """Yield the location of every value in parsed TOML."""
    if location:
        yield location
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from walk(item, (*location, key))


def test_every_value_of_a_file_has_its_line():
    lines = find_lines(ALL_OF_TOML)
    assert set(lines) == set(walk(tomllib.loads(ALL_OF_TOML)))
    text = ALL_OF_TOML.splitlines()
    assert {location: text[line - 1].strip() for location, line in lines.items() if len(location) == 1} == {
        ("top",): "top = 1",
        ("dotted",): 'dotted.key."with space".\'x\' = { inline = [1, { deep = 2 }], "a b" = "#not a comment" }',
        ("table",): "[table]",
        ("array",): "[[array]]",
    }
    places = {
        ("table", "quoted.name"): '[ table . "quoted.name" ]  # comment',
        ("table", "quoted.name", "literal"): "literal = '''",
        ("table", "quoted.name", "quotes"): 'quotes = """a""\\""""" # three at the end',
        ("table", "quoted.name", 'escapedé"'): r'"escaped\u00e9\"" = 1979-05-27 07:32:00',
        ("table", "quoted.name", "list", 1): '"a]", [ "b",',
        ("table", "quoted.name", "list", 2, 1): '"c" ],',
        ("table", "quoted.name", "none"): "none = {}",
        ("table", "late"): "late = true",
        ("array", 0, "sub", "b"): "b = 2",
        ("array", 0, "inner", 1, "c", "d", "e"): 'c = { d.e = 1, f = """',
        ("array", 1, "sub", "b"): "b = 3",
        ("array", 1, "inner", 0, "g"): "g = -1.5e3",
    }
    assert {location: text[lines[location] - 1].strip() for location in places} == places


@pytest.mark.parametrize(
    "text", ["", "\n", "a=1", "[a]", "a = ''", 'a = ""', "a = '''\n'''", "a = [[],[1],]\nb.c=2", "[a]#x"]
)
def test_small_files_have_their_lines(text):
    assert set(find_lines(text)) == set(walk(tomllib.loads(text)))
