"""Install one package as an image's user would, and print what that did to the image, as JSON.

    python3 try_package.py REQUIREMENT MODULE SECONDS

It runs inside an image (tools/additions.py), with the standard library only, by the image's own
interpreter. What came of the installation is asked of the `python3` on the PATH, because that one
sees the added package. SECONDS is the limit for the installation.
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
_MOST_OUTPUT = 30000
"""Characters of a command's output, from its end."""
_VENVS = "/home/trainer/.cache/venvs"
"""Where `pip install` puts what the user adds."""


def run(command: List[str], seconds: float) -> Dict[str, Any]:  # noqa: UP006
    """Return how a command ended (124 if it took too long), and the end of what it printed."""
    try:
        process = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        return {"code": 124, "said": output.decode(errors="replace")[-_MOST_OUTPUT:]}
    return {"code": process.returncode, "said": process.stdout[-_MOST_OUTPUT:]}


def ask(code: str) -> Any:
    """Return what a program prints as JSON in the user's Python; None if it fails."""
    process = subprocess.run(
        ["python3", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return json.loads(process.stdout) if process.returncode == 0 else None


def size(folder: str) -> int:
    """Return how many bytes the files below a folder have."""
    total = 0
    for place, _, names in os.walk(folder):
        total += sum(Path(place, name).lstat().st_size for name in names)
    return total


def main(requirement: str, module: str, seconds: float) -> Dict[str, Any]:  # noqa: UP006
    """Install a package, and return the row that additions.py reads (`Trial` there)."""
    packages_before = ask(_PACKAGES)
    # The first use of pip makes the user's environment: it does not count for the package.
    run([os.environ["PIP_PYTHON"], "-c", ""], 300)
    size_before = size(_VENVS)

    start = time.monotonic()
    install = ["pip", "install", "--no-cache-dir", "--no-color", *requirement.split()]
    installed = run(install, seconds)
    took = time.monotonic() - start

    at_work = run(["python3", "-c", _AT_WORK, module], 600)
    return {
        "seconds": round(took, 1),
        "installed": installed,
        "bytes": size(_VENVS) - size_before,
        "before": packages_before,
        "after": ask(_PACKAGES),
        "at_work": at_work,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))  # noqa: T201
