"""state: what starts with Python or with torch can change what every program computes, with no file of the image
altered.

A .pth file, an entry point that torch runs or a variable sets TF32, an attention backend, the processor's treatment of
small numbers, or an encoding. A new process of the image's user imports torch and says how it is then.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import Finding, conclude, failed, unproven

SETTINGS = Settings(starts_first=True)

_SECONDS = 800
_MARK = "validate: state "
_PROGRAM = """
import importlib.metadata, json, locale, os, signal, sys
import torch
def read(text):
    try:
        found = eval(text, {**globals(), "b": torch.backends})
    except AttributeError:
        return None
    except Exception as error:
        return repr(error)
    return found if isinstance(found, (bool, float, int, str, list)) else str(found)
asked = json.loads(sys.argv[1])
print("\\n" + MARK + json.dumps({text: read(text) for text in asked}), flush=True)
"""
_CAPABILITY = "b.cpu.get_cpu_capability()"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given = user_environment.recorded()
    for claim in claims:
        asked = [*claim.expect["state"], _CAPABILITY]
        with ThreadPoolExecutor(max_workers=1) as beside:
            plain = {name: given.environ.get(name, "") for name in ("PATH", "HOME")}
            waited = beside.submit(_asked, [_CAPABILITY], plain)
            state, error = _asked(asked, dict(given.environ))
            bare, bare_error = waited.result()
        found = str(bare.get(_CAPABILITY, ""))
        yield (
            claim.subject,
            {"state": state, "error": error, "bare": found, "bare_error": bare_error},
        )


def _asked(texts: Sequence[str], environment: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    program = f"MARK = {_MARK!r}\n{_PROGRAM}"
    command = [sys.executable, "-c", program, json.dumps(list(texts))]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            env=environment,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {}, f"not imported within {_SECONDS} s"
    said = done.stdout.decode("utf-8", "replace").rpartition(_MARK)[2].partition("\n")[0]
    if done.returncode != 0 or not said:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [
            "nothing was said"
        ]
        return {}, f"status {done.returncode}: {last[0][:300]}"
    return json.loads(said), ""


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """state. expect: {state: {expression: [its values, the plainest first]}}. A switch that this torch lacks is none.

    evidence: {state: {expression: value, or null: no such switch}, error, bare: the kernels that torch takes for the
    processor where no variable but PATH and HOME is set, bare_error?: evidence of before lacks it}.
    """
    if evidence["error"]:
        return failed(f"`import torch` in a new process: {evidence['error']}")
    state = evidence["state"]
    faults = [
        f"{text.replace('b.', 'torch.backends.', 1) if text.startswith('b.') else text} is {state.get(text)!r} "
        f"after `import torch`, {allowed[0]!r} is expected"
        for text, allowed in expect["state"].items()
        if state.get(text) is not None and state[text] not in allowed
    ]
    bare_error = evidence.get("bare_error", "")
    if bare_error and not faults:
        return unproven(f"`import torch` with PATH and HOME alone, to compare with: {bare_error}")
    if not bare_error and state[_CAPABILITY] != evidence["bare"]:
        faults.append(
            f"torch takes the kernels for {state[_CAPABILITY]}, on a processor that has {evidence['bare']}"
        )
    return conclude(
        faults, f"{len(expect['state'])} settings are torch's and Python's own after `import torch`"
    )


CLAIMS = {"state": judge}
