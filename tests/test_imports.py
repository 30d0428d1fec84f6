"""What importing the package costs (no JVM, no Spark), and which subpackage may import which."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "stream_merge"
LAYERS = (
    ("metrics", "steps", "java", "packages", "clauses", "column_names", "target_names"),
    ("errors", "sql", "widening"),
    ("plan", "row_json"),
    ("config",),
    ("options",),
    ("bridge",),
    ("table",),
    ("key_index", "maintenance"),
    ("merge",),
    ("order",),
    ("partial_updates",),
    ("tombstones",),
    ("keyless", "debezium"),
    ("quarantine",),
    ("batch",),
    ("sink",),
    ("routing",),
    ("router",),
    ("",),  # stream_merge itself
    ("cli.errors",),
    ("cli.file",),
    ("cli.query",),
    ("cli.checks",),
    ("cli.run",),
    ("cli.show",),
    ("cli.discover",),
    ("cli.compare",),
    ("cli",),
)
"""The subpackages, the lowest first. A module imports modules of its own subpackage and of the layers below."""

FOREIGN = ("py4j", "pyspark", "delta", "pandas")


def modules_after(statement):
    """Return the modules that a fresh interpreter has loaded after the statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


@pytest.mark.core
def test_importing_the_package_loads_no_spark():
    loaded = modules_after("import stream_merge")
    assert "stream_merge.sink" in loaded
    assert loaded.isdisjoint(FOREIGN)


def test_making_a_sink_loads_no_spark():
    statement = (
        "import pickle, stream_merge\n"
        "sink = stream_merge.merge_sink('lake.customers', on='target.id = source.id').when_matched_delete()\n"
        "assert pickle.loads(pickle.dumps(sink)).config == sink.config"
    )
    assert modules_after(statement).isdisjoint(FOREIGN)


def test_every_public_name_is_there():
    import stream_merge

    assert sorted(stream_merge.__all__) == stream_merge.__all__
    assert [name for name in stream_merge.__all__ if not hasattr(stream_merge, name)] == []


def modules():
    """Return the path of each module, by its name without the package's."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path, names, *, with_types):
    """Return the modules of the package that a module imports, wherever in it; those for types alone if asked for."""
    tree = ast.parse(path.read_text())
    if not with_types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "stream_merge":
            module = node.module.partition(".")[2]
            for alias in node.names:
                name = f"{module}.{alias.name}".strip(".")
                yield name if name in names else module


def layer_of(module):
    """Return the number of the module's layer, and its subpackage there."""
    packages = [(number, package) for number, packages in enumerate(LAYERS) for package in packages]
    return max(
        (
            (number, package)
            for number, package in packages
            if module == package or (package and module.startswith(f"{package}."))
        ),
        key=lambda found: len(found[1]),
    )


def test_packages_import_those_below_them_only():
    names = modules()
    wrong = []
    for module, path in names.items():
        number, package = layer_of(module)
        for imported in imports_of(path, names, with_types=True):
            its_number, its_package = layer_of(imported)
            if its_package != package and its_number >= number:
                wrong.append(f"{module} imports {imported}")
    assert wrong == []


def test_no_imports_go_round_in_a_circle():
    names = modules()
    graph = {module: {*imports_of(path, names, with_types=False)} - {module} for module, path in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{error.args[1]}")


def test_every_room_says_what_it_is_for():
    docs = {path.parent: ast.get_docstring(ast.parse(path.read_text())) for path in PACKAGE.rglob("__init__.py")}
    assert [str(folder) for folder, text in docs.items() if not text or len(text.split()) < 5] == []
