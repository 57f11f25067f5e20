"""Runs inside an image: installs one package as its user would, and prints what that did to the image, as JSON.

    python3 try_package.py REQUIREMENT MODULE

Standard library alone, as the image's Python has it. Started with the image's own interpreter; what is looked at
afterwards is asked of the `python3` on the PATH, which is the one that sees the addition.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List  # noqa: UP035  # as read_base.py

_PACKAGES = """
import importlib.metadata as m, json, re
found = {}
for one in m.distributions():
    found.setdefault(re.sub("[-_.]+", "-", one.metadata["Name"]).lower(), one.version)
print(json.dumps(found))
"""
_AT_WORK = """
import importlib, sys, torch
weight = torch.ones(2, 2, requires_grad=True)
(weight @ weight).sum().backward()
assert weight.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]
print("torch", torch.__version__, torch.version.cuda, torch.__file__, flush=True)
importlib.import_module(sys.argv[1])
print("imported")
"""
_TAIL = 30000


def run(command: List[str], seconds: float) -> Dict[str, Any]:  # noqa: UP006
    """How a command ended, and the tail of what it printed."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return {"code": 124, "said": said.decode(errors="replace")[-_TAIL:]}
    return {"code": done.returncode, "said": done.stdout[-_TAIL:]}


def ask(code: str) -> Any:
    """What the user's Python answers, as JSON; None where it fails."""
    done = subprocess.run(
        ["python3", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return json.loads(done.stdout) if done.returncode == 0 else None


def size(folder: str) -> int:
    """Bytes of a folder's files."""
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files)


def main(requirement: str, module: str, seconds: float) -> Dict[str, Any]:  # noqa: UP006
    before = ask(_PACKAGES)
    run(
        [os.environ["PIP_PYTHON"], "-c", ""], 300
    )  # the environment is made once, not by each package
    venvs = "/home/trainer/.cache/venvs"
    empty, started = size(venvs), time.monotonic()
    installed = run(
        ["pip", "install", "--no-cache-dir", "--no-color", *requirement.split()], seconds
    )
    took = time.monotonic() - started
    at_work = run(["python3", "-c", _AT_WORK, module], 600)
    return {
        "seconds": round(took, 1),
        "installed": installed,
        "bytes": size(venvs) - empty,
        "before": before,
        "after": ask(_PACKAGES),
        "at_work": at_work,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))  # noqa: T201
