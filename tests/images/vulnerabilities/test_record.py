"""What is open, since when, against the limits; and what we say of it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from images.vulnerabilities import record, vex
from images.vulnerabilities.debian import SOURCE
from images.vulnerabilities.findings import Finding, Severity
from images.vulnerabilities.inventory import Installed, Inventory
from images.vulnerabilities.matching import Match
from images.vulnerabilities.record import ScanRecord, Standing
from images.vulnerabilities.vex import State, Statement

TODAY = date(2026, 11, 22)
TORCH = Installed(kind="pypi", name="torch", version="2.7.1")
LIBC = Installed(kind="deb", name="libc6", version="2.36-9", distro="debian-12")
IMAGE = Inventory(image="x", digest="sha256:1", packages=(TORCH, LIBC))
BOTH = {"pypi": ["grype"], "deb": ["grype"]}
SAID = Statement(
    id="CVE-1",
    purl=TORCH.purl,
    state=State.NOT_AFFECTED,
    because="the code is not called",
    justification="code_not_reachable",
    date="2026-11-20T10:00:00+00:00",
)


def match(
    package: Installed, name: str = "CVE-1", severity: Severity = Severity.CRITICAL, source: str = "grype"
) -> Match:
    finding = Finding(
        id=name, kind=package.kind, package=package.name, version=package.version, severity=severity, source=source
    )
    return Match(finding=finding, package=package)


def made(
    *matches: Match,
    said: Sequence[Statement] = (),
    sources: Mapping[str, Sequence[str]] = BOTH,
    today: date = TODAY,
    before: ScanRecord | None = None,
) -> ScanRecord:
    return record.make(IMAGE, matches, said, sources, today=today, before=before)


@pytest.mark.parametrize(
    ("severity", "days", "standing"),
    [
        (Severity.CRITICAL, 14, Standing.OPEN),
        (Severity.CRITICAL, 15, Standing.OVERDUE),
        (Severity.HIGH, 28, Standing.OPEN),
        (Severity.HIGH, 29, Standing.OVERDUE),
        (Severity.MEDIUM, 1000, Standing.OPEN),
        (Severity.UNKNOWN, 1000, Standing.OPEN),
    ],
)
def test_it_is_overdue_the_day_after_its_limit(severity: Severity, days: int, standing: Standing) -> None:
    first = made(match(TORCH, severity=severity), today=TODAY - timedelta(days=days))
    (row,) = made(match(TORCH, severity=severity), before=first).rows
    assert (row.standing, row.since) == (standing, TODAY - timedelta(days=days))


def test_it_is_open_since_the_first_day_whatever_version_came_between() -> None:
    older = Installed(kind="pypi", name="torch", version="2.7.0")
    before = record.make(IMAGE, [match(older)], (), BOTH, today=date(2026, 11, 1), before=None)
    assert made(match(TORCH), before=before).rows[0].since == date(2026, 11, 1)
    gone = made(before=before, today=date(2026, 11, 10))
    assert gone.rows == [] and made(match(TORCH), before=gone).rows[0].since == TODAY


def test_nobody_looked_is_unproven_and_nothing_found_is_not() -> None:
    assert set(made(sources={}).unproven) == {"pypi", "deb"}
    assert made(sources={"deb": ["grype"]}).unproven == ("pypi",)
    assert made().unproven == ()


def test_a_scan_of_debian_closes_nothing_of_python() -> None:
    before = made(match(TORCH), match(LIBC), today=date(2026, 11, 1))
    after = made(sources={"deb": ["grype"]}, before=before)
    assert [row.purl for row in after.rows] == [TORCH.purl] and after.unproven == ("pypi",)


def test_debians_archive_closes_only_what_it_told_itself() -> None:
    by_debian = {"deb": [SOURCE]}
    first = made(match(LIBC), match(LIBC, "CVE-2", source=SOURCE), today=date(2026, 11, 1))
    second = made(sources=by_debian, today=date(2026, 11, 10), before=first)
    assert [(row.id, row.since, row.standing) for row in second.rows] == [("CVE-1", date(2026, 11, 1), Standing.OPEN)]
    assert made(today=date(2026, 11, 20), before=second).rows == []


def test_what_an_earlier_source_told_keeps_its_severity_and_grows_overdue() -> None:
    first = made(match(LIBC), today=date(2026, 11, 1))
    again = match(LIBC, severity=Severity.UNKNOWN, source=SOURCE)
    (row,) = made(again, sources={"deb": [SOURCE]}, before=first).rows
    assert (row.severity, row.source) == (Severity.CRITICAL, f"grype, {SOURCE}")
    assert (row.since, row.standing) == (date(2026, 11, 1), Standing.OVERDUE)


@pytest.mark.parametrize(
    ("state", "standing"),
    [
        (State.NOT_AFFECTED, Standing.NOT_AFFECTED),
        (State.FIXED, Standing.FIXED),
        (State.WILL_NOT_FIX, Standing.WILL_NOT_FIX),
    ],
)
def test_a_statement_decides_for_its_version_alone(state: State, standing: Standing) -> None:
    said = Statement(id="GHSA-1", purl=TORCH.purl, state=state, because="so", date=SAID.date)
    known = match(TORCH)
    alias = Match(finding=Finding(**{**vars(known.finding), "aliases": frozenset({"GHSA-1"})}), package=known.package)
    assert [(row.standing, row.because) for row in made(alias, said=[said]).rows] == [(standing, "so")]
    assert made(match(LIBC), said=[said]).rows[0].standing is Standing.OPEN
    newer = Installed(kind="pypi", name="torch", version="2.8.0")
    assert record.make(IMAGE, [match(newer)], [said], BOTH, today=TODAY, before=None).rows[0].standing is Standing.OPEN


def test_rebuilds_name_the_package_its_versions_and_what_they_end() -> None:
    fixed = Match(finding=Finding(**{**vars(match(TORCH).finding), "fixed": ("2.8.0",)}), package=TORCH)
    assert list(record.rebuilds(made(fixed, match(LIBC)))) == [(TORCH.purl, "2.8.0", ["CVE-1"])]
    assert list(record.rebuilds(made(fixed, said=[SAID]))) == []


def test_a_record_is_read_back() -> None:
    before = made(match(TORCH), said=[SAID])
    assert record.loads(record.dumps(before)) == before


# --- statements -----------------------------------------------------------------------------------------------------


def test_the_document_is_valid_and_read_back() -> None:
    others = [
        Statement(id="CVE-2", purl=LIBC.purl, state=State.FIXED, because="in deb12u1", date=SAID.date),
        Statement(id="CVE-3", purl=LIBC.purl, state=State.WILL_NOT_FIX, because="minor", date=SAID.date),
    ]
    content = vex.dumps([*others, SAID], datetime(2026, 11, 22, tzinfo=UTC))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(content.decode()) is None
    assert set(vex.loads(content)) == {SAID, *others}
    assert vex.dumps([SAID, *others], datetime(2026, 11, 22, tzinfo=UTC)) == content


def test_a_state_that_is_none_of_ours_is_told() -> None:
    content = vex.dumps([SAID], datetime(2026, 11, 22, tzinfo=UTC)).replace(b"not_affected", b"in_triage")
    with pytest.raises(ValueError, match="CVE-1: in_triage"):
        vex.loads(content)


@pytest.mark.parametrize(
    ("purl", "exact"),
    [
        ("pkg:pypi/torch@2.7.1", True),
        ("pkg:pypi/torch", False),
        ("pkg:deb/debian/libc6@2.36-9?arch=amd64", False),
        ("torch==2.7.1", False),
    ],
)
def test_a_statement_is_of_one_version(purl: str, exact: bool) -> None:
    assert vex.is_exact(purl) is exact
