"""imports: check that each package can be imported, in a new process and after torch.

The package that is imported first decides whose library a process holds. Some packages log that
something failed at import and raise nothing: xformers logs that it can't load its kernels and goes
on. So the output of each import is evidence, too.
"""

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypedDict, cast

from validate.checks import Settings
from validate.claims import Claim
from validate.harness.error_codes import ErrorEvidence
from validate.harness.forked import describe_error, half_of_the_cores, measure_in_forks
from validate.judging import Finding, conclude, failed, listed, root_cause
from validate.next_steps import CHECK_FAILED, pin

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

_SECONDS = 800
"""An import that takes longer hangs. This is below a probe's limit. The imports of cu126-torch27
took 413 s where 17 processes shared two cores."""
_MOST_LINES = 30
_LINE_CHARACTERS = 300
_END_OF_IMPORTS = "validate: imported all"
"""The line by which the new process reports that all modules are imported."""
_PROGRAM = f"""\
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print({_END_OF_IMPORTS!r}, flush=True)
"""


class ImportExpect(TypedDict):
    """The modules of one package, how to import them, and what they must not print."""

    modules: Sequence[str]
    first: bool  # import them in a new process, before anything else
    after: bool  # import them in a process that has imported torch
    complaints: Sequence[str]  # patterns of lines that must not be printed
    harmless: Mapping[str, str]  # pattern of a line that may be printed all the same -> the reason


class ImportRun(TypedDict, total=False):
    """What an import printed and raised.

    Lines printed at exit are not judged: torch 2.5 starts a compile worker at import, and this
    prints a traceback (BrokenPipe) if the process exits before the worker is ready, as it may on a
    busy machine.
    """

    said: list[str]
    said_at_exit: list[str]
    error: ErrorEvidence


class ImportEvidence(TypedDict):
    """What `measure` yields for a package."""

    orders: Mapping[str, ImportRun]  # by `first` and `after torch`


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ImportEvidence]]:
    """Import the modules of the package that each claim names, and yield what that printed.

    There are two orders, because a package may work only in one: the package is imported first, in
    a new process; or after torch, in a fork of this process. A claim says which orders it needs
    (`first`, `after`). If an import raises an error, the error is yielded.
    """
    expects: dict[str, ImportExpect] = {
        claim.subject: cast("ImportExpect", claim.expect) for claim in claims
    }
    # Both orders run at the same time, each on half of the cores.
    at_once = half_of_the_cores()
    # The threads only wait for the new processes.
    with ThreadPoolExecutor(max_workers=at_once) as threads:
        first_runs: dict[str, Future[ImportRun]] = {}
        for subject, expect in expects.items():
            if expect["first"]:
                first_runs[subject] = threads.submit(import_in_new_process, expect["modules"])

        # Meanwhile this process imports torch, and its forks import each package after it.
        modules_after: dict[str, Sequence[str]] = {}
        for subject, expect in expects.items():
            if expect["after"]:
                modules_after[subject] = expect["modules"]
        for subject, run in import_each_after_torch(modules_after, at_once):
            # Name of an order -> its run.
            orders = wait_for_first_run(first_runs, subject)
            orders["after torch"] = run
            yield subject, {"orders": orders}

        # The other packages are imported in a new process only.
        for subject in expects:
            if subject not in modules_after:
                yield subject, {"orders": wait_for_first_run(first_runs, subject)}


def wait_for_first_run(
    first_runs: Mapping[str, Future[ImportRun]], subject: str
) -> dict[str, ImportRun]:
    """Wait for the new process of a package, and return `{"first": ...}`, with what it printed.

    `first_runs` has the processes by package. Empty if the package has none.
    """
    if subject in first_runs:
        return {"first": first_runs[subject].result()}
    return {}


def import_each_after_torch(
    modules: Mapping[str, Sequence[str]], at_once: int
) -> Iterator[tuple[str, ImportRun]]:
    """Import torch here, then each package in a fork; yield (package, run) as the forks end.

    `modules`: package -> its modules. `at_once`: how many forks run at the same time.
    """
    importlib.import_module("torch")
    packages = list(modules)
    imports = [partial(import_after_torch, modules[package]) for package in packages]
    for number, run in measure_in_forks(imports, at_once):
        yield packages[number], run


def import_in_new_process(modules: Sequence[str]) -> ImportRun:
    """Import modules in a new Python process, as a user's program does.

    Returns the last lines that it printed while it imported (`said`), and at its exit
    (`said_at_exit`). If an import fails, `error` has the exit status and the last line, or says
    that the time was up.
    """
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        message = f"not imported within {_SECONDS} s"
        return {"error": {"kind": "timeout", "message": message}, "said": []}

    output = completed.stdout.decode("utf-8", "replace")
    # The program prints this line after the imports. It is missing if one of them failed.
    at_import, end_of_imports, at_exit = output.partition(_END_OF_IMPORTS)
    lines, lines_at_exit = last_lines(at_import), last_lines(at_exit)
    run: ImportRun = {"said": lines}
    if lines_at_exit:
        run["said_at_exit"] = lines_at_exit
    if not end_of_imports or completed.returncode != 0:
        all_lines = [*lines, *lines_at_exit]
        message = all_lines[-1] if all_lines else "nothing was said"
        run["error"] = {"kind": f"status {completed.returncode}", "message": message}
    return run


def import_after_torch(modules: Sequence[str]) -> ImportRun:
    """Import modules in this process, which is a fork that has imported torch.

    Returns the last lines that they printed (`said`), and the error if one of them raised.
    """
    with tempfile.TemporaryFile() as output:
        # Redirected by file descriptor, because C code writes past sys.stdout and sys.stderr.
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        run: ImportRun = {}
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as error:
            run["error"] = describe_error(error)
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        run["said"] = last_lines(output.read().decode("utf-8", "replace"))
        return run


def last_lines(text: str) -> list[str]:
    """Return the last lines of a text without empty ones, each cut to 300 characters."""
    lines = [line.strip()[:_LINE_CHARACTERS] for line in text.splitlines()]
    return [line for line in lines if line][-_MOST_LINES:]


def judge(_subject: str, expect: ImportExpect, evidence: ImportEvidence) -> Finding:
    """Pass if a package's modules could be imported in each order, and printed no complaint.

    An order is `first` or `after torch`. A complaint is a line that matches one of the patterns in
    `expect["complaints"]` and none of `expect["harmless"]`.
    """
    if not evidence["orders"]:
        return failed("no module was imported", CHECK_FAILED)

    modules = listed(list(expect["modules"]))
    problems = []
    for order, run in evidence["orders"].items():
        if "error" in run:
            # Drop its log, so that only the exception or the last line is quoted.
            error = {**run["error"], "log": ""}
            problems.append(f"{modules}, imported {order}, fails: {root_cause(error)}")
            continue
        for line in run["said"]:
            is_complaint = has_pattern(line, expect["complaints"])
            if is_complaint and not has_pattern(line, expect["harmless"]):
                problems.append(f"{modules}, imported {order}, complains: {line}")

    orders = " and ".join(evidence["orders"])
    return conclude(problems, f"{modules} imported {orders}, no complaint")


def has_pattern(line: str, patterns: Iterable[str]) -> bool:
    """Return whether a line holds one of these regular expressions, in upper or lower case."""
    return any(re.search(pattern, line, re.IGNORECASE) for pattern in patterns)


CLAIMS = {"imports": judge}
_PIN = pin("the release of the package that was made for this torch and CUDA")
NEXT_STEPS = {
    "imports": {
        "No module named": pin("the package that has the missing module"),
        "undefined symbol": _PIN,
        "cannot open shared object": "install the Debian package that has this library (`apt-get "
        "install`) in your Dockerfile or base image, and build the image again; if it is one of "
        f"CUDA or torch, {_PIN}",
        "": "`docker run --rm IMAGE python -c 'import MODULE'`, with the module that the reason "
        f"names, shows the whole error: {_PIN}",
    }
}
