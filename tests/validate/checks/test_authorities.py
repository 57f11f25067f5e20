"""authorities/trusted: a company's own is reported, and Debian's must be there."""

from pathlib import Path

import pytest

from validate.checks.static import authorities
from validate.checks.static.authorities import Measured
from validate.judging import Status


def test_certificates_beyond_debians_and_those_that_nobody_trusts_are_counted(
    tmp_path: Path,
) -> None:
    first, second = (
        f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"
        for text in ("AAAA", "BBBB")
    )
    debians, companys = tmp_path / "debian.crt", tmp_path / "company.crt"
    debians.write_text(first)
    companys.write_text(second)
    bundle, linked = tmp_path / "ca-certificates.crt", tmp_path / "deadbeef.0"

    def compared() -> tuple[int, int, int]:
        found = authorities.compare([debians], tmp_path)
        return found["trusted"], found["added"], found["lost"]

    assert compared() == (0, 0, 1)
    bundle.write_text(first)
    assert compared() == (1, 0, 1), "OpenSSL finds it by no link"
    linked.symlink_to(debians)
    assert compared() == (1, 0, 0)
    bundle.write_text(first + second)
    assert compared() == (2, 1, 0)
    bundle.write_text(f"# the company's\n{second}# the end\n{first}")
    assert compared() == (2, 1, 0), "words between certificates are none"
    bundle.rename(tmp_path / "ca-bundle.crt")
    assert compared() == (2, 1, 0), "Red Hat's name"


@pytest.mark.parametrize(
    ("evidence", "status", "words"),
    [
        (Measured(trusted=148, added=0, lost=0), Status.PASS, "all of them Debian's"),
        (Measured(trusted=149, added=1, lost=0), Status.PASS, "Debian does not bring 1 of them"),
        (
            Measured(trusted=140, added=1, lost=9),
            Status.FAIL,
            "9 certificate authorities that Debian brings are not",
        ),
        (Measured(trusted=0, added=0, lost=0), Status.FAIL, "no certificate authority is trusted"),
    ],
)
def test_lost_authorities_fail_and_others_are_reported(
    evidence: Measured, status: Status, words: str
) -> None:
    finding = authorities.judge("", {}, evidence)
    assert finding.status is status and words in finding.reason
