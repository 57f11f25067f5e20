"""Known vulnerabilities on the site."""

from datetime import date
from pathlib import Path

import pytest

from images.errors import UserError
from images.site import pages, vulnerabilities
from images.vulnerabilities import record
from images.vulnerabilities.findings import Severity
from images.vulnerabilities.record import ScanRecord, Standing, VulnerabilityRow
from tests.support import site_samples as samples


def row(name: str = "CVE-1", since: date = date(2026, 11, 1), standing: Standing = Standing.OPEN) -> VulnerabilityRow:
    return VulnerabilityRow(
        id=name,
        aliases=[],
        purl="pkg:pypi/torch@2.7.1",
        severity=Severity.CRITICAL,
        fixed=["2.8.0"],
        source="grype",
        since=since,
        standing=standing,
        because=samples.HOSTILE if standing is Standing.NOT_AFFECTED else "",
    )


def scan(*rows: VulnerabilityRow, sources: tuple[str, ...] = ("deb", "pypi")) -> ScanRecord:
    who = {kind: ["grype"] if kind in sources else [] for kind in ("deb", "pypi")}
    return ScanRecord(image=samples.VALIDATED, digest="sha256:1", date=date(2026, 11, 10), sources=who, rows=list(rows))


def test_an_image_that_nobody_scanned_is_unproven() -> None:
    (one,) = vulnerabilities.scanned({"x": "sha256:1"}, [], samples.TODAY)
    assert one.unproven == ("deb", "pypi") and one.record is None


def test_what_was_open_at_the_scan_is_overdue_on_the_sites_date() -> None:
    records = [scan(row(), row("CVE-2", date(2026, 11, 8)))]
    for today, overdue in ((date(2026, 11, 15), 0), (date(2026, 11, 16), 1), (date(2026, 11, 23), 2)):
        (one,) = vulnerabilities.scanned({samples.VALIDATED: "sha256:1"}, records, today)
        assert (len(one.overdue), len(one.open)) == (overdue, 2 - overdue)


def test_a_scan_of_another_build_is_shown_as_such() -> None:
    (one,) = vulnerabilities.scanned({samples.VALIDATED: "sha256:2"}, [scan()], samples.TODAY)
    assert one.other_build


def test_the_page_has_every_image_and_nothing_gets_out_of_a_reason() -> None:
    scans = [scan(row(), row("CVE-2", standing=Standing.NOT_AFFECTED), sources=("deb",))]
    page = pages.files(samples.known(scans=scans))["vulnerabilities.html"].decode()
    assert page.count("never</td>") > 10 and "<script>alert" not in page
    assert "may be open for 14 days" in page and "CVE-1" in page and "OVERDUE" in page and "NOT_AFFECTED" in page


def test_records_are_read_and_a_broken_one_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "vulnerabilities"
    folder.mkdir()
    (folder / "x.json").write_bytes(record.dumps(scan(row())))
    (folder / "vex.cdx.json").write_text("{}")
    assert vulnerabilities.read(tmp_path, tmp_path / "none") == (scan(row()),)
    (folder / "y.json").write_text("{}")
    with pytest.raises(UserError, match=r"y\.json"):
        vulnerabilities.read(tmp_path)
