"""`scan`, from an SBOM to the record: by a findings file, and by Debian's own archive through this machine's apt."""

import json
import re
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest
from debian.debian_support import Version

from benchmarks import loopback
from images.publish import sbom
from images.registry.client import Registry
from images.registry.reference import Repository
from images.vulnerabilities import findings, record, vex
from images.vulnerabilities.debian import SOURCE
from images.vulnerabilities.record import ScanRecord, Standing
from tests.support.checkout import ROOT
from tests.support.commands import Called, call
from tests.support.published import days_ago, published

PLANTED = ROOT / "tests" / "support" / "findings" / "planted-grype.json"
NAME, DIGEST = "cu126-torch27", "sha256:" + "ab" * 32
TWENTY: Mapping[str, findings.Finding] = {one.package: one for one in findings.read(PLANTED.read_bytes()).findings}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A matrix, and the SBOM of an image with twenty outdated packages."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    found = {
        "python": [{"name": "torch", "version": "2.7.1", "licence": ""}],
        "toolkit": [],
        "debian": [
            {"name": one.package, "version": one.version, "architecture": "amd64", "source": ""}
            for one in TWENTY.values()
        ],
        "os": {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"},
    }
    created = datetime.fromisoformat("2026-11-22T00:00:00+00:00")
    content = sbom.cyclonedx(sbom.packages_of(found), name=NAME, digest=DIGEST, created=created)
    (tmp_path / "sbom.json").write_bytes(content)
    return tmp_path


def scan(workspace: Path, *arguments: str) -> Called:
    matrix = str(workspace / "matrix.yaml")
    return call("scan", NAME, "--sbom", str(workspace / "sbom.json"), "--matrix", matrix, *arguments)


def recorded(workspace: Path) -> ScanRecord:
    return record.loads((workspace / "results" / "vulnerabilities" / f"{NAME}.json").read_bytes())


def found(workspace: Path) -> dict[str, set[str]]:
    """Package -> identifiers of what is open."""
    ids: dict[str, set[str]] = {}
    for row in recorded(workspace).of(Standing.OPEN):
        name = row.purl.rpartition("@")[0].rpartition("/")[2]
        ids.setdefault(name, set()).add(row.id)
    return ids


def test_twenty_planted_packages_are_found_by_a_findings_file(workspace: Path) -> None:
    done = scan(workspace, "--findings", str(PLANTED))
    assert done.returncode == 0, done.stderr
    assert found(workspace) == {name: {one.id} for name, one in TWENTY.items()} and len(TWENTY) == 20
    for one in TWENTY.values():
        assert f"to {one.fixed[0]}: {one.id}" in done.stdout


def test_twenty_planted_packages_are_found_by_debians_own_data(workspace: Path) -> None:
    done = scan(workspace, "--debian")
    assert done.returncode == 1 and f"{NAME}  pypi  UNPROVEN" in done.stdout, done.stderr
    by_debian = found(workspace)
    assert by_debian.keys() == TWENTY.keys()
    assert all(one.id in by_debian[name] for name, one in TWENTY.items()), "the identifiers of the findings file, too"
    for row in recorded(workspace).rows:
        known = TWENTY[row.purl.rpartition("@")[0].rpartition("/")[2]]
        assert Version(row.fixed[-1]) >= Version(known.fixed[0]), "the archive goes on"
    assert recorded(workspace).sources == {"deb": [SOURCE], "pypi": []}


def test_without_findings_nothing_is_known_and_nothing_is_written(workspace: Path) -> None:
    done = scan(workspace)
    assert done.returncode == 1
    assert done.stdout.count("UNPROVEN: nobody looked, so nothing is known") == 2
    assert not (workspace / "results").exists()


def test_findings_of_another_image_are_refused(workspace: Path) -> None:
    data = json.loads(PLANTED.read_bytes())
    data["source"]["target"]["imageID"] = "sha256:" + "cd" * 32
    (workspace / "other.json").write_text(json.dumps(data))
    (workspace / "empty.json").write_text('{"results": []}')
    for name, words in (("other.json", "is of sha256:cdcd"), ("empty.json", "may be of another one")):
        done = scan(workspace, "--findings", str(workspace / name))
        assert done.returncode == 1 and words in done.stderr.replace("\n", " ")
    assert not (workspace / "results").exists()


def test_what_we_say_of_it_is_kept_and_counts(workspace: Path) -> None:
    one = TWENTY["openssl"]
    said = ["--package", "pkg:deb/debian/openssl@3.0.9-1", "--state", "not-affected", "--because", "no TLS server"]
    matrix = ["--matrix", str(workspace / "matrix.yaml")]
    assert call("vex", one.id, *said, *matrix).returncode == 2, "without a justification"
    assert call("vex", one.id, *said, "--justification", "code_not_reachable", *matrix).returncode == 0
    assert [row.id for row in vex.loads((workspace / vex.FILE).read_bytes())] == [one.id]
    assert scan(workspace, "--findings", str(PLANTED)).returncode == 0
    assert "openssl" not in found(workspace) and len(found(workspace)) == 19
    assert [row.because for row in recorded(workspace).of(Standing.NOT_AFFECTED)] == ["no TLS server"]


def test_our_statements_are_attached_to_the_image_that_was_scanned(workspace: Path, tmp_path: Path) -> None:
    """By the SBOM that is attached to it, from a registry."""
    matrix = ["--matrix", str(workspace / "matrix.yaml")]
    with loopback.registry(tmp_path / "registry") as host, Registry(Repository(host, "images")) as target:
        one, other = (published(target, name, date=days_ago(1)) for name in ("one", "other"))
        scanned = ["scan", NAME, "--published", one.reference, *matrix, "--attach"]
        assert "there are no statements" in call(*scanned, one.reference).stderr
        said = ["--package", "pkg:pypi/pip@26.3", "--state", "will-not-fix", "--because", "minor"]
        assert call("vex", "CVE-2026-1", *said, *matrix).returncode == 0
        assert "the scanned image is" in call(*scanned, other.reference).stderr.replace("\n", " ")
        assert "UNPROVEN" in call(*scanned, one.reference).stdout
        (entry,) = [row for row in target.referrers(one.manifest.digest) if row.artifact_type == vex.MEDIA_TYPE]
        (layer,) = target.get(entry.digest).layers
        assert target.blob(layer) == (workspace / vex.FILE).read_bytes()
        assert not [row for row in target.referrers(other.manifest.digest) if row.artifact_type == vex.MEDIA_TYPE]


def test_updates_are_proposed_by_package(workspace: Path) -> None:
    """The rebuild itself is `build`, which has tests of its own."""
    file = workspace / "sbom.json"
    content = json.loads(file.read_bytes())
    content["components"] = [row for row in content["components"] if row["name"] in ("torch", "less")]
    file.write_text(json.dumps(content))
    arguments = ["--sbom", str(file), "--out", str(workspace), "--matrix", str(workspace / "matrix.yaml")]
    done = call("updates", NAME, *arguments)
    less = TWENTY["less"]
    proposed = re.search(rf"^{NAME}  less  590-2 -> (\S+)  .*{less.id}", done.stdout, re.MULTILINE)
    assert done.returncode == 1 and proposed, done.stdout + done.stderr
    newest = proposed[1]  # The archive may have a newer one than the findings file.
    assert Version(newest) >= Version(less.fixed[0])
    assert f"| less | 590-2 | {newest} |" in (workspace / NAME / "CHANGES.md").read_text()
    file.write_text(file.read_text().replace("590-2", newest))
    done = call("updates", NAME, *arguments)
    assert done.returncode == 0 and "no package has a newer version" in done.stdout
