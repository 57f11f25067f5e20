"""A small Python environment for a test of a static check: it has only what the test installs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import elves
from tests.support.judging import judge_claim
from tests.support.wheels import record_hash
from validate.binaries import loader
from validate.checks.static import environment, libraries
from validate.claims import Claim, Tier
from validate.environment import installed, user_environment
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding
from validate.survey import environments

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The release of the environment's Python: the one that runs the tests."""
VENV_PACKAGES = f"venv/lib/python{PYTHON}/site-packages"
"""The folder of packages of the virtual environment, below Site.parent. It is empty."""


class Site:
    """A folder of packages that an interpreter gets through PYTHONPATH."""

    def __init__(self, root: Path, start: Callable[..., None]) -> None:
        """`start` sets the variables with which the user's Python starts."""
        self.root = root
        self.parent = root.parent
        self._start = start

    def install(
        self,
        name: str = "pkg",
        version: str = "1.0",
        contents: dict[str, bytes] | None = None,
        *,
        tag: str = "py3-none-any",
    ) -> None:
        """Install a distribution, with a RECORD of its files. By default it has one empty module.

        `contents` is path below the folder of packages -> content.
        """
        if contents is None:
            contents = {f"{name}/__init__.py": b""}
        rows = []
        for path, content in contents.items():
            self.write(path, content)
            rows.append(f"{path},{record_hash(content)},{len(content)}")

        info = self.root / f"{name}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nRead me\n"
        )
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]))

    def write(self, path: str, content: bytes = b"") -> Path:
        """Write a file that no RECORD lists. `path` is below the folder of packages."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    def start_with(self, **environ: str) -> None:
        """Set variables with which the user's Python starts. Those of earlier calls are unset."""
        self._start(**environ)


def make_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return an empty environment below a folder. Checks find it in place of this machine's own.

    Its Python is that of a virtual environment, `venv`, and its user has the home `home`.
    """
    packages = folder / "site"
    home = folder / "home"
    packages.mkdir()
    home.mkdir()
    for name in (VENV_PACKAGES, "venv/bin"):
        (folder / name).mkdir(parents=True)
    interpreter = elves.make(exports=["PyLong_FromLong"])
    (folder / f"venv/bin/python{PYTHON}").write_bytes(interpreter)

    def start(**environ: str) -> None:
        usual = {"PATH": "/nonexistent", "HOME": str(home), "PYTHONPATH": str(packages)}
        user = UserEnvironment(environ={**usual, **environ}, directory=str(home), python="")
        monkeypatch.setattr(
            user_environment, "recorded", lambda: environments.with_python_from_files(user)
        )

    start()
    monkeypatch.setattr(environments, "package_folders", lambda: [str(folder / VENV_PACKAGES)])
    # This machine's own libraries and settings are not what is tested.
    monkeypatch.setattr(loader, "read_cache", lambda _data, _machine: {})
    at_home = tuple(file for file in environment._SETTINGS_FILES if file.startswith("~"))
    monkeypatch.setattr(environment, "_SETTINGS_FILES", at_home)
    return Site(packages, start)


def static_claim(check: str, subject: str, probe: str, **expect: Any) -> Claim:
    """Return a claim of the static tier that expects this. `probe` is a module's name: `pins`."""
    return Claim(
        check=check,
        subject=subject,
        tier=Tier.STATIC,
        probe=f"static.{probe}",
        statement="-",
        expect=expect,
    )


def measure(check: Any, claim: Claim) -> Any:
    """Return the evidence of a claim, measured with the module of a check.

    What a process reads only once is read again: the environment may have changed since.
    """
    for read_once in (installed.read_user_python, libraries.read_user_libraries):
        read_once.cache_clear()
    ((subject, evidence),) = check.measure([claim])
    assert subject == claim.subject
    return evidence


def measure_and_judge(check: Any, claim: Claim) -> Finding:
    """Measure a claim with the module of a check, and judge what was measured."""
    return judge_claim(claim, measure(check, claim))
