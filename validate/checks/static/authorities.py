"""authorities: check that the image trusts the certificate authorities that Debian brings.

Without them, downloads of a training job fail. An authority that a build added, such as a
company's, is no fault. It is reported, so that nobody publishes it unawares.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import debian
from validate.judging import Finding, failed, passed

SETTINGS = Settings(
    reads_files_only=True, shared_reads=(debian.read_package_files,), run_as=RunAs.ROOT
)

_TRUSTED = "/etc/ssl/certs"
_BROUGHT_BY_DEBIAN = "/usr/share/ca-certificates/"
_BUNDLES = ("ca-certificates.crt", "ca-bundle.crt")
"""Files that hold all trusted authorities: Debian's name, and Red Hat's in a custom base."""
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class Measured(TypedDict):
    """How many certificate authorities programs of the image trust."""

    trusted: int
    added: int
    """How many are trusted, and not in Debian's ca-certificates."""
    lost: int
    """How many are in Debian's ca-certificates, and not trusted."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Compare the trusted authorities with those of Debian, once for all claims."""
    files = []
    for path in debian.read_package_files().md5:
        if path.startswith(_BROUGHT_BY_DEBIAN):
            files.append(Path(path))
    evidence = compare(files, Path(_TRUSTED))
    for claim in claims:
        yield claim.subject, evidence


def compare(brought: Sequence[Path], trusted: Path) -> Measured:
    """Count the certificate authorities that are trusted, that were added, and that are lost.

    `brought` are Debian's certificate files, `trusted` is the folder of what is trusted. Added are
    those that Debian did not bring. Programs look authorities up in one of two ways: an authority
    of Debian's is lost if it is not found in both.
    """
    of_debian = set()
    for file in brought:
        of_debian.update(read_certificates(file))
    # curl, git and Python's requests read one file with all of them.
    bundle = set()
    for name in _BUNDLES:
        bundle.update(read_certificates(trusted / name))
    # OpenSSL looks one up by a link that is named by its hash: `3bde41ac.0`.
    linked = set()
    for link in trusted.glob("????????.[0-9]*"):
        linked.update(read_certificates(link))
    return {
        "trusted": len(bundle | linked),
        "added": len((bundle | linked) - of_debian),
        "lost": len(of_debian - (bundle & linked)),
    }


def read_certificates(file: Path) -> list[str]:
    """Return the certificates of a PEM file as base64, without line breaks.

    What stands between certificates is left out. A file that can't be read has none.
    """
    certificates = []
    for part in "\n".join(debian.read_lines(file)).split(_END):
        _, begin, certificate = part.partition(_BEGIN)
        if begin:
            certificates.append("".join(certificate.split()))
    return certificates


def judge(_subject: str, _expect: object, evidence: Measured) -> Finding:
    """Pass if all certificate authorities that Debian brings are trusted (for HTTPS).

    `evidence` has the counts that `compare` returns. Authorities that somebody added are no fault:
    the reason of the PASS counts them.
    """
    if evidence["lost"]:
        return failed(
            f"{evidence['lost']} certificate authorities that Debian brings are not trusted, so "
            "downloads from their sites fail"
        )
    if not evidence["trusted"]:
        return failed("no certificate authority is trusted, so no download over HTTPS works")
    good = f"{evidence['trusted']} certificate authorities are trusted"
    # A base without dpkg passes as well: nothing there says which files are Debian's.
    if evidence["added"] == evidence["trusted"]:
        return passed(f"{good}; no Debian package of the image brings one of them")
    if evidence["added"]:
        return passed(f"{good}; Debian does not bring {evidence['added']} of them")
    return passed(f"{good}, all of them Debian's")


CLAIMS = {"authorities": judge, "base/authorities": judge}
_NEXT_STEP = (
    "run `apt-get install --reinstall ca-certificates && update-ca-certificates` in {place}, after "
    "all steps that change /etc/ssl/certs, and build the image again"
)
NEXT_STEPS = {
    "authorities": _NEXT_STEP.format(place="the Dockerfile of the image, or of its base image"),
    "base/authorities": _NEXT_STEP.format(place="the Dockerfile of the base image"),
}
