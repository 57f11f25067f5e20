"""How long a module and how wide a function of images/ and validate/ may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.config.paths import RESOURCES as ROOT

LINES = 400
PARAMETERS = 7
MARK = "Long because"
"""A module whose docstring says so may be longer, and its functions wider."""
OFFENDERS: frozenset[str] = frozenset()
"""What is still too large: the list only shrinks. Whoever splits one of them takes its line out."""


def offenders(root: Path) -> Iterator[str]:
    """Modules with too many lines, as paths; functions with too many parameters, as `path:name`."""
    for path in sorted(file for top in ("images", "validate") for file in (root / top).rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(root))
        tree = ast.parse(text)
        if MARK in (ast.get_docstring(tree) or ""):
            continue
        if text.count("\n") > LINES:
            yield name
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _width(node.args) > PARAMETERS:
                yield f"{name}:{node.name}"


def _width(arguments: ast.arguments) -> int:
    """Parameters without self and cls."""
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    own = names[:1] if names[:1] in (["self"], ["cls"]) else []
    return len(names) - len(own) + len(arguments.kwonlyargs)


def test_the_list_names_what_is_too_large_and_nothing_else() -> None:
    """What is no longer too large leaves it."""
    assert sorted(set(offenders(ROOT))) == sorted(OFFENDERS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"""A module."""\n' + "x = 1\n" * 400, ["images/one.py"]),
        ('"""A module."""\n' + "x = 1\n" * 399, []),
        ('"""A module. Long because its tables stand together."""\n' + "x = 1\n" * 400, []),
        ("def wide(a, b, c, d, *, e, f, g, h): ...\n", ["images/one.py:wide"]),
        ("class A:\n    def fits(self, a, b, c, d, *, e, f, g): ...\n", []),
    ],
)
def test_what_is_too_large_is_named(tmp_path: Path, text: str, told: list[str]) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.py").write_text(text)
    assert list(offenders(tmp_path)) == told
