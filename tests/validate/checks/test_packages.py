"""origin/packages: a small system of Debian's packages. What is changed in a real one:
tests/integration/faults.yaml."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.judging import fails
from tools import debian as tool
from validate.checks.static import packages
from validate.environment import debian
from validate.judging import Status


def installed(root: Path, name: str, *, needs: str = "", script: str = "", files: tuple[str, ...] = ()) -> None:
    """A package of the system below `root`, as dpkg leaves it."""
    info = root / "dpkg/info"
    info.mkdir(parents=True, exist_ok=True)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    for file in files:
        (root / "usr/bin" / file).write_text(f"{name} {file}")
    digests = {file: hashlib.md5(f"{name} {file}".encode()).hexdigest() for file in files}
    (info / f"{name}.list").write_text("/.\n" + "".join(f"{root}/usr/bin/{file}\n" for file in files))
    (info / f"{name}.md5sums").write_text(
        "".join(f"{md5}  {str(root)[1:]}/usr/bin/{file}\n" for file, md5 in digests.items())
    )
    (info / f"{name}.postinst").write_text(f"#!/bin/sh\n{script}\n")
    with (root / "dpkg/status").open("a") as status:
        status.write(
            f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.0\nDepends: {needs}\n\n"
        )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    installed(tmp_path, "asked", needs="libneeded (>= 1) | libelse", files=("tool",))
    installed(tmp_path, "libneeded", files=("needed",), script="update-alternatives --install")
    monkeypatch.setattr(packages, "_SOURCES", f"{tmp_path}/sources.list")
    (tmp_path / "generated").write_text("as written")
    (tmp_path / "tuned").write_text("as written")
    return tmp_path


def expect(root: Path, **more: Any) -> dict[str, Any]:
    held = [f"{root}/{name}" for name in ("generated", "dpkg/diversions", "dpkg/statoverride", "tuned", "clean")]
    return {
        "known": {},
        "asked": ["asked"],
        "absent": {},
        "held": [*held, packages._MADE_HERE],
        "contents": {},
        "suite": "s",
        "free": False,
        **more,
    }


def known(root: Path) -> dict[str, Any]:
    """What the claim knows of the healthy system, by way of the tool that keeps it."""
    table = tool.added({}, "suite/amd64", packages._look(expect(root), f"{root}/dpkg"))
    assert tool.added(table, "suite/amd64", packages._look(expect(root), f"{root}/dpkg")) == table
    found = table["suite/amd64"]
    return expect(root, known=found["packages"], contents=found["generated"])


def test_a_healthy_system_is_green_whether_its_versions_are_known_or_not(root: Path) -> None:
    for claim, words in ((expect(root), "0 of 2 Debian packages are"), (known(root), "2 of 2 Debian packages are")):
        finding = packages.judge("packages", claim, packages._look(claim, f"{root}/dpkg"))
        assert finding.status is Status.PASS and words in finding.reason


# Most others are of the real image: tests/integration/faults.yaml.
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "from no archive": (lambda root: installed(root, "mine", files=("mine",)), "nothing that was asked for needs the"),
    "another script": (lambda root: (root / "dpkg/info/asked.postinst").write_text("evil"), "its scripts, its list"),
    "another mode": (lambda root: (root / "usr/bin/tool").chmod(0o600), "modes, owners or links of its files"),
    "missing": (lambda root: (root / "usr/bin/tool").unlink(), "/usr/bin/tool of Debian's asked is missing"),
    "written otherwise": (lambda root: (root / "generated").write_text("x"), "generated is not as the installation"),
    "written, and not here before": (lambda root: (root / "clean").write_text("x"), "clean is not as the installation"),
    "no longer there": (lambda root: (root / "tuned").unlink(), "tuned is not as the installation"),
    "needed by another's word": (
        lambda root: (installed(root, "mine"), _status(root, "Depends: libneeded", "Depends: mine, libneeded")),
        "asked is not as its archive has it: its scripts, its list or checksums of files, or its row of dpkg's status",
    ),
    "essential by its own word": (
        lambda root: _status(root, "Version: 1.0", "Version: 1.0\nEssential: yes"),
        "or its row of dpkg's status",
    ),
}


def _status(root: Path, before: str, after: str) -> None:
    file = root / "dpkg/status"
    file.write_text(file.read_text().replace(before, after, 1))


def test_of_a_version_that_nobody_knows_neither_it_nor_what_is_written_is_proven(root: Path) -> None:
    """A package that says it is of another version does not free the files that are held."""
    claim = known(root)
    _status(root, "Version: 1.0", "Version: 1.1")
    (root / "generated").write_text("x")
    finding = packages.judge("packages", claim, packages._look(claim, f"{root}/dpkg"))
    assert finding.status is Status.UNPROVEN
    assert "asked 1.1 is not known here" in finding.reason and "generated is not as the inst" in finding.reason
    claim["contents"][packages._MADE_HERE] = ["another"]
    _status(root, "Version: 1.1", "Version: 1.0")
    finding = packages.judge("packages", claim, packages._look(claim, f"{root}/dpkg"))
    assert finding.status is Status.UNPROVEN and "generated is not as the inst" in finding.reason


@pytest.mark.parametrize("name", FAULTS)
def test_each_change_is_named(root: Path, name: str) -> None:
    claim, (change, words) = known(root), FAULTS[name]
    change(root)
    debian.owned.cache_clear()
    fails(packages.judge("packages", claim, packages._look(claim, f"{root}/dpkg")), words)


def test_a_child_may_divert_and_list_what_its_parents_packages_have(root: Path) -> None:
    claim = {**known(root), "free": True}
    (root / "bin").symlink_to("usr/bin")
    for name in ("libneeded", "zsh"):  # /bin of a merged /usr is in the lists of many packages
        installed(root, name) if name == "zsh" else None
        with (root / f"dpkg/info/{name}.list").open("a") as listing:
            listing.write(f"{root}/bin\n")
    debian.owned.cache_clear()
    known_now = packages._look({**claim, "known": {}}, f"{root}/dpkg")["unknown"]["libneeded"]
    debian.owned.cache_clear()
    claim["known"]["libneeded"]["1.0"] = [known_now[1], claim["known"]["libneeded"]["1.0"][1]]
    digests = packages._look(claim, f"{root}/dpkg")["unlike"]
    assert digests == {"libneeded": ["modes, owners or links of its files, or which are there"]}, "it is libneeded's"
    seen: Any = {**packages._look(claim, f"{root}/dpkg"), "unlike": {}}
    assert packages.judge("packages", claim, seen).status is Status.PASS


def test_alternatives_lead_where_the_script_of_a_package_says(root: Path) -> None:
    tool, needed = f"{root}/usr/bin/tool", f"{root}/usr/bin/needed"
    offers = f"{root}/usr/bin/cc cc {needed} 10 \\\n --slave {root}/usr/cc.1 cc.1 /n.1\nupdate-alternatives --install"
    installed(root, "libneeded", files=("needed",), script=f"update-alternatives --install {offers} $x/y y {tool} 90")
    installed(root, "better", script=f"update-alternatives --quiet --install {root}/usr/bin/cc cc {root}/nothing 90")
    debian.owned.cache_clear()
    place, companion = f"{root}/usr/bin/cc", f"{root}/usr/cc.1"
    links = {place: "/etc/alternatives/cc", "/etc/alternatives/cc": needed}
    links |= {companion: "/etc/alternatives/cc.1", "/etc/alternatives/cc.1": "/n.1"}
    assert debian.alternatives(f"{root}/dpkg") == links, "no package has the file that is better"
