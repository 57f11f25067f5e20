"""Digests that base images are pinned to, and bases that people bring."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from images.config.paths import TEMPLATES
from images.context import base_images
from images.context.base_images import PINS_FILE, add_python, pinned, satisfies
from images.errors import UserError
from images.planning.image import Pin
from tests.support.custom_bases import image, on

# --- pinned digests -------------------------------------------------------------------------------


def write_pins(folder: Path, text: str) -> None:
    (folder / PINS_FILE).parent.mkdir(exist_ok=True)
    (folder / PINS_FILE).write_text(text)


def test_without_the_file_or_with_an_empty_one_nothing_is_pinned(tmp_path: Path) -> None:
    assert pinned(tmp_path) == {}
    write_pins(tmp_path, "")
    assert pinned(tmp_path) == {}


def test_pins_are_digests_by_reference(tmp_path: Path) -> None:
    write_pins(tmp_path, "debian:bookworm-slim: sha256:abc\n")

    assert pinned(tmp_path) == {"debian:bookworm-slim": "sha256:abc"}


@pytest.mark.parametrize(
    "text", ["- a\n", "a: b\n", "a: [\n"], ids=["no mapping", "no digest", "no YAML"]
)
def test_a_broken_file_of_pins_is_an_error_with_the_next_command(tmp_path: Path, text: str) -> None:
    write_pins(tmp_path, text)

    with pytest.raises(UserError, match=r"python -m tools\.pin"):
        pinned(tmp_path)


# --- the Python of a base -------------------------------------------------------------------------


READER = TEMPLATES / "base" / "read_python.py"


def test_the_reader_describes_the_python_that_runs_it() -> None:
    finished = subprocess.run(
        [sys.executable, "-I", READER], capture_output=True, text=True, check=True
    )

    base = add_python(on(), finished.stdout)

    assert (base.executable, base.environment) == (sys.executable, sys.prefix)
    assert base.python == ".".join(map(str, sys.version_info[:3]))
    assert base.installed["pytest"] == pytest.__version__


@pytest.mark.parametrize(
    ("version_file", "cuda"),
    [
        (
            "__version__ = '2.7.1+cu126'\n"
            "cuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n",
            "12.6",
        ),
        ("cuda = '13.0'\n", "13.0"),
        ("cuda: Optional[str] = None\n", None),
    ],
    ids=["a CUDA build", "without annotations", "a CPU build"],
)
def test_the_reader_reads_torchs_cuda_without_importing_torch(
    tmp_path: Path, version_file: str, cuda: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text(version_file)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{READER.read_text()}"

    finished = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )

    assert json.loads(finished.stdout)["torch_cuda"] == cuda


# --- whether a base fits an image -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("pinned_version", "installed", "does_satisfy"),
    [
        # Without a build in the pin, any build but one for the CPU.
        ("2.11.0", "2.11.0", True),
        ("2.11.0", "2.11.0+cu130", True),
        ("2.11.0", "2.11", True),
        ("2.11.0", "2.11.0+cpu", False),
        ("2.11.0", "2.11.0+cpu.abi", False),
        ("2.11.0", "2.11.0.post1", False),
        ("2.11.0", "2.10.0", False),
        ("2.11.0", "unreadable", False),
        # With a build in the pin, only that.
        ("2.7.1+cu128", "2.7.1+cu128", True),
        ("2.7.1+cu128", "2.7.1+cu126", False),
        ("2.7.1+cu128", "2.7.1", False),
    ],
)
def test_an_installed_version_satisfies_a_pin_of_the_same_release_and_build(
    pinned_version: str, installed: str, does_satisfy: bool
) -> None:
    version, _, local = pinned_version.partition("+")
    pin = Pin(name="torch", version=version, layer="torch", local=local)

    assert satisfies(installed, pin) is does_satisfy


def test_a_base_that_fits_is_accepted() -> None:
    base_images.require_no_contradiction(image(), on())


def test_a_base_without_torch_may_have_packages_that_the_image_does_not_pin() -> None:
    base = on(installed={"numpy": "1.26.4"}, torch_cuda=None)

    base_images.require_no_contradiction(image(), base)


@pytest.mark.parametrize(
    ("python", "difference"),
    [
        ({"python": "3.12.1"}, "Python 3.12.1, the image needs 3.11"),
        ({"installed": {"torch": "2.6.0"}}, "torch: the base has 2.6.0, the image needs 2.7.1"),
        ({"torch_cuda": None}, "made for the CPU or an unknown CUDA, the image needs CUDA 12.6"),
        ({"torch_cuda": "11.8"}, "made for CUDA 11.8, the image needs CUDA 12.6"),
        (
            {"installed": {"torch": "2.7.1+cpu"}, "torch_cuda": None},
            "torch: the base has 2.7.1+cpu",
        ),
    ],
    ids=["another Python", "another torch", "no CUDA", "another CUDA", "a CPU build"],
)
def test_a_base_that_contradicts_the_pins_is_refused_with_the_difference(
    python: dict[str, object], difference: str
) -> None:
    with pytest.raises(UserError, match="contradicts the pins of cu126-torch27") as error:
        base_images.require_no_contradiction(image(), on(**python))

    assert difference in str(error.value)


def test_only_pinned_packages_are_compared() -> None:
    base = on(installed={"torch": "2.7.1+cu126", "triton": "3.3.0", "numpy": "2.0.0"})

    only_triton = r"cu126-torch27: triton: the base has 3.3.0, the image needs 3.3.1\n"
    with pytest.raises(UserError, match=only_triton):
        base_images.require_no_contradiction(image(), base)
