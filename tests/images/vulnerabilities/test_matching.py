"""Findings against what an image has."""

from dataclasses import replace

from images.vulnerabilities import matching
from images.vulnerabilities.findings import Finding, Findings, Severity
from images.vulnerabilities.inventory import Installed, Inventory

TORCH = Installed(kind="pypi", name="torch", version="2.7.1+cu126")
UUID = Installed(kind="deb", name="libuuid1", version="2.38.1-5", source="util-linux", distro="debian-12")
BLKID = replace(UUID, name="libblkid1")
IMAGE = Inventory(image="x", digest="sha256:1", packages=(TORCH, UUID, BLKID))
FOUND = Finding(id="CVE-1", kind="pypi", package="torch", version="2.7.1+cu126", severity=Severity.HIGH, source="grype")
DEBIAN = replace(FOUND, kind="deb", version="2.38.1-5")


def of(*found: Finding, **more: frozenset[str]) -> Findings:
    return Findings(scanner="grype", findings=found, covers=frozenset({"pypi", "deb"}), **more)


def names(*found: Finding) -> list[str]:
    return [one.package.name for one in matching.match(IMAGE, of(*found)).matches]


def test_type_name_and_version_must_fit() -> None:
    assert names(FOUND) == ["torch"]
    for other in (replace(FOUND, version="2.7.1"), replace(FOUND, kind="deb"), replace(FOUND, package="torchao")):
        found = matching.match(IMAGE, of(other))
        assert (found.matches, found.strangers) == ((), (other,))


def test_a_source_package_means_each_package_made_of_it_unless_one_is_named() -> None:
    assert names(replace(DEBIAN, package="util-linux")) == ["libuuid1", "libblkid1"]
    assert names(replace(DEBIAN, package="libblkid1")) == ["libblkid1"]


def test_a_file_must_be_of_this_image() -> None:
    def refusal(found: Findings) -> str:
        return matching.refusal(IMAGE, found, matching.match(IMAGE, found))

    assert not refusal(of(FOUND)) and not refusal(of(images=frozenset({"sha256:1"})))
    assert "is of sha256:2" in refusal(of(FOUND, images=frozenset({"sha256:2"})))
    assert "may be of another one" in refusal(of()), "no finding at all, and no image"
    assert "may be of another one" in refusal(of(replace(FOUND, version="9")))


def test_the_same_vulnerability_by_two_scanners_is_one_row() -> None:
    advisory = replace(FOUND, id="GHSA-1", aliases=frozenset({"CVE-1"}), severity=Severity.CRITICAL, fixed=("3",))
    found = matching.match(IMAGE, of(FOUND, replace(advisory, source="trivy"), replace(FOUND, id="CVE-2")))
    first, second = matching.merged(found.matches)
    assert (first.finding.id, first.finding.aliases, first.finding.fixed) == ("CVE-1", {"GHSA-1"}, ("3",))
    assert (first.finding.severity, first.finding.source) == (Severity.CRITICAL, "grype, trivy")
    assert second.finding.id == "CVE-2"


def test_package_urls_have_no_qualifiers() -> None:
    assert TORCH.purl == "pkg:pypi/torch@2.7.1%2Bcu126" and UUID.purl == "pkg:deb/debian/libuuid1@2.38.1-5"
