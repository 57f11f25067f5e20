"""Wheels that no index has: which file fits which image, and what happens when none can be had."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from packaging.tags import parse_tag

from images.config.names import Minor
from images.errors import UserError
from images.locking.inputs import TOOLS
from images.planning.image import Image, Pin, Prebuilt
from images.wheels import prebuilt
from images.wheels.prebuilt import (
    NotFetched,
    find_compiled,
    obtain,
    store_compiled,
    supported_tags,
    wheel_finder,
)
from tests.support import sources
from tests.support.http_server import Reply, Server, serving
from tests.support.recipes import SOURCES, gathered, recipe_of
from tests.support.sources import image

FITTING = """flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl
flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl""".split()
UNFIT = """flash_attn-2.8.3+cu12torch2.7cxx11abiFALSE-cp311-cp311-linux_x86_64.whl
flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl
flash_attn-2.8.3+cu13torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl
flash_attn-2.8.2-cp311-cp311-linux_x86_64.whl flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl
flash_attn-2.8.3-cp311-cp311-linux_aarch64.whl flash_attn-2.8.3-cp311-cp311-macosx_11_0_x86_64.whl
flash_attn-2.8.3-cp311-cp311-manylinux_2_39_x86_64.whl xformers-2.8.3-cp311-cp311-linux_x86_64.whl
flash-attn-2.8.3.tar.gz nowheel.whl""".split()


@pytest.mark.parametrize("filename", [*FITTING, *UNFIT])
def test_a_wheel_fits_by_name_version_python_and_build(filename: str) -> None:
    wanted, older = image("cu126-torch27"), image("cu126-torch25")
    pin = wanted.pin("flash-attn")
    assert pin and prebuilt.fits(filename, pin, wanted) is (filename in FITTING)
    assert prebuilt.fits(
        "flash_attn-2.8.3+cu12torch2.5cxx11abiFALSE-cp311-cp311-linux_x86_64.whl", pin, older
    )


def test_the_wheelhouse_comes_first(tmp_path: Path) -> None:
    wheel = tmp_path / "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    found = gathered("cu126-torch27", tmp_path, wheelhouse=tmp_path)
    assert found.files == {wheel.name: wheel}
    assert found.missing == {}
    assert found.digests() == {wheel.name: hashlib.sha256(b"wheel").hexdigest()}


def test_what_cannot_be_had_is_missing_with_its_reason(tmp_path: Path) -> None:
    found = gathered("cu126-torch27", tmp_path)
    assert found.files == {}
    assert (
        found.missing["flash-attn"] == "flash-attn==2.8.3: its official wheel could not be fetched"
    ), "the image says it: no error of this machine, and no command as this installation spells it"
    assert found.details["flash-attn"] == (
        "the official wheel of flash-attn 2.8.3 could not be fetched: no route to host (github.com); "
        "--wheelhouse FOLDER takes it from a folder, "
        "`nox -s wheels -- cu126-torch27 flash-attn` compiles one"
    )


def official(folder: Path) -> None:
    (folder / image("cu126-torch27").prebuilt[0].filename).write_bytes(b"another")


def two(folder: Path) -> None:
    for name in (
        "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl",
        "flash_attn-2.8.3-py3-none-any.whl",
    ):
        (folder / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (official, r"7 bytes with sha256 .* refused"),
        (two, "two wheels fit"),
        (Path.rmdir, "is no folder"),
    ],
)
def test_a_wheelhouse_with_a_changed_official_wheel_or_two_that_fit_is_refused(
    tmp_path: Path, fill: Callable[[Path], None], said: str
) -> None:
    (tmp_path / "house").mkdir()
    fill(tmp_path / "house")
    with pytest.raises(UserError, match=said):
        gathered("cu126-torch27", tmp_path, wheelhouse=tmp_path / "house")


def test_only_the_locked_installer_is_taken_along(tmp_path: Path) -> None:
    locked = (
        f"uv-{TOOLS[0].partition('==')[2]}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    )
    for name in (
        locked,
        "uv-0.1.0-py3-none-manylinux_2_17_x86_64.whl",
        locked.replace("x86_64", "aarch64"),
    ):
        (tmp_path / name).write_bytes(b"")
    found = gathered("cu126-torch27", tmp_path, wheelhouse=tmp_path)
    assert list(found.files) == [locked]


def needing_conv1d(*, optional: bool) -> Image:
    wanted = image("cu130-torch211-sm90")
    pin = Pin(
        name="causal-conv1d", version="1.7.0", layer="kernels", optional=optional, compiled=True
    )
    return replace(wanted, pins=(*(pin for pin in wanted.pins if pin.name != "flash-attn"), pin))


@pytest.mark.parametrize("optional", [True, False])
def test_a_compiled_one_is_taken_and_one_that_nobody_compiled_is_told_with_the_next_command(
    tmp_path: Path, optional: bool
) -> None:
    kept, wanted = (
        tmp_path / "causal_conv1d-1.7.0-cp311-cp311-linux_x86_64.whl",
        needing_conv1d(optional=optional),
    )
    kept.write_bytes(b"wheel")
    found = gathered(
        wanted, tmp_path, compiled=lambda _, pin: kept if pin.name == "causal-conv1d" else None
    )
    assert (dict(found.files), dict(found.missing)) == ({kept.name: kept}, {})
    then = "`nox -s wheels -- cu130-torch211-sm90 causal-conv1d` compiles it"
    if optional:
        assert gathered(wanted, tmp_path).details["causal-conv1d"] == then
        return
    cause = "needs causal-conv1d==1.7.0, which no index has as a wheel, and which is not compiled for this image yet"
    with pytest.raises(UserError, match=f"{cause}\n    next: {then} once"):
        gathered(wanted, tmp_path)


NATIVE_WHEEL = "colossalai-0.5.0-cp311-cp311-linux_x86_64.whl"


def test_a_compiled_wheel_takes_the_place_of_the_locks_pure_python(tmp_path: Path) -> None:
    wheel = tmp_path / NATIVE_WHEEL
    wheel.write_bytes(b"wheel")
    asked: list[str] = []

    def compiled(_image: Image, pin: Pin) -> Path | None:
        asked.append(pin.extensions)
        return wheel if pin.extensions else None

    found = gathered("cu124-torch25-colossalai", tmp_path, compiled=compiled)
    assert found.files[NATIVE_WHEEL] == wheel and "colossalai extensions" not in found.missing
    assert "colossalai" in asked
    replacing = image("cu124-torch25-colossalai").choose_compiled_wheels(found.files)
    assert replacing == {"colossalai": NATIVE_WHEEL}
    assert NATIVE_WHEEL in gathered("cu124-torch25-colossalai", tmp_path, wheelhouse=tmp_path).files
    wheel.rename(tmp_path / "colossalai-0.5.0-py3-none-any.whl")  # pure Python is none
    assert (
        "colossalai extensions"
        in gathered("cu124-torch25-colossalai", tmp_path, wheelhouse=tmp_path).missing
    )


def test_extensions_that_nobody_compiled_are_missing_with_the_command(tmp_path: Path) -> None:
    found = gathered("cu130-torch213-axolotl-multigpu", tmp_path)
    assert found.missing["deepspeed extensions"] == (
        "deepspeed==0.18.9's compiled extensions, which were not compiled for this image"
    )
    assert (
        "`nox -s wheels -- cu130-torch213-axolotl-multigpu deepspeed-ops`"
        in found.details["deepspeed extensions"]
    )
    assert "deepspeed" not in found.missing, "the package itself is there, as pure Python"
    kept = gathered("cu124-torch25-colossalai", tmp_path, in_base=("colossalai",)).missing[
        "colossalai extensions"
    ]
    assert "the base brings its own colossalai" in kept


INSTALLED = """cp311-cp311-manylinux_2_36_x86_64 cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64
cp311-cp311-manylinux2010_x86_64 cp311-cp311-manylinux1_x86_64 cp311-cp311-linux_x86_64 cp39-abi3-manylinux_2_28_x86_64
py3-none-any py3-none-manylinux_2_28_x86_64 py2.py3-none-any py311-none-any""".split()
REFUSED = """cp311-cp311-manylinux_2_37_x86_64 cp311-cp311-manylinux_2_28_aarch64 cp311-cp311-musllinux_1_2_x86_64
cp310-cp310-manylinux_2_28_x86_64 cp312-abi3-manylinux_2_28_x86_64 py312-none-any""".split()


@pytest.mark.parametrize("tag", [*INSTALLED, *REFUSED])
def test_a_wheel_fits_by_its_python_abi_and_glibc(tag: str) -> None:
    assert parse_tag(tag).isdisjoint(supported_tags(Minor(3, 11), Minor(2, 36))) is (tag in REFUSED)


NAME = "flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"


def a_wheel(text: str = "content") -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("flash_attn/__init__.py", text * 10_000)
        return buffer.getvalue()


WHOLE = a_wheel()
OTHER = a_wheel("altered")
"""A wheel as good as the other, of other bytes: being a zip is no proof of anything."""


def wheel(server: Server, folder: str = "v2.8.3") -> Prebuilt:
    return Prebuilt(
        name="flash-attn",
        version="2.8.3",
        filename=NAME,
        url=f"http://{server.host}/{folder}/{NAME.replace('+', '%2B')}",
        sha256=hashlib.sha256(WHOLE).hexdigest(),
    )


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def answering(server: Server, *replies: Reply | None) -> Server:
    """One reply a request, the last for all that follow."""
    left = list(replies)
    server.answer = lambda *_: left.pop(0) if len(left) > 1 else left[0]
    return server


def test_the_right_bytes_are_taken_once_and_kept(server: Server, tmp_path: Path) -> None:
    wanted = wheel(answering(server, (200, {}, WHOLE), (500, {}, b"")))
    for _ in range(2):
        assert obtain(wanted, cache=tmp_path).read_bytes() == WHOLE
    assert server.count("GET", "/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.7cxx11abiTRUE") == 1
    assert kept(tmp_path) == [NAME]


def test_a_redirect_is_followed_and_its_end_is_checked_too(server: Server, tmp_path: Path) -> None:
    source, moved = (
        partial(obtain, cache=tmp_path),
        (302, {"Location": f"http://{server.host}/blob"}, b""),
    )
    with pytest.raises(UserError, match="refused"):
        source(wheel(answering(server, moved, (200, {}, OTHER))))
    assert kept(tmp_path) == []
    assert source(wheel(answering(server, moved, (200, {}, WHOLE)))).read_bytes() == WHOLE
    assert server.count("GET", "/blob") == 2


@pytest.mark.parametrize("body", [OTHER, WHOLE[: len(WHOLE) // 2], b"<html>sign in</html>"])
def test_wrong_bytes_are_refused_with_place_cause_and_next_step(
    server: Server, tmp_path: Path, body: bytes
) -> None:
    with pytest.raises(UserError) as caught:
        obtain(wheel(answering(server, (200, {}, body))), cache=tmp_path)
    (problem,) = caught.value.problems
    assert problem.where == f"127.0.0.1: {NAME}"
    assert f"{len(body)} bytes with sha256 {hashlib.sha256(body).hexdigest()}" in problem.cause
    assert hashlib.sha256(WHOLE).hexdigest() in problem.cause and problem.cause.endswith("refused")
    assert problem.then.startswith("nothing was kept; ask whoever serves it")
    assert kept(tmp_path) == []


def test_wrong_bytes_in_the_cache_are_refused_and_stay_for_whoever_looks(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / NAME).write_bytes(OTHER)
    with pytest.raises(UserError) as caught:
        obtain(wheel(answering(server, (200, {}, WHOLE))), cache=tmp_path)
    assert server.seen == []
    (problem,) = caught.value.problems
    assert problem.where == str(tmp_path / NAME) and "refused" in problem.cause
    assert problem.then == f"`rm {tmp_path / NAME}`: the next build fetches it anew"


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (
            (200, {"Content-Length": str(len(WHOLE))}, WHOLE[:-100]),
            rf"IncompleteRead\({len(WHOLE) - 100} bytes read, 100 more expected",
        ),
        ((404, {}, b"<html>no such page</html>"), "404 Client Error"),
        (None, "Remote end closed connection|RemoteDisconnected"),
    ],
    ids=["half a file", "no such file", "a server that hangs up"],
)
def test_what_does_not_come_whole_is_not_taken(
    server: Server, tmp_path: Path, reply: Reply | None, cause: str
) -> None:
    with pytest.raises(NotFetched) as caught:
        obtain(wheel(answering(server, reply)), cache=tmp_path)
    problem = caught.value.problems[0]
    assert problem.where == "127.0.0.1" and re.search(cause, problem.cause)
    assert problem.then == "--wheelhouse FOLDER takes it from a folder"
    assert kept(tmp_path) == []


def test_a_dead_server_is_said(tmp_path: Path) -> None:
    with serving() as server:
        wanted = wheel(server)
    with pytest.raises(NotFetched, match=r"refused|unreachable"):
        obtain(wanted, cache=tmp_path)
    assert kept(tmp_path) == []


def test_builds_at_once_keep_one_whole_wheel(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        wanted = wheel(answering(server, (200, {}, WHOLE)))
        found = list(pool.map(lambda _: obtain(wanted, cache=tmp_path).read_bytes(), range(6)))
    assert found == [WHOLE] * 6 and kept(tmp_path) == [NAME]


def wanting(server: Server, *, optional: bool) -> Image:
    usual = sources.image("cu126-torch27")
    pins = tuple(
        replace(pin, optional=optional) if pin.name == "flash-attn" else pin for pin in usual.pins
    )
    return replace(usual, pins=pins, prebuilt=(wheel(server),))


@pytest.mark.parametrize("optional", [True, False])
def test_a_build_takes_the_right_bytes_and_stops_at_wrong_ones(
    server: Server, tmp_path: Path, optional: bool
) -> None:
    """Also where the package is optional: to go without it in silence would hide that somebody altered a file."""
    wanted, source = wanting(server, optional=optional), partial(obtain, cache=tmp_path)
    answering(server, (200, {}, OTHER), (200, {}, WHOLE))
    with pytest.raises(UserError, match="refused"):
        prebuilt.gather(wanted, wheelhouse=None, official=source)
    found = prebuilt.gather(wanted, wheelhouse=None, official=source)
    assert found.digests() == {NAME: hashlib.sha256(WHOLE).hexdigest()} and not found.missing


def test_a_build_that_cannot_fetch_what_it_needs_stops(tmp_path: Path) -> None:
    with serving() as server:
        needed = wanting(server, optional=False)
    with pytest.raises(UserError) as caught:
        prebuilt.gather(needed, wheelhouse=None, official=partial(obtain, cache=tmp_path))
    (problem,) = caught.value.problems
    assert problem.where == "127.0.0.1" and "could not be fetched" in problem.cause
    assert problem.then.endswith("`nox -s wheels -- cu126-torch27 flash-attn` compiles one")


def test_a_kept_wheel_is_found_by_its_key(tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    assert find_compiled(cache, "key") is None
    kept = store_compiled(cache, "key", "a-1-py3-none-any.whl", b"wheel", {"seconds": 1})
    assert find_compiled(cache, "key") == kept
    assert (
        json.loads((kept.parent / "record.json").read_text())["sha256"]
        == hashlib.sha256(b"wheel").hexdigest()
    )
    assert [path.name for path in cache.iterdir()] == ["key"]


def test_a_damaged_wheel_is_told_and_not_taken_and_can_be_kept_anew(tmp_path: Path) -> None:
    said = list[str]()
    store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})
    (tmp_path / "key" / "a-1-py3-none-any.whl").write_bytes(b"other")
    assert find_compiled(tmp_path, "key", said.append) is None
    assert "not what its record says" in said[0]
    (tmp_path / "key" / "record.json").write_text("{")
    assert find_compiled(tmp_path, "key", said.append) is None
    store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})
    assert find_compiled(tmp_path, "key") is not None


def test_an_image_takes_the_wheel_of_its_own_key(tmp_path: Path) -> None:
    wanted, cache = image("cu128-torch28"), tmp_path / "compiled"
    finder = wheel_finder(SOURCES.matrix, cache)
    pin = wanted.pin("flash-attn")
    assert pin is not None
    assert finder(wanted, pin) is None
    key = recipe_of("cu128-torch28", "flash-attn").key
    kept = store_compiled(cache, key, "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", b"wheel", {})
    assert gathered(wanted, tmp_path, compiled=finder).files == {kept.name: kept}
    assert gathered("cu126-torch28", tmp_path, compiled=finder).files == {}


def test_a_package_that_the_base_has_is_not_looked_for(tmp_path: Path) -> None:
    has_all = gathered("cu128-torch28", tmp_path, in_base={"flash-attn"})
    assert not has_all.files and not has_all.missing
