"""What must never lie in the repository, and that its Dockerfiles are clean."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from images.config.paths import CHECKOUT
from images.context import render
from images.context.labels import BaseContext
from images.locking import lock_file
from images.planning import plan
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES

TRACKED = [ROOT / line for line in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()]
# Spelled in pieces, so that this file does not hold what it forbids.
FORBIDDEN = [
    "pypi" + r"\.org",
    "files\\.python" + "hosted",
    "deb\\.deb" + "ian\\.org",
    "security\\.deb" + "ian\\.org",
    "/opt/py" + "pi",
    "/work/" + "main",
    "BEGIN [A-Z ]*PRIVATE" + " KEY",
]
LOCKED = [planned.image for planned in plan.plan(SOURCES) if planned.image and planned.image.index is None]


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_index_host_no_path_of_a_machine_no_secret(pattern: str) -> None:
    found = [path for path in TRACKED if path.is_file() and re.search(pattern, path.read_text(errors="replace"))]
    assert not found


def test_no_large_file() -> None:
    assert [path for path in TRACKED if path.is_file() and path.stat().st_size > 1_000_000] == []


def test_nothing_in_validate_imports_images_or_asserts() -> None:
    for path in (ROOT / "validate").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*(from|import) (images|docker)\b", text, re.MULTILINE), path
        assert not re.search(r"^\s*assert\b", text, re.MULTILINE), path


def test_nothing_in_images_imports_torch() -> None:
    for path in (ROOT / "images").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) torch\b", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("image", LOCKED, ids=lambda image: str(image.name))
def test_every_image_of_the_default_index_is_locked(image: plan.Image) -> None:
    state = lock_file.state(image, CHECKOUT.locks)
    assert state.status is lock_file.Status.PRESENT, state.differences


@pytest.mark.parametrize("image", LOCKED, ids=lambda image: str(image.name))
def test_rendered_dockerfiles_pass_hadolint(image: plan.Image, tmp_path: Path) -> None:
    base_context = BaseContext(reference=image.base.reference, origin="tag")
    dockerfile = render.render(
        image, lock_file.read(image, CHECKOUT.locks).files, base_context, suite={"claims.json": b"{}"}
    )["Dockerfile"]
    file = tmp_path / "Dockerfile"
    assert isinstance(dockerfile, bytes)
    file.write_bytes(dockerfile)
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([str(hadolint), str(file)], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and not found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize("script", sorted((ROOT / "templates").rglob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_posix_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert not re.search(r"\[\[(?!:)|<<|function |local ", script.read_text()), "no bashisms, no here-documents"
