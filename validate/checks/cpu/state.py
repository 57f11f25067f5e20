"""state: check that nothing that starts with Python or torch changes what programs compute.

A .pth file, an entry point that torch runs or a variable can set TF32, an attention backend, how
the processor treats tiny numbers, or an encoding, without any file of the image being changed. A
new process of the image's user imports torch and prints these settings.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import Finding, conclude, failed, unproven
from validate.next_steps import BUILD_ANEW

SETTINGS = Settings(starts_first=True)

_SECONDS = 800
"""How long `import torch` may take on a busy machine."""
_MARK = "validate: state "
"""The start of the line that holds the result: other lines are what packages print."""
_PROGRAM = f"""
import importlib.metadata, json, locale, os, signal, sys
import torch
def read(expression):
    try:
        value = eval(expression, {{**globals(), "b": torch.backends}})
    except AttributeError:
        return None
    except Exception as error:
        return repr(error)
    return value if isinstance(value, (bool, float, int, str, list)) else str(value)
expressions = json.loads(sys.argv[1])
values = {{expression: read(expression) for expression in expressions}}
print("\\n" + {_MARK!r} + json.dumps(values), flush=True)
"""
"""Evaluates the expressions of its first argument, which may use the modules above and `b` for
torch.backends, such as `b.cudnn.allow_tf32`."""
_CAPABILITY = "b.cpu.get_cpu_capability()"
"""The expression for the vector extension whose kernels torch uses, such as `AVX512`."""


class StateExpect(TypedDict):
    """Expression (`b` is torch.backends) -> the values that it may have, the usual one first."""

    state: Mapping[str, Sequence[Any]]


class _State(TypedDict):
    state: Mapping[str, Any]  # expression -> its value; None: this torch has no such setting
    error: str  # why nothing could be read; empty: it was
    bare: str  # _CAPABILITY in a process that has no variables but PATH and HOME


class StateEvidence(_State, total=False):
    """What `measure` yields."""

    bare_error: str  # why `bare` could not be read; absent in old evidence


class Reading(NamedTuple):
    """The values of expressions after `import torch`, or why there are none."""

    values: Mapping[str, Any]
    error: str  # empty: they were read


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, StateEvidence]]:
    """Yield each claim's subject, and the settings that Python and torch have after `import torch`.

    A claim names settings by Python expressions, such as `b.cudnn.allow_tf32`. A new process with
    the variables of the image's user imports torch and evaluates them.

    Another setting is the vector extension that torch uses, such as `AVX512`. It depends on the
    processor, so a second process tells what is right (`bare`): one with so few variables that none
    can change it. What goes wrong in a process is yielded as its `error`.
    """
    environ = user_environment.recorded().environ
    bare_environ = {name: environ.get(name, "") for name in ("PATH", "HOME")}
    for claim in claims:
        expressions = [*claim.expect["state"], _CAPABILITY]
        # Both processes import torch, which takes seconds, so they run at the same time.
        with ThreadPoolExecutor(max_workers=1) as thread:
            bare_future = thread.submit(read_in_new_process, [_CAPABILITY], bare_environ)
            reading = read_in_new_process(expressions, environ)
            bare_reading = bare_future.result()

        evidence: StateEvidence = {
            "state": reading.values,
            "error": reading.error,
            "bare": str(bare_reading.values.get(_CAPABILITY, "")),
            "bare_error": bare_reading.error,
        }
        yield claim.subject, evidence


def read_in_new_process(expressions: Sequence[str], environ: Mapping[str, str]) -> Reading:
    """Evaluate expressions after `import torch` in a new Python process with these variables.

    An expression is such as `b.cudnn.allow_tf32`, where `b` is torch.backends. A value is None
    where an attribute does not exist, and the exception's repr where it raised. If the process
    hangs, fails or prints no result, there are no values but an error.
    """
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(list(expressions))],
            capture_output=True,
            env=dict(environ),
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Reading({}, f"not imported within {_SECONDS} s")

    # _PROGRAM prints the result last, behind a mark. Packages may print before it, so the last mark
    # counts, and the rest of its line.
    output = completed.stdout.decode("utf-8", "replace")
    result = output.rpartition(_MARK)[2].partition("\n")[0]
    if completed.returncode != 0 or not result:
        error_lines = completed.stderr.decode("utf-8", "replace").strip().splitlines()
        last_line = error_lines[-1] if error_lines else "nothing was said"
        return Reading({}, f"status {completed.returncode}: {last_line[:300]}")
    return Reading(json.loads(result), "")


def judge(_subject: str, expect: StateExpect, evidence: StateEvidence) -> Finding:
    """Pass if `import torch` leaves Python's and torch's settings as they should be.

    `expect["state"]` has the allowed values of each setting; one that this torch does not have is
    left out. torch must also use the kernels for this processor, as it does in a process that has
    only PATH and HOME (`bare`). UNPROVEN if that process failed, and all settings are right.
    """
    if evidence["error"]:
        return failed(
            f"`import torch` fails in a new process: {evidence['error']}",
            "if your Dockerfile changes torch or a library that it needs, mend what the error of "
            "`docker run --rm IMAGE python -c 'import torch'` names, and build the image again; if "
            f"it changes none, {BUILD_ANEW}",
        )

    faults = list(setting_faults(expect["state"], evidence["state"]))
    bare_error = evidence.get("bare_error", "")
    if bare_error and not faults:
        return unproven(
            "`import torch` fails if only PATH and HOME are set, so there is nothing to compare "
            f"the image's own environment with: {bare_error}",
            "look in `docker run --rm IMAGE env` for the variable whose folders have what the "
            "error names. If it is LD_LIBRARY_PATH, write these folders to a file in "
            "/etc/ld.so.conf.d and run `ldconfig` in your Dockerfile; if it is PYTHONPATH, install "
            "the package with pip. Then remove the variable, build the image again and validate it",
        )

    # The vector extension whose kernels torch uses, such as `AVX512`.
    capability = evidence["state"][_CAPABILITY]
    if not bare_error and capability != evidence["bare"]:
        faults.append(
            f"torch takes the CPU kernels for {capability}, and this processor has "
            f"{evidence['bare']}: a variable of the image, such as ATEN_CPU_CAPABILITY, changes it"
        )
    return conclude(
        faults, f"{len(expect['state'])} settings are torch's and Python's own after `import torch`"
    )


def setting_faults(
    expected: Mapping[str, Sequence[Any]], measured: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence for each setting whose measured value is none of those that are expected.

    `expected`: expression -> the values that it may have, the usual one first. `measured`:
    expression -> its value; None: this torch has no such setting, which is no fault.
    """
    for expression, allowed in expected.items():
        value = measured.get(expression)
        if value is None or value in allowed:
            continue
        # In expressions, `b` is torch.backends: write it out.
        setting = re.sub("^b[.]", "torch.backends.", expression)
        if "os.environ" in expression:
            setting = "the list of environment variables that something sets or changes"
        yield f"{setting} is {value!r} after `import torch`, and {allowed[0]!r} is expected"


CLAIMS = {"state": judge}
NEXT_STEPS = {
    "state": "find what changes the setting: `docker run --rm IMAGE env` shows the variables "
    "(TORCH_*, LC_*, ATEN_*), and `docker run --rm IMAGE python -v -c 'import torch'` the .pth "
    "files and plugins of packages; remove it from your Dockerfile or base image, and build the "
    f"image again; if neither brings any, {BUILD_ANEW}"
}
