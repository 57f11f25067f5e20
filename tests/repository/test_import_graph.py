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
"""The most dependent first. A package may import packages of later levels, never of its own or an earlier one."""

Graph = Mapping[str, frozenset[str]]


def packages(root: Path) -> Graph:
    """Package -> the packages that its modules import, in functions as well as at the top."""
    files = {
        _module(root, path): path
        for top in ("images", "validate")
        for path in (root / top).rglob("*.py")
    }
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, path in files.items():
        own = _package(module)
        found[own].update(
            _package(one) for one in _imported(path, frozenset(files)) if _package(one) != own
        )
    return {name: frozenset(imported - {"images", "validate"}) for name, imported in found.items()}


def faults(graph: Graph) -> list[str]:
    """Arrows that run back, and packages that have no level."""
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    unplaced = [
        f"{name} has no level in LEVELS"
        for name in sorted(graph)
        if "." in name and name not in level
    ]
    backward = [
        f"{importer} imports {imported}, which is not below it"
        for importer in sorted(graph)
        for imported in sorted(graph[importer])
        if importer in level and imported in level and level[importer] >= level[imported]
    ]
    return unplaced + backward


def cycles(root: Path) -> list[str]:
    """Circles of modules that import each other, in functions as well as at the top; not for type checking alone."""
    files = {
        _module(root, path): path
        for top in ("images", "validate")
        for path in (root / top).rglob("*.py")
    }
    graph = {
        module: set(_imported(path, frozenset(files), types=False))
        for module, path in files.items()
    }
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _imported(path: Path, modules: frozenset[str], *, types: bool = True) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(one)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types
        for one in node.body
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (
                name.name
                for name in node.names
                if name.name.split(".")[0] in ("images", "validate")
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
            "images",
            "validate",
        ):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield whole if whole in modules else f"{node.module}"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return packages(ROOT)


def test_no_arrow_runs_back(graph: Graph) -> None:
    assert faults(graph) == []


def test_what_is_installed_imports_no_tools() -> None:
    paths = [path for top in ("images", "validate") for path in (ROOT / top).rglob("*.py")]
    assert not [
        path for path in paths if re.search(r"^\s*(from|import) tools\b", path.read_text(), re.M)
    ]


def test_no_modules_import_each_other() -> None:
    assert cycles(ROOT) == []


def test_every_level_names_a_package_that_exists(graph: Graph) -> None:
    assert [name for names in LEVELS for name in names if name not in graph] == []


@pytest.mark.parametrize(
    ("file", "line", "told"),
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
)
def test_an_arrow_that_runs_back_is_named(tmp_path: Path, file: str, line: str, told: str) -> None:
    for module in ("images/planning/plan.py", "images/context/render.py", "images/errors.py", file):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("")
    (tmp_path / file).write_text(f"{line}\n")
    assert [fault for fault in faults(packages(tmp_path)) if fault.startswith(told)]
