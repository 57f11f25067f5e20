"""symbols: the libraries of each library export every symbol that it needs."""

from typing import Any

import pytest

from tests.support import elves
from tests.support.judging import fails
from tests.support.site_packages import Site, measure_and_judge, static_claim
from validate.binaries.dynsym import Symbols
from validate.checks.static import symbols
from validate.judging import Finding, Status

DRIVER = "libcuda.so.1"


def judged(*exceptions: dict[str, Any]) -> Finding:
    claim = static_claim(
        "symbols", "resolved", "symbols", host=[DRIVER], exceptions=list(exceptions)
    )
    return measure_and_judge(symbols, claim)


def library(**parts: Any) -> bytes:
    """Return a library that finds others in its own folder. `parts`: see elves.make."""
    return elves.make(runpath="$ORIGIN", **parts)


def test_an_environment_without_libraries_fails(site: Site) -> None:
    fails(judged(), "the image has no library whose symbols could be looked up")


def test_symbols_of_a_needed_library_the_driver_and_the_interpreter_are_there(site: Site) -> None:
    needing = library(needed=["two.so", DRIVER], undefined=["of_two", "cuInit", "PyLong_FromLong"])
    # A weak symbol may stay undefined.
    needed = library(exports=["of_two"], weak=["nowhere"])
    site.install("pkg", "1.0", {"pkg/one.so": needing, "pkg/two.so": needed})

    assert judged().status is Status.PASS


@pytest.mark.parametrize(
    "undefined",
    [
        "_ZN3c1010TensorImpl5sizesEv",
        "plain",
        # The driver's, of a library that does not need the driver.
        "cuInit",
    ],
)
def test_a_symbol_that_nothing_exports_fails(site: Site, undefined: str) -> None:
    site.install("pkg", "1.0", {"pkg/one.so": library(undefined=[undefined])})

    fails(judged(), "pkg/one.so of pkg", undefined)


def test_a_symbol_version_that_the_needed_library_does_not_define_fails(site: Site) -> None:
    needing = library(needed=["libx.so.1"], needs_versions={"libx.so.1": ["X_1", "X_9"]})
    needed = library(soname="libx.so.1", defines_versions=["libx.so.1", "X_1"])
    site.install("pkg", "1.0", {"pkg/one.so": needing, "pkg/libx.so.1": needed})

    fails(judged(), "X_9 of libx.so.1")


@pytest.mark.parametrize(
    ("pattern", "status"), [("plugin_*", Status.PASS), ("other_*", Status.FAIL)]
)
def test_an_exception_excuses_only_its_symbols(site: Site, pattern: str, status: Status) -> None:
    site.install("pkg", "1.0", {"pkg/one.so": library(undefined=["plugin_entry"])})

    exception = {"path": "pkg/one.so", "symbols": [pattern], "reason": "-"}
    assert judged(exception).status is status


def test_an_exception_excuses_no_symbol_that_the_evidence_has_no_room_for(site: Site) -> None:
    # The evidence names five symbols. In the order of their names, `z_gone` would be the seventh.
    allowed = [f"plugin_{number}" for number in range(6)]
    site.install("pkg", "1.0", {"pkg/one.so": library(undefined=[*allowed, "z_gone"])})

    exception = {"path": "pkg/one.so", "symbols": ["plugin_*"], "reason": "-"}
    fails(judged(exception), "z_gone")


@pytest.mark.parametrize(
    ("any_python", "lacking"), [(False, ["PyNew_Thing", "other"]), (True, ["other"])]
)
def test_only_pythons_symbols_are_excused_where_another_python_stands_in(
    any_python: bool, lacking: list[str]
) -> None:
    own_symbols = Symbols(
        exports=frozenset(),
        undefined=frozenset((b"PyNew_Thing", b"other")),
        defined_versions=frozenset(),
        needed_versions={},
    )
    task = symbols.SymbolTask(
        path="a.so",
        owners=(),
        scope=(),
        file_of={},
        needs_driver=False,
        any_python=any_python,
    )

    found = symbols.find_lacking(task, {"a.so": own_symbols})

    assert found and found["undefined"] == lacking
