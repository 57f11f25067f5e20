"""Debian's lists, versions and changelogs."""

import shutil
import subprocess

import pytest
from debian.changelog import Changelog
from debian.debian_support import Version
from hypothesis import given, settings
from hypothesis import strategies as st

from images.errors import UserError
from images.vulnerabilities import debian
from images.vulnerabilities.inventory import Installed

LISTING = """\
Package: libexpat1
Source: expat
Version: 2.5.0-1+deb12u5
Size: 100

Package: libexpat1
Source: expat
Version: 2.5.0-1+deb12u10
Size: 101

Package: less
Version: 590-2.1~deb12u2
Size: 102
"""
CHANGELOG = """\
expat (2.5.0-1+deb12u2) bookworm-security; urgency=high

  * Fix CVE-2024-8176 and CVE-2023-52425.

 -- A <a@b>  Mon, 01 Jan 2024 00:00:00 +0000

expat (2.5.0-1+deb12u1) bookworm-security; urgency=high

  * Fix CVE-2024-45490.

 -- A <a@b>  Mon, 01 Jan 2024 00:00:00 +0000

expat (2.5.0-1) unstable; urgency=medium

  * Fix CVE-2022-43680.

 -- A <a@b>  Mon, 01 Jan 2024 00:00:00 +0000
"""


def installed(name: str, version: str, distro: str = "debian-12") -> Installed:
    return Installed(kind="deb", name=name, version=version, distro=distro)


def test_the_newest_version_of_a_list_counts() -> None:
    found = debian.candidates(LISTING)
    assert {name: (one.version, one.source) for name, one in found.items()} == {
        "libexpat1": ("2.5.0-1+deb12u10", "expat"),
        "less": ("590-2.1~deb12u2", "less"),
    }


@pytest.mark.parametrize(
    ("name", "version", "old"),
    [
        ("libexpat1", "2.5.0-1+deb12u5", True),
        ("libexpat1", "2.5.0-1+deb12u10", False),
        ("libexpat1", "2.6.0-1", False),
        ("less", "590-2.1", False),
        ("less", "590-2", True),
        ("bash", "1", False),
    ],
)
def test_what_is_older_than_the_security_archive_is_outdated(name: str, version: str, old: bool) -> None:
    assert bool(debian.outdated([installed(name, version)], debian.candidates(LISTING))) is old


def test_a_changelog_tells_what_was_fixed_since() -> None:
    log = Changelog(CHANGELOG)
    assert debian.fixes(log, "2.5.0-1+deb12u1") == ("CVE-2023-52425", "CVE-2024-8176")
    assert debian.fixes(log, "2.5.0-1") == ("CVE-2023-52425", "CVE-2024-45490", "CVE-2024-8176")
    assert debian.fixes(log, "2.5.0-1+deb12u2") == ()


def test_other_distributions_are_refused() -> None:
    assert debian.suite_of([installed("less", "1")]) == "bookworm"
    for packages in ([], [installed("less", "1", "ubuntu-24.04")], [installed("less", "1"), installed("x", "1", "y")]):
        with pytest.raises(UserError, match="its packages are of"):
            debian.suite_of(packages)


@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is Debian's")
@settings(max_examples=60, deadline=None)
@given(*[st.from_regex(r"([0-3]:)?[0-9][0-9a-z.+~]{0,6}(-[0-9a-z.+~]{1,6})?", fullmatch=True)] * 2)
def test_versions_are_compared_as_dpkg_does(one: str, other: str) -> None:
    done = subprocess.run(["dpkg", "--compare-versions", one, "lt", other], check=False)
    assert (Version(one) < Version(other)) is (done.returncode == 0)
