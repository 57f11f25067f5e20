"""Wheels that no index has: which file fits which image, and what happens when none can be had."""

import hashlib
from pathlib import Path

import pytest

from images import matrix, plan, wheels
from images.errors import UserError
from images.image import Image, Pin

SOURCES = matrix.load()


def image(name: str) -> Image:
    (planned,) = plan.select([name], SOURCES)
    assert planned.image is not None
    return planned.image


def flash_attn(of: Image) -> Pin:
    pin = of.pin("flash-attn")
    assert pin is not None
    return pin


@pytest.mark.parametrize(
    ("name", "filename", "fits"),
    [
        ("cu126-torch27", "flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", True),
        ("cu126-torch27", "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", True),
        ("cu126-torch27", "flash_attn-2.8.3-py3-none-any.whl", True),
        ("cu126-torch27", "flash_attn-2.8.3-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("cu126-torch27", "flash_attn-2.8.3+cu12torch2.7cxx11abiFALSE-cp311-cp311-linux_x86_64.whl", False),
        ("cu126-torch25", "flash_attn-2.8.3+cu12torch2.5cxx11abiFALSE-cp311-cp311-linux_x86_64.whl", True),
        ("cu126-torch27", "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", False),
        ("cu126-torch27", "flash_attn-2.8.3+cu13torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", False),
        ("cu126-torch27", "flash_attn-2.8.2-cp311-cp311-linux_x86_64.whl", False),
        ("cu126-torch27", "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", False),
        ("cu126-torch27", "flash_attn-2.8.3-cp311-cp311-linux_aarch64.whl", False),
        ("cu126-torch27", "xformers-2.8.3-cp311-cp311-linux_x86_64.whl", False),
        ("cu126-torch27", "flash-attn-2.8.3.tar.gz", False),
        ("cu126-torch27", "not a wheel.whl", False),
    ],
)
def test_a_wheel_fits_by_name_version_python_and_build(name: str, filename: str, fits: bool) -> None:
    wanted = image(name)
    assert wheels.fits(filename, flash_attn(wanted), wanted) is fits


def refuse(url: str, target: Path) -> None:
    raise OSError("no route to host")


def test_the_wheelhouse_comes_first(tmp_path: Path) -> None:
    wheel = tmp_path / "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    found = wheels.gather(image("cu126-torch27"), wheelhouse=tmp_path, cache=tmp_path / "cache", fetch=refuse)
    assert found.files == {wheel.name: wheel}
    assert found.missing == {}
    assert found.digests() == {wheel.name: hashlib.sha256(b"wheel").hexdigest()}


def test_the_official_wheel_is_fetched_once(tmp_path: Path) -> None:
    asked = []

    def fetch(url: str, target: Path) -> None:
        asked.append(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"wheel")

    for _ in range(2):
        found = wheels.gather(image("cu126-torch27"), wheelhouse=None, cache=tmp_path, fetch=fetch)
        assert list(found.files) == ["flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"]
    assert len(asked) == 1
    assert asked[0].endswith("/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl")


def test_what_cannot_be_had_is_missing_with_its_reason(tmp_path: Path) -> None:
    found = wheels.gather(image("cu126-torch27"), wheelhouse=None, cache=tmp_path, fetch=refuse)
    assert found.files == {}
    assert "github.com: no route to host" in found.missing["flash-attn"]


def test_two_that_fit_are_an_error(tmp_path: Path) -> None:
    for name in ("flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", "flash_attn-2.8.3-py3-none-any.whl"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match="two wheels fit"):
        wheels.gather(image("cu126-torch27"), wheelhouse=tmp_path, cache=tmp_path, fetch=refuse)


def test_a_wheelhouse_that_is_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        wheels.gather(image("cu126-torch27"), wheelhouse=tmp_path / "nothing", cache=tmp_path, fetch=refuse)


def test_a_broken_download_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"refused|unreachable"):
        wheels.download("http://127.0.0.1:9/x.whl", tmp_path / "x.whl")
    assert list(tmp_path.iterdir()) == []
