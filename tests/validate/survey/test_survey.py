"""Environments are found by their files alone, as site.py would find them."""

from pathlib import Path

import pytest

from images.audit import survey
from tests.support import fatbins
from tests.support.fatbins import Code
from validate.environment.user_environment import UserEnvironment
from validate.survey import environments, main


def _site(
    prefix: Path, version: str = "3.11", kind: str = "site-packages", *, python: bool = True
) -> str:
    folder = prefix / f"lib/python{version}" / kind
    folder.mkdir(parents=True)
    if python:
        (prefix / "bin").mkdir(exist_ok=True)
        (prefix / f"bin/python{version}").write_bytes(b"\x7fELF")
    return str(folder)


@pytest.mark.parametrize("both", ["true", "false"])
def test_a_venv_imports_its_bases_standard_library_and_packages_only_if_it_says_so(
    tmp_path: Path, both: str
) -> None:
    base, own = _site(tmp_path / "base"), _site(tmp_path / "venv")
    (tmp_path / "venv/pyvenv.cfg").write_text(
        f"home = {tmp_path}/base/bin\ninclude-system-site-packages = {both}\n"
    )
    found = environments.find_environments([base, own], {})
    kinds = {one.prefix: one for one in found}
    venv = kinds[f"{tmp_path}/venv"]
    assert (venv.kind, kinds[f"{tmp_path}/base"].kind) == ("venv", "system")
    packages = [path for path in venv.path if path in (own, base)]
    assert venv.path[0] == f"{tmp_path}/base/lib/python3.11"
    assert packages == ([own, base] if both == "true" else [own])


def test_conda_is_told_by_its_folder_and_its_cache_of_packages_is_no_environment(
    tmp_path: Path,
) -> None:
    own = _site(tmp_path / "conda")
    (tmp_path / "conda/conda-meta").mkdir()
    cached = _site(tmp_path / "conda/pkgs/six-1.16", python=False)
    found = environments.find_environments([own, cached], {})
    assert [one.kind for one in found] == ["conda"]


def test_the_interpreter_that_path_finds_first_comes_first(tmp_path: Path) -> None:
    folders = [_site(tmp_path / "a"), _site(tmp_path / "b")]
    for name in ("a", "b"):
        (tmp_path / name / "bin/python3").symlink_to("python3.11")
    found = environments.find_environments(
        folders, {"PATH": f"/nowhere:{tmp_path}/b/bin:{tmp_path}/a/bin"}
    )
    assert [one.prefix for one in found] == [f"{tmp_path}/b", f"{tmp_path}/a"]
    (tmp_path / "link").symlink_to("a")
    found = environments.find_environments(
        folders, {"PATH": f"{tmp_path}/link/bin/:{tmp_path}/b/bin"}
    )
    assert [one.prefix for one in found] == [f"{tmp_path}/a", f"{tmp_path}/b"]


def test_files_are_read_for_the_first_python_that_has_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stands in front of it, with none, is a finding of `lookup` and no end of the reading."""
    folders = [_site(tmp_path / "a"), _site(tmp_path / "b")]
    (tmp_path / "front").mkdir()
    (tmp_path / "front/python3").write_text("#!/bin/sh\n")
    monkeypatch.setattr(environments, "package_folders", lambda: folders)
    path = f"{tmp_path}/front:{tmp_path}/b/bin:{tmp_path}/a/bin"
    given = UserEnvironment(environ={"PATH": path}, directory="/", python="")
    found = environments.with_start_from_files(given)
    assert (found.python, found.start["prefix"]) == (
        f"{tmp_path}/b/bin/python3.11",
        f"{tmp_path}/b",
    )
    monkeypatch.setattr(environments, "package_folders", list)
    with pytest.raises(LookupError, match="no Python with packages is there"):
        environments.with_start_from_files(given)


def test_the_path_and_what_runs_at_the_start_are_found_where_python_would(tmp_path: Path) -> None:
    own, user = _site(tmp_path / "a"), _site(tmp_path / "home/.local", python=False)
    (tmp_path / "project").mkdir()
    Path(own, "x.pth").write_text(f"# comment\nimport os\n{tmp_path}/project\n/not/there\n")
    Path(own, "sitecustomize.py").write_text("x = 1\n")
    environ = {"HOME": f"{tmp_path}/home", "PYTHONPATH": "/first", "PYTHONOPTIMIZE": "1"}
    (one,) = environments.find_environments([own, user], environ)
    assert one.start["modules"] == {"sitecustomize": f"{own}/sitecustomize.py"}
    assert one.start["optimize"] == 1
    assert (
        one.path[0] == "/first"
        and f"{tmp_path}/project" in one.path
        and "/not/there" not in one.path
    )
    assert one.path.index(user) < one.path.index(own)


@pytest.mark.parametrize("suffix", ["dist-info", "egg-info"])
def test_metadata_tells_who_installed_what(tmp_path: Path, suffix: str) -> None:
    own = _site(tmp_path / "a")
    info = Path(own, f"some_thing-1.0.{suffix}")
    info.mkdir()
    name = "METADATA" if suffix == "dist-info" else "PKG-INFO"
    (info / name).write_text(
        "Name: Some-Thing\nVersion: 1.0\nRequires-Dist: six>=1\n\nbody: none\n"
    )
    (info / "INSTALLER").write_text("conda\n")
    (one,) = environments.find_environments([own], {})
    (found,) = environments.installed_packages(one)
    assert (found["name"], found["installer"], found["requires"]) == (
        "some-thing",
        "conda",
        ["six>=1"],
    )


def test_a_torch_for_the_cpu_has_no_cuda(tmp_path: Path) -> None:
    own = _site(tmp_path / "a")
    Path(own, "torch").mkdir()
    Path(own, "torch/version.py").write_text(
        "__version__ = '2.7.1+cpu'\ncuda: Optional[str] = None\n"
    )
    (one,) = environments.find_environments([own], {})
    torch = main.describe_torch(one)
    assert (torch["version"], torch["cuda"]) == ("2.7.1+cpu", "")
    found = {**one.__dict__, "distributions": [], "torch": torch}
    toolkit = {"home": "/usr/local/cuda", "version": "12.8"}
    evidence = survey.environment_evidence(found, [toolkit])["toolkit"]
    assert list(survey.find_other_toolkits(evidence)) == []


def test_device_code_is_counted_by_architecture(tmp_path: Path) -> None:
    machine_code = fatbins.region(
        Code(arch=80, kernels={"k": 100}), Code(arch=90, kernels={"k": 100}, flags=0x11)
    )
    code = fatbins.library(
        machine_code, fatbins.region(Code(arch=90, kernels={"long": 100}, ptx=True))
    )
    contents = {
        "lib.so": code + bytes(4096),
        "text.so": b"x" * 5000,
        "cut.so": code[:400] + bytes(4096),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    rows = {
        Path(str(row["path"])).name: row
        for row in main.device_code([str(path) for path in tmp_path.iterdir()])
    }
    assert (
        set(rows["lib.so"]["archs"]) == {"sm_80", "sm_90", "compute_90"} and "text.so" not in rows
    )
    assert main.device_code([]) == []
