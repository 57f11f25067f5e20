"""Known vulnerabilities on the site: each image as of its last scan, held against the limits on the site's own date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from images.errors import Problem, UserError
from images.vulnerabilities import record, vex
from images.vulnerabilities.inventory import KINDS
from images.vulnerabilities.record import ScanRecord, Standing, VulnerabilityRow


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """An image and what is known of it. `record`: None where nobody scanned it."""

    image: str
    digest: str
    """Of the image that the site shows."""
    record: ScanRecord | None
    open: tuple[VulnerabilityRow, ...] = ()
    overdue: tuple[VulnerabilityRow, ...] = ()
    decided: tuple[VulnerabilityRow, ...] = ()
    """About which we say something."""

    @property
    def unproven(self) -> tuple[str, ...]:
        """Types of packages of which nothing is known."""
        return KINDS if self.record is None else self.record.unproven

    @property
    def other_build(self) -> bool:
        return self.record is not None and self.record.digest != self.digest


def scanned(images: Mapping[str, str], records: Sequence[ScanRecord], today: date) -> tuple[Scanned, ...]:
    """A row for each image, scanned or not. `images`: name -> digest. Past its limit by today is overdue. Pure."""
    newest = {one.image: one for one in sorted(records, key=lambda one: one.date)}
    return tuple(_scanned(name, digest, newest.get(name), today) for name, digest in images.items())


def _scanned(name: str, digest: str, found: ScanRecord | None, today: date) -> Scanned:
    if found is None:
        return Scanned(image=name, digest=digest, record=None)
    waiting = found.of(Standing.OPEN, Standing.OVERDUE)
    overdue = tuple(row for row in waiting if row.due and row.due < today)
    return Scanned(
        image=name,
        digest=digest,
        record=found,
        open=tuple(row for row in waiting if row not in overdue),
        overdue=overdue,
        decided=found.of(Standing.NOT_AFFECTED, Standing.FIXED, Standing.WILL_NOT_FIX),
    )


def read(*folders: Path) -> tuple[ScanRecord, ...]:
    """The records of FOLDER/vulnerabilities. Raises UserError for one that can't be read."""
    files = [file for folder in folders for file in sorted((folder / "vulnerabilities").glob("*.json"))]
    return tuple(map(_read, (file for file in files if file.name != vex.FILE.name)))


def _read(file: Path) -> ScanRecord:
    try:
        return record.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        then = "`nox -s scan -- NAME --findings FILE` writes it anew"
        cause = f"can't be read: {str(error).splitlines()[0]}"
        raise UserError(Problem(where=str(file), cause=cause, then=then)) from None
