"""Runs the probes that a claim file names, each in a process of its own, and prints one JSON record a line.

    python3 -I -S FOLDER/validate --claims claims.json --tier static --tier cpu

From `main` down:

- `run` sorts the probes into groups: those that read files, those that begin with torch, and each other one by itself.
- `run_group` starts a process for a group, and passes on the records that it writes. The process of a group that reads
  files is isolated: `-I -S` keeps the image's environment (PYTHONPATH, PYTHONOPTIMIZE, sitecustomize) away from it, and
  with `-X pycache_prefix` it reads no bytecode of the image. All others start as a user's process in the image would.
- That process is this program again, with `--probe`: `measure_group` does what its probes have in common, and measures
  each probe in a fork with a session, a deadline, a log and caches of its own.
"""

import argparse
import contextlib
import errno
import gc
import importlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from validate import channel, checks
from validate.claims import ClaimSet, Tier
from validate.environment import installed, user_environment
from validate.environment.user_environment import UserEnvironment
from validate.evidence import Measurement, Outcome, Record, plain
from validate.harness import seeding
from validate.harness.forked import PASSIVE_WAITING, ForkEnd, Work, end_session, fork_each
from validate.survey import environments

TIMEOUT_SECONDS: Mapping[Tier, float] = {
    Tier.STATIC: 900,
    Tier.CPU: 900,
    Tier.GPU: 900,
    Tier.MULTIGPU: 1500,
}
"""A whole tier takes under a minute on two cores: a probe past these limits hangs. Ranks have limits of their own,
which tell more, so their tier's lies above what those add up to (checks/multigpu/_launch.py). A check may have its own
limit (checks.Settings).
"""
_PREPARE_SECONDS = 120
"""To prepare a group takes 3. A file that makes it take for ever costs this, and no probe its verdict."""
LOG_TAIL_CHARACTERS = 4000
_PACKAGE = Path(__file__).resolve().parent
_ISOLATED = ("-I", "-S", "-B", "-X", f"pycache_prefix={sys.pycache_prefix or ''}")
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
    "HF_HOME": "huggingface",
}
"""Where compilers and hubs keep what they made. Each probe gets empty ones: a warm cache hides a missing compiler."""
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
}
"""No probe, and nothing that it starts, asks a hub or reports its use."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, or (`--probe`) a group of probes. The exit status says nothing about the image."""
    options = _parser().parse_args(arguments)
    claims = ClaimSet.loads(Path(options.claims).read_text(encoding="utf-8"))
    if options.probe:
        measure_group(
            options.probe,
            claims,
            prepare=options.prepare,
            records=options.records,
            scratch=Path(options.scratch),
            jobs=options.jobs,
            timeout=options.timeout,
        )
        return 0

    tiers = [Tier(tier) for tier in options.tier or Tier]
    user = user_environment.read(Path(options.user)) if options.user else None
    user_environment.of_this_process()  # read once, before the channel closes /proc/self/environ
    key = channel.receive_key()
    records = run(
        claims.in_tiers(tiers),
        Path(options.claims),
        jobs=options.jobs,
        timeout=options.timeout,
        user=user,
        seed=options.seed,
    )
    for record in records:
        print(channel.signed(key, json.dumps(asdict(record))), flush=True)  # noqa: T201  the suite's output
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="validate", description="Measure an image from inside, one record a line."
    )
    parser.add_argument("--claims", required=True, help="the image's claims, as JSON")
    parser.add_argument(
        "--tier", action="append", choices=[tier.value for tier in Tier], help="default: all"
    )
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="probes at once (cores)"
    )
    parser.add_argument("--timeout", type=float, help="seconds a probe (default: by tier)")
    parser.add_argument(
        "--user", metavar="FILE", help="look at this user's environment, not at this process's"
    )
    parser.add_argument("--seed", type=int, help="what inputs are drawn with (default: anew)")
    # Of the process of a group.
    parser.add_argument("--probe", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    return parser


# ---- the suite's own process: it starts groups, and measures nothing


class Group(NamedTuple):
    """Probes that are forks of one process."""

    probes: Sequence[str]
    prepare: bool = False
    """Whether that process first does what all of them begin with."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is the same for all groups of a run."""

    claims: Path
    """The file from which probes read the claims."""
    scratch: Path
    """A folder for logs and caches."""
    environ: Mapping[str, str]
    jobs: int
    timeout: float | None
    """In seconds a probe; None: its own limit, else its tier's."""


def run(
    claims: ClaimSet,
    file: Path,
    *,
    jobs: int,
    timeout: float | None = None,
    user: UserEnvironment | None = None,
    seed: int | None = None,
) -> Iterator[Record]:
    """Run every probe that a claim asks for, at most `jobs` groups at once, and yield each record as it comes.

    `file`: where probes read the claims. `timeout` is in seconds a probe; None: its own limit, else its tier's. `user`
    is whom probes look at if it is not this process's user: then they keep this process's own environment. `seed`: what
    probes draw their inputs with; None: one is drawn here. Claims known to be unproven are not measured.
    """
    probes = []
    for probe in dict.fromkeys(
        claim.probe for claim in claims.inside().claims if not claim.unproven
    ):
        if checks.file_of(probe) is None:
            yield Record(probe=probe, outcome=Outcome.MISSING, seconds=0.0)
        else:
            probes.append(probe)

    looked_at = user or user_environment.of_this_process()
    if not looked_at.start and any(_reads_files(probe) for probe in probes):
        looked_at = environments.with_start_from_files(looked_at)
    environ = {
        **(os.environ if user else looked_at.environ),
        **user_environment.as_variable(looked_at),
    }
    environ |= seeding.seed_variable(secrets.randbelow(1 << 31) if seed is None else seed)

    groups, alone = _grouped(probes)
    with tempfile.TemporaryDirectory(prefix="validate-") as scratch:
        of_all = Run(
            claims=file, scratch=Path(scratch), environ=environ, jobs=jobs, timeout=timeout
        )
        # Where others run beside it, a probe's waiting threads hold no core.
        yield from _side_by_side(groups, of_all, {**PASSIVE_WAITING, **environ})
        for probe in alone:
            yield from run_group(Group([probe]), of_all, environ)


def _grouped(probes: Sequence[str]) -> tuple[list[Group], list[str]]:
    """Return the groups in the order in which they start, and the probes that run alone after them."""
    alone = [probe for probe in probes if checks.settings(probe).runs_alone]
    others = [probe for probe in probes if probe not in alone]
    others.sort(key=lambda probe: not checks.settings(probe).starts_first)

    readers = [probe for probe in others if _reads_files(probe)]
    with_torch = [probe for probe in others if _begins_with_torch(probe)]
    groups = [Group(members, prepare=True) for members in (readers, with_torch) if members]
    for probe in others:
        if probe not in readers and probe not in with_torch:
            groups.append(Group([probe]))
    return groups, alone


def _reads_files(probe: str) -> bool:
    """Whether it asks nothing of the Python that runs it, and knows from files alone how a user's would start."""
    return checks.settings(probe).reads_files_only or _tier(probe) is Tier.STATIC


def _begins_with_torch(probe: str) -> bool:
    """Whether it can share an import of torch: 1.5 s of a core. Processes that use a GPU share nothing."""
    return _tier(probe) is Tier.CPU and checks.settings(probe).begins_with_torch


def _tier(probe: str) -> Tier:
    return Tier(probe.partition(".")[0])


def _limit(probe: str, timeout: float | None) -> float:
    return timeout or checks.settings(probe).time_limit or TIMEOUT_SECONDS[_tier(probe)]


def _side_by_side(
    groups: Sequence[Group], of_all: Run, environ: Mapping[str, str]
) -> Iterator[Record]:
    """Run groups, as many at once as there are jobs, and yield their records as they come."""
    records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()

    def run_one(group: Group) -> None:
        try:
            for record in run_group(group, of_all, environ):
                records.put(record)
        finally:
            records.put(None)

    with ThreadPoolExecutor(max_workers=of_all.jobs) as pool:
        running = [pool.submit(run_one, group) for group in groups]
        for _ in groups:
            yield from iter(records.get, None)
    for group in running:
        group.result()


def run_group(group: Group, of_all: Run, environ: Mapping[str, str]) -> Iterator[Record]:
    """Run a group in a process of its own, and yield the records that it writes.

    If the process ends before, each probe that is left runs in a group of its own: it meets the fault again, and its
    record tells.
    """
    started = time.monotonic()
    log = Path(tempfile.mkdtemp(dir=of_all.scratch), "log")
    limits = [_limit(probe, of_all.timeout) for probe in group.probes]
    limit = limits[0] + sum(
        limits
    )  # every fork has its own limit: this one is for the process itself
    left = list(group.probes)

    flags = _ISOLATED if _reads_files(group.probes[0]) else ()
    read_end, write_end = os.pipe()
    command = [
        sys.executable,
        *flags,
        str(_PACKAGE),
        "--claims",
        str(of_all.claims),
        "--records",
        str(write_end),
    ]
    command += ["--scratch", str(of_all.scratch), "--jobs", str(of_all.jobs)]
    if of_all.timeout:
        command += ["--timeout", str(of_all.timeout)]
    if group.prepare:
        command += ["--prepare"]
    for probe in group.probes:
        command += ["--probe", probe]

    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            pass_fds=[write_end],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    os.close(write_end)
    watchdog = threading.Timer(limit, end_session, [process.pid])
    watchdog.start()
    try:
        with os.fdopen(read_end, encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):  # the process was killed while it wrote
                    break
                record = Record.from_json(json.loads(line))
                left.remove(record.probe)
                yield record
    finally:
        watchdog.cancel()
        end_session(process.pid)
        code: int | None = process.wait()

    seconds = time.monotonic() - started
    if seconds >= limit:
        code = None
    for probe in left:
        if group.prepare:
            yield from run_group(Group([probe]), of_all, environ)
        else:
            yield _record(probe, ForkEnd(0, code, seconds), (), log)


# ---- the process of a group


def measure_group(
    probes: Sequence[str],
    claims: ClaimSet,
    *,
    prepare: bool,
    records: int,
    scratch: Path,
    jobs: int,
    timeout: float | None,
) -> None:
    """Measure each probe in a fork of this process, and write its record to the descriptor `records`."""
    if _reads_files(probes[0]):
        sys.addaudithook(_refuse_pipes_and_devices)
    if prepare:
        _prepare(probes)

    with contextlib.ExitStack() as open_files:
        works, results = [], []
        for probe in probes:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            log = folder / "log"
            log.touch()
            # Measurements go to a file without a name, which other probes don't find.
            results.append(open_files.enter_context(tempfile.TemporaryFile()))
            measure = partial(_measure, probe, claims, results[-1].fileno(), records, folder)
            works.append(Work(measure, log=log, seconds=_limit(probe, timeout)))

        lines = open_files.enter_context(open(records, "w", encoding="utf-8"))
        for end in fork_each(works, jobs, own_sessions=True):
            record = _record(
                probes[end.number], end, _lines(results[end.number]), works[end.number].log
            )
            lines.write(json.dumps(asdict(record)) + "\n")
            lines.flush()


def _prepare(probes: Sequence[str]) -> None:
    """Do once what these probes begin with, so that their forks have it.

    A fault costs no probe its verdict: what raises, each fork meets again and reports, and what takes too long ends
    this process (run_group).
    """
    signal.alarm(_PREPARE_SECONDS)
    if _reads_files(probes[0]):
        reads: list[Callable[[], object]] = [installed.of_user]
        for probe in probes:
            reads.extend(checks.settings(probe).shared_reads)
        for read in reads:
            with contextlib.suppress(Exception):
                read()
    else:
        importlib.import_module("torch")
    signal.alarm(0)
    gc.freeze()  # the collector of a fork leaves shared memory alone, so that it stays shared


def _refuse_pipes_and_devices(event: str, arguments: Sequence[Any]) -> None:
    """An audit hook: a pipe of an image would be waited for, and a device may have no end. Raises OSError."""
    if event != "open" or not isinstance(arguments[0], str) or arguments[0].startswith("/dev/"):
        return
    path = arguments[0]
    # By os.path: a check opens tens of thousands of files.
    if os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path):  # noqa: PTH110 PTH112 PTH113
        return
    raise OSError(errno.ENXIO, "is a device, pipe or socket", path)


def _measure(probe: str, claims: ClaimSet, results: int, records: int, folder: Path) -> None:
    """Measure for the probe's claims in a fork: a line a measurement to the descriptor `results`, then a closing line
    with the seed.

    Whatever the probe raises ends the process: the missing closing line tells that it was not done.
    """
    os.close(records)  # records are the group's own business
    os.environ.update(_OFFLINE)
    for variable, name in _CACHES.items():
        os.environ[variable] = str(folder / "cache" / name)

    measurable = [claim for claim in claims.only([probe]).claims if not claim.unproven]
    applicable = [claim for claim in measurable if not claim.expect.get("not_applicable")]
    with open(results, "w", encoding="utf-8", buffering=1) as lines:

        def write(subject: str, seconds: float, evidence: Mapping[str, Any]) -> None:
            line = {"subject": subject, "seconds": round(seconds, 3), "evidence": plain(evidence)}
            lines.write(json.dumps(line) + "\n")

        for claim in measurable:
            if claim not in applicable:
                write(claim.subject, 0.0, {})
        started = time.monotonic()
        for subject, evidence in checks.module(probe).measure(applicable) if applicable else ():
            write(subject, time.monotonic() - started, evidence)
            started = time.monotonic()
        lines.write(json.dumps({"closing": True, "seed": seeding.seed_of_run()}) + "\n")


def _lines(results: BinaryIO) -> Iterator[Mapping[str, Any]]:
    """Yield the lines that a probe wrote; the last may be torn, and is left out."""
    results.seek(0)
    for line in results.read().decode("utf-8", "replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _record(probe: str, end: ForkEnd, lines: Iterable[Mapping[str, Any]], log: Path) -> Record:
    """Return the record of a probe. The closing line decides; how its process ended only says why there is none."""
    outcome = Outcome.CRASHED
    if end.exit_code is None:
        outcome = Outcome.TIMED_OUT
    elif end.exit_code == 0:
        outcome = Outcome.SILENT

    measurements, seed = [], None
    for line in lines:
        if line.get("closing"):
            outcome, seed = Outcome.COMPLETED, line.get("seed")
            break
        measurements.append(Measurement(**line))
    return Record(
        probe=probe,
        outcome=outcome,
        seconds=round(end.seconds, 3),
        measurements=tuple(measurements),
        exit_code=end.exit_code,
        log=_tail(log),
        seed=seed,
    )


def _tail(log: Path) -> str:
    with log.open("rb") as lines:
        lines.seek(max(0, log.stat().st_size - LOG_TAIL_CHARACTERS))
        return lines.read().decode("utf-8", "replace")
