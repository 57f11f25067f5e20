"""An image's vulnerabilities as results/ keeps them: what is open, since when, and until when it may be. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from images.vulnerabilities import matching
from images.vulnerabilities.findings import Finding, Severity
from images.vulnerabilities.inventory import KINDS, Installed, Inventory
from images.vulnerabilities.matching import Match
from images.vulnerabilities.vex import State, Statement

LIMITS: Mapping[Severity, timedelta] = {Severity.CRITICAL: timedelta(days=14), Severity.HIGH: timedelta(days=28)}
"""How long a vulnerability may be open. The others have no limit. Source: issue 17, after AWS's containers."""


class Standing(StrEnum):
    """Where a vulnerability stands."""

    OPEN = "OPEN"
    OVERDUE = "OVERDUE"
    """Open for longer than its limit."""
    WILL_NOT_FIX = "WILL_NOT_FIX"
    NOT_AFFECTED = "NOT_AFFECTED"
    FIXED = "FIXED"


_SAID = {
    State.NOT_AFFECTED: Standing.NOT_AFFECTED,
    State.FIXED: Standing.FIXED,
    State.WILL_NOT_FIX: Standing.WILL_NOT_FIX,
}


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class VulnerabilityRow(_Row):
    """One vulnerability of one package."""

    id: str
    aliases: list[str]
    purl: str
    severity: Severity
    fixed: list[str]
    """Versions without it."""
    source: str
    since: date
    """The first day on which it was seen in an image of this name, without a break."""
    standing: Standing
    because: str
    """What we say of it."""

    @property
    def due(self) -> date | None:
        """The last day on which it may be open; None: no limit."""
        limit = LIMITS.get(self.severity)
        return self.since + limit if limit else None


class ScanRecord(_Row):
    """results/vulnerabilities/NAME.json."""

    schema_version: Literal[1] = 1
    image: str
    digest: str
    date: date
    sources: dict[str, list[str]]
    """Type of packages -> who looked at them. Empty: nobody, and nothing is known of them."""
    rows: list[VulnerabilityRow]

    @property
    def unproven(self) -> tuple[str, ...]:
        """Types of packages that nobody looked at."""
        return tuple(kind for kind, who in self.sources.items() if not who)

    def of(self, *standings: Standing) -> tuple[VulnerabilityRow, ...]:
        return tuple(row for row in self.rows if row.standing in standings)


def make(
    inventory: Inventory,
    matches: Sequence[Match],
    statements: Sequence[Statement],
    sources: Mapping[str, Sequence[str]],
    *,
    today: date,
    before: ScanRecord | None,
) -> ScanRecord:
    """The record of a day. `sources`: type of packages -> who looked at them. `before`: the record until now."""
    told = matching.merged([*_kept(inventory, sources, before), *matches])
    return ScanRecord(
        image=inventory.image,
        digest=inventory.digest,
        date=today,
        sources={name: list(sources.get(name, ())) for name in KINDS if inventory.of(name)},
        rows=[_row(one, statements, today, before) for one in told],
    )


def _kept(inventory: Inventory, sources: Mapping[str, Sequence[str]], before: ScanRecord | None) -> Iterator[Match]:
    """What earlier sources told that were not asked this time: only they can say that it has ended.

    Debian's archive, say, knows no vulnerability without an update, so its silence closes nothing of Grype's.
    """
    packages = {one.purl: one for one in inventory.packages}
    for row in before.rows if before else ():
        unasked = [name for name in row.source.split(", ") if name not in sources.get(kind(row), ())]
        if unasked and row.purl in packages:
            package = packages[row.purl]
            yield Match(finding=_finding(row, package, unasked), package=package)


def _finding(row: VulnerabilityRow, package: Installed, sources: Sequence[str]) -> Finding:
    """A row as these sources told it."""
    return Finding(
        id=row.id,
        kind=package.kind,
        package=package.name,
        version=package.version,
        severity=row.severity,
        fixed=tuple(row.fixed),
        aliases=frozenset(row.aliases),
        source=", ".join(sources),
    )


def _row(one: Match, statements: Sequence[Statement], today: date, before: ScanRecord | None) -> VulnerabilityRow:
    finding = one.finding
    names = [finding.id, *sorted(finding.aliases)]
    said = next((row for row in statements if row.is_of(names, one.package.purl)), None)
    package = one.package.purl.rpartition("@")[0]
    earlier = [
        row.since
        for row in (before.rows if before else ())
        if row.purl.rpartition("@")[0] == package and {row.id, *row.aliases} & set(names)
    ]
    row = VulnerabilityRow(
        id=finding.id,
        aliases=names[1:],
        purl=one.package.purl,
        severity=finding.severity,
        fixed=list(finding.fixed),
        source=finding.source,
        since=min([*earlier, today]),
        standing=_SAID[said.state] if said else Standing.OPEN,
        because=said.because if said else "",
    )
    overdue = row.standing is Standing.OPEN and row.due is not None and row.due < today
    return row.model_copy(update={"standing": Standing.OVERDUE}) if overdue else row


def kind(row: VulnerabilityRow) -> str:
    """Type of its package URL."""
    return row.purl.removeprefix("pkg:").partition("/")[0]


def dumps(record: ScanRecord) -> bytes:
    return (json.dumps(record.model_dump(mode="json"), indent=1) + "\n").encode()


def loads(content: bytes) -> ScanRecord:
    """Raises pydantic's ValidationError, which is a ValueError."""
    return ScanRecord.model_validate_json(content)


def rebuilds(record: ScanRecord) -> Iterator[tuple[str, str, list[str]]]:
    """What newer packages would end: package URL, versions that were named as fixed, ids."""
    by_package: dict[str, list[VulnerabilityRow]] = {}
    for row in record.of(Standing.OPEN, Standing.OVERDUE):
        if row.fixed:
            by_package.setdefault(row.purl, []).append(row)
    for purl, rows in sorted(by_package.items()):
        yield (
            purl,
            rows[0].fixed[-1] if len({tuple(row.fixed) for row in rows}) == 1 else "newest",
            [r.id for r in rows],
        )
