"""Emulated runs share the import of torch. A fork measures and ends as a process of its own would."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.validate.test_suite import ROOT, claims, run
from validate import checks
from validate.evidence import Outcome, Record

TORCH = "import os\nwith open(os.environ['IMPORTS'], 'a') as file:\n    print(os.getpid(), file=file)\n"
LOOKS = (
    "import importlib, os, sys\n"
    "def measure(claims):\n"
    "    torch = importlib.import_module('torch')\n"
    "    print('said by', __name__)\n"
    "    yield 'a', {'cache': os.environ['TRITON_CACHE_DIR'], 'leads': os.getsid(0) == os.getpid(),\n"
    "                'stdin': sys.stdin.read(), 'own': os.environ.get('OF_IMAGE')}\n"
)
PROBES = {
    "cpu/native": LOOKS,
    "cpu/imports": LOOKS,
    "cpu/bridges": "import os\ndef measure(claims):\n    yield 'a', {'ok': True}\n    os.abort()\n",
    "cpu/threads": "import time\ndef measure(claims):\n    yield 'a', {'ok': True}\n    time.sleep(3600)\n",
    "cpu/compile": "import os\ndef measure(claims):\n    yield 'a', {'ok': True}\n    os._exit(0)\n",
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite") / "validate"
    shutil.copytree(ROOT / "validate", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in PROBES.items():
        (folder / "checks" / f"{name}.py").write_text(f"TORCH_FIRST = True\n{source}")
    return folder


def measured(suite: Path, folder: Path, torch: str, *asked: str, timeout: str = "60") -> tuple[dict[str, Record], int]:
    """Records, and how often torch was imported."""
    imports = folder / "imports"
    imports.touch()
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "torch.py").write_text(torch)
    around = {"PYTHONPATH": str(folder / "site"), "IMPORTS": str(imports), "OF_IMAGE": "kept"}
    records = run(suite, folder, claims(*asked), "--emulated", "--timeout", timeout, **around)
    return records, len(imports.read_text().split())


def test_probes_share_one_import_and_nothing_else(suite: Path, tmp_path: Path) -> None:
    records, imported = measured(suite, tmp_path, TORCH, "cpu.native", "cpu.imports", "cpu.bridges", "cpu.compile")
    assert imported == 1
    assert {probe: record.outcome for probe, record in records.items()} == {
        "cpu.native": Outcome.COMPLETED,
        "cpu.imports": Outcome.COMPLETED,
        "cpu.bridges": Outcome.CRASHED,
        "cpu.compile": Outcome.SILENT,
    }
    assert records["cpu.bridges"].exit_code == -6 and records["cpu.bridges"].of("a") is not None
    seen = [records[probe].measurements[0].evidence for probe in ("cpu.native", "cpu.imports")]
    assert len({one["cache"] for one in seen}) == 2
    assert all((one["leads"], one["stdin"], one["own"]) == (True, "", "kept") for one in seen)
    assert records["cpu.native"].log == "said by validate.checks.cpu.native\n"


def test_a_fork_that_hangs_is_ended_with_its_evidence(suite: Path, tmp_path: Path) -> None:
    records, _ = measured(suite, tmp_path, TORCH, "cpu.threads", "cpu.native", timeout="5")
    assert (records["cpu.threads"].outcome, records["cpu.native"].outcome) == (Outcome.TIMED_OUT, Outcome.COMPLETED)
    assert records["cpu.threads"].of("a") is not None


@pytest.mark.parametrize("torch", ["raise ImportError('planted')\n", "import os\nos.kill(os.getpid(), 9)\n"])
def test_where_torch_is_broken_each_probe_says_so_itself(suite: Path, tmp_path: Path, torch: str) -> None:
    records, _ = measured(suite, tmp_path, torch, "cpu.native", "cpu.imports", "cpu.compile")
    crashed = (records["cpu.native"], records["cpu.imports"])
    assert [record.outcome for record in crashed] == [Outcome.CRASHED] * 2
    assert all("planted" in record.log or record.exit_code == -9 for record in crashed)
    assert records["cpu.compile"].of("a") is not None, "it needs no torch to begin"


def test_only_what_begins_with_torch_is_forked() -> None:
    """A probe that imports another package first would find torch there before it."""
    found = [probe for probe, _ in checks.every() if checks.settings(probe).torch_first]
    assert len(found) > 5
    for probe in found:
        source = (ROOT / "validate" / "checks" / f"{probe.replace('.', '/')}.py").read_text()
        assert re.findall(r'import_module\("([^"]+)"\)', source)[0] == "torch", probe
