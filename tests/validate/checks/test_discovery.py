"""Checks are found by their names, and only those that are asked for are imported."""

import subprocess
import sys

import pytest

from tests.support.checkout import ROOT
from tests.support.probes import all_probes
from validate import checks
from validate.claims import HOST_PROBES

PRINT_IMPORTED_CHECKS = """
import sys
for name in sorted(sys.modules):
    if name.startswith("validate.checks.") and name.count(".") == 3:
        print(name.removeprefix("validate.checks."))
"""
JUDGE_STATIC_CLAIMS = """
from tests.support.claims import bare_claims
from validate import checks
from validate.claims import Tier
for claim in bare_claims("cu126-torch27").in_tiers([Tier.STATIC]).claims:
    checks.judge_of(claim)
"""
READ_SETTINGS = """
import validate.suite
from validate import checks
checks.settings("{probe}")
"""


def checks_imported_by(program: str) -> set[str]:
    """The check files, as `TIER.NAME`, that a Python program has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", program + PRINT_IMPORTED_CHECKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_judging_a_static_run_imports_no_check_of_another_tier() -> None:
    imported = checks_imported_by(JUDGE_STATIC_CLAIMS)

    assert {"static.files", "static.host_image"} < imported
    assert {name.partition(".")[0] for name in imported} == {"static"}


@pytest.mark.parametrize("probe", ["static.files", "cpu.triton", "gpu.device"])
def test_reading_the_settings_of_a_probe_imports_its_own_file_alone(probe: str) -> None:
    assert checks_imported_by(READ_SETTINGS.format(probe=probe)) == {probe}


def test_every_check_has_a_docstring_claims_and_a_measurement() -> None:
    for probe, file in all_probes():
        assert file.__doc__ and file.CLAIMS, probe
        assert hasattr(file, "measure") or probe in HOST_PROBES, probe


def test_no_claim_has_two_judges() -> None:
    judges: dict[str, object] = {}
    for _, file in all_probes():
        for key, judge in file.CLAIMS.items():
            assert judges.setdefault(key, judge) is judge, key


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gpu.nothing", id="no such file"),
        pytest.param("static.none", id="no such file of static"),
        pytest.param("static.files/../x", id="a path"),
        pytest.param("cpu._kernels", id="a shared file"),
    ],
)
def test_what_is_no_probe_has_no_file(name: str) -> None:
    assert checks.file_of(name) is None
