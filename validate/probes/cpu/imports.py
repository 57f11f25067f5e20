"""C1: packages imported in fresh processes, each first of all and after torch; what they say is kept.

Which of two packages is imported first decides whose library a process holds, and what fails at import may only be
said, not raised: xformers logs that it can't load its kernels and goes on.

Claim `expect`: {"modules": [...], "first": whether in a new process, "after": whether after torch, ...}; the rest is
the judge's.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from validate.claims import Claim
from validate.harness.forked import described, in_fork

_SECONDS = 300
_MOST_LINES = 30
_LINE_CHARACTERS = 300
_MARK = "validate: imported all"
_PROGRAM = f"import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\nprint({_MARK!r})"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Evidence of each claim: what importing its modules in each order raised and said."""
    first = {claim.subject: _in_new_process(claim.expect["modules"]) for claim in claims if claim.expect["first"]}
    importlib.import_module("torch")
    for claim in claims:
        orders = {"first": first[claim.subject]} if claim.subject in first else {}
        if claim.expect["after"]:
            orders["after torch"] = in_fork(partial(_after_torch, claim.expect["modules"]))
        yield claim.subject, {"orders": orders}


def _in_new_process(modules: Sequence[str]) -> dict[str, Any]:
    """As a user's program would; its status and its last words tell how it went."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": {"kind": "timeout", "message": f"not imported within {_SECONDS} s"}, "said": []}
    lines = _lines(done.stdout.decode("utf-8", "replace").replace(_MARK, ""))
    if _MARK.encode() in done.stdout and done.returncode == 0:
        return {"said": lines}
    message = lines[-1] if lines else "nothing was said"
    return {"error": {"kind": f"status {done.returncode}", "message": message}, "said": lines}


def _after_torch(modules: Sequence[str]) -> Mapping[str, Any]:
    """In a fork of a process that holds torch, with all output kept: C code writes past Python's streams."""
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        error = None
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as raised:
                error = described(raised)
                break
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        lines = _lines(output.read().decode("utf-8", "replace"))
    return {"said": lines, **({"error": error} if error else {})}


def _lines(text: str) -> list[str]:
    lines = [line.strip()[:_LINE_CHARACTERS] for line in text.splitlines()]
    return [line for line in lines if line][-_MOST_LINES:]
