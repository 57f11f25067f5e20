"""What a failed compilation says, in words: package, file, first error, where the log is. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from images.engine.failures import BuildFailed, FailureKind
from images.errors import Problem
from images.wheels.recipe import Recipe

_ERRORS = (
    re.compile(r"(?P<file>[^\s:()]+\.\w+):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.+)"),
    re.compile(r"(?P<file>[^\s()]+\.\w+)\((?P<line>\d+)\): (?:catastrophic |fatal )?error(?: #[\w-]+)?: (?P<text>.+)"),
    re.compile(r"(?P<text>(?:nvcc|ptxas|nvlink|cicc|cudafe\+\+) (?:fatal|error)\s*: .+)"),
    re.compile(r"(?P<text>(?:\w+\.)*\w*(?:Error|Exception): .+)"),
    re.compile(r"(?P<text>error: .+)"),
)
_OUT_OF_MEMORY = re.compile(r"cannot allocate memory|out of memory", re.IGNORECASE)
_KILLED = re.compile(r"died due to signal 9|killed signal terminated|exit code:? 137\b|^killed$", re.IGNORECASE)


def explained(wanted: Recipe, lines: Sequence[str], failed: BuildFailed, log: Path) -> Problem:
    """A failed compilation in words: package, file, first error, where the log is."""
    where = f"{wanted.distribution} {wanted.version}"
    if failed.failure.kind is FailureKind.DISK:
        return Problem(where=where, cause=failed.failure.cause, then=f"{failed.failure.then}; the log is {log}")
    texts = [line.strip() for line in (*lines, *failed.error.splitlines())]
    said = {sign: next(filter(sign.search, texts), None) for sign in (_OUT_OF_MEMORY, _KILLED)}
    if short := said[_OUT_OF_MEMORY] or said[_KILLED]:
        what = "ran out of memory" if said[_OUT_OF_MEMORY] else "was killed, which is often for lack of memory"
        cause = f"a compiler {what} ({short})"
        then = f"compile fewer at once: --jobs N (finished objects are kept); the log is {log}"
        return Problem(where=where, cause=cause, then=then)
    for pattern in _ERRORS:
        for text in texts:
            if found := pattern.match(text):
                place = found.groupdict()
                at = f"{Path(place['file']).name}:{place['line']}: " if "file" in place else ""
                return Problem(where=where, cause=f"did not compile: {at}{found['text']}", then=f"read {log}")
    return Problem(where=where, cause=f"did not compile: {failed.failure.cause}", then=f"read {log}")
