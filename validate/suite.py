"""Runs the probes of an image's claims, each in its own process, and prints a JSON record of each.

    python3 -I -S FOLDER/validate --claims claims.json --tier static --tier cpu

From `main` down:

- `run` sorts the probes into groups: those that read files, those that begin with torch, and each
  other one by itself.
- `run_group` starts a process for a group, and passes on the records that it writes. The process of
  a group that reads files is isolated: `-I -S` keeps the image's environment (PYTHONPATH,
  PYTHONOPTIMIZE, sitecustomize) away from it, and with `-X pycache_prefix` it reads no bytecode of
  the image. All others start as a user's process in the image would.
- That process is this program again, with `--probe`: `measure_group` does what its probes have in
  common, and measures each probe in a fork with a session, a deadline, a log and caches of its own.
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
import shutil
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
from validate.evidence import Measurement, Outcome, Record, strict_json
from validate.harness import seeding
from validate.harness.forked import PASSIVE_WAITING, ForkEnd, Work, end_session, fork_each
from validate.survey import environments

TIMEOUT_SECONDS: Mapping[Tier, float] = {
    Tier.STATIC: 900,
    Tier.CPU: 900,
    Tier.GPU: 900,
    Tier.MULTIGPU: 1500,
    Tier.MULTINODE: 3600,
}
"""How long a probe may run. A whole tier takes under a minute on two cores: a probe past its limit
hangs. Ranks of several GPUs have limits of their own, whose reports tell more; the limit of their
tier is above the sum of those (checks/multigpu/_launch.py; of two nodes four launches, and a
meeting before each, checks/multinode/_nodes.py). A check may have its own limit (checks.Settings).
"""
_PREPARE_SECONDS = 120
"""How long preparing a group may take; it takes 3 seconds. After that its probes run without it."""
LOG_TAIL_CHARACTERS = 4000
_PACKAGE = Path(__file__).resolve().parent
_ISOLATED = ("-I", "-S", "-B", "-X", f"pycache_prefix={sys.pycache_prefix or ''}")
"""Options of Python for the process of a group that reads files: see above."""
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
    "HF_HOME": "huggingface",
}
"""Variables of cache folders -> the folder's name. Each probe gets empty ones: a warm cache hides a
missing compiler."""
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
}
"""Keeps probes, and programs that they start, from asking a hub or reporting their use."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks (probes) that the claims ask for, and print what each measured as signed JSON.

    The key to sign with comes on standard input (channel.py). With `--probe`, this is a process
    that the suite itself has started for a group of probes: it runs only these, and writes their
    records to the open file `--records`. Returns 0 whatever was measured: the host judges it.

    arguments: those of the command line, without the program's name; None: sys.argv's.
    """
    options = _parser().parse_args(arguments)
    claims = ClaimSet.loads(Path(options.claims).read_text(encoding="utf-8"))
    if options.probe:
        measure_group(
            options.probe,
            claims,
            prepare=options.prepare,
            records_descriptor=options.records,
            scratch=Path(options.scratch),
            jobs=options.jobs,
            timeout=options.timeout,
        )
        return 0

    tiers = [Tier(tier) for tier in options.tier or Tier]
    user = user_environment.read(Path(options.user)) if options.user else None
    # Read the environment now, and keep it for `run`: receive_key makes /proc/self/environ
    # unreadable.
    user_environment.of_this_process()
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
        line = channel.sign(key, json.dumps(asdict(record)))
        print(line, flush=True)  # noqa: T201  the suite's output
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the suite's command line."""
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
    parser.add_argument(
        "--seed", type=int, help="what inputs are drawn with (default: a new one for each run)"
    )
    # The options below are for the process of a group, which the suite starts itself.
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
    """The process first does what all its probes begin with, so that it is done once."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What all groups of a run have in common."""

    claims: Path
    """The file from which probes read the claims."""
    scratch: Path
    """A folder for logs and caches."""
    jobs: int
    """How many groups run at once, and how many forks of a group."""
    timeout: float | None
    """In seconds a probe; None: its own limit, else its tier's."""
    python: str
    """The Python of the image's user: it runs the probes that run the image's code."""


def run(
    claims: ClaimSet,
    file: Path,
    *,
    jobs: int,
    timeout: float | None = None,
    user: UserEnvironment | None = None,
    seed: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Record]:
    """Run the programs (probes) that test these claims, and yield the record of each as it ends.

    A record has the measurements, and how the probe ended. A probe that does not exist gets a
    record, too.

    file: the file with these claims, from which probes read them.
    jobs: how many groups of probes run at once.
    timeout: seconds for each probe; None: its own limit, else its tier's.
    user: the user whose environment the probes look at. The probes themselves run with the
        variables of this process. None: the user of this process.
    seed: what probes draw random inputs with; None: a new one.
    variables: further environment variables of the probes.
    """
    # Claims that are known to be unproven are not tested.
    to_measure = [claim for claim in claims.of_container().claims if not claim.unproven]
    # Several claims may have the same probe, which measures all of them in one run.
    probes = []
    for probe in dict.fromkeys(claim.probe for claim in to_measure):
        if checks.file_of(probe) is None:
            yield Record(probe=probe, outcome=Outcome.MISSING, seconds=0.0)
        else:
            probes.append(probe)

    if seed is None:
        seed = secrets.randbelow(1 << 31)
    environ = {**_environment_of_probes(probes, user), **seeding.seed_variable(seed)}
    environ |= variables or {}
    python = shutil.which("python3", path=environ.get("PATH")) or sys.executable
    groups, one_by_one = _form_groups(probes)
    with tempfile.TemporaryDirectory(prefix="validate-") as scratch:
        settings = RunSettings(
            claims=file, scratch=Path(scratch), jobs=jobs, timeout=timeout, python=python
        )
        # These groups run side by side, so a thread that only waits must not keep a core busy.
        yield from _run_side_by_side(groups, settings, {**PASSIVE_WAITING, **environ})
        for probe in one_by_one:
            yield from run_group(Group([probe]), settings, environ)


def _environment_of_probes(probes: Sequence[str], user: UserEnvironment | None) -> dict[str, str]:
    """Return the environment variables of the processes that run these probes.

    Probes observe what a user of the image gets. That is `user`, or else the user of this process.
    One variable hands the user's environment to the probes, which read it with
    `user_environment.recorded`. The other variables are this process's own. Raises LookupError if a
    probe reads files, and the image has no Python with packages.
    """
    observed_user = user or user_environment.of_this_process()
    # A probe that reads files starts no Python of the image. It needs to know which Python the user
    # would start, and with which search path: the image's files say so.
    if not observed_user.start and any(_reads_files(probe) for probe in probes):
        observed_user = environments.with_python_from_files(observed_user)
    # Another user's variables must not act on the probes. Those of this process's user do, as they
    # were when it started: Python's start may have changed os.environ.
    own_variables = os.environ if user else observed_user.environ
    return {**own_variables, **user_environment.variable_for_probes(observed_user)}


def _form_groups(probes: Sequence[str]) -> tuple[list[Group], list[str]]:
    """Return groups of probes that share a process, and the probes that run one by one at the end.

    A probe is a function that measures something of the image. Groups are in the order in which
    they start, and run at the same time.
    """
    one_by_one = [probe for probe in probes if checks.settings(probe).runs_alone]
    others = [probe for probe in probes if probe not in one_by_one]
    # Probes with `starts_first` come first: False sorts before True.
    others.sort(key=lambda probe: not checks.settings(probe).starts_first)

    # Probes that only read files are a group, and so are those that can share an import of torch.
    # `prepare`: the process first does what its probes share, such as the import.
    readers = [probe for probe in others if _reads_files(probe)]
    with_torch = [probe for probe in others if _begins_with_torch(probe)]
    groups = []
    for members in (readers, with_torch):
        if members:
            groups.append(Group(members, prepare=True))

    # Every other probe is a group of its own.
    for probe in others:
        if probe not in readers and probe not in with_torch:
            groups.append(Group([probe]))
    return groups, one_by_one


def _reads_files(probe: str) -> bool:
    """Return whether a probe only reads files, and asks nothing of the Python that runs it."""
    return checks.settings(probe).reads_files_only or _tier(probe) is Tier.STATIC


def _begins_with_torch(probe: str) -> bool:
    """Return whether a probe can share an import of torch, which takes 1.5 s of a core.

    Probes that use a GPU cannot: CUDA does not survive a fork.
    """
    return _tier(probe) is Tier.CPU and checks.settings(probe).begins_with_torch


def _tier(probe: str) -> Tier:
    """Return the tier of a probe, which its name begins with."""
    return Tier(probe.partition(".")[0])


def _seconds_allowed(probe: str, timeout: float | None) -> float:
    """Return the seconds that a probe may take: `timeout`, else its own limit, else its tier's."""
    return timeout or checks.settings(probe).time_limit or TIMEOUT_SECONDS[_tier(probe)]


def _run_side_by_side(
    groups: Sequence[Group], settings: RunSettings, environ: Mapping[str, str]
) -> Iterator[Record]:
    """Run groups, as many at once as there are jobs, and yield each record as it comes.

    A group is probes that share a process; a record is what a probe measured and how it ended. An
    exception in one group is raised when all groups have ended.

    environ: the environment variables of the processes.
    """
    records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()

    def run_in_thread(group: Group) -> None:
        """Put the records of a group into the queue, then None: it has ended."""
        try:
            for record in run_group(group, settings, environ):
                records.put(record)
        finally:
            records.put(None)

    with ThreadPoolExecutor(max_workers=settings.jobs) as pool:
        running = [pool.submit(run_in_thread, group) for group in groups]
        # Records of several groups come mixed. Each group ends with a None.
        groups_running = len(groups)
        while groups_running:
            record = records.get()
            if record is None:
                groups_running -= 1
            else:
                yield record
    # Raise the exception of a group, if it raised one.
    for future in running:
        future.result()


def run_group(group: Group, settings: RunSettings, environ: Mapping[str, str]) -> Iterator[Record]:
    """Run the probes of a group in one new process, and yield a record of each as it ends.

    A probe is a function that measures claims; its record has what it measured and how it ended.
    `environ` is the environment of the process. A process that hangs is killed after a time.

    Every probe gets a record, even if the process ends early. If it prepared something for all
    probes, that may be the cause: probes without a record run again, each in a process of its own.
    Otherwise their record says how the process ended.
    """
    started = time.monotonic()
    log = Path(tempfile.mkdtemp(dir=settings.scratch), "log")
    # The process kills a probe that takes too long. This limit is for a process that hangs itself.
    # It allows for all probes one after another, and as much as one more for preparing.
    limits = [_seconds_allowed(probe, settings.timeout) for probe in group.probes]
    process_limit = limits[0] + sum(limits)

    read_end, write_end = os.pipe()
    process = _start_group(group, settings, environ, records_descriptor=write_end, log=log)
    # With this end closed, only the process can write. So reading ends when the process ends.
    os.close(write_end)

    # Pass on the records as they come.
    without_record = list(group.probes)
    watchdog = threading.Timer(process_limit, end_session, [process.pid])
    watchdog.start()
    try:
        with os.fdopen(read_end, encoding="utf-8") as lines:
            for record in _parse_records(lines):
                without_record.remove(record.probe)
                yield record
    finally:
        watchdog.cancel()
        end_session(process.pid)
        exit_code: int | None = process.wait()

    seconds = time.monotonic() - started
    if seconds >= process_limit:
        exit_code = None  # it did not end, but was killed
    for probe in without_record:
        if group.prepare:
            yield from run_group(Group([probe]), settings, environ)
        else:
            # The process was only for this probe, which gets its exit status.
            end = ForkEnd(0, exit_code, seconds)
            yield _make_record(probe, end, lines=(), log=log)


def _start_group(
    group: Group,
    settings: RunSettings,
    environ: Mapping[str, str],
    *,
    records_descriptor: int,
    log: Path,
) -> subprocess.Popen[bytes]:
    """Start the process of a group of probes, as the leader of a session, and return it.

    environ: all its environment variables.
    records_descriptor: the open file to which it writes records.
    log: the file that gets its stdout and stderr.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            _group_command(group, settings, records_descriptor),
            env=environ,
            pass_fds=[records_descriptor],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _parse_records(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the record in each line of JSON.

    A line without an end is the last one: the process was killed while it wrote it.
    """
    for line in lines:
        if not line.endswith("\n"):
            return
        yield Record.from_json(json.loads(line))


def _group_command(group: Group, settings: RunSettings, records_descriptor: int) -> list[str]:
    """Return the command that runs this program as the process of a group of probes.

    settings: what all groups of a run share, such as the file of claims and the folder for logs.
    records_descriptor: the open file to which it writes records.
    """
    # Either all probes of a group only read files, or none does. Those that do run isolated from
    # variables and start-up code of the image. All others run in the Python that users start.
    if _reads_files(group.probes[0]):
        command = [sys.executable, *_ISOLATED, str(_PACKAGE)]
    else:
        command = [settings.python, str(_PACKAGE)]
    command += ["--claims", str(settings.claims)]
    command += ["--records", str(records_descriptor)]
    command += ["--scratch", str(settings.scratch)]
    command += ["--jobs", str(settings.jobs)]
    if settings.timeout:
        command += ["--timeout", str(settings.timeout)]
    if group.prepare:
        command += ["--prepare"]
    for probe in group.probes:
        command += ["--probe", probe]
    return command


# ---- the process of a group


def measure_group(
    probes: Sequence[str],
    claims: ClaimSet,
    *,
    prepare: bool,
    records_descriptor: int,
    scratch: Path,
    jobs: int,
    timeout: float | None,
) -> None:
    """Run each probe of a group in a fork of this process, and write a record of each.

    A probe is a function that tests claims. Its record has what it measured and how it ended: a
    probe that crashes, or takes too long, gets one, too. `run_group` starts the process that does
    this.

    prepare: first do here what all the probes begin with, so that it is done once.
    records_descriptor: the open file to which records are written, as lines of JSON, in the order
        in which probes end.
    scratch: the folder for logs and caches.
    jobs: how many forks run at once.
    timeout: seconds for each probe; None: its own limit, else its tier's.
    """
    # Either all probes of a group only read files, or none does.
    if _reads_files(probes[0]):
        sys.addaudithook(_refuse_pipes_and_devices)
    if prepare:
        _prepare(probes)

    with contextlib.ExitStack() as open_files:
        # Prepare a fork for each probe. Both lists are in the order of the probes.
        forks: list[Work] = []
        results: list[BinaryIO] = []
        for probe in probes:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            log = folder / "log"
            log.touch()
            # The fork writes what it measures to a file without a name, which other probes cannot
            # find.
            result = open_files.enter_context(tempfile.TemporaryFile())
            results.append(result)
            measure = partial(
                _measure_probe,
                probe,
                claims,
                results_descriptor=result.fileno(),
                records_descriptor=records_descriptor,
                folder=folder,
            )
            forks.append(Work(measure, log=log, seconds=_seconds_allowed(probe, timeout)))

        # Run the forks. A record is written when its probe ends, so that one that hangs holds back
        # no other.
        records = open_files.enter_context(open(records_descriptor, "w", encoding="utf-8"))
        for end in fork_each(forks, jobs, own_sessions=True):
            number = end.number
            lines = _read_lines(results[number])
            record = _make_record(probes[number], end, lines=lines, log=forks[number].log)
            records.write(json.dumps(asdict(record)) + "\n")
            records.flush()


def _prepare(probes: Sequence[str]) -> None:
    """Do once in this process what these probes begin with, so that their forks have it already.

    Probes that read files share what they read, all others an import of torch. Errors of reading
    are ignored here: each fork meets them again and reports them. If it takes too long, or torch
    can't be imported, this process ends, and run_group starts the probes without preparing.
    """
    # SIGALRM ends a process that does not handle it.
    signal.alarm(_PREPARE_SECONDS)
    # Either all probes of a group only read files, or none does.
    if _reads_files(probes[0]):
        reads: list[Callable[[], object]] = [installed.read_user_python]
        for probe in probes:
            reads.extend(checks.settings(probe).shared_reads)
        for read in reads:
            with contextlib.suppress(Exception):
                read()
    else:
        importlib.import_module("torch")
        # Some packages start torch's compile workers when they are imported (bitsandbytes with
        # torch 2.5). These are of use for Triton's kernels only, and each imports torch again.
        with contextlib.suppress(Exception):
            inductor_settings: Any = importlib.import_module("torch._inductor.config")
            inductor_settings.compile_threads = 1
    signal.alarm(0)
    # A fork's garbage collector would copy each page that it marks.
    gc.freeze()


def _refuse_pipes_and_devices(event: str, arguments: Sequence[Any]) -> None:
    """Raise OSError if a probe opens a pipe, socket or device outside of /dev.

    Such a file belongs to the image: a pipe would be waited for, and a device may have no end. This
    is an audit hook of Python (sys.addaudithook), which is called before each file is opened, and
    at many other events. For `open`, the first of the arguments is the path.
    """
    if event != "open":
        return
    # A number is a descriptor: that file is open already.
    path = arguments[0]
    if not isinstance(path, str) or path.startswith("/dev/"):
        return
    # pathlib would be too slow: a check opens tens of thousands of files.
    is_harmless = os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112 PTH113
    if is_harmless or not os.path.exists(path):  # noqa: PTH110
        return
    raise OSError(errno.ENXIO, "is a device, pipe or socket", path)


def _measure_probe(
    probe: str, claims: ClaimSet, *, results_descriptor: int, records_descriptor: int, folder: Path
) -> None:
    """Measure the claims of a probe, and write what was measured. This runs in the probe's fork.

    results_descriptor: the open file for measurements, a JSON line each. The last line is a closing
        one, with the seed; if the probe raises an error, the fork ends without it.
    records_descriptor: the group's open file, which the probe must not write to.
    folder: the probe's own, for its caches.
    """
    os.close(records_descriptor)
    os.environ.update(_OFFLINE)
    for variable, name in _CACHES.items():
        os.environ[variable] = str(folder / "cache" / name)

    measurable = [claim for claim in claims.measured_by([probe]).claims if not claim.unproven]
    applicable = [claim for claim in measurable if not claim.expect.get("not_applicable")]
    # Buffered by line, so that what was measured is there if the probe crashes later.
    with open(results_descriptor, "w", encoding="utf-8", buffering=1) as lines:

        def write(subject: str, seconds: float, evidence: Mapping[str, Any]) -> None:
            """Write the line of a measurement."""
            line = {
                "subject": subject,
                "seconds": round(seconds, 3),
                "evidence": strict_json(evidence),
            }
            lines.write(json.dumps(line) + "\n")

        # Claims that are not applicable get a line without evidence. Their verdict says why
        # (judge.apply_judge).
        for claim in measurable:
            if claim not in applicable:
                write(claim.subject, 0.0, {})
        if applicable:
            # Evidence comes as soon as it is measured, so it took the time since the one before it.
            started = time.monotonic()
            for subject, evidence in checks.import_check(probe).measure(applicable):
                write(subject, time.monotonic() - started, evidence)
                started = time.monotonic()
        lines.write(json.dumps({"closing": True, "seed": seeding.seed_of_run()}) + "\n")


def _read_lines(results: BinaryIO) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON lines that a probe wrote, up to one that it did not finish.

    A line is a measurement (`subject`, `seconds`, `evidence`), or the closing one.
    """
    results.seek(0)
    for line in results.read().decode("utf-8", "replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _make_record(
    probe: str, end: ForkEnd, *, lines: Iterable[Mapping[str, Any]], log: Path
) -> Record:
    """Return the record of a probe: what it measured, how it ended, and the end of its log.

    A probe that wrote the closing line has completed. Without that line, the exit status of its
    process says how it ended: it was too late, crashed, or stopped without an error.

    end: how its process ended.
    lines: what the probe wrote (_read_lines): measurements, and a closing line if it ran to its
        end.
    log: the file with its output.
    """
    measurements = []
    closing_line: Mapping[str, Any] | None = None
    for line in lines:
        if line.get("closing"):
            closing_line = line
            break
        measurements.append(Measurement(**line))

    if closing_line is not None:
        outcome = Outcome.COMPLETED
    elif end.exit_code is None:
        outcome = Outcome.TIMED_OUT
    elif end.exit_code == 0:
        # Something ended the process as if all were well: os._exit(0) in a package.
        outcome = Outcome.SILENT
    else:
        outcome = Outcome.CRASHED
    seed = closing_line.get("seed") if closing_line else None
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
    """Return the last characters of a log."""
    with log.open("rb") as lines:
        lines.seek(max(0, log.stat().st_size - LOG_TAIL_CHARACTERS))
        return lines.read().decode("utf-8", "replace")
