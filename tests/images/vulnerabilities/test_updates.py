"""Debian's updates by package, and what a rebuild did about them."""

from images.vulnerabilities import updates
from images.vulnerabilities.findings import Finding, Severity
from images.vulnerabilities.inventory import Installed, Inventory
from images.vulnerabilities.updates import PackageChange, Rebuilt


def finding(name: str, package: str = "less") -> Finding:
    return Finding(id=name, kind="deb", package=package, version="1", severity=Severity.UNKNOWN, fixed=("2",))


def image(*packages: tuple[str, str]) -> Inventory:
    rows = [Installed(kind="deb", name=name, version=version, distro="debian-12") for name, version in packages]
    torch = Installed(kind="pypi", name="torch", version="2.7.1")
    return Inventory(image="x", digest="sha256:1", packages=(torch, *rows))


def test_a_package_has_one_row_with_all_that_its_update_fixes() -> None:
    found = updates.pending([finding("CVE-2"), finding("CVE-1", "bash"), finding("CVE-3")])
    assert [str(one) for one in found] == ["bash  1 -> 2  CVE-1", "less  1 -> 2  CVE-2, CVE-3"]


def test_two_builds_are_compared_package_by_package() -> None:
    wanted = [PackageChange(name="less", before="1", after="2", ids=("CVE-2",))]
    before, after = image(("less", "1"), ("bash", "5"), ("old", "1")), image(("less", "2"), ("bash", "5"), ("new", "3"))
    assert [str(one) for one in updates.changes(before, after, wanted)] == [
        "less  1 -> 2  CVE-2",
        "new  - -> 3",
        "old  1 -> -",
    ]


def test_the_proposal_has_what_moved_what_is_left_and_the_next_command() -> None:
    wanted = updates.pending([finding("CVE-1"), finding("CVE-2", "libc6")])
    moved = [PackageChange(name="less", before="1", after="2", ids=("CVE-1",))]
    rebuilt = Rebuilt(digest="sha256:2", sentence="validated, 3 claims PASS", changes=moved, left=wanted[1:])
    text = updates.log(image(), wanted, rebuilt, ["publish it"])
    assert "has 2 packages" in text and "The rebuild is sha256:2: validated, 3 claims PASS" in text
    assert "It still has 1 of them" in text and "| less | 1 | 2 | CVE-1 |" in text and "- publish it" in text
    assert "still has" not in updates.log(image(), wanted, None, ["rebuild it"])
