"""authorities/trusted: Debian's must be there, and a company's own is reported."""

from pathlib import Path

import pytest

from validate.checks.static import authorities
from validate.checks.static.authorities import Measured
from validate.judging import Status


def certificate(content: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n"


DEBIANS, COMPANYS = certificate("AAAA"), certificate("BBBB")


class Trust:
    """A folder of trusted authorities, and a certificate that Debian's package brought."""

    def __init__(self, folder: Path) -> None:
        self._brought = folder / "debian.crt"
        self._brought.write_text(DEBIANS)
        self._trusted = folder / "certs"
        self._trusted.mkdir()

    def write_bundle(self, text: str, name: str = "ca-certificates.crt") -> None:
        """Write the file in which curl and requests look authorities up."""
        (self._trusted / name).write_text(text)

    def link_debians(self) -> None:
        """Make the link by which OpenSSL finds Debian's authority."""
        (self._trusted / "deadbeef.0").symlink_to(self._brought)

    def measured(self) -> Measured:
        return authorities.compare([self._brought], self._trusted)


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path)


def test_an_authority_of_debian_that_nothing_trusts_is_lost(trust: Trust) -> None:
    assert trust.measured() == Measured(trusted=0, added=0, lost=1)


def test_an_authority_of_debian_that_openssl_finds_by_no_link_is_lost(trust: Trust) -> None:
    trust.write_bundle(DEBIANS)

    assert trust.measured() == Measured(trusted=1, added=0, lost=1)


def test_an_authority_of_debian_that_all_programs_find_is_trusted(trust: Trust) -> None:
    trust.write_bundle(DEBIANS)
    trust.link_debians()

    assert trust.measured() == Measured(trusted=1, added=0, lost=0)


@pytest.mark.parametrize(
    "bundle",
    [
        DEBIANS + COMPANYS,
        # Words between certificates are none.
        f"# the company's\n{COMPANYS}# the end\n{DEBIANS}",
    ],
)
def test_an_authority_that_debian_does_not_bring_is_added(trust: Trust, bundle: str) -> None:
    trust.write_bundle(bundle)
    trust.link_debians()

    assert trust.measured() == Measured(trusted=2, added=1, lost=0)


def test_authorities_are_also_read_from_the_file_that_red_hat_names(trust: Trust) -> None:
    trust.write_bundle(DEBIANS + COMPANYS, name="ca-bundle.crt")
    trust.link_debians()

    assert trust.measured() == Measured(trusted=2, added=1, lost=0)


@pytest.mark.parametrize(
    ("evidence", "status", "words"),
    [
        pytest.param(
            Measured(trusted=148, added=0, lost=0),
            Status.PASS,
            "all of them Debian's",
            id="debians-only",
        ),
        pytest.param(
            Measured(trusted=149, added=1, lost=0),
            Status.PASS,
            "Debian does not bring 1 of them",
            id="one-is-added",
        ),
        pytest.param(
            Measured(trusted=142, added=142, lost=0),
            Status.PASS,
            "no Debian package of the image brings one of them",
            id="without-dpkg",
        ),
        pytest.param(
            Measured(trusted=140, added=1, lost=9),
            Status.FAIL,
            "9 certificate authorities that Debian brings are not",
            id="some-are-lost",
        ),
        pytest.param(
            Measured(trusted=0, added=0, lost=0),
            Status.FAIL,
            "no certificate authority is trusted",
            id="none",
        ),
    ],
)
def test_lost_authorities_fail_and_added_ones_are_reported(
    evidence: Measured, status: Status, words: str
) -> None:
    finding = authorities.judge("", {}, evidence)

    assert finding.status is status
    assert words in finding.reason
