"""Functions stay short without a limit for any of them: one that tells one story may take a screen."""

import ast
from statistics import median

from tests.support.checkout import ROOT

MEDIAN = 12


def test_the_median_function_is_short() -> None:
    sizes = [
        (node.end_lineno or 0) - node.lineno + 1
        for top in ("images", "validate", "benchmarks", "tools")
        for path in (ROOT / top).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert median(sizes) <= MEDIAN
