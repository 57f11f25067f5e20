"""Known breakages: which claims of an image the matrix expects to fail. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.config import selectors
from images.config.schema import ExpectedFailure
from images.config.selectors import Selectable
from images.nightly.results import Expected
from images.validation.rows import ClaimRow
from validate.judging import Status


def rows_for(image: Selectable, versions: Mapping[str, str], rows: Sequence[ExpectedFailure]) -> list[ExpectedFailure]:
    """The rows that speak of an image with these versions (distribution -> version)."""
    return [row for row in rows if selectors.parse(row.select)(image) and _holds(row.when, versions)]


def _holds(when: str, versions: Mapping[str, str]) -> bool:
    if not when:
        return True
    wanted = Requirement(when)
    version = versions.get(canonicalize_name(wanted.name))
    return version is not None and wanted.specifier.contains(version, prereleases=True)


def expected(claims: Sequence[ClaimRow], rows: Sequence[ExpectedFailure]) -> list[Expected]:
    """The claims that failed as a row says they do."""
    found = ((claim, _row_of(claim, rows)) for claim in claims if claim.verdict is Status.FAIL)
    return [_about(claim, row, claim.reason) for claim, row in found if row]


def unexpected_passes(claims: Sequence[ClaimRow], rows: Sequence[ExpectedFailure]) -> list[Expected]:
    """Claims of rows whose every claim was measured and is PASS."""
    found: list[Expected] = []
    for row in rows:
        about = [claim for claim in claims if _is_about(row, claim)]
        if about and all(claim.verdict is Status.PASS for claim in about):
            found += [_about(claim, row, "") for claim in about]
    return found


def _row_of(claim: ClaimRow, rows: Sequence[ExpectedFailure]) -> ExpectedFailure | None:
    return next((row for row in rows if _is_about(row, claim)), None)


def _is_about(row: ExpectedFailure, claim: ClaimRow) -> bool:
    return row.claim in (claim.id, claim.key)


def _about(claim: ClaimRow, row: ExpectedFailure, reason: str) -> Expected:
    return Expected(id=claim.id, subject=claim.subject, issue=row.issue, reason=reason)
