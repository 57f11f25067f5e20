"""Rules of our own style that ruff has no rule for ("How our code reads" in CONTRIBUTING.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def product_modules() -> list[str]:
    """Return the paths of our own modules, without generated ones."""
    paths = []
    for package in ("images", "validate"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                paths.append(str(path.relative_to(ROOT)))
    return paths


def find_nested_comprehensions(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each comprehension that has a second `for`, or another one inside."""
    for node in ast.walk(tree):
        if not isinstance(node, COMPREHENSIONS):
            continue
        inner = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
        if len(node.generators) > 1 or len(inner) > 1:
            yield node.lineno


def find_hidden_assignments(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each `:=` that is not the whole condition of an `if` or `while`.

    `if (name := f()) is None` and `if not (name := f())` are whole conditions, too.
    """
    allowed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            condition = node.test
            if isinstance(condition, ast.UnaryOp):
                condition = condition.operand
            if isinstance(condition, ast.Compare):
                condition = condition.left
            allowed.add(condition)
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr) and node not in allowed:
            yield node.lineno


def find_unconditional_tools(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each text that names a program of tools/ to everybody.

    Only a checkout has them: the text must be the argument `checkout` of `by_installation`.
    Docstrings, which no user sees, are expressions of their own.
    """
    allowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "checkout":
            allowed.update(ast.walk(node))
        if isinstance(node, ast.Expr):
            allowed.add(node.value)
    for node in ast.walk(tree):
        names_tool = isinstance(node, ast.Constant) and "python -m tools" in str(node.value)
        if names_tool and node not in allowed:
            yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("f(then='`python -m tools.pin`')", [1]),
        ("f(f'{a} `python -m tools.pin`')", [1]),
        ("by_installation(checkout='`python -m tools.pin`', installed='edit it')", []),
        ("'Docstring: `python -m tools.pin`.'", []),
    ],
)
def test_a_program_that_only_a_checkout_has_is_found(source: str, lines: list[int]) -> None:
    assert list(find_unconditional_tools(ast.parse(source))) == lines


def test_who_installed_the_package_is_not_sent_to_programs_of_the_checkout() -> None:
    places = []
    for path in product_modules():
        tree = ast.parse(Path(ROOT, path).read_text(encoding="utf-8"))
        places += [f"{path}:{line}" for line in find_unconditional_tools(tree)]
    assert not places, "give both texts to by_installation (validate/installation.py)"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("a = [b for b in c]", []),
        ("a = [b for c in d for b in c]", [1]),
        ("a = [[b for b in c] for c in d]", [1]),
    ],
)
def test_nested_comprehensions_are_found(source: str, lines: list[int]) -> None:
    assert list(find_nested_comprehensions(ast.parse(source))) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("if a := b():\n    pass", []),
        ("while (a := b()) is not None:\n    pass", []),
        ("if not (a := b()):\n    pass", []),
        ("if c and (a := b()):\n    pass", [1]),
        ("f(a := b())", [1]),
    ],
)
def test_hidden_assignments_are_found(source: str, lines: list[int]) -> None:
    assert list(find_hidden_assignments(ast.parse(source))) == lines


def test_statements_hold_one_thought() -> None:
    places = []
    for path in product_modules():
        tree = ast.parse(Path(ROOT, path).read_text(encoding="utf-8"))
        for line in [*find_nested_comprehensions(tree), *find_hidden_assignments(tree)]:
            places.append(f"{path}:{line}")
    assert not places, "write a loop, a named function, or an assignment of its own"


def test_a_message_with_a_count_has_the_noun_in_its_number() -> None:
    """`PASS on NVIDIA H100 (1 claims)`: `plural` writes `1 claim`."""
    count_with_plural = re.compile(r"\{len\([^{}]*\)\} (?!times\b)[a-z]+s\b")
    found = []
    for path in sorted((ROOT / "images").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if count_with_plural.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")

    # A command that takes one image got several; a lock has many distributions.
    assert [line.partition(":")[0] for line in found] == [
        "images/commands/common.py",
        "images/validation/claims/static.py",
    ]
