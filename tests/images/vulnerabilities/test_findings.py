"""Three scanners' JSON as findings."""

import json
from pathlib import Path
from typing import Any

import pytest

from images.vulnerabilities import findings
from images.vulnerabilities.findings import Finding, Severity
from tests.support.checkout import ROOT

SAMPLES = ROOT / "tests" / "support" / "findings"


def sample(name: str) -> findings.Findings:
    return findings.read(Path(SAMPLES, name).read_bytes())


def test_trivy_tells_of_debian_packages() -> None:
    found = sample("trivy-image.json")
    assert found.covers == {"deb"} and found.images == {
        "sha256:c2c03a296d2329a4f3ab72a7bf38b78a8a80108204d326b0139d6af700e152d1"
    }
    assert found.findings == (
        Finding(
            id="CVE-2019-18276",
            kind="deb",
            package="bash",
            version="5.0-4",
            severity=Severity.LOW,
            source="trivy",
        ),
        Finding(
            id="CVE-2019-18224",
            kind="deb",
            package="libidn2-0",
            version="2.0.5-1",
            severity=Severity.CRITICAL,
            fixed=("2.0.5-1+deb10u1",),
            aliases=frozenset({"DSA-4613-1"}),
            source="trivy",
        ),
    )


def test_trivy_tells_of_python_packages() -> None:
    found = sample("trivy-pip.json")
    assert found.covers == {"pypi"} and not found.images
    assert [(one.id, one.package, one.severity, one.fixed) for one in found.findings] == [
        ("CVE-2019-14806", "werkzeug", Severity.HIGH, ("0.15.3",)),
        ("CVE-2020-28724", "werkzeug", Severity.MEDIUM, ("0.11.6",)),
    ]


def test_osv_scanner_tells_of_both_and_its_groups_are_one_finding() -> None:
    found = sample("osv.json")
    assert found.covers == {"pypi", "deb"} and not found.images
    jinja, util = found.findings
    assert (jinja.id, jinja.package, jinja.severity) == ("CVE-2024-56326", "jinja2", Severity.HIGH)
    assert jinja.fixed == ("3.1.5",) and jinja.aliases == {"GHSA-q2x7-8rv6-6q7h"}
    assert (util.id, util.package, util.severity) == ("CVE-2024-28085", "libblkid1", Severity.UNKNOWN)


def test_grype_names_the_image_and_its_packages() -> None:
    found = sample("planted-grype.json")
    assert found.covers == {"pypi", "deb"} and found.images == {"sha256:" + "ab" * 32}
    assert len(found.findings) == 20 and found.findings[0].fixed == ("3.0.22-1~deb12u2",)


def grype(**changes: Any) -> findings.Findings:
    data = json.loads(Path(SAMPLES, "planted-grype.json").read_bytes())
    data["matches"] = data["matches"][:1]
    vulnerability = {**data["matches"][0]["vulnerability"], **changes.pop("vulnerability", {})}
    data["matches"][0] = {**data["matches"][0], "vulnerability": vulnerability, **changes.pop("match", {})}
    return findings.read(json.dumps({**data, **changes}).encode())


def test_a_github_advisory_is_named_by_its_cve() -> None:
    found = grype(vulnerability={"id": "GHSA-1"}, match={"relatedVulnerabilities": [{"id": "CVE-2026-1"}]})
    assert found.findings[0].id == "CVE-2026-1" and found.findings[0].aliases == {"GHSA-1"}


def test_versions_count_as_fixed_only_where_there_is_a_fix() -> None:
    found = grype(vulnerability={"fix": {"versions": ["1"], "state": "wont-fix"}, "severity": "Negligible"})
    assert found.findings[0].fixed == () and found.findings[0].severity is Severity.LOW


def test_packages_of_other_kinds_are_left_out() -> None:
    artifact = {"name": "x", "version": "1", "purl": "pkg:golang/x@1"}
    assert grype(match={"artifact": artifact}).findings == ()
    assert grype(match={"artifact": {**artifact, "purl": ""}}).findings == ()
    assert grype(distro={}).covers == {"pypi"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"matches": [{}]}',
        b'{"SchemaVersion": 2, "Results": [{"Class": "os-pkgs", "Type": "debian", "Vulnerabilities": [{}]}]}',
        b'{"results": [{}]}',
        b"[]",
    ],
)
def test_what_is_no_file_of_theirs_is_told_as_such(content: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        findings.read(content)
