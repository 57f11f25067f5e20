"""Packages of files and folders, without Docker: what is read of each, and what is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from images.audit import packages
from images.audit.model import Audit, Outcome
from images.config import matrix
from images.errors import UserError
from tests.support import wheels

_TOML = """
lock-version = "1.0"
created-by = "a test"
[[packages]]
name = "small"
version = "1.0"
marker = "sys_platform == 'linux'"
wheels = [{ url = "https://index.invalid/small-1.0-py3-none-any.whl", hashes = { sha256 = "ab" } }]
"""
_DOCKERFILE = """
FROM debian
RUN apt-get update && pip install --no-cache-dir "torch==2.8.0" \\
    'peft>=0.17' -r requirements.txt $MORE && uv pip install six
RUN python3 -m pip3 install numpy==1.26.4; echo pip install nothing
"""


def audited(source: Path | str, python: str = "") -> Audit:
    return packages.audit(str(source), python, matrix.load_facts(), None, lambda _told: None)[0]


def faults(found: Audit) -> dict[str, str]:
    return {f"{one.id} {one.subject}": one.text for one in found.faults()}


def needing(folder: Path, name: str, version: str, needs: str) -> Path:
    """A wheel with one requirement."""
    info = f"{name}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {needs}\n"
    tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return wheels.make(folder, {f"{info}/METADATA": text.encode(), f"{info}/WHEEL": tag.encode()}, name, version)


def test_what_a_lock_and_a_dockerfile_ask_for_is_read(tmp_path: Path) -> None:
    lock, dockerfile = tmp_path / "pylock.toml", tmp_path / "Dockerfile"
    lock.write_text(_TOML)
    dockerfile.write_text(_DOCKERFILE)
    assert packages._requirements(str(lock)) == (True, "small==1.0 ; sys_platform == 'linux' --hash=sha256:ab", [])
    whole, asked, unread = packages._requirements(str(dockerfile))
    assert not whole and asked.split() == ["torch==2.8.0", "peft>=0.17", "six", "numpy==1.26.4"]
    assert unread == ["-r requirements.txt", "$MORE"]


@pytest.mark.parametrize(
    "told",
    [
        "Because small==1.0 has no usable wheels and you require small==1.0",
        "Because all versions of small have no usable wheels and other==1 depends on small",
        "Because small{platform_machine == 'x86_64'}>=1.7.0,<=1.7.6 has no usable wheels and only",
    ],
)
def test_a_package_without_a_wheel_is_named_by_uv_in_three_ways(told: str) -> None:
    assert (found := packages._SOURCE_ONLY.search(told)) and found[1] == "small"


def test_requirements_that_contradict_each_other_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    one, other = wheels.make(tmp_path), needing(tmp_path, "other", "2.0", "small>=2")
    file = tmp_path / "requirements.txt"
    file.write_text(f"small @ {one.as_uri()}\nother @ {other.as_uri()}\n")
    found = audited(file)
    assert set(faults(found)) == {"A7 contradiction", "A3 requirements"}
    assert faults(found)["A3 requirements"] == "other 2.0 requires small>=2, 1.0 is installed"
    assert found.of(Outcome.NOT_MEASURED) == ()
    assert found.environments[0].distributions == 2


def test_a_changed_file_of_a_virtual_environment_is_found(tmp_path: Path) -> None:
    site = wheels.install(wheels.make(tmp_path), wheels.environment(tmp_path / "venv"), by="uv")
    assert faults(audited(tmp_path / "venv")) == {}
    (site / "small" / "__init__.py").write_text("raise SystemExit\n")
    found = audited(tmp_path / "venv")
    assert "small/__init__.py" in faults(found)["S2 files"]
    assert faults(audited(site)) == faults(found)


def test_pip_freeze_on_standard_input_and_an_exit_status(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path)
    command = [sys.executable, "-m", "images", "audit", "-", "--out", str(tmp_path / "out")]
    text = f"small @ {wheel.as_uri()}\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "standard input" in done.stdout
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["audit"]["environments"][0]["distributions"] == 1


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("pylock.toml", "not toml", "can't be read"),
        ("uv.lock", "version = 1", "keep its pyproject.toml beside it"),
        ("requirements.txt", "small==", "uv failed"),
        ("folder", None, "no installed packages"),
    ],
)
def test_what_cannot_be_read_is_told(name: str, content: str | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(UserError, match=told):
        audited(path)
