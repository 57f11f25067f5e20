"""lookup/paths: what is found in place of another. More, in a real image: tests/integration/faults.yaml."""

from pathlib import Path
from typing import Any

import pytest

from validate.checks.static import lookup
from validate.checks.static.lookup import Expected, Hidden, Measured, Owners
from validate.claims import ImageKind
from validate.environment import debian, installed
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, Status

OURS = ["/opt/venv/bin", "/usr/local/cuda-12.6/bin", "/usr/bin"]
GOOD = Measured(path=OURS, programs=[], modules=[], libraries=[], plugins={})
CONDA = Hidden(
    path="/opt/conda/bin/python3",
    owner="",
    hides="/opt/venv/bin/python3",
    hidden_owner="Debian's python3-minimal",
)
CMAKE = Hidden(
    path="/opt/venv/bin/cmake", owner="cmake", hides="/usr/bin/cmake", hidden_owner="Debian's cmake"
)
GIT = Hidden(path="/usr/local/bin/git", owner="", hides="/usr/bin/git", hidden_owner="Debian's git")
NUMPY = Hidden(path="/opt/own/numpy", owner="", hides="/site/numpy", hidden_owner="numpy")


def judged(kind: ImageKind, **changed: Any) -> Finding:
    return lookup.judge("lookup", Expected(path=OURS, image_kind=kind), {**GOOD, **changed})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"path": ["/opt/conda/bin", *OURS], "programs": [CONDA]},
            "/opt/conda/bin/python3 is found before /opt/venv/bin/",
        ),
        (
            {"path": ["/usr/local/bin", *OURS], "programs": [GIT]},
            "/usr/local/bin/git is found before /usr/bin/git of Debian",
        ),
        ({"programs": [{**CMAKE, "owner": ""}]}, "/opt/venv/bin/cmake is found before"),
        ({"modules": [NUMPY]}, "/opt/own/numpy is found before /site/numpy of numpy"),
        ({"libraries": [NUMPY]}, "/opt/own/numpy is found before"),
        ({"path": OURS[1:]}, "folders of ours are missing or in another order"),
        ({"path": ["bin", *OURS]}, "the PATH has 'bin'"),
    ],
)
def test_what_hides_ours_in_somebodys_image_fails(changed: dict[str, Any], words: str) -> None:
    finding = judged(ImageKind.DERIVED, **changed)
    assert finding.status is Status.FAIL and words in finding.reason, finding.reason


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"path": ["/app/bin", *OURS]}, ""),
        (
            {"programs": [CMAKE]},
            "reported: /opt/venv/bin/cmake of cmake is found before /usr/bin/cmake of Debian's cmake",
        ),
        (
            {"plugins": {"/usr/lib/libnccl-net.so": "NCCL"}},
            "reported: /usr/lib/libnccl-net.so is loaded by NCCL",
        ),
    ],
)
def test_what_somebodys_image_may_bring_is_reported(changed: dict[str, Any], words: str) -> None:
    finding = judged(ImageKind.DERIVED, **changed)
    assert finding.status is Status.PASS and words in finding.reason
    assert judged(ImageKind.OURS, **changed).status is (Status.FAIL if changed else Status.PASS)


def program(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    file.chmod(0o755)
    return str(file)


def test_programs_are_followed_along_the_path(tmp_path: Path) -> None:
    first, second = program(tmp_path / "conda/python3"), program(tmp_path / "venv/python3")
    (tmp_path / "link").symlink_to("venv")
    (tmp_path / "conda/notes").write_text("")
    folders = [str(tmp_path / name) for name in ("conda", "venv", "link", "gone")]
    owners = Owners({debian.real_path(second): "python3"}, {debian.real_path(first): "conda"})
    (hidden, again) = lookup.find_hidden_programs(folders, owners)
    assert hidden == Hidden(
        path=first, owner="conda", hides=second, hidden_owner="Debian's python3"
    )
    assert again["hides"] == f"{tmp_path}/link/python3"
    assert not lookup.find_hidden_programs(folders[1:], owners), (
        "a link to the same program hides nothing"
    )


def test_modules_before_the_standard_librarys_are_found(tmp_path: Path) -> None:
    for name in (
        "own/random.py",
        "own/mine.py",
        "own/alone.py",
        "own/json/__init__.py",
        "own/csv/data.txt",
        "own/tests/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    standard = tmp_path / "python3.11"
    for name in ("random.py", "csv.py", "json/__init__.py", "tests/__init__.py"):
        (standard / name).parent.mkdir(parents=True, exist_ok=True)
        (standard / name).write_text("")
    site = tmp_path / "site"
    for folder, name in ((tmp_path / "own", "mine"), (site, "mine"), (tmp_path / "own", "alone")):
        info = folder / f"{name}-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "RECORD").write_text(f"{name}.py,,\n")
    distributions = installed.distributions([str(tmp_path / "own"), str(site)])
    hidden = lookup.find_hidden_modules([str(tmp_path / "own")], [str(standard)], distributions)
    (mine,) = (one for one in hidden if one["hidden_owner"] == "mine")
    assert mine["path"] == f"{tmp_path}/own/mine.py" and mine["hides"] == f"{site}/mine"
    hidden.remove(mine)
    assert [one["path"] for one in hidden] == [f"{tmp_path}/own/json", f"{tmp_path}/own/random.py"]
    assert {one["hidden_owner"] for one in hidden} == {"the standard library"}


def test_libraries_are_followed_along_the_loaders_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own/libz.so.1", "own/libcudnn.so.9", "own/mine.so", "system/libz.so.1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    folders = [str(tmp_path / "own"), str(tmp_path / "system")]
    monkeypatch.setattr(lookup, "loader_folders", lambda _user: folders)
    owners = Owners(
        {f"{tmp_path}/system/libz.so.1": "zlib1g"},
        {"/site/nvidia/lib/libcudnn.so.9": "nvidia-cudnn"},
    )
    user = UserEnvironment(environ={}, directory="/", python="")
    (zlib,) = lookup.find_hidden_libraries(user, owners)
    assert zlib["hidden_owner"] == "Debian's zlib1g" and zlib["path"] == f"{tmp_path}/own/libz.so.1"
    told = UserEnvironment(environ={"LD_LIBRARY_PATH": folders[0]}, directory="/", python="")
    found = lookup.find_hidden_libraries(told, owners)
    assert {one["hidden_owner"] for one in found} == {"Debian's zlib1g", "nvidia-cudnn"}
