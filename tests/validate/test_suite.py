"""The suite, run for real: planted probes that pass, fail, crash, hang, and leave early.

The probes are Python sources in test_suite.yaml.
"""

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
from tests.support.probes import all_probes
from validate import channel, checks
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Outcome, Record
from validate.judge import judge
from validate.judging import Status, failed, passed

ROOT = Path(__file__).resolve().parents[2]
PROBES = cases(__file__, "probes")
ISOLATED = ("-I", "-S")
"""The options of Python with which a validation run starts the suite."""
START_OF_PYTHON = {"path": [], "optimize": 0, "modules": {}, "version": "3.11", "prefix": "/usr"}
"""Given to the suite: else each run looks through all files of this machine for it."""


# ---- what tests are made of


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the suite with all probes of test_suite.yaml."""
    return copy_suite(tmp_path_factory.mktemp("suite") / "validate", PROBES)


def copy_suite(folder: Path, probes: Mapping[str, str]) -> Path:
    """Copy the suite to a folder, as a validation run mounts it, and add probes.

    `probes`: `TIER/NAME` -> the source of its check file.
    """
    shutil.copytree(ROOT / "validate", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in probes.items():
        (folder / "checks" / f"{name}.py").write_text(source)
    return folder


def claims_of(*probes: str, unproven: str = "", **expect: object) -> ClaimSet:
    """Claims of one image, one for each probe; every planted probe measures their subject."""
    claims = []
    for probe in probes:
        claims.append(
            Claim(
                check="T1",
                subject="a",
                tier=Tier(probe.split(".")[0]),
                probe=probe,
                statement="-",
                unproven=unproven,
                expect=expect,
            )
        )
    return ClaimSet(image="i", claims=tuple(claims))


def start_suite(
    suite: Path,
    folder: Path,
    claims: ClaimSet,
    *options: str,
    python_options: tuple[str, ...] = ISOLATED,
    **variables: str,
) -> tuple[str, subprocess.Popen[str]]:
    """Start the suite in a folder, with these variables; return its key and its process.

    The process waits for the key on its standard input.
    """
    environ = {**os.environ, **variables}
    user = {
        "environ": environ,
        "directory": str(folder),
        "python": sys.executable,
        "start": START_OF_PYTHON,
    }
    (folder / "user.json").write_text(json.dumps(user))
    (folder / "claims.json").write_text(claims.dumps())
    files = ["--claims", str(folder / "claims.json"), "--user", str(folder / "user.json")]
    process = subprocess.Popen(
        [sys.executable, *python_options, str(suite), *files, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environ,
    )
    return channel.new_key(), process


def verified_record(key: str, line: str) -> Record:
    """The record in a line of the suite; a line without this key's signature is an error."""
    return Record.from_json(json.loads(channel.verify(key, line.strip()) or ""))


def run_suite(
    suite: Path, folder: Path, claims: ClaimSet, *options: str, **how: Any
) -> dict[str, Record]:
    """Run the suite to its end, and return its records by probe. `how`: see start_suite."""
    key, process = start_suite(suite, folder, claims, *options, **how)
    output, _ = process.communicate(f"{key}\n", timeout=600)
    assert process.returncode == 0
    records = [verified_record(key, line) for line in output.splitlines()]
    return {record.probe: record for record in records}


def outcomes(records: Mapping[str, Record]) -> dict[str, Outcome]:
    """How each probe ended."""
    return {probe: record.outcome for probe, record in records.items()}


def first_evidence(record: Record) -> Mapping[str, Any]:
    """What a probe measured first."""
    return record.measurements[0].evidence


# ---- the key


READS_THE_KEY = """
import ctypes, os
from validate import channel
key = channel.receive_key()
PR_GET_DUMPABLE = 3
print(key, os.readlink("/proc/self/fd/0"), ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
"""


@pytest.mark.parametrize(
    ("given", "printed"),
    [("a-key\nmore", "a-key /dev/null 0\n"), ("", "")],
    ids=["a key", "no key"],
)
def test_the_key_leaves_nothing_on_standard_input_and_closes_the_process(
    given: str, printed: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS_THE_KEY],
        input=given,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )

    assert done.stdout == printed
    assert (done.returncode == 0) == bool(given)


# ---- how probes end


def test_what_is_not_applicable_is_not_measured(suite: Path, tmp_path: Path) -> None:
    claims = claims_of("static.crashes", not_applicable="no such GPU")

    record = run_suite(suite, tmp_path, claims)["static.crashes"]

    assert record.outcome is Outcome.COMPLETED
    assert [measurement.evidence for measurement in record.measurements] == [{}]


def test_each_end_of_a_probe_is_told_apart(suite: Path, tmp_path: Path) -> None:
    names = ("good", "crashes", "leaves", "absent", "loud", "does_not_import")
    outside_the_suite = "static.good/../../../x"
    claims = claims_of(*(f"static.{name}" for name in names), outside_the_suite)

    records = run_suite(suite, tmp_path, claims)
    # By itself: the others may take as long as the machine has other things to do.
    records |= run_suite(suite, tmp_path, claims_of("static.hangs"), "--timeout", "1")

    assert outcomes(records) == {
        "static.good": Outcome.COMPLETED,
        "static.crashes": Outcome.CRASHED,
        "static.leaves": Outcome.SILENT,
        "static.hangs": Outcome.TIMED_OUT,
        "static.absent": Outcome.MISSING,
        outside_the_suite: Outcome.MISSING,
        "static.loud": Outcome.COMPLETED,
        "static.does_not_import": Outcome.CRASHED,
    }
    assert "ValueError: planted" in records["static.does_not_import"].log
    assert "planted" in records["static.crashes"].log
    assert records["static.crashes"].measurement_of("a") is not None
    assert len(records["static.loud"].log) <= 4000


@pytest.mark.parametrize("python_options", [ISOLATED, ()], ids=["isolated", "as a user"])
def test_a_failing_probe_is_seen_to_fail_when_optimised(
    suite: Path, tmp_path: Path, python_options: tuple[str, ...]
) -> None:
    claims = claims_of("static.bad")
    judges = {"T1": lambda claim, found: passed("") if found["ok"] else failed("planted")}

    records = run_suite(suite, tmp_path, claims, python_options=python_options, PYTHONOPTIMIZE="1")

    evidence = Evidence(image="i", digest="d", records=tuple(records.values()))
    assert judge(claims, evidence, judges=judges).overall is Status.FAIL


# ---- what probes get of the image and of each other


def test_static_probes_are_free_of_the_image_and_others_are_not(
    suite: Path, tmp_path: Path
) -> None:
    claims = claims_of("static.flags", "cpu.around")

    records = run_suite(
        suite, tmp_path, claims, PYTHONOPTIMIZE="1", TRITON_CACHE_DIR="/of-the-image"
    )

    assert first_evidence(records["static.flags"]) == {"optimize": 0, "isolated": 1}
    seen = first_evidence(records["cpu.around"])
    assert (seen["cache_of_user"], seen["optimize"]) == ("/of-the-image", "1")
    assert seen["cache_of_probe"] != "/of-the-image"


@pytest.mark.parametrize("fault", ["raises", "stalls", "ends", "kills"])
def test_what_ends_the_process_of_all_readers_costs_no_probe_its_verdict(
    tmp_path: Path, fault: str
) -> None:
    suite = copy_suite(tmp_path / "validate", PROBES)
    source = (suite / "suite.py").read_text()
    assert "_PREPARE_SECONDS = 120" in source
    impatient = source.replace("_PREPARE_SECONDS = 120", "_PREPARE_SECONDS = 2")
    (suite / "suite.py").write_text(impatient)

    records = run_suite(suite, tmp_path, claims_of("static.good", f"static.{fault}"))

    assert set(outcomes(records).values()) == {Outcome.COMPLETED}
    # `kills` runs twice: its second process says whether the first, which killed the group, ended.
    assert first_evidence(records[f"static.{fault}"]) in ({"ok": True}, {"killer_ended": True})


def test_a_pipe_of_the_image_is_not_waited_for(suite: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    record = run_suite(suite, tmp_path, claims_of("static.pipes"))["static.pipes"]

    of_pipe, *of_others = record.measurements
    assert "is a device, pipe or socket: 'pipe'" in of_pipe.evidence["error"]
    assert all("opened" in measurement.evidence for measurement in of_others)


def test_a_poisoned_python_path_does_not_reach_the_suite(suite: Path, tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "json.py").write_text("raise SystemExit(0)\n")
    (poison / "sitecustomize.py").write_text("raise SystemExit(0)\n")

    records = run_suite(suite, tmp_path, claims_of("static.nan"), PYTHONPATH=str(poison))

    assert first_evidence(records["static.nan"]) == {"ok": "nan", "deep": ["inf"]}, (
        "numbers that are none become text"
    )


def test_probes_that_read_files_read_once_what_is_common_each_in_a_process_of_its_own(
    suite: Path, tmp_path: Path
) -> None:
    claims = claims_of("static.reads", "static.reads_too", "static.crashes")

    records = run_suite(suite, tmp_path, claims)

    seen = [first_evidence(records[probe]) for probe in ("static.reads", "static.reads_too")]
    readers = {evidence["read_by_process"] for evidence in seen}
    processes = {evidence["process"] for evidence in seen}
    assert len(readers) == 1
    assert len(processes | readers) == 3
    assert all(evidence["leads_session"] for evidence in seen)


def test_a_record_comes_while_other_probes_go_on(suite: Path, tmp_path: Path) -> None:
    claims = claims_of("static.good", "static.waits")

    key, process = start_suite(suite, tmp_path, claims, "--jobs", "2", "--timeout", "300")

    assert process.stdin and process.stdout
    with process:
        print(key, file=process.stdin, flush=True)
        assert verified_record(key, process.stdout.readline()).probe == "static.good"
        # The other probe waits for this file.
        (tmp_path / "go on").touch()
        assert verified_record(key, process.stdout.readline()).outcome is Outcome.COMPLETED


def test_inputs_are_drawn_anew_unless_the_host_drew_them(suite: Path, tmp_path: Path) -> None:
    claims = claims_of("static.drawn")

    with_seed = run_suite(suite, tmp_path, claims, "--seed", "5")["static.drawn"]
    first = run_suite(suite, tmp_path, claims)["static.drawn"]
    second = run_suite(suite, tmp_path, claims)["static.drawn"]

    assert (with_seed.seed, first_evidence(with_seed)) == (5, {"seed": 5})
    assert len({5, first.seed, second.seed}) == 3


def test_no_probe_finds_what_another_reads_or_writes(suite: Path, tmp_path: Path) -> None:
    claims = claims_of("static.good", "cpu.reaches")

    records = run_suite(suite, tmp_path, claims, "--jobs", "1")

    assert first_evidence(records["cpu.reaches"]) == {"files": ["log"]}


def test_what_is_unproven_or_of_another_tier_is_not_measured(suite: Path, tmp_path: Path) -> None:
    unproven = claims_of("static.hangs", unproven="no wheel")
    of_two_tiers = claims_of("static.good", "cpu.around")

    assert run_suite(suite, tmp_path, unproven) == {}
    assert list(run_suite(suite, tmp_path, of_two_tiers, "--tier", "static")) == ["static.good"]


# ---- the order of probes


def test_a_probe_that_asks_to_be_alone_runs_after_the_others(suite: Path, tmp_path: Path) -> None:
    claims = claims_of("multigpu.parallel", "cpu.slow")

    records = run_suite(suite, tmp_path, claims, "--jobs", "4")

    alone, slow = (
        first_evidence(records["multigpu.parallel"]),
        first_evidence(records["cpu.slow"]),
    )
    assert alone["time"] >= slow["time"]
    assert (alone["wait_policy"], slow["wait_policy"]) == (None, "PASSIVE"), (
        "threads that wait hold cores where others want them"
    )


def test_the_images_own_wait_policy_of_openmp_stays(suite: Path, tmp_path: Path) -> None:
    claims = claims_of("multigpu.parallel", "cpu.slow")

    records = run_suite(suite, tmp_path, claims, OMP_WAIT_POLICY="ACTIVE")

    policies = {first_evidence(record)["wait_policy"] for record in records.values()}
    assert policies == {"ACTIVE"}


def test_what_takes_longest_begins_first(suite: Path, tmp_path: Path) -> None:
    claims = claims_of("static.good", "static.files", "static.flags")

    records = run_suite(suite, tmp_path, claims, "--jobs", "1")

    # The planted static.files says `starts_first`.
    assert list(records) == ["static.files", "static.good", "static.flags"]


# ---- probes share the import of torch, and a fork measures and ends as a process of its own would

TORCH = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    print(os.getpid(), file=file)
"""
"""A stand-in for torch, which writes a line for each time that it is imported."""
RAISING_TORCH = "raise ImportError('planted')\n"
KILLING_TORCH = "import os\nos.kill(os.getpid(), 9)\n"
TORCH_WITH_WORKERS = """
import sys, types
sys.modules["torch._inductor.config"] = types.SimpleNamespace(compile_threads=32)
"""
BEGINS_WITH_TORCH = """\
from validate.checks import Settings
SETTINGS = Settings(begins_with_torch=True)
"""
OK = "def measure(claims):\n    yield 'a', {'ok': True}\n"
LOOKS = cases(__file__, "looks")
PROBES_WITH_TORCH = {
    "cpu/native": LOOKS,
    "cpu/imports": LOOKS,
    "cpu/allocator": f"import os\n{OK}    os.abort()\n",
    "cpu/threads": f"import time\n{OK}    time.sleep(3600)\n",
    "cpu/compile": f"import os\n{OK}    os._exit(0)\n",
    "cpu/cudnn": """\
import sys
def measure(claims):
    yield "a", {"threads": sys.modules["torch._inductor.config"].compile_threads}
""",
}


@pytest.fixture(scope="module")
def forking_suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the suite whose planted probes begin with torch."""
    sources = {name: f"{BEGINS_WITH_TORCH}{text}" for name, text in PROBES_WITH_TORCH.items()}
    return copy_suite(tmp_path_factory.mktemp("forking") / "validate", sources)


def run_with_torch(
    suite: Path, folder: Path, torch: str, *probes: str, timeout: str = "60"
) -> tuple[dict[str, Record], int]:
    """Run probes with this source in place of torch.

    Returns the records by probe, and how often torch was imported.
    """
    imports = folder / "imports"
    imports.touch()
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "torch.py").write_text(torch)
    options = ("--jobs", "2", "--timeout", timeout)
    variables = {"PYTHONPATH": str(site), "IMPORTS": str(imports), "OF_IMAGE": "kept"}

    records = run_suite(suite, folder, claims_of(*probes), *options, **variables)

    return records, len(imports.read_text().split())


def test_probes_share_one_import_and_nothing_else(forking_suite: Path, tmp_path: Path) -> None:
    probes = ("cpu.native", "cpu.imports", "cpu.allocator", "cpu.compile")

    records, import_count = run_with_torch(forking_suite, tmp_path, TORCH, *probes)

    assert import_count == 1
    assert outcomes(records) == {
        "cpu.native": Outcome.COMPLETED,
        "cpu.imports": Outcome.COMPLETED,
        "cpu.allocator": Outcome.CRASHED,
        "cpu.compile": Outcome.SILENT,
    }
    assert records["cpu.allocator"].exit_code == -6
    assert records["cpu.allocator"].measurement_of("a") is not None
    seen = [first_evidence(records[probe]) for probe in ("cpu.native", "cpu.imports")]
    assert len({evidence["cache"] for evidence in seen}) == 2
    for evidence in seen:
        assert evidence["leads_session"]
        assert evidence["stdin"] == ""
        assert evidence["of_image"] == "kept"
    assert records["cpu.native"].log == "said by validate.checks.cpu.native\n"


def test_no_package_starts_torchs_compile_workers(forking_suite: Path, tmp_path: Path) -> None:
    """Each of them would import torch again."""
    records, _ = run_with_torch(forking_suite, tmp_path, TORCH_WITH_WORKERS, "cpu.cudnn")

    assert first_evidence(records["cpu.cudnn"]) == {"threads": 1}


def test_a_fork_that_hangs_is_ended_with_its_evidence(forking_suite: Path, tmp_path: Path) -> None:
    probes = ("cpu.threads", "cpu.native")

    records, _ = run_with_torch(forking_suite, tmp_path, TORCH, *probes, timeout="5")

    assert records["cpu.threads"].outcome is Outcome.TIMED_OUT
    assert records["cpu.native"].outcome is Outcome.COMPLETED
    assert records["cpu.threads"].measurement_of("a") is not None


@pytest.mark.parametrize("torch", [RAISING_TORCH, KILLING_TORCH], ids=["raises", "kills"])
def test_where_torch_is_broken_each_probe_says_so_itself(
    forking_suite: Path, tmp_path: Path, torch: str
) -> None:
    probes = ("cpu.native", "cpu.imports", "cpu.compile")

    records, _ = run_with_torch(forking_suite, tmp_path, torch, *probes)

    for record in (records["cpu.native"], records["cpu.imports"]):
        assert record.outcome is Outcome.CRASHED
        assert "planted" in record.log or record.exit_code == -9
    assert records["cpu.compile"].measurement_of("a") is not None, "it needs no torch to begin"


def test_only_what_begins_with_torch_is_forked() -> None:
    """A probe that imports another package first would find torch there before it."""
    forked = [probe for probe, _ in all_probes() if checks.settings(probe).begins_with_torch]

    assert len(forked) > 5
    for probe in forked:
        file = str(checks.file_of(probe)).replace(".", "/")
        source = (ROOT / "validate" / "checks" / f"{file}.py").read_text()
        # The check calls its constructor before anything else.
        if "saved_llama" in source:
            source = (ROOT / "validate" / "harness" / "saved_llama.py").read_text() + source
        first_import = re.findall(r'import_module\("([^"]+)"\)', source)[0]
        assert first_import == "torch", probe
