"""`logged`: runs the suite where nobody waits for its output, and writes records into a log that is read later.

    python3 -I -S FOLDER/validate logged --job KEY --rendering WORD --container NAME --claims claims.json

Each line is one JSON object that says whose it is and its number, so that logs of many containers can be joined in
any order. The first line has the sha256 of the claims and of the suite that measure: a log of others is no evidence.
The last line counts them and has their sha256: a log without it, or with a gap, is no evidence.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from validate import suite
from validate.claims import ClaimSet
from validate.evidence import Record

VERSION = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite for every claim of a file. The exit status says nothing about the image."""
    options = _parser().parse_args(arguments)
    content = Path(options.claims).read_bytes()
    claims = ClaimSet.loads(content.decode())
    begin = {
        "rendering": options.rendering,
        "claims": hashlib.sha256(content).hexdigest(),
        "suite": sha256_of_suite(_own_files()),
    }
    whose = {"job": options.job, "container": options.container, "pod": os.uname().nodename}
    for line in lines(whose, begin, suite.run(claims, jobs=options.jobs)):
        print(line, flush=True)  # noqa: T201  the log
    return 0


def lines(whose: Mapping[str, str], begin: Mapping[str, str], records: Iterable[Record]) -> Iterator[str]:
    """The lines of one container's log: its beginning with what measures, a record each, its end."""
    texts: list[str] = []
    yield _line(whose, 0, {**begin, "began": time.time(), "cpus": len(os.sched_getaffinity(0))})
    for record in records:
        texts.append(json.dumps(asdict(record), sort_keys=True))
        yield _line(whose, len(texts), {"record": asdict(record)})
    yield _line(whose, len(texts) + 1, {"ended": time.time(), "sha256": sha256(texts)})


def sha256(texts: Iterable[str]) -> str:
    """Of records as JSON with sorted keys, one a line."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def sha256_of_suite(files: Mapping[str, bytes]) -> str:
    """Of the files of the suite and its examples: path below the folder of both -> content."""
    return sha256(f"{hashlib.sha256(content).hexdigest()}  {path}" for path, content in sorted(files.items()))


def _own_files() -> dict[str, bytes]:
    """The suite that runs, as images/validation/trial.py packs it: this package and the examples beside it."""
    root = Path(__file__).resolve().parent.parent
    found = [path for folder in ("validate", "examples") for path in (root / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in found if "__pycache__" not in path.parts}


def _line(whose: Mapping[str, str], number: int, what: Mapping[str, Any]) -> str:
    return json.dumps({"truetag": VERSION, **whose, "number": number, **what}, sort_keys=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="validate logged", description="Measure an image into a log.")
    parser.add_argument("--claims", required=True, help="the claims to measure, as JSON")
    parser.add_argument("--job", required=True, help="the job's key")
    parser.add_argument("--rendering", required=True, help="names the rendering of the job")
    parser.add_argument("--container", required=True, help="its name in the pod")
    parser.add_argument("--jobs", type=int, required=True, help="probes at once")
    return parser
