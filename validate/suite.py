"""Runs the probes that a claim file names, each in a process of its own, and prints one JSON record a line.

    python3 -I -S FOLDER/validate --claims claims.json --tier static --tier cpu

`-I -S` keeps the image's own environment (PYTHONPATH, PYTHONOPTIMIZE, sitecustomize) away from the suite; with
`-X pycache_prefix` it reads no bytecode of the image either. Probes that only read files are forks of a process that is
started so, too; all others start as a user's process in the image would.
"""

import argparse
import contextlib
import errno
import gc
import importlib
import json
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from validate import channel, checks
from validate.claims import ClaimSet, Tier
from validate.environment import installed, user_environment
from validate.environment.user_environment import UserEnvironment
from validate.evidence import Measurement, Outcome, Record, plain
from validate.harness import drawn
from validate.harness.forked import PATIENT, end_session, run_apart
from validate.survey import environments

TIMEOUT_SECONDS: Mapping[Tier, float] = {Tier.STATIC: 900, Tier.CPU: 900, Tier.GPU: 900, Tier.MULTIGPU: 1500}
"""A whole tier takes under a minute on two cores: a probe past these limits hangs. Ranks have limits of their own,
which tell more, so their tier's lies above what those add up to (checks/multigpu/_launch.py). A check may have its own
limit (checks.Settings).
"""

_FEW_JOBS = 4
"""On a core, torch's import takes 1.5 s of each probe that begins with it."""
_TURN = 0.05  # seconds between two looks at forks
_COMMON_SECONDS = 120
"""What readers have in common takes 3. A file that makes it take for ever costs this, and no probe its verdict."""
LOG_TAIL_CHARACTERS = 4000
_Ends = Mapping[str, "Future[list[Record]]"]
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
    """Run the suite, or (`--probe`) probes in this process. The exit status says nothing about the image."""
    options = _parser().parse_args(arguments)
    claims = ClaimSet.loads(Path(options.claims).read_text(encoding="utf-8"))
    if options.probe and _reads_files(options.probe[0]):
        sys.addaudithook(_open_files_alone)
    if options.out:
        _fork_each(options.probe, claims, Path(options.out), options.results, options.jobs, options.timeout)
    elif options.probe:
        _measure(options.probe[0], claims, options.results[0])
    if options.probe:
        return 0
    tiers = [Tier(tier) for tier in options.tier or Tier]
    user = user_environment.read(Path(options.user)) if options.user else None
    user_environment.of_this_process()  # read once, before the channel closes /proc/self/environ
    key = channel.receive_key()
    how = {name: value for name, value in vars(options).items() if name in ("jobs", "timeout", "seed")}
    for record in run(claims.of(tiers), Path(options.claims), user=user, **how):
        print(channel.signed(key, json.dumps(asdict(record))), flush=True)  # noqa: T201  the suite's output
    return 0


def run(
    claims: ClaimSet,
    file: Path,
    *,
    jobs: int,
    timeout: float | None = None,
    user: UserEnvironment | None = None,
    seed: int | None = None,
) -> Iterator[Record]:
    """Start every probe that a claim asks for, at most `jobs` at once, and yield each record as its process ends.

    `file`: where probes read the claims. `seed`: what they draw their inputs with; None: one is drawn here.
    Those that want to be alone come last, one after another. `timeout` is in seconds a probe; None: its own, else its
    tier's. Claims known to be unproven are not measured. `user` is whom probes look at if it is not this process's
    user: then they keep this process's own environment. Probes that read files are forks of one process. On few
    cores, those that begin with torch are forks of another: as many again at once.
    """
    probes = list(dict.fromkeys(claim.probe for claim in claims.inside().claims if not claim.unproven))
    given = user or user_environment.of_this_process()
    if not given.start and any(_reads_files(probe) for probe in probes):
        given = environments.as_files_say(given)
    with tempfile.TemporaryDirectory(prefix="validate-") as folder:
        scratch = Path(folder)
        marker = user_environment.record(given) | drawn.variable(secrets.randbelow(1 << 31) if seed is None else seed)
        environ = {**(os.environ if user else given.environ), **marker}
        run_one = partial(_run_probe, scratch=scratch, claims=file, timeout=timeout)
        beside = {**PATIENT, **environ}
        alone = [probe for probe in probes if checks.settings(probe).runs_alone]
        probes.sort(key=lambda probe: not checks.settings(probe).starts_first)
        readers = [probe for probe in probes if _reads_files(probe) and checks.file_of(probe)]
        shared = [one for one in probes if jobs <= _FEW_JOBS and one.startswith(f"{Tier.CPU}.")]
        torchs = [probe for probe in shared if checks.settings(probe).begins_with_torch]
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            running = list[Future[list[Record]]]()
            for forked in filter(None, (readers, torchs)):
                ends = {probe: Future[list[Record]]() for probe in forked}
                running += [pool.submit(_run_forked, ends, scratch, file, beside, timeout, jobs), *ends.values()]
            own = [probe for probe in probes if probe not in (*alone, *readers, *torchs)]
            running += [pool.submit(run_one, probe, environ=beside) for probe in own]
            for future in as_completed(running):
                yield from future.result()
        for probe in alone:
            yield from run_one(probe, environ=environ)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="validate", description="Measure an image from inside, one record a line.")
    parser.add_argument("--claims", required=True, help="the image's claims, as JSON")
    parser.add_argument("--tier", action="append", choices=[tier.value for tier in Tier], help="default: all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="probes at once (cores)")
    parser.add_argument("--timeout", type=float, help="seconds a probe (default: by tier)")
    parser.add_argument("--user", metavar="FILE", help="look at this user's environment, not at this process's")
    parser.add_argument("--seed", type=int, help="what inputs are drawn with (default: anew)")
    parser.add_argument("--probe", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--results", action="append", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser


def _measure(probe: str, claims: ClaimSet, results: int) -> None:
    """Measure for the probe's claims here: a line a measurement to the descriptor `results`, then the closing line,
    which tells the seed. It is of a file that has no name: other probes don't find it.

    Whatever the probe raises ends the process: the missing closing line tells the rest.
    """
    os.set_inheritable(results, False)
    asked = [claim for claim in claims.only([probe]).claims if not claim.unproven]
    applicable = [claim for claim in asked if not claim.expect.get("not_applicable")]
    with open(results, "w", encoding="utf-8", buffering=1) as lines:
        started = time.monotonic()
        measured = checks.module(probe).measure(applicable) if applicable else ()
        for subject, evidence in chain(((one.subject, {}) for one in asked if one not in applicable), measured):
            seconds = round(time.monotonic() - started, 3)
            lines.write(json.dumps({"subject": subject, "seconds": seconds, "evidence": plain(evidence)}) + "\n")
            started = time.monotonic()
        lines.write(json.dumps({"closing": True, "seed": drawn.seed()}) + "\n")


def _open_files_alone(event: str, arguments: Sequence[Any]) -> None:
    """An audit hook: a pipe of an image would be waited for, and a device may have no end. Raises OSError."""
    known = event != "open" or not isinstance(path := arguments[0], str) or path.startswith("/dev/")
    if not known and not os.path.isfile(path) and os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110 PTH112 PTH113
        raise OSError(errno.ENXIO, "is a device, pipe or socket", path)


def _run_probe(
    probe: str, scratch: Path, claims: Path, environ: Mapping[str, str], timeout: float | None
) -> list[Record]:
    """Run a probe in a process of its own."""
    started = time.monotonic()
    if checks.file_of(probe) is None:
        return [Record(probe=probe, outcome=Outcome.MISSING, seconds=0.0)]
    folder = Path(tempfile.mkdtemp(dir=scratch))
    flags = _ISOLATED if _reads_files(probe) else ()
    command = [sys.executable, *flags, str(_PACKAGE), "--claims", str(claims), "--probe", probe]
    with tempfile.TemporaryFile() as results:
        command += ["--results", str(results.fileno())]
        options: Any = {"env": {**environ, **_own(folder)}, "pass_fds": [results.fileno()]}
        code = run_apart(command, folder / "log", _limit(probe, timeout), **options)
        return [_record(probe, folder / "log", results, code, time.monotonic() - started)]


def _reads_files(probe: str) -> bool:
    """And so asks nothing of the Python that runs it, which knows how a user's would start from files alone."""
    return checks.settings(probe).reads_files_only or probe.startswith(f"{Tier.STATIC}.")


def _run_forked(
    ends: _Ends, scratch: Path, claims: Path, environ: Mapping[str, str], timeout: float | None, jobs: int
) -> list[Record]:
    """Run probes in forks of one process that has done what all of them begin with, and tell of each as it ends.

    Where it fails, each probe runs in a process of its own, and says so itself.
    """
    probes = list(ends)
    flags = _ISOLATED if _reads_files(probes[0]) else ()
    command = [sys.executable, *flags, str(_PACKAGE), "--claims", str(claims), "--out", str(scratch)]
    command += ["--jobs", str(jobs), *(["--timeout", str(timeout)] if timeout else [])]
    command += [word for probe in probes for word in ("--probe", probe)]
    for probe in probes:
        (scratch / probe).mkdir()
    limit = sum(_limit(probe, timeout) for probe in [probes[0], *probes])
    with contextlib.ExitStack() as held:
        files = [held.enter_context(tempfile.TemporaryFile()) for _ in ("how they end", *probes)]
        left = dict(zip(probes, files[1:]))  # noqa: B905  Python 3.9
        kept = [file.fileno() for file in files]
        command += [word for number in kept for word in ("--results", str(number))]
        log = Path(tempfile.mkdtemp(dir=scratch), "log")
        aside = held.enter_context(ThreadPoolExecutor(max_workers=jobs))
        all_of_them = aside.submit(run_apart, command, log, limit, env=dict(environ), pass_fds=kept)
        over, begun = False, dict[str, int]()
        while left and not over:
            over = bool(wait([all_of_them], _TURN).done)
            whole, _, _ = os.pread(kept[0], 1 << 20, 0).rpartition(b"\n")  # forks write where `seek` would lead
            for probe, pid, *end in map(json.loads, whole.splitlines()):
                begun[probe] = pid
                if end and (results := left.pop(probe, None)):
                    ends[probe].set_result([_record(probe, scratch / probe / "log", results, *end)])
        all_of_them.result()
        for probe in begun.keys() & left:
            end_session(begun[probe])
        for probe, done in [(one, aside.submit(_run_probe, one, scratch, claims, environ, timeout)) for one in left]:
            ends[probe].set_result(done.result())
    return []


def _fork_each(
    probes: Sequence[str], claims: ClaimSet, scratch: Path, results: Sequence[int], jobs: int, timeout: float | None
) -> None:
    """Begin with what they have in common, and measure each probe in a fork. The first of `results` is told of a fork
    by itself, and of its end from here."""
    readers = _reads_files(probes[0])
    first = [one for one in probes if readers and checks.settings(one).starts_first]
    _read_in_common(first) if readers else importlib.import_module("torch")
    own, context = dict(zip(probes, results[1:])), multiprocessing.get_context("fork")  # noqa: B905  Python 3.9
    waiting, running = list(probes), dict[str, tuple[multiprocessing.context.ForkProcess, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            if readers and len(waiting) == len(probes) - len(first):
                _read_in_common(waiting)
            probe = waiting.pop(0)
            gc.freeze()  # what is shared stays so
            child = context.Process(target=_measure_in_fork, args=(probe, claims, scratch, results[0], own[probe]))
            child.start()
            running[probe] = child, time.monotonic()
        time.sleep(_TURN)
        for probe, (child, started) in list(running.items()):
            code, seconds = child.exitcode, time.monotonic() - started
            if code is None and seconds < _limit(probe, timeout):
                continue
            if child.pid:
                end_session(child.pid)
            child.join()
            os.write(results[0], f"{json.dumps([probe, child.pid, code, seconds])}\n".encode())
            del running[probe]


def _read_in_common(probes: Sequence[str]) -> None:
    """What raises, or takes too long and so ends this process, each probe meets again in its own."""
    signal.alarm(_COMMON_SECONDS)
    for probe in probes:
        with contextlib.suppress(Exception):
            installed.of_user()
            for read in checks.settings(probe).shared_reads:
                read()
    signal.alarm(0)


def _measure_in_fork(probe: str, claims: ClaimSet, scratch: Path, told: int, results: int) -> None:
    """As in a process of its own: with a session, a log and caches of its own."""
    os.setsid()
    os.write(told, f"{json.dumps([probe, os.getpid()])}\n".encode())  # before it can end the process that forked it
    log = os.open(scratch / probe / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(_own(scratch / probe))
    _measure(probe, claims, results)


def _limit(probe: str, timeout: float | None) -> float:
    return timeout or checks.settings(probe).time_limit or TIMEOUT_SECONDS[Tier(probe.partition(".")[0])]


def _own(scratch: Path) -> dict[str, str]:
    """The variables of one probe."""
    return {**_OFFLINE, **{variable: str(scratch / "cache" / folder) for variable, folder in _CACHES.items()}}


def _record(probe: str, log: Path, results: BinaryIO, code: int | None, seconds: float) -> Record:
    """What a probe left. `code`: None: it ran past its limit.

    The closing line decides; how a process died only says why there is none. A torn last line is left out.
    """
    outcome = Outcome.TIMED_OUT if code is None else Outcome.SILENT if code == 0 else Outcome.CRASHED
    measurements, seed = list[Measurement](), None
    results.seek(0)
    for line in results.read().decode("utf-8", "replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if entry.get("closing"):
            outcome, seed = Outcome.COMPLETED, entry.get("seed")
            break
        measurements.append(Measurement(**entry))
    with log.open("rb") as lines:
        lines.seek(max(0, log.stat().st_size - LOG_TAIL_CHARACTERS))
        tail = lines.read().decode("utf-8", "replace")
    return Record(
        probe=probe,
        outcome=outcome,
        seconds=round(seconds, 3),
        measurements=tuple(measurements),
        exit_code=code,
        log=tail,
        seed=seed,
    )
