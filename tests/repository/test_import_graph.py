"""The import graph of images/ and validate/: packages stand in levels, and no arrow runs back."""

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.cases import cases

ROOT = Path(__file__).parents[2]

LEVELS = cases(__file__, "levels")
"""The most dependent first. A package may import packages of later levels, but none of its own
level or an earlier one."""
TOPS = ("images", "validate")

Graph = Mapping[str, frozenset[str]]


def packages(root: Path) -> Graph:
    """Return which packages each package imports, in functions as well as at the top of modules."""
    files = files_of_modules(root)
    imported_by: defaultdict[str, set[str]] = defaultdict(set)
    for module, path in files.items():
        importer = package_of(module)
        for imported_module in imports_of(path, frozenset(files)):
            imported = package_of(imported_module)
            if imported not in (importer, *TOPS):
                imported_by[importer].add(imported)
        imported_by.setdefault(importer, set())
    return {package: frozenset(imported) for package, imported in imported_by.items()}


def faults(graph: Graph) -> list[str]:
    """Return the arrows that run back, and the packages that have no level."""
    level_of = {package: level for level, names in enumerate(LEVELS) for package in names}
    unplaced = []
    backward = []
    for importer in sorted(graph):
        if "." in importer and importer not in level_of:
            unplaced.append(f"{importer} has no level in LEVELS")
        for imported in sorted(graph[importer]):
            both_placed = importer in level_of and imported in level_of
            if both_placed and level_of[importer] >= level_of[imported]:
                backward.append(f"{importer} imports {imported}, which is not below it")
    return unplaced + backward


def cycles(root: Path) -> list[str]:
    """Return a circle of modules that import each other, if there is one.

    Imports in functions count, those for type checking don't.
    """
    files = files_of_modules(root)
    graph = {}
    for module, path in files.items():
        graph[module] = set(imports_of(path, frozenset(files), for_types=False))
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def files_of_modules(root: Path) -> dict[str, Path]:
    """Return our modules (`images.config.names`) with their files."""
    files = {}
    for top in TOPS:
        for path in (root / top).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            files[".".join(parts)] = path
    return files


def package_of(module: str) -> str:
    """Return `images.config` for `images.config.names`."""
    return ".".join(module.split(".")[:2])


def imports_of(path: Path, modules: frozenset[str], *, for_types: bool = True) -> Iterator[str]:
    """Yield what a file imports of ours: modules, and packages of which it imports names.

    `for_types`: whether imports for type checking count.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        is_type_checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.If) and is_type_checking and not for_types:
            left_out.update(node.body)

    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            for name in node.names:
                if is_ours(name.name):
                    yield name.name
        elif isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module):
            for name in node.names:
                # `from images.config import names` imports a module; other names lie in one.
                whole = f"{node.module}.{name.name}"
                yield whole if whole in modules else node.module


def is_ours(module: str) -> bool:
    """Return whether a module lies in one of our packages."""
    return module.split(".")[0] in TOPS


@pytest.fixture(scope="module")
def graph() -> Graph:
    return packages(ROOT)


def test_no_arrow_runs_back(graph: Graph) -> None:
    assert faults(graph) == []


def test_what_is_installed_imports_no_tools() -> None:
    imports_tools = re.compile(r"^\s*(from|import) tools\b", re.MULTILINE)

    paths = files_of_modules(ROOT).values()

    assert not [path for path in paths if imports_tools.search(path.read_text())]


def test_no_modules_import_each_other() -> None:
    assert cycles(ROOT) == []


def test_every_level_names_a_package_that_exists(graph: Graph) -> None:
    assert [name for names in LEVELS for name in names if name not in graph] == []


@pytest.mark.parametrize(
    ("file", "line", "fault"),
    [
        (
            "images/config/names.py",
            "from images.planning import plan",
            "images.config imports images.planning",
        ),
        (
            "images/engine/late.py",
            "def f():\n    import images.context.render",
            "images.engine imports images.context",
        ),
        (
            "validate/claims.py",
            "from images.errors import UserError",
            "validate.claims imports images.errors",
        ),
        ("images/novel/thing.py", "import images.errors", "images.novel has no level"),
    ],
    ids=["at the top", "in a function", "from validate", "a package without a level"],
)
def test_an_arrow_that_runs_back_is_named(tmp_path: Path, file: str, line: str, fault: str) -> None:
    for module in ("images/planning/plan.py", "images/context/render.py", "images/errors.py", file):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("")
    (tmp_path / file).write_text(f"{line}\n")

    assert [line for line in faults(packages(tmp_path)) if line.startswith(fault)]
