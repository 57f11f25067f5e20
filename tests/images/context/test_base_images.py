"""Bases: what of a foreign base can stay, where a Debian can be made from, and how tags are pinned."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import images
from images.context.base_images import load_pins
from images.context.bootstrap import mirror_lines
from images.context.custom_base import python_of, reconcile
from images.errors import UserError
from images.planning.image import Pin

READER = Path(images.__file__).parent / "context" / "read_base.py"


def pin(name: str, version: str, local: str = "") -> Pin:
    return Pin(name=name, version=version, layer="torch", local=local)


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        (pin("torch", "2.11.0"), "2.11.0", True),
        (pin("torch", "2.11.0"), "2.11.0+cu130", True),
        (pin("torch", "2.11.0"), "2.11", True),
        (pin("torch", "2.11.0"), "2.11.0+cpu", False),
        (pin("torch", "2.11.0"), "2.11.0+cpu.cxx11.abi", False),
        (pin("torch", "2.11.0"), "2.11.0.post1", False),
        (pin("torch", "2.9.0"), "2.10.0", False),
        (pin("torch", "2.7.1", "cu128"), "2.7.1+cu128", True),
        (pin("torch", "2.7.1", "cu128"), "2.7.1+cu126", False),
        (pin("torch", "2.7.1", "cu128"), "2.7.1", False),
        (pin("torch", "2.7.1"), "unreadable", False),
    ],
)
def test_versions_compare_as_versions(wanted: Pin, found: str, fits: bool) -> None:
    answer = reconcile([wanted], {"torch": found})
    assert (bool(answer.kept), bool(answer.contradictions)) == (fits, not fits)


def test_pins_are_kept_refused_or_missing_and_other_packages_are_nobodys_business() -> None:
    pins = [pin("torch", "2.7.1"), pin("triton", "3.3.1"), pin("xformers", "0.0.31")]
    answer = reconcile(pins, {"torch": "2.7.1+cu126", "triton": "3.3.0", "numpy": "2.0.0"})
    assert [one.name for one in answer.kept] == ["torch"]
    assert [str(one) for one in answer.contradictions] == ["triton: the base has 3.3.0, the image needs 3.3.1"]
    assert [one.name for one in answer.missing] == ["xformers"]


def test_the_reader_tells_of_the_python_it_runs_under() -> None:
    done = subprocess.run([sys.executable, "-I", READER], capture_output=True, text=True, check=True)
    found = python_of(json.loads(done.stdout))
    assert found.executable == sys.executable
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.is_venv == (sys.prefix != sys.base_prefix)
    assert found.packages["pytest"] == pytest.__version__


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("__version__ = '2.7.1+cu126'\ncuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n", "12.6"),
        ("cuda = '13.0'\n", "13.0"),
        ("cuda: Optional[str] = None\n", None),
    ],
)
def test_the_reader_reads_torchs_cuda_without_importing_it(tmp_path: Path, text: str, cuda: str | None) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{READER.read_text()}"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["torch_cuda"] == cuda


def test_mirrors_are_those_of_this_machines_apt() -> None:
    listing = (
        "Debian|Debian|main|http://mirror.test/debian/\n"
        "Debian|Debian Backports|main|http://backports.test/debian/\n"
        "Debian|Debian-Security|main|http://security.test/debian-security/\n"
        "Vendor|Vendor|main|http://vendor.test/\n"
    )
    assert mirror_lines("trixie", listing) == [
        "deb http://mirror.test/debian/ trixie main",
        "deb http://mirror.test/debian/ trixie-updates main",
        "deb http://security.test/debian-security/ trixie-security main",
    ]
    assert mirror_lines("sid", listing) == ["deb http://mirror.test/debian/ sid main"]


@pytest.mark.parametrize(
    "listing", ["", "Ubuntu|Ubuntu|main|http://x.test/", "Debian|Debian|main|http://me:pw@x.test/"]
)
def test_without_a_usable_mirror_the_default_is_left_to_mmdebstrap(listing: str) -> None:
    assert mirror_lines("bookworm", listing) == []


def test_pins_are_read() -> None:
    assert load_pins("") == {}
    assert load_pins("debian:bookworm-slim: sha256:abc\n") == {"debian:bookworm-slim": "sha256:abc"}


@pytest.mark.parametrize("text", ["- a\n", "a: b\n", "a: [\n"])
def test_a_broken_pin_file_is_said(text: str) -> None:
    with pytest.raises(UserError, match="nox -s pin"):
        load_pins(text)
