"""The suite, run for real: planted probes that pass, fail, crash, hang, and leave early."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from validate import channel, checks
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Outcome, Record
from validate.judge import judge
from validate.judging import Status, failed, passed

ROOT = Path(__file__).resolve().parents[2]

OK = "def measure(claims):\n    yield 'a', {'ok': True}\n"
PROBES = cases(__file__, "probes")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted(tmp_path_factory.mktemp("suite") / "validate", PROBES)


def planted(folder: Path, probes: Mapping[str, str]) -> Path:
    """A copy of the suite, as a validation run mounts it, with these probes in it."""
    shutil.copytree(ROOT / "validate", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in probes.items():
        (folder / "checks" / f"{name}.py").write_text(source)
    return folder


def claims(*probes: str, unproven: str = "", **expect: object) -> ClaimSet:
    def planted(probe: str) -> Claim:
        tier = Tier(probe.split(".")[0])
        return Claim(
            check="T1",
            subject="a",
            tier=tier,
            probe=probe,
            statement="-",
            unproven=unproven,
            expect=expect,
        )

    return ClaimSet(image="i", claims=tuple(map(planted, probes)))


START = {"path": [], "optimize": 0, "modules": {}, "version": "3.11", "prefix": "/usr"}
"""Read before: else each run of the suite looks through all files of this machine for it."""


def start(
    suite: Path,
    folder: Path,
    asked: ClaimSet,
    *options: str,
    flags: tuple[str, ...] = ("-I", "-S"),
    **environ: str,
) -> tuple[str, subprocess.Popen[str]]:
    """The suite's key and its process."""
    key, env = channel.new_key(), {**os.environ, **environ}
    user = {"environ": env, "directory": str(folder), "python": sys.executable, "start": START}
    (folder / "user.json").write_text(json.dumps(user))
    (folder / "claims.json").write_text(asked.dumps())
    files = ["--claims", str(folder / "claims.json"), "--user", str(folder / "user.json")]
    command = [sys.executable, *flags, str(suite), *files, *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return key, subprocess.Popen(command, **pipes, text=True, cwd=folder, env=env)  # type: ignore[call-overload]


def accepted(key: str, line: str) -> Record:
    return Record.from_json(json.loads(channel.verify(key, line.strip()) or ""))


def run(suite: Path, folder: Path, asked: ClaimSet, *options: str, **how: Any) -> dict[str, Record]:
    key, process = start(suite, folder, asked, *options, **how)
    output, _ = process.communicate(f"{key}\n", timeout=600)
    assert process.returncode == 0
    records = [accepted(key, line) for line in output.splitlines()]
    return {record.probe: record for record in records}


@pytest.mark.parametrize(("given", "printed"), [("a-key\nmore", "a-key /dev/null 0\n"), ("", "")])
def test_the_key_leaves_nothing_on_standard_input_and_closes_the_process(
    given: str, printed: str
) -> None:
    receive = "import ctypes, os; from validate import channel; key = channel.receive_key()"
    tell = "print(key, os.readlink('/proc/self/fd/0'), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE"
    command = [sys.executable, "-c", f"{receive}; {tell}"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode == 0, done.stdout) == (bool(given), printed)


def test_what_is_not_applicable_is_not_measured(suite: Path, tmp_path: Path) -> None:
    found = run(suite, tmp_path, claims("static.crashes", not_applicable="no such GPU"))[
        "static.crashes"
    ]
    assert (found.outcome, [one.evidence for one in found.measurements]) == (
        Outcome.COMPLETED,
        [{}],
    )


def test_each_end_of_a_probe_is_told_apart(suite: Path, tmp_path: Path) -> None:
    leaves_the_suite = "static.good/../../../x"
    names = ("good", "crashes", "leaves", "absent", "loud", "does_not_import")
    asked = claims(*(f"static.{name}" for name in names), leaves_the_suite)
    records = run(suite, tmp_path, asked)
    # By itself: the others may take as long as the machine has other things to do.
    records |= run(suite, tmp_path, claims("static.hangs"), "--timeout", "1")
    assert {probe: record.outcome for probe, record in records.items()} == {
        "static.good": Outcome.COMPLETED,
        "static.crashes": Outcome.CRASHED,
        "static.leaves": Outcome.SILENT,
        "static.hangs": Outcome.TIMED_OUT,
        "static.absent": Outcome.MISSING,
        leaves_the_suite: Outcome.MISSING,
        "static.loud": Outcome.COMPLETED,
        "static.does_not_import": Outcome.CRASHED,
    }
    assert "ValueError: planted" in records["static.does_not_import"].log
    assert "planted" in records["static.crashes"].log
    assert records["static.crashes"].measurement_of("a") is not None
    assert len(records["static.loud"].log) <= 4000


@pytest.mark.parametrize("flags", [("-I", "-S"), ()])
def test_a_failing_probe_is_seen_to_fail_when_optimised(
    suite: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    asked = claims("static.bad")
    records = run(suite, tmp_path, asked, flags=flags, PYTHONOPTIMIZE="1")
    evidence = Evidence(image="i", digest="d", records=tuple(records.values()))
    judges = {"T1": lambda claim, found: passed("") if found["ok"] else failed("planted")}
    assert judge(asked, evidence, judges=judges).overall is Status.FAIL


def test_static_probes_are_free_of_the_image_and_others_are_not(
    suite: Path, tmp_path: Path
) -> None:
    asked = claims("static.flags", "cpu.around")
    records = run(suite, tmp_path, asked, PYTHONOPTIMIZE="1", TRITON_CACHE_DIR="/baked")
    assert records["static.flags"].measurements[0].evidence == {"optimize": 0, "isolated": 1}
    seen = records["cpu.around"].measurements[0].evidence
    assert (seen["given"], seen["optimize"]) == ("/baked", "1")
    assert seen["own"] != "/baked"


@pytest.mark.parametrize("fault", ["raises", "stalls", "ends", "kills"])
def test_what_ends_the_process_of_all_readers_costs_no_probe_its_verdict(
    tmp_path: Path, fault: str
) -> None:
    folder = planted(tmp_path / "validate", PROBES)
    text = (folder / "suite.py").read_text()
    assert "_PREPARE_SECONDS = 120" in text
    (folder / "suite.py").write_text(text.replace("_PREPARE_SECONDS = 120", "_PREPARE_SECONDS = 2"))
    records = run(folder, tmp_path, claims("static.good", f"static.{fault}"))
    assert {one.outcome for one in records.values()} == {Outcome.COMPLETED}
    assert records[f"static.{fault}"].measurements[0].evidence in ({"ok": True}, {"alone": True})


def test_a_pipe_of_the_image_is_not_waited_for(suite: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused, *others = run(suite, tmp_path, claims("static.pipes"))["static.pipes"].measurements
    assert "is a device, pipe or socket: 'pipe'" in refused.evidence["error"]
    assert all("opened" in one.evidence for one in others)


def test_a_poisoned_python_path_does_not_reach_the_suite(suite: Path, tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "json.py").write_text("raise SystemExit(0)\n")
    (poison / "sitecustomize.py").write_text("raise SystemExit(0)\n")
    record = run(suite, tmp_path, claims("static.nan"), PYTHONPATH=str(poison))["static.nan"]
    assert record.measurements[0].evidence == {"ok": "nan", "deep": ["inf"]}, (
        "numbers that are none become text"
    )


def test_probes_that_read_files_read_once_what_is_common_each_in_a_process_of_its_own(
    suite: Path, tmp_path: Path
) -> None:
    records = run(suite, tmp_path, claims("static.reads", "static.reads_too", "static.crashes"))
    seen = [
        records[probe].measurements[0].evidence for probe in ("static.reads", "static.reads_too")
    ]
    assert len({one["read by"] for one in seen}) == 1
    assert len({one["own"] for one in seen} | {one["read by"] for one in seen}) == 3
    assert all(one["leads"] for one in seen)


def test_a_record_comes_while_other_probes_go_on(suite: Path, tmp_path: Path) -> None:
    key, process = start(
        suite, tmp_path, claims("static.good", "static.waits"), "--jobs", "2", "--timeout", "300"
    )
    assert process.stdin and process.stdout
    with process:
        print(key, file=process.stdin, flush=True)
        assert accepted(key, process.stdout.readline()).probe == "static.good"
        (tmp_path / "go on").touch()
        assert accepted(key, process.stdout.readline()).outcome is Outcome.COMPLETED


def test_inputs_are_drawn_anew_unless_the_host_drew_them(suite: Path, tmp_path: Path) -> None:
    asked = claims("static.drawn")
    given = run(suite, tmp_path, asked, "--seed", "5")["static.drawn"]
    assert (given.seed, given.measurements[0].evidence) == (5, {"seed": 5})
    assert len({5, *(run(suite, tmp_path, asked)["static.drawn"].seed for _ in range(2))}) == 3


def test_no_probe_finds_what_another_reads_or_writes(suite: Path, tmp_path: Path) -> None:
    records = run(suite, tmp_path, claims("static.good", "cpu.reaches"), "--jobs", "1")
    assert records["cpu.reaches"].measurements[0].evidence == {"files": ["log"]}


def test_what_is_unproven_or_of_another_tier_is_not_measured(suite: Path, tmp_path: Path) -> None:
    assert run(suite, tmp_path, claims("static.hangs", unproven="no wheel")) == {}
    assert list(run(suite, tmp_path, claims("static.good", "cpu.around"), "--tier", "static")) == [
        "static.good"
    ]


def test_what_takes_longest_begins_first_and_who_asks_to_be_alone_last(
    suite: Path, tmp_path: Path
) -> None:
    both = claims("multigpu.parallel", "cpu.slow")
    records = run(suite, tmp_path, both, "--jobs", "4")
    alone, slow = (
        records[probe].measurements[0].evidence for probe in ("multigpu.parallel", "cpu.slow")
    )
    assert alone["time"] >= slow["time"]
    assert (alone["waits"], slow["waits"]) == (None, "PASSIVE"), (
        "threads that wait hold cores where others want them"
    )
    own = run(suite, tmp_path, both, OMP_WAIT_POLICY="ACTIVE")
    assert {one.measurements[0].evidence["waits"] for one in own.values()} == {"ACTIVE"}, (
        "the image's own stays"
    )
    asked = claims("static.good", "static.files", "static.flags")
    assert list(run(suite, tmp_path, asked, "--jobs", "1")) == [
        "static.files",
        "static.good",
        "static.flags",
    ]


# ---- probes share the import of torch, and a fork measures and ends as a process of its own would

TORCH = (
    "import os\nwith open(os.environ['IMPORTS'], 'a') as file:\n    print(os.getpid(), file=file)\n"
)
LOOKS = cases(__file__, "looks")
BEGINS_WITH_TORCH = (
    "from validate.checks import Settings\nSETTINGS = Settings(begins_with_torch=True)\n"
)
FORKED = {
    "cpu/native": LOOKS,
    "cpu/imports": LOOKS,
    "cpu/bridges": f"import os\n{OK}    os.abort()\n",
    "cpu/threads": f"import time\n{OK}    time.sleep(3600)\n",
    "cpu/compile": f"import os\n{OK}    os._exit(0)\n",
}


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = {name: f"{BEGINS_WITH_TORCH}{source}" for name, source in FORKED.items()}
    return planted(tmp_path_factory.mktemp("forking") / "validate", sources)


def measured(
    suite: Path,
    folder: Path,
    torch: str,
    *asked: str,
    timeout: str = "60",
    how: tuple[str, ...] = ("--jobs", "2"),
) -> tuple[dict[str, Record], int]:
    """Records, and how often torch was imported."""
    imports = folder / "imports"
    imports.touch()
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "torch.py").write_text(torch)
    around = {"PYTHONPATH": str(folder / "site"), "IMPORTS": str(imports), "OF_IMAGE": "kept"}
    records = run(suite, folder, claims(*asked), *how, "--timeout", timeout, **around)
    return records, len(imports.read_text().split())


def test_probes_share_one_import_and_nothing_else(forking: Path, tmp_path: Path) -> None:
    records, imported = measured(
        forking, tmp_path, TORCH, "cpu.native", "cpu.imports", "cpu.bridges", "cpu.compile"
    )
    assert imported == 1
    assert {probe: record.outcome for probe, record in records.items()} == {
        "cpu.native": Outcome.COMPLETED,
        "cpu.imports": Outcome.COMPLETED,
        "cpu.bridges": Outcome.CRASHED,
        "cpu.compile": Outcome.SILENT,
    }
    assert (
        records["cpu.bridges"].exit_code == -6
        and records["cpu.bridges"].measurement_of("a") is not None
    )
    seen = [records[probe].measurements[0].evidence for probe in ("cpu.native", "cpu.imports")]
    assert len({one["cache"] for one in seen}) == 2
    assert all((one["leads"], one["stdin"], one["own"]) == (True, "", "kept") for one in seen)
    assert records["cpu.native"].log == "said by validate.checks.cpu.native\n"


def test_a_fork_that_hangs_is_ended_with_its_evidence(forking: Path, tmp_path: Path) -> None:
    records, _ = measured(forking, tmp_path, TORCH, "cpu.threads", "cpu.native", timeout="5")
    assert [records[probe].outcome for probe in ("cpu.threads", "cpu.native")] == [
        Outcome.TIMED_OUT,
        Outcome.COMPLETED,
    ]
    assert records["cpu.threads"].measurement_of("a") is not None


@pytest.mark.parametrize(
    "torch", ["raise ImportError('planted')\n", "import os\nos.kill(os.getpid(), 9)\n"]
)
def test_where_torch_is_broken_each_probe_says_so_itself(
    forking: Path, tmp_path: Path, torch: str
) -> None:
    records, _ = measured(forking, tmp_path, torch, "cpu.native", "cpu.imports", "cpu.compile")
    crashed = (records["cpu.native"], records["cpu.imports"])
    assert [record.outcome for record in crashed] == [Outcome.CRASHED] * 2
    assert all("planted" in record.log or record.exit_code == -9 for record in crashed)
    assert records["cpu.compile"].measurement_of("a") is not None, "it needs no torch to begin"


def test_only_what_begins_with_torch_is_forked() -> None:
    """A probe that imports another package first would find torch there before it."""
    found = [probe for probe, _ in checks.all_probes() if checks.settings(probe).begins_with_torch]
    assert len(found) > 5
    for probe in found:
        file = str(checks.file_of(probe)).replace(".", "/")
        source = (ROOT / "validate" / "checks" / f"{file}.py").read_text()
        if "saved_llama" in source:  # whose constructor the check calls first
            source = (ROOT / "validate" / "harness" / "saved_llama.py").read_text() + source
        assert re.findall(r'import_module\("([^"]+)"\)', source)[0] == "torch", probe
