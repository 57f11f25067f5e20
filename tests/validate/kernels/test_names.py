"""Names of CUDA kernels as facts of versions."""

import re

import pytest

from tests.support.sources import SOURCES
from validate.kernels import expected_path, table
from validate.kernels._names import Name, at_least

TABLE = table()
TORCHES = sorted(SOURCES.facts.torch)
OTHERS = dict.fromkeys({row.package for row in TABLE.values()}, "1.0")
NAMES = [name for row in TABLE.values() for names in row.expected_kernels.values() for name in names]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.pattern)
def test_a_name_has_a_source_and_some_version(name: Name) -> None:
    assert name.source
    re.compile(name.pattern)
    assert any(name.holds({"torch": torch}) for torch in TORCHES) or name.of != "torch"


@pytest.mark.parametrize("torch", [torch for torch in TORCHES if at_least({"torch": torch}, "torch", "2.5")])
def test_every_part_of_a_kernel_has_a_name_in_every_torch(torch: str) -> None:
    for subject, row in TABLE.items():
        expected = expected_path(row, {**OTHERS, "torch": torch})["expected_kernels"]
        assert len(expected) == len(row.expected_kernels), subject


@pytest.mark.parametrize(
    ("version", "holds"),
    [("2.5.1", False), ("2.6.0", True), ("2.6.0a1+cu126", True), ("2.8.4", True), ("2.9.0", False)],
)
def test_a_name_holds_from_a_version_on_and_before_another(version: str, holds: bool) -> None:
    assert Name("x", "test", since="2.6", before="2.9").holds({"torch": version}) is holds


def test_a_version_that_is_not_given_excludes_no_name() -> None:
    assert Name("x", "test", since="9").holds({})


def test_inductors_kernels_got_names_of_their_own_with_torch_2_6() -> None:
    row = TABLE["compile-fullgraph"]
    old, new = (expected_path(row, {"torch": torch})["expected_kernels"] for torch in ("2.5.1", "2.7.1"))
    assert [bool(re.search(pattern, "triton_")) for pattern in old + new] == [True, False]
    assert [bool(re.search(pattern, "triton_per_fused_add_0")) for pattern in old + new] == [False, True]
