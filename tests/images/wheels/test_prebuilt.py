"""Wheels that no index has: which file fits which image, and what happens when none can be had."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from images.config import matrix
from images.errors import UserError
from images.locking.inputs import TOOLS
from images.planning import plan
from images.planning.image import Image, Pin
from images.wheels import prebuilt

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
        ("cu126-torch27", "flash_attn-2.8.3-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("cu126-torch27", "flash_attn-2.8.3-cp311-cp311-macosx_11_0_x86_64.whl", False),
        ("cu126-torch27", "flash_attn-2.8.3-cp311-cp311-manylinux_2_36_x86_64.whl", True),
        ("cu126-torch27", "flash_attn-2.8.3-cp311-cp311-manylinux_2_39_x86_64.whl", False),
        ("cu126-torch27", "flash_attn-2.8.3-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("cu126-torch27", "xformers-2.8.3-cp311-cp311-linux_x86_64.whl", False),
        ("cu126-torch27", "flash-attn-2.8.3.tar.gz", False),
        ("cu126-torch27", "not a wheel.whl", False),
    ],
)
def test_a_wheel_fits_by_name_version_python_and_build(name: str, filename: str, fits: bool) -> None:
    wanted = image(name)
    assert prebuilt.fits(filename, flash_attn(wanted), wanted) is fits


def refuse(url: str, target: Path) -> None:
    raise OSError("no route to host")


def test_the_wheelhouse_comes_first(tmp_path: Path) -> None:
    wheel = tmp_path / "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    found = prebuilt.gather(image("cu126-torch27"), wheelhouse=tmp_path, cache=tmp_path / "cache", fetch=refuse)
    assert found.files == {wheel.name: wheel}
    assert found.missing == {}
    assert found.digests() == {wheel.name: hashlib.sha256(b"wheel").hexdigest()}


def test_the_official_wheel_is_fetched_once(tmp_path: Path) -> None:
    asked = []

    def fetch(url: str, target: Path) -> None:
        asked.append(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("flash_attn/__init__.py", "")

    for _ in range(2):
        found = prebuilt.gather(image("cu126-torch27"), wheelhouse=None, cache=tmp_path, fetch=fetch)
        assert list(found.files) == ["flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"]
    assert len(asked) == 1
    assert asked[0].endswith("/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl")


def test_what_cannot_be_had_is_missing_with_its_reason(tmp_path: Path) -> None:
    found = prebuilt.gather(image("cu126-torch27"), wheelhouse=None, cache=tmp_path, fetch=refuse)
    assert found.files == {}
    assert "github.com: no route to host" in found.missing["flash-attn"]


def test_two_that_fit_are_an_error(tmp_path: Path) -> None:
    for name in ("flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", "flash_attn-2.8.3-py3-none-any.whl"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match="two wheels fit"):
        prebuilt.gather(image("cu126-torch27"), wheelhouse=tmp_path, cache=tmp_path, fetch=refuse)


def test_a_wheelhouse_that_is_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        prebuilt.gather(image("cu126-torch27"), wheelhouse=tmp_path / "nothing", cache=tmp_path, fetch=refuse)


def test_a_broken_download_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"refused|unreachable"):
        prebuilt.download("http://127.0.0.1:9/x.whl", tmp_path / "x.whl")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def serving(content: bytes, length: int | None = None) -> Iterator[str]:
    """A host that answers every request with `content`, saying that it has `length` bytes."""

    class Host(ThreadingHTTPServer):
        request_queue_size = 64  # the default of 5 refuses connections on a busy machine

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(length or len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with Host(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x.whl"
        server.shutdown()


def a_wheel() -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("content", bytes(1 << 20))
        return buffer.getvalue()


def test_builds_at_once_fetch_one_whole_wheel(tmp_path: Path) -> None:
    whole = a_wheel()
    with serving(whole) as url, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: prebuilt.download(url, tmp_path / "x.whl"), range(6)))
    assert [path.name for path in tmp_path.iterdir()] == ["x.whl"]
    assert (tmp_path / "x.whl").read_bytes() == whole


def test_half_a_wheel_and_a_page_are_no_wheel(tmp_path: Path) -> None:
    whole = a_wheel()
    for content, length in ((whole[:-100], len(whole)), (b"<html>sign in</html>", None)):
        with serving(content, length) as url, pytest.raises(OSError, match="no whole wheel"):
            prebuilt.download(url, tmp_path / "x.whl")
    assert list(tmp_path.iterdir()) == []


def test_a_spoilt_wheel_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    name = image("cu126-torch27").prebuilt[0].filename
    (tmp_path / name).write_bytes(b"half a whe")
    found = prebuilt.gather(image("cu126-torch27"), wheelhouse=None, cache=tmp_path, fetch=refuse)
    assert found.files == {}


def test_only_the_locked_installer_is_taken_along(tmp_path: Path) -> None:
    locked = f"uv-{TOOLS[0].partition('==')[2]}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    for name in (locked, "uv-0.1.0-py3-none-manylinux_2_17_x86_64.whl", locked.replace("x86_64", "aarch64")):
        (tmp_path / name).write_bytes(b"")
    found = prebuilt.gather(image("cu126-torch27"), wheelhouse=tmp_path, cache=tmp_path / "cache", fetch=refuse)
    assert list(found.files) == [locked]


# --- what is published as source only ---------------------------------------------------------------------------------


def needing_conv1d(*, optional: bool) -> Image:
    wanted = image("cu130-torch211-sm90")
    pin = Pin(name="causal-conv1d", version="1.7.0", layer="kernels", optional=optional, compiled=True)
    return replace(wanted, pins=(*(pin for pin in wanted.pins if pin.name != "flash-attn"), pin))


def test_a_required_wheel_that_nobody_compiled_stops_the_build_with_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        prebuilt.gather(needing_conv1d(optional=False), wheelhouse=None, cache=tmp_path, fetch=refuse)
    (problem,) = caught.value.problems
    assert problem.cause == (
        "needs causal-conv1d==1.7.0, which is published as source only and not compiled for this image yet"
    )
    assert problem.then.startswith("`nox -s wheels -- cu130-torch211-sm90 causal-conv1d` compiles it once")


def test_an_optional_one_is_missing_with_the_command_that_compiles_it(tmp_path: Path) -> None:
    found = prebuilt.gather(needing_conv1d(optional=True), wheelhouse=None, cache=tmp_path, fetch=refuse)
    assert "`nox -s wheels -- cu130-torch211-sm90 causal-conv1d`" in found.missing["causal-conv1d"]


@pytest.mark.parametrize("optional", [True, False])
def test_a_compiled_one_is_taken(tmp_path: Path, optional: bool) -> None:
    kept = tmp_path / "causal_conv1d-1.7.0-cp311-cp311-linux_x86_64.whl"
    kept.write_bytes(b"wheel")
    found = prebuilt.gather(
        needing_conv1d(optional=optional),
        wheelhouse=None,
        cache=tmp_path / "cache",
        fetch=refuse,
        compiled=lambda _image, pin: kept if pin.name == "causal-conv1d" else None,
    )
    assert (dict(found.files), dict(found.missing)) == ({kept.name: kept}, {})
