"""lookup/paths: what is found in place of another file.

tests/integration/faults.yaml has what hides something in a real image.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from validate.checks.static import lookup
from validate.checks.static.lookup import Expected, Hidden, Measured, Owners
from validate.claims import ImageKind
from validate.environment import debian, installed
from validate.environment.user_environment import Start, UserEnvironment
from validate.judging import Finding, Status

OUR_PATH = ["/opt/venv/bin", "/usr/local/cuda-12.6/bin", "/usr/bin"]
NOTHING_HIDDEN = Measured(path=OUR_PATH, programs=[], modules=[], libraries=[], plugins={})
PYTHON_OF_CONDA = Hidden(
    path="/opt/conda/bin/python3",
    owner="",
    hides="/opt/venv/bin/python3",
    hidden_owner="Debian's python3-minimal",
)
CMAKE_OF_A_WHEEL = Hidden(
    path="/opt/venv/bin/cmake", owner="cmake", hides="/usr/bin/cmake", hidden_owner="Debian's cmake"
)
GIT_OF_NOBODY = Hidden(
    path="/usr/local/bin/git", owner="", hides="/usr/bin/git", hidden_owner="Debian's git"
)
NUMPY_OF_NOBODY = Hidden(path="/opt/own/numpy", owner="", hides="/site/numpy", hidden_owner="numpy")


def judged(kind: ImageKind, **measured: Any) -> Finding:
    """Judge evidence of an image of this kind. What is not given is well."""
    evidence: Any = {**NOTHING_HIDDEN, **measured}
    return lookup.judge("lookup", Expected(path=OUR_PATH, image_kind=kind), evidence)


# ---- Judging.


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        pytest.param(
            {"path": ["/opt/conda/bin", *OUR_PATH], "programs": [PYTHON_OF_CONDA]},
            "/opt/conda/bin/python3 is found before /opt/venv/bin/",
            id="our-python",
        ),
        pytest.param(
            {"path": ["/usr/local/bin", *OUR_PATH], "programs": [GIT_OF_NOBODY]},
            "/usr/local/bin/git is found before /usr/bin/git of Debian",
            id="a-program-in-our-folder",
        ),
        pytest.param(
            {"programs": [{**PYTHON_OF_CONDA, "hides": "/opt/venv/bin//python3"}]},
            "/opt/conda/bin/python3 is found before /opt/venv/bin//python3",
            id="our-python-in-a-folder-with-a-slash",
        ),
        pytest.param(
            {"programs": [{**CMAKE_OF_A_WHEEL, "owner": ""}]},
            "/opt/venv/bin/cmake is found before",
            id="a-program-of-nobody-in-our-folder",
        ),
        pytest.param(
            {"modules": [NUMPY_OF_NOBODY]},
            "/opt/own/numpy is found before /site/numpy of numpy",
            id="a-module",
        ),
        pytest.param(
            {"libraries": [NUMPY_OF_NOBODY]}, "/opt/own/numpy is found before", id="a-library"
        ),
        pytest.param(
            {"path": OUR_PATH[1:]},
            "the PATH is /usr/local/cuda-12.6/bin:/usr/bin: it lacks /opt/venv/bin",
            id="path-lacks-our-folder",
        ),
        pytest.param(
            {"path": OUR_PATH[::-1]},
            f"/opt/venv/bin: truetag's build sets another order, {':'.join(OUR_PATH)}",
            id="path-in-another-order",
        ),
        pytest.param(
            {"path": ["bin", *OUR_PATH]},
            "the PATH has the relative folder 'bin'",
            id="path-has-a-relative-folder",
        ),
    ],
)
def test_a_derived_image_that_hides_something_of_ours_fails(
    measured: dict[str, Any], words: str
) -> None:
    status, reason, _ = judged(ImageKind.DERIVED, **measured)

    assert status is Status.FAIL, reason
    assert words in reason


ALLOWED_IN_DERIVED_IMAGES = [
    pytest.param({"path": ["/app/bin", *OUR_PATH]}, "", id="a-folder-of-its-own-on-path"),
    pytest.param(
        {"programs": [CMAKE_OF_A_WHEEL]},
        "reported: /opt/venv/bin/cmake of cmake is found before /usr/bin/cmake of Debian's cmake",
        id="a-program-of-a-package-before-anothers",
    ),
    pytest.param(
        {"plugins": {"/usr/lib/libnccl-net.so": "NCCL"}},
        "reported: /usr/lib/libnccl-net.so is loaded by NCCL",
        id="a-plugin",
    ),
]


@pytest.mark.parametrize(("measured", "words"), ALLOWED_IN_DERIVED_IMAGES)
def test_what_a_derived_image_may_bring_is_reported(measured: dict[str, Any], words: str) -> None:
    status, reason, _ = judged(ImageKind.DERIVED, **measured)

    assert status is Status.PASS, reason
    assert words in reason


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (OUR_PATH[:2], ": it lacks /usr/bin"),
        (["/app", *OUR_PATH, "/b"], ": truetag's build does not set /app, /b"),
        (OUR_PATH[1:2], ": it lacks /opt/venv/bin, /usr/bin"),
    ],
)
def test_of_an_image_that_we_build_each_difference_of_the_path_is_named(
    path: list[str], words: str
) -> None:
    status, reason, _ = judged(ImageKind.OURS, path=path)

    assert status is Status.FAIL
    assert reason.endswith(words) or f"{words};" in reason, reason
    assert "order" not in reason


@pytest.mark.parametrize("kind", [ImageKind.OURS, ImageKind.DERIVED])
@pytest.mark.parametrize(
    "path",
    [
        pytest.param([f"{folder}/" for folder in OUR_PATH], id="with slashes at the end"),
        pytest.param([*OUR_PATH, OUR_PATH[0]], id="with a folder that is repeated"),
    ],
)
def test_a_path_that_finds_the_same_programs_is_no_fault(kind: ImageKind, path: list[str]) -> None:
    status, reason, _ = judged(kind, path=path)

    assert status is Status.PASS, reason


@pytest.mark.parametrize(("measured", "words"), ALLOWED_IN_DERIVED_IMAGES)
def test_in_an_image_that_we_build_the_same_fails(measured: dict[str, Any], words: str) -> None:
    assert judged(ImageKind.OURS, **measured).status is Status.FAIL


@pytest.mark.parametrize("kind", [ImageKind.OURS, ImageKind.DERIVED])
def test_an_image_that_hides_nothing_passes(kind: ImageKind) -> None:
    assert judged(kind).status is Status.PASS


# ---- Measuring.


def write(file: Path, content: str = "") -> str:
    """Write a file with the folders above it. Return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return str(file)


NO_ENVIRONMENT = Start(path=(), optimize=0, modules={}, version="3.11", prefix="/nowhere")


def write_program(file: Path) -> str:
    path = write(file)
    file.chmod(0o755)
    return path


def test_a_program_hides_those_of_its_name_in_later_folders_of_the_path(tmp_path: Path) -> None:
    condas = write_program(tmp_path / "conda/python3")
    venvs = write_program(tmp_path / "venv/python3")
    write(tmp_path / "conda/notes")
    (tmp_path / "link").symlink_to("venv")
    owners = Owners({debian.real_path(venvs): "python3"}, {debian.real_path(condas): "conda"})

    folders = [f"{tmp_path}/{name}" for name in ("conda", "venv", "link", "gone")]
    first, second = lookup.find_hidden_programs(folders, owners, NO_ENVIRONMENT)

    assert first == Hidden(path=condas, owner="conda", hides=venvs, hidden_owner="Debian's python3")
    assert second["hides"] == f"{tmp_path}/link/python3"


def test_a_link_to_the_same_program_is_not_hidden(tmp_path: Path) -> None:
    write_program(tmp_path / "venv/python3")
    (tmp_path / "link").symlink_to("venv")

    folders = [f"{tmp_path}/venv", f"{tmp_path}/link"]
    assert not lookup.find_hidden_programs(folders, Owners({}, {}), NO_ENVIRONMENT)


def write_environment(folder: Path, python: Path) -> None:
    """Make a virtual environment whose Python is a link, with one command."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin/python3").symlink_to(python)
    command = folder / "bin/accelerate"
    command.write_text(f"#!{folder}/bin/python3\nimport accelerate\n")
    command.chmod(0o755)


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_python_of_another_environment_hides_the_images(tmp_path: Path, slash: str) -> None:
    """conda's, or a venv's, in front: both are links to the same interpreter."""
    python = Path(write_program(tmp_path / "usr/python3"))
    conda, image = tmp_path / "conda", tmp_path / "venv"
    for environment in (conda, image):
        write_environment(environment, python)
    start = replace(NO_ENVIRONMENT, prefix="/elsewhere", path=(f"{conda}/lib/python3.11",))

    folders = [f"{conda}/bin{slash}", f"{image}/bin{slash}"]
    hidden = lookup.find_hidden_programs(folders, Owners({}, {}), start)

    assert [Path(row["hides"]).name for row in hidden] == ["accelerate", "python3"]


@pytest.mark.parametrize("slash", ["", "/"])
def test_an_environment_of_additions_hides_nothing(tmp_path: Path, slash: str) -> None:
    """It takes in the image's packages, and has copies of their commands for its own Python."""
    python = Path(write_program(tmp_path / "usr/python3"))
    additions, image = tmp_path / "additions", tmp_path / "venv"
    for environment in (additions, image):
        write_environment(environment, python)
    folders = (f"{additions}/lib/python3.11", f"{image}/lib/python3.11")
    start = replace(NO_ENVIRONMENT, prefix=str(additions), path=folders)

    hidden = lookup.find_hidden_programs(
        [f"{additions}/bin{slash}", f"{image}/bin{slash}"], Owners({}, {}), start
    )

    assert hidden == []


def test_modules_hide_those_of_the_standard_library(tmp_path: Path) -> None:
    for name in ("random.py", "csv.py", "json/__init__.py", "tests/__init__.py"):
        write(tmp_path / "python3.11" / name)
    own = tmp_path / "own"
    write(own / "random.py")
    write(own / "json/__init__.py")
    write(own / "alone.py")
    # A folder without __init__.py hides nothing, and neither does a name that most projects have.
    write(own / "csv/data.txt")
    write(own / "tests/__init__.py")

    hidden = lookup.find_hidden_modules([str(own)], [f"{tmp_path}/python3.11"], [])

    assert [pair["path"] for pair in hidden] == [f"{own}/json", f"{own}/random.py"]
    assert {pair["hidden_owner"] for pair in hidden} == {"the standard library"}


def test_a_module_hides_that_of_a_distribution_in_another_folder_only(tmp_path: Path) -> None:
    own, site = tmp_path / "own", tmp_path / "site"
    for name in ("mine", "alone"):
        write(own / f"{name}.py")
    # `mine` is installed in both folders, `alone` only in its own.
    for folder, name in ((own, "mine"), (site, "mine"), (own, "alone")):
        write(folder / f"{name}-1.dist-info/RECORD", f"{name}.py,,\n")
    distributions = installed.distributions([str(own), str(site)])

    (mine,) = lookup.find_hidden_modules([str(own)], [], distributions)

    assert mine["path"] == f"{own}/mine.py"
    assert mine["hides"] == f"{site}/mine"
    assert mine["hidden_owner"] == "mine"


CUDNN_OF_A_WHEEL = "/site/nvidia/lib/libcudnn.so.9"


@pytest.fixture
def loader_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two folders that the loader searches: `own`, which nobody owns, before `system`."""
    for name in ("own/libz.so.1", "own/libcudnn.so.9", "own/mine.so", "system/libz.so.1"):
        write(tmp_path / name, name)
    own, system = f"{tmp_path}/own", f"{tmp_path}/system"
    monkeypatch.setattr(lookup, "loader_folders", lambda _user: [own, system])
    return own, system


def hidden_libraries(system: str, **environ: str) -> list[Hidden]:
    owners = Owners({f"{system}/libz.so.1": "zlib1g"}, {CUDNN_OF_A_WHEEL: "nvidia-cudnn"})
    user = UserEnvironment(environ=environ, directory="/", python="")
    return lookup.find_hidden_libraries(user, owners)


def test_a_library_hides_debians_in_later_folders_of_the_loaders_path(
    loader_folders: tuple[str, str],
) -> None:
    own, system = loader_folders

    (zlib,) = hidden_libraries(system)

    assert zlib["path"] == f"{own}/libz.so.1"
    assert zlib["hidden_owner"] == "Debian's zlib1g"


def test_without_dpkg_a_library_hides_those_in_the_loaders_default_folders(
    loader_folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, system = loader_folders
    monkeypatch.setattr(lookup, "default_folders", lambda _user: [system])
    user = UserEnvironment(environ={}, directory="/", python="")

    (zlib,) = lookup.find_hidden_libraries(user, Owners({}, {}))

    assert (zlib["path"], zlib["hides"]) == (f"{own}/libz.so.1", f"{system}/libz.so.1")


def test_without_dpkg_one_default_folder_does_not_hide_another(
    loader_folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red Hat has libraries of 32 bits in /usr/lib, beside those in /usr/lib64."""
    own, system = loader_folders
    monkeypatch.setattr(lookup, "default_folders", lambda _user: [own, system])
    user = UserEnvironment(environ={}, directory="/", python="")

    assert lookup.find_hidden_libraries(user, Owners({}, {})) == []


def test_only_a_folder_of_ld_library_path_hides_a_wheels_library(
    loader_folders: tuple[str, str],
) -> None:
    own, system = loader_folders

    hidden = hidden_libraries(system, LD_LIBRARY_PATH=own)

    assert {pair["hidden_owner"] for pair in hidden} == {"Debian's zlib1g", "nvidia-cudnn"}
