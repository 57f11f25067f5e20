"""What people get who add packages to an image: constraints, and an environment without root."""

import os
import shutil
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT, TEMPLATES
from images.context import render
from images.locking import lock_file
from images.planning import user_overlay
from tests.support.cases import cases
from tests.support.sources import image

BASE: Any = types.SimpleNamespace(executable="/opt/venv/bin/python")
CREATE = TEMPLATES / "additions" / "create.py"


# --- constraints ----------------------------------------------------------------------------------


def constraints_of(name: str, *missing: str) -> dict[str, str]:
    """Return the versions in an image's constraints file, by package."""
    locks = lock_file.read(image(name), CHECKOUT.locks).files
    versions = {}
    for line in render.constraints(image(name), locks, missing).decode().splitlines():
        if not line.startswith("#"):
            package, _, version = line.partition("==")
            versions[package] = version
    return versions


def test_torch_cuda_and_packages_with_kernels_are_held_as_locked() -> None:
    constraints = constraints_of("cu126-torch27")

    assert constraints["torch"] == "2.7.1"
    assert constraints["triton"] == "3.3.1"
    assert constraints["nvidia-nccl-cu12"] == "2.26.2"
    with_kernels = {"xformers", "flash-attn", "bitsandbytes", "torchao", "liger-kernel"}
    assert with_kernels <= constraints.keys()


def test_other_packages_may_move() -> None:
    constraints = constraints_of("cu126-torch27")

    movable = {"transformers", "numpy", "setuptools", "nvidia-ml-py"}
    assert movable.isdisjoint(constraints)


def test_a_package_that_the_image_goes_without_is_not_held() -> None:
    assert "flash-attn" not in constraints_of("cu126-torch27", "flash-attn")


def test_a_package_with_a_release_for_this_torch_is_held_at_that() -> None:
    assert constraints_of("cu126-torch27")["vllm"] == "0.10.0"
    assert "vllm" not in constraints_of("cu132-torch215"), "none is known to fit"


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("cu126-torch25", "torchao"),
        ("cu130-torch211", "xformers"),  # it is built for CUDA 12 only
    ],
)
def test_a_package_without_a_release_for_this_torch_is_held_at_a_version_that_nobody_has(
    name: str, package: str
) -> None:
    assert constraints_of(name)[package] == user_overlay.NO_FITTING_RELEASE


def test_a_package_with_a_release_that_fits_is_left_to_pip() -> None:
    assert "xformers" not in image("cu126-torch211").unfit


def test_another_lock_has_another_environment() -> None:
    torch27 = image("cu126-torch27")
    locks = dict(lock_file.read(torch27, CHECKOUT.locks).files)
    key = render.overlay_key(torch27, locks)

    assert render.overlay_key(torch27, locks) == key
    locks["light.txt"] += b"x==1\n"
    assert render.overlay_key(torch27, locks) != key


# --- the environment of additions -----------------------------------------------------------------


def packages_folder(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def write_metadata(folder: Path, name: str, version: str) -> Path:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    return info


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of additions, over one that stands in for the image's own."""
    folder = tmp_path_factory.mktemp("additions")
    of_image = folder / "image"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", of_image], check=True)
    packages = packages_folder(of_image)
    (packages / "frozen.py").write_text("origin = 'image'\n")
    info = write_metadata(packages, "frozen", "1")
    (info / "RECORD").write_text("frozen.py,,\n")
    command = of_image / "bin" / "train"
    command.write_text(f"#!{of_image}/bin/python\nimport sys\nprint(sys.prefix)\n")
    command.chmod(0o755)

    additions = folder / "cache" / "venvs" / "a-1"
    subprocess.run([of_image / "bin" / "python", "-I", "-B", CREATE, additions], check=True)
    return additions


def run_python(environment: Path, code: str) -> str:
    command = [environment / "bin" / "python", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


PRINT_ORIGIN = "import frozen; print(frozen.origin)"


def test_additions_see_the_images_packages(environment: Path) -> None:
    assert run_python(environment, PRINT_ORIGIN) == "image\n"


def test_additions_count_the_images_packages_as_their_own(environment: Path) -> None:
    locate = "import importlib.metadata as m; print(m.distribution('frozen').locate_file(''))"

    folder = Path(run_python(environment, locate).strip())

    assert folder.resolve().is_relative_to(environment)


def test_an_added_package_comes_before_the_images_own(environment: Path) -> None:
    added = packages_folder(environment) / "frozen.py"
    added.write_text("origin = 'added'\n")

    assert run_python(environment, PRINT_ORIGIN) == "added\n"
    added.unlink()


def test_the_images_commands_start_with_the_interpreter_that_sees_additions(
    environment: Path,
) -> None:
    command = [environment / "bin" / "train"]

    prefix = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert prefix.strip() == str(environment)


def error_of_create(environment: Path) -> str:
    """Return what create.py prints if it can't make an environment."""
    finished = subprocess.run(
        [sys.executable, "-I", "-B", CREATE, environment], capture_output=True, text=True
    )
    assert finished.returncode == 1
    return finished.stderr


def test_a_user_who_may_not_write_the_cache_is_told_each_way_out(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")

    error = error_of_create(tmp_path / "cache" / "venvs" / "a-1")

    for way in ("-v truetag-cache:", "--user $(id -u):$(id -g)", "install -d -m 1777", "--tmpfs"):
        assert way in error


def test_an_environment_that_is_there_is_left_alone(environment: Path) -> None:
    """It is another user's: python.sh asks for a new one only if it may not write this one."""
    assert f"belongs to uid {os.geteuid()}" in error_of_create(environment)


# --- python.sh, which pip and uv run as their interpreter -----------------------------------------


_PIP = """
import os, pathlib, sys
print(*sys.argv[1:])
_CONFLICT = "ERROR: ResolutionImpossible: "
logs = {
    "vllm>=1": _CONFLICT,
    "Flash_Attn": "no nvcc",
    "uses-ao": _CONFLICT + "requested (constraint) torchao==0",
    "a": "CERTIFICATE_VERIFY_FAILED",
}
for package in set(sys.argv) & set(logs):
    pathlib.Path(os.environ["PIP_LOG"]).write_text(logs[package])
    sys.exit(3)
"""
"""Stands in for pip, and fails as pip does: the cause is in its log."""


@pytest.fixture
def interpreter(environment: Path, tmp_path: Path) -> Path:
    """python.sh with the files that the last stage puts beside it, and with a pip."""
    script = tmp_path / "python"
    shutil.copy(TEMPLATES / "additions" / "python.sh", script)
    script.chmod(0o755)
    (tmp_path / "settings").write_text(
        f"home=/\nimage_python={environment}/bin/python\nadditions={environment}\n"
    )
    # A derived image may have other releases than the image below it.
    write_metadata(packages_folder(environment), "transformers", "5.5.4")
    write_metadata(packages_folder(environment), "datasets", "4.5.0")
    hints = render.overlay_files(image("cu126-torch25"), BASE, {}, ())["additions/hints"]
    (tmp_path / "hints").write_bytes(hints)
    (tmp_path / "pip.py").write_text(_PIP)
    return script


def run_pip(interpreter: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [interpreter, interpreter.with_name("pip.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=interpreter.parent
    )


@pytest.mark.parametrize(("arguments", "hints"), cases(__file__, "refused"))
def test_a_refused_package_gets_a_hint_at_what_to_take_instead(
    interpreter: Path, arguments: list[str], hints: list[str]
) -> None:
    finished = run_pip(interpreter, "install", *arguments)

    assert finished.returncode == (3 if hints else 0)
    lines = finished.stderr.splitlines()
    for hint, line in zip(hints, lines, strict=True):
        assert hint in line


@pytest.mark.parametrize(("arguments", "are_added"), cases(__file__, "installed"))
def test_installed_transformers_and_datasets_are_requested_beside_what_is_added(
    interpreter: Path, tmp_path: Path, arguments: list[str], are_added: bool
) -> None:
    (tmp_path / "plain.txt").write_text("gradio\n")
    (tmp_path / "hashed.txt").write_text("gradio==1 \\\n    --hash=sha256:0\n")

    finished = run_pip(interpreter, *arguments)

    installed = ["transformers==5.5.4", "datasets==4.5.0"] if are_added else []
    assert finished.returncode == 0
    assert finished.stdout.split() == [*arguments, *installed]


def test_installed_packages_may_move_if_nothing_else_fits(interpreter: Path) -> None:
    # This pip fails as long as a version is requested.
    interpreter.with_name("pip.py").write_text(
        "import os, sys; print(*sys.argv[1:])\n"
        "is_held = any('==' in word for word in sys.argv)\n"
        "log = 'ERROR: ResolutionImpossible' if is_held else ''\n"
        "open(os.environ['PIP_LOG'], 'w').write(log)\n"
        "sys.exit(is_held)\n"
    )

    finished = run_pip(interpreter, "install", "new")

    assert finished.returncode == 0
    assert finished.stdout.splitlines()[-1] == "install new transformers datasets"
    assert finished.stderr == (
        "truetag: no release fits transformers==5.5.4 datasets==4.5.0: they may have moved\n"
    )


def test_an_older_release_than_the_newest_is_reported(interpreter: Path) -> None:
    interpreter.with_name("pip.py").write_text(
        "import os\n"
        "log = 'pip is looking at multiple versions of new to'\n"
        "open(os.environ['PIP_LOG'], 'w').write(log)\n"
    )

    finished = run_pip(interpreter, "install", "other", "New")

    (line,) = finished.stderr.splitlines()
    assert finished.returncode == 0
    assert "new: an older release was taken, which fits transformers==5.5.4" in line


def test_an_image_without_transformers_requests_nothing_more(
    interpreter: Path, environment: Path
) -> None:
    for folder in packages_folder(environment).glob("*-*.dist-info"):
        shutil.rmtree(folder)

    finished = run_pip(interpreter, "install", "x")

    assert finished.returncode == 0
    assert finished.stdout == "install x\n"


# --- metadata.py: packages whose requirements the matrix overrides --------------------------------

METADATA = TEMPLATES / "additions" / "metadata.py"


def add_distribution(folder: Path, name: str, version: str, requirements: Sequence[str]) -> Path:
    """Write the metadata of an installed package, and return its dist-info."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    lines = [f"Requires-Dist: {requirement}\n" for requirement in requirements]
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{''.join(lines)}\nText.\n"
    )
    (info / "RECORD").write_text("")
    return info


@pytest.fixture
def overridden(interpreter: Path, environment: Path) -> Path:
    """The python.sh of an image with another cuDNN than its torch requires, and pip's metadata."""
    shutil.copy(METADATA, interpreter.with_name("metadata.py"))
    interpreter.with_name("overrides.txt").write_text("nvidia-cudnn-cu13==9.26.0.51\n")
    packages = packages_folder(environment)
    cudnn = 'NVIDIA.cudnn_cu13==9.19.0.56; platform_system == "Linux"'
    add_distribution(
        packages,
        "torch",
        "2.11.0",
        [
            "numpy",
            cudnn,
            "nvidia-nccl-cu13==2.28.9",
            'nvidia_cudnn_cu13[jit] (==9.19) ; extra == "x"',
        ],
    )
    add_distribution(packages, "accelerate", "1.15.0", ["torch>=2.0.0"])
    interpreter.with_name("pip.py").write_text(
        "from importlib.metadata import requires\n"
        "print(*requires('torch'), *requires('accelerate'), sep='\\n')\n"
    )
    return interpreter


def test_pip_reads_requirements_as_the_image_overrides_them(
    overridden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", "/opt/truetag/constraints.txt")

    finished = run_pip(overridden, "install", "trl")

    assert finished.stderr == ""
    assert finished.stdout.splitlines() == [
        "numpy",
        'NVIDIA.cudnn_cu13==9.26.0.51; platform_system == "Linux"',
        "nvidia-nccl-cu13==2.28.9",
        'nvidia_cudnn_cu13[jit]==9.26.0.51; extra == "x"',
        "torch>=2.0.0",
    ]


def test_pip_reads_the_wheels_own_requirements_where_torch_may_move(
    overridden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)

    finished = run_pip(overridden, "install", "torch==2.12.0")

    assert "9.19.0.56" in finished.stdout


def test_a_package_whose_requirements_hold_keeps_its_metadata(
    overridden: Path, environment: Path, tmp_path: Path
) -> None:
    target = tmp_path / "metadata"

    subprocess.run(
        [environment / "bin" / "python", METADATA, overridden.with_name("overrides.txt"), target],
        check=True,
    )

    assert [path.name for path in target.iterdir()] == ["torch-2.11.0.dist-info"]


@pytest.mark.parametrize("name", ["cu130-torch211", "cu126-torch25"])
def test_an_image_tells_pip_and_uv_what_it_overrides(name: str) -> None:
    target = image(name)

    overrides = render.overlay_files(target, BASE, {}, ())["additions/overrides.txt"]

    assert overrides == "".join(f"{line}\n" for line in target.overrides).encode()
    variables = user_overlay.variables(target)
    assert ("UV_OVERRIDE" in variables) == bool(target.overrides)


def test_metadata_of_a_package_that_another_one_hides_is_left_alone(
    overridden: Path, environment: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    # A user has moved torch: Python finds this one, which requires what is installed.
    add_distribution(first, "torch", "2.12.0", ["nvidia-cudnn-cu13==9.26.0.51"])
    target = tmp_path / "metadata"

    subprocess.run(
        [environment / "bin" / "python", METADATA, overridden.with_name("overrides.txt"), target],
        check=True,
        env={**os.environ, "PYTHONPATH": str(first)},
    )

    assert not target.exists()
