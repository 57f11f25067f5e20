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


def with_pins(folder: Path, text: str) -> Path:
    (folder / PINS_FILE).parent.mkdir(exist_ok=True)
    (folder / PINS_FILE).write_text(text)
    return folder


def test_pins_are_read(tmp_path: Path) -> None:
    assert pinned(tmp_path) == pinned(with_pins(tmp_path, "")) == {}
    one = with_pins(tmp_path, "debian:bookworm-slim: sha256:abc\n")
    assert pinned(one) == {"debian:bookworm-slim": "sha256:abc"}


@pytest.mark.parametrize("text", ["- a\n", "a: b\n", "a: [\n"])
def test_a_broken_pin_file_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"python -m tools\.pin"):
        pinned(with_pins(tmp_path, text))


READER = TEMPLATES / "base" / "read_python.py"


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        *(("2.11.0", one, True) for one in ("2.11.0", "2.11.0+cu130", "2.11")),
        *(
            ("2.11.0", one, False)
            for one in ("2.11.0+cpu", "2.11.0+cpu.abi", "2.11.0.post1", "2.10.0", "unreadable")
        ),
        ("2.7.1+cu128", "2.7.1+cu128", True),
        *(("2.7.1+cu128", one, False) for one in ("2.7.1+cu126", "2.7.1")),
    ],
)
def test_versions_compare_as_versions(wanted: str, found: str, fits: bool) -> None:
    version, _, local = wanted.partition("+")
    assert satisfies(found, Pin(name="torch", version=version, layer="torch", local=local)) is fits


def test_other_packages_are_nobodys_business() -> None:
    with pytest.raises(
        UserError, match=r"cu126-torch27: triton: the base has 3.3.0, the image needs 3.3.1\n"
    ):
        base_images.require_no_contradiction(
            image(), on(installed={"torch": "2.7.1+cu126", "triton": "3.3.0", "numpy": "2.0.0"})
        )


def test_the_reader_tells_of_the_python_it_runs_under() -> None:
    done = subprocess.run(
        [sys.executable, "-I", READER], capture_output=True, text=True, check=True
    )
    found = add_python(on(), done.stdout)
    assert (found.executable, found.environment) == (sys.executable, sys.prefix)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.installed["pytest"] == pytest.__version__


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        (
            "__version__ = '2.7.1+cu126'\ncuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n",
            "12.6",
        ),
        ("cuda = '13.0'\n", "13.0"),
        ("cuda: Optional[str] = None\n", None),
    ],
)
def test_the_reader_reads_torchs_cuda_without_importing_it(
    tmp_path: Path, text: str, cuda: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{READER.read_text()}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["torch_cuda"] == cuda


def test_a_base_that_fits_is_taken() -> None:
    base_images.require_no_contradiction(image(), on())
    base_images.require_no_contradiction(
        image(), on(installed={"numpy": "1.26.4"}, torch_cuda=None)
    )


@pytest.mark.parametrize(
    ("python", "sentence"),
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
)
def test_a_base_that_contradicts_is_refused_with_the_difference(
    python: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError, match="contradicts the pins of cu126-torch27") as error:
        base_images.require_no_contradiction(image(), on(**python))
    assert sentence in str(error.value)
