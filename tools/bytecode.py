"""Keeps what validated images showed of their bytecode, so that `bytecode` need not compile the same sources in each
image.

`python -m tools.bytecode out/NAME/evidence.json...` writes beside the locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from images.config import matrix, paths
from images.errors import Problem, UserError
from images.locking import contents, lock_file
from images.locking.contents import FileContents
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.planning import plan
from images.validation.rows import read_evidence
from tools import run
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status

_NEEDED = (("files", "recorded"), ("origin", "wheels"), ("bytecode", "sources"))
"""The sources are the lock's, and the bytecode is theirs."""


def learned(evidence: Evidence, lock: Lock, folder: Path, where: str) -> dict[str, bytes]:
    """Path below `folder`, that of the locks, -> content, of the files that change.

    Raises UserError: the run did not show that the image's sources and its bytecode are right.
    """
    found = judge(evidence.claim_set, evidence, [Tier.STATIC, Tier.CPU])
    verdicts = {(one.claim.check, one.claim.subject): one.status for one in found.claims}
    if wrong := ["/".join(one) for one in _NEEDED if verdicts.get(one) is not Status.PASS]:
        then = "`nox -s validate -- NAME --tier static --tier cpu` of an image where they hold"
        raise UserError(Problem(where=where, cause=f"{', '.join(wrong)} is not PASS in it", then=then), code=1)
    digests = _measured(evidence, "cpu.bytecode", "bytecode")["digests"]
    wheels = _measured(evidence, "static.wheels", "wheels")["distributions"]
    changed: dict[str, bytes] = {}
    for package in lock.packages():
        if package.name in digests and len(wheels.get(package.name, ())) == 1:
            path = folder / contents.place(package)
            known = contents.every(path)
            new = dict(_with(known, package, wheels[package.name][0]["digest"], digests[package.name]))
            if new != known:
                changed[contents.place(package)] = contents.written(new)
    return changed


def _measured(evidence: Evidence, probe: str, subject: str) -> Mapping[str, Any]:
    record = evidence.of(probe)
    found = record.of(subject) if record else None
    return found.evidence if found else {}


def _with(
    known: Mapping[str, FileContents], package: Package, installed: str, bytecode: str
) -> Iterator[tuple[str, FileContents]]:
    """The rows of a package; the one whose file was installed with this bytecode, too."""
    for digest, row in known.items():
        is_it = digest in package.hashes and (row.wheel is None or installed in _digests(row))
        new = tuple(sorted({*row.bytecode, bytecode})) if is_it else row.bytecode
        yield digest, replace(row, bytecode=new)


def _digests(row: FileContents) -> set[str]:
    return {one.digest for one in (row.wheel, *row.pruned.values()) if one}


def main(evidence: list[Path]) -> None:
    """Keep what each evidence.json shows of bytecode."""
    sources, folder = matrix.load(), paths.RESOURCES / "locks"
    for file in evidence:
        recorded = read_evidence(file)
        (planned,) = plan.select([recorded.image], sources)
        if planned.image is None:
            raise UserError(Problem(where=recorded.image, cause="is refused", then="`nox -s plan` says why"))
        for path, content in learned(recorded, lock_file.read(planned.image, folder), folder, str(file)).items():
            (folder / path).write_bytes(content)
            typer.echo(f"wrote locks/{path}")


if __name__ == "__main__":
    run(main)
