"""Environments are found by their files only, as site.py would find them."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from images.audit import survey
from tests.support import fatbins
from tests.support.fatbins import Code
from validate.binaries import loader
from validate.binaries.elf import ElfError
from validate.binaries.loader import Machine
from validate.environment.user_environment import UserEnvironment
from validate.survey import environments, main

RELEASE = "3.11"


def make_packages_folder(prefix: Path, *, with_python: bool = True) -> str:
    """Make a folder of packages below a prefix, and the interpreter that it belongs to."""
    folder = prefix / f"lib/python{RELEASE}/site-packages"
    folder.mkdir(parents=True)
    if with_python:
        (prefix / "bin").mkdir(exist_ok=True)
        (prefix / f"bin/python{RELEASE}").write_bytes(b"\x7fELF")
    return str(folder)


# ---- Which environments there are.


def make_venv(folder: Path, *, system_packages: str) -> tuple[str, str]:
    """Make a Python `base` and a virtual environment `venv` of it. Return their packages' folders.

    `system_packages`: whether the virtual environment imports the base's (`true` or `false`).
    """
    of_base = make_packages_folder(folder / "base")
    of_venv = make_packages_folder(folder / "venv")
    (folder / "venv/pyvenv.cfg").write_text(
        f"home = {folder}/base/bin\ninclude-system-site-packages = {system_packages}\n"
    )
    return of_base, of_venv


def test_a_venv_is_told_from_its_base_and_has_the_bases_standard_library(tmp_path: Path) -> None:
    of_base, of_venv = make_venv(tmp_path, system_packages="false")

    found = environments.find_environments([of_base, of_venv], {})

    by_prefix = {environment.prefix: environment for environment in found}
    venv, base = by_prefix[f"{tmp_path}/venv"], by_prefix[f"{tmp_path}/base"]
    assert (venv.kind, base.kind) == ("venv", "system")
    assert venv.path[0] == f"{tmp_path}/base/lib/python{RELEASE}"


@pytest.mark.parametrize("system_packages", ["true", "false"])
def test_a_venv_imports_its_bases_packages_only_if_it_says_so(
    tmp_path: Path, system_packages: str
) -> None:
    of_base, of_venv = make_venv(tmp_path, system_packages=system_packages)

    found = environments.find_environments([of_base, of_venv], {})

    (venv,) = (environment for environment in found if environment.kind == "venv")
    packages = [path for path in venv.path if path in (of_base, of_venv)]
    assert packages == ([of_venv, of_base] if system_packages == "true" else [of_venv])


def test_conda_is_known_by_its_folder_and_its_cache_of_packages_is_no_environment(
    tmp_path: Path,
) -> None:
    of_conda = make_packages_folder(tmp_path / "conda")
    (tmp_path / "conda/conda-meta").mkdir()
    cached = make_packages_folder(tmp_path / "conda/pkgs/six-1.16", with_python=False)

    found = environments.find_environments([of_conda, cached], {})

    assert [environment.kind for environment in found] == ["conda"]


@pytest.mark.parametrize(
    ("path", "prefixes"),
    [
        pytest.param("/nowhere:{root}/b/bin:{root}/a/bin", ["b", "a"], id="by-its-folder"),
        pytest.param("{root}/link/bin/:{root}/b/bin", ["a", "b"], id="through-a-link"),
    ],
)
def test_the_environment_that_path_finds_first_comes_first(
    tmp_path: Path, path: str, prefixes: list[str]
) -> None:
    folders = [make_packages_folder(tmp_path / name) for name in ("a", "b")]
    for name in ("a", "b"):
        (tmp_path / name / "bin/python3").symlink_to(f"python{RELEASE}")
    (tmp_path / "link").symlink_to("a")

    found = environments.find_environments(folders, {"PATH": path.format(root=tmp_path)})

    assert [environment.prefix for environment in found] == [
        f"{tmp_path}/{name}" for name in prefixes
    ]


@pytest.mark.parametrize(
    ("number", "processor"), [(62, "x86_64"), (183, "aarch64"), (243, "machine 243")]
)
def test_the_survey_counts_libraries_by_the_processor_in_their_header(
    tmp_path: Path, number: int, processor: str
) -> None:
    folder = make_packages_folder(tmp_path / "venv")
    header = b"\x7fELF\x02\x01\x01" + bytes(11) + number.to_bytes(2, "little") + bytes(100)
    Path(folder, "a.so").write_bytes(header)
    Path(folder, "b.so").write_text("INPUT(a.so)")
    user = tmp_path / "user.json"
    user.write_text('{"environ": {}, "directory": "/", "python": ""}')

    document = main.survey(user, [folder])

    (environment,) = document["environments"]
    assert environment["processors"] == {processor: 1}


# ---- How the user's Python would start.


def test_the_users_python_is_the_first_on_path_that_has_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in front of it that has none is reported by the check `lookup`."""
    folders = [make_packages_folder(tmp_path / name) for name in ("a", "b")]
    monkeypatch.setattr(environments, "package_folders", lambda: folders)
    (tmp_path / "front").mkdir()
    (tmp_path / "front/python3").write_text("#!/bin/sh\n")
    path = f"{tmp_path}/front:{tmp_path}/b/bin:{tmp_path}/a/bin"

    user = environments.with_python_from_files(
        UserEnvironment(environ={"PATH": path}, directory="/", python="")
    )

    assert user.python == f"{tmp_path}/b/bin/python{RELEASE}"
    assert user.start["prefix"] == f"{tmp_path}/b"


def test_an_image_without_a_python_that_has_packages_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environments, "package_folders", list)

    with pytest.raises(LookupError, match="no Python with packages is there"):
        environments.with_python_from_files(
            UserEnvironment(environ={"PATH": "/usr/bin"}, directory="/", python="")
        )


def test_the_search_path_is_that_of_site_py(tmp_path: Path) -> None:
    own = make_packages_folder(tmp_path / "a")
    of_user = make_packages_folder(tmp_path / "home/.local", with_python=False)
    (tmp_path / "project").mkdir()
    Path(own, "x.pth").write_text(f"# comment\nimport os\n{tmp_path}/project\n/not/there\n")
    environ = {"HOME": f"{tmp_path}/home", "PYTHONPATH": "/first"}

    (environment,) = environments.find_environments([own, of_user], environ)

    path = environment.path
    assert path[0] == "/first"
    # Packages that the user installed with `pip install --user` come before all others.
    assert path.index(of_user) < path.index(own)
    # A .pth file adds the folders that it names and that are there.
    assert f"{tmp_path}/project" in path
    assert "/not/there" not in path


def test_folders_whose_pth_files_add_each_other_are_on_the_search_path_once(
    tmp_path: Path,
) -> None:
    folder = make_packages_folder(tmp_path / "own")
    other = make_packages_folder(tmp_path / "other")
    for place, added in [(folder, folder), (folder, other), (other, folder)]:
        with Path(place, "added.pth").open("a") as file:
            file.write(f"import site; site.addsitedir('{added}')\n")

    (environment, _) = environments.find_environments([folder, other], {})

    on_path = [place for place in environment.path if place in (folder, other)]
    assert sorted(on_path) == sorted([folder, other])


def test_modules_and_flags_of_the_start_are_found(tmp_path: Path) -> None:
    own = make_packages_folder(tmp_path / "a")
    Path(own, "sitecustomize.py").write_text("x = 1\n")

    (environment,) = environments.find_environments([own], {"PYTHONOPTIMIZE": "1"})

    assert environment.start["modules"] == {"sitecustomize": f"{own}/sitecustomize.py"}
    assert environment.start["optimize"] == 1


# ---- What an environment has.


@pytest.mark.parametrize(("folder", "file"), [("dist-info", "METADATA"), ("egg-info", "PKG-INFO")])
def test_metadata_names_a_package_its_installer_and_what_it_requires(
    tmp_path: Path, folder: str, file: str
) -> None:
    own = make_packages_folder(tmp_path / "a")
    info = Path(own, f"some_thing-1.0.{folder}")
    info.mkdir()
    headers = "Name: Some-Thing\nVersion: 1.0\nRequires-Dist: six>=1\n"
    (info / file).write_text(f"{headers}\nbody: none\n")
    (info / "INSTALLER").write_text("conda\n")

    (environment,) = environments.find_environments([own], {})
    (package,) = environments.installed_packages(environment)

    assert package["name"] == "some-thing"
    assert package["installer"] == "conda"
    assert package["requires"] == ["six>=1"]


def test_a_torch_for_the_cpu_has_no_cuda(tmp_path: Path) -> None:
    own = make_packages_folder(tmp_path / "a")
    Path(own, "torch").mkdir()
    Path(own, "torch/version.py").write_text(
        "__version__ = '2.7.1+cpu'\ncuda: Optional[str] = None\n"
    )

    (environment,) = environments.find_environments([own], {})
    torch = main.describe_torch(environment)

    assert (torch["version"], torch["cuda"]) == ("2.7.1+cpu", "")
    # A toolkit beside such a torch is no other than torch's.
    described = {**environment.__dict__, "distributions": [], "torch": torch}
    toolkit = {"home": "/usr/local/cuda", "version": "12.8"}
    evidence = survey.environment_evidence(described, [toolkit])["toolkit"]
    assert list(survey.find_other_toolkits(evidence)) == []


def test_device_code_is_counted_by_architecture(tmp_path: Path) -> None:
    machine_code = fatbins.region(
        Code(arch=80, kernels={"k": 100}), Code(arch=90, kernels={"k": 100})
    )
    ptx = fatbins.region(Code(arch=90, kernels={"long": 100}, ptx=True))
    library = tmp_path / "lib.so"
    # Smaller files are taken to have no device code.
    library.write_bytes(fatbins.library(machine_code, ptx) + bytes(4096))

    (row,) = main.device_code([str(library)])

    assert set(row["archs"]) == {"sm_80", "sm_90", "compute_90"}


REGION = fatbins.region(Code(arch=80, kernels={"k": 100}))


def test_a_library_whose_device_code_is_damaged_is_named_with_the_error(tmp_path: Path) -> None:
    damaged = bytearray(REGION)
    damaged[24] = 255
    library = tmp_path / "damaged.so"
    library.write_bytes(fatbins.library(bytes(damaged)) + bytes(4096))

    (row,) = main.device_code([str(library)])

    assert row["path"] == str(library)
    assert row["error"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"x" * 5000, id="text"),
        pytest.param(fatbins.library(REGION)[:400] + bytes(4096), id="zeros-from-a-place-on"),
    ],
)
def test_a_file_without_device_code_is_left_out(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(content)

    assert main.device_code([str(file)]) == []


def test_no_files_have_no_device_code() -> None:
    assert main.device_code([]) == []


# ---- Files of the driver.


def write_user(folder: Path, machine: str, **environ: str) -> Path:
    """Write the file that describes an image's user, and return its path."""
    user = UserEnvironment(environ=environ, directory="/", python="", machine=machine)
    file = folder / "user.json"
    file.write_text(json.dumps(asdict(user)))
    return file


def test_driver_files_are_found_by_the_loaders_cache_of_the_images_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a cache with one library for each processor
    def read_cache(_data: bytes, machine: Machine) -> dict[str, list[str]]:
        library = tmp_path / machine.name / "libcuda.so.1"
        library.parent.mkdir(exist_ok=True)
        library.touch()
        return {library.name: [str(library)]}

    monkeypatch.setattr(loader, "read_cache", read_cache)

    for processor in ("aarch64", "x86_64"):
        document = main.survey(write_user(tmp_path, processor), [str(tmp_path)])

        assert f"{tmp_path}/{processor}/libcuda.so.1" in document["driver_files"]


@pytest.mark.parametrize("processor", ["aarch64", "ppc64le"])
def test_a_damaged_cache_of_the_loader_hides_no_driver_file_of_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: str
) -> None:
    def read_cache(_data: bytes, _machine: Machine) -> dict[str, list[str]]:
        raise ElfError("ld.so.cache names a string outside of itself")

    monkeypatch.setattr(loader, "read_cache", read_cache)
    (tmp_path / "libcuda.so.1").touch()
    user_file = write_user(tmp_path, processor, LD_LIBRARY_PATH=str(tmp_path))

    document = main.survey(user_file, [str(tmp_path)])

    assert f"{tmp_path}/libcuda.so.1" in document["driver_files"]
