"""Checks are found by their names, and only those that are asked for are imported."""

import subprocess
import sys

import pytest

from tests.support.checkout import ROOT
from validate import checks
from validate.claims import HOST_PROBES

IMPORTED = "print(*sorted(name for name in sys.modules if name.startswith('validate.checks.') and name.count('.') == 3))"


def imported(program: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {program}; {IMPORTED}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.removeprefix("validate.checks.") for name in done.stdout.split()}


def test_judging_a_static_run_imports_no_check_of_another_tier() -> None:
    found = imported(
        "from tests.support.claims import bare_claims; from validate import checks; from validate.claims import Tier;"
        "judges = [checks.judge_of(one) for one in bare_claims('cu126-torch27').in_tiers([Tier.STATIC]).claims]"
    )
    assert {"static.files", "static.host_image"} < found
    assert {name.partition(".")[0] for name in found} == {"static"}


@pytest.mark.parametrize("probe", ["static.files", "cpu.triton", "gpu.device"])
def test_measuring_imports_its_own_file_alone(probe: str) -> None:
    program = f"import validate.suite; from validate import checks; checks.settings('{probe}')"
    assert imported(program) == {probe}


def test_every_check_is_whole_and_no_claim_has_two_judges() -> None:
    judges: dict[str, object] = {}
    for probe, file in checks.all_probes():
        assert file.__doc__ and file.CLAIMS, probe
        assert hasattr(file, "measure") or probe in HOST_PROBES
        for key, judge in file.CLAIMS.items():
            assert judges.setdefault(key, judge) is judge, key


@pytest.mark.parametrize(
    "name", ["gpu.nothing", "static.none", "static.files/../x", "cpu._kernels"]
)
def test_what_is_no_probe_has_no_file(name: str) -> None:
    assert checks.file_of(name) is None
