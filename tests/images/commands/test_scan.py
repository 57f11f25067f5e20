"""`scan`: files of the workspace that can't be read are told with the next command."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from images.publish import sbom
from tests.support.checkout import ROOT
from tests.support.commands import Called, call

NAME = "cu126-torch27"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A matrix, an SBOM without packages, and a folder of results."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    packages = sbom.packages_of({"python": [], "toolkit": [], "debian": [], "os": {}})
    created = datetime(2026, 11, 22, tzinfo=UTC)
    content = sbom.cyclonedx(packages, name=NAME, digest="sha256:" + "ab" * 32, created=created)
    (tmp_path / "sbom.json").write_bytes(content)
    (tmp_path / "results" / "vulnerabilities").mkdir(parents=True)
    return tmp_path


def scan(workspace: Path) -> Called:
    return call("scan", NAME, "--sbom", str(workspace / "sbom.json"), "--matrix", str(workspace / "matrix.yaml"))


@pytest.mark.parametrize("content", ["", "[]", '{"schema_version": 1, "rows": "none"}', "\udcff"])
def test_a_damaged_record_is_told_and_kept(workspace: Path, content: str) -> None:
    file = workspace / "results" / "vulnerabilities" / f"{NAME}.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    done = scan(workspace)
    told = done.stderr.replace("\n", "")
    assert done.returncode == 2 and "can't be read" in told and "Traceback" not in told, done.stderr
    assert f"{NAME}.json" in told and "git restore" in told
    assert file.read_bytes() == content.encode(errors="surrogateescape")


@pytest.mark.parametrize("content", ["[]", '"x"', '{"vulnerabilities": null}', '{"vulnerabilities": [[]]}', "{"])
def test_damaged_statements_are_told(workspace: Path, content: str) -> None:
    (workspace / "results" / "vulnerabilities" / "vex.cdx.json").write_text(content)
    done = scan(workspace)
    told = done.stderr.replace("\n", "")
    assert done.returncode == 2 and "can't be read" in told and "Traceback" not in told, done.stderr
    assert "vex.cdx.json" in told and "nox -s vex" in told
