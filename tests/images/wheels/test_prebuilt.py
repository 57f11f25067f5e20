"""Wheels that no index has: which file fits which image, and what happens if none can be had."""

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

from images.building.build import report_missing
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
from tests.support import sources, wheels
from tests.support.http_server import Reply, Server, serving
from tests.support.recipes import SOURCES, gathered, recipe_of
from tests.support.sources import image

FLASH_ATTN = "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"
CONV1D = "causal_conv1d-1.7.0-cp311-cp311-linux_x86_64.whl"
COLOSSALAI = "colossalai-0.5.0-cp311-cp311-linux_x86_64.whl"


@pytest.mark.parametrize("damage", ["stream", "method"])
def test_a_damaged_wheel_has_no_digest_and_is_left_to_its_installation(
    tmp_path: Path, damage: str
) -> None:
    wheel = tmp_path / FLASH_ATTN
    wheel.write_bytes(wheels.with_damaged_record(damage))

    assert prebuilt.record_digests(image("cu126-torch27"), [wheel]) == {}


# --- which wheel fits an image --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filename", "does_fit"),
    [
        ("flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", True),
        (FLASH_ATTN, True),  # it does not say which torch it was compiled for
        # Another C++ ABI, torch or CUDA.
        ("flash_attn-2.8.3+cu12torch2.7cxx11abiFALSE-cp311-cp311-linux_x86_64.whl", False),
        ("flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", False),
        ("flash_attn-2.8.3+cu13torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", False),
        # Another version or package.
        ("flash_attn-2.8.2-cp311-cp311-linux_x86_64.whl", False),
        ("xformers-2.8.3-cp311-cp311-linux_x86_64.whl", False),
        # Another Python, processor, system or glibc.
        ("flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", False),
        ("flash_attn-2.8.3-cp311-cp311-linux_aarch64.whl", False),
        ("flash_attn-2.8.3-cp311-cp311-macosx_11_0_x86_64.whl", False),
        ("flash_attn-2.8.3-cp311-cp311-manylinux_2_39_x86_64.whl", False),
        # No name of a wheel.
        ("flash-attn-2.8.3.tar.gz", False),
        ("nowheel.whl", False),
    ],
)
def test_a_wheel_fits_by_name_version_python_and_build(filename: str, does_fit: bool) -> None:
    torch27 = image("cu126-torch27")
    pin = torch27.pin("flash-attn")
    assert pin

    assert prebuilt.fits(filename, pin, torch27) is does_fit


def test_a_wheel_for_an_older_torch_fits_the_image_of_that_torch() -> None:
    pin = image("cu126-torch27").pin("flash-attn")
    assert pin

    filename = "flash_attn-2.8.3+cu12torch2.5cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
    assert prebuilt.fits(filename, pin, image("cu126-torch25"))


@pytest.mark.parametrize(
    ("tag", "is_supported"),
    [
        ("cp311-cp311-manylinux_2_36_x86_64", True),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp311-cp311-manylinux2010_x86_64", True),
        ("cp311-cp311-manylinux1_x86_64", True),
        ("cp311-cp311-linux_x86_64", True),
        ("cp39-abi3-manylinux_2_28_x86_64", True),
        ("py3-none-any", True),
        ("py3-none-manylinux_2_28_x86_64", True),
        ("py2.py3-none-any", True),
        ("py311-none-any", True),
        ("cp311-cp311-manylinux_2_37_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp310-cp310-manylinux_2_28_x86_64", False),
        ("cp312-abi3-manylinux_2_28_x86_64", False),
        ("py312-none-any", False),
    ],
)
def test_a_tag_is_supported_by_its_python_abi_and_glibc(tag: str, is_supported: bool) -> None:
    supported = supported_tags(Minor(3, 11), Minor(2, 36))

    assert (not parse_tag(tag).isdisjoint(supported)) is is_supported


# --- the wheelhouse -------------------------------------------------------------------------------


def test_a_wheel_of_the_wheelhouse_comes_first(tmp_path: Path) -> None:
    wheel = tmp_path / FLASH_ATTN
    wheel.write_bytes(b"wheel")

    wheels = gathered("cu126-torch27", tmp_path, wheelhouse=tmp_path)

    assert wheels.files == {wheel.name: wheel}
    assert wheels.missing == {}
    assert wheels.digests() == {wheel.name: hashlib.sha256(b"wheel").hexdigest()}


def add_changed_official_wheel(folder: Path) -> None:
    (folder / image("cu126-torch27").prebuilt[0].filename).write_bytes(b"another")


def add_two_fitting_wheels(folder: Path) -> None:
    for name in (FLASH_ATTN, "flash_attn-2.8.3-py3-none-any.whl"):
        (folder / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (add_changed_official_wheel, r"refused: it has 7 bytes with sha256 "),
        (add_two_fitting_wheels, "two wheels fit"),
        (Path.rmdir, "is no folder"),
    ],
    ids=["a changed official wheel", "two wheels that fit", "no folder"],
)
def test_a_faulty_wheelhouse_is_refused(
    tmp_path: Path, change: Callable[[Path], None], cause: str
) -> None:
    wheelhouse = tmp_path / "house"
    wheelhouse.mkdir()
    change(wheelhouse)

    with pytest.raises(UserError, match=cause):
        gathered("cu126-torch27", tmp_path, wheelhouse=wheelhouse)


def test_of_the_installers_in_a_wheelhouse_only_the_locked_one_is_taken(tmp_path: Path) -> None:
    version = TOOLS[0].partition("==")[2]
    locked = f"uv-{version}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    older = "uv-0.1.0-py3-none-manylinux_2_17_x86_64.whl"
    for_arm64 = locked.replace("x86_64", "aarch64")
    for name in (locked, older, for_arm64):
        (tmp_path / name).write_bytes(b"")

    wheels = gathered("cu126-torch27", tmp_path, wheelhouse=tmp_path)

    assert list(wheels.files) == [locked]


# --- packages without a wheel ---------------------------------------------------------------------


def test_an_optional_package_that_cannot_be_had_is_missing_with_its_reason(tmp_path: Path) -> None:
    wheels = gathered("cu126-torch27", tmp_path)

    assert wheels.files == {}
    # The image's label repeats this: no error of this machine, and no command as spelled here.
    assert wheels.missing["flash-attn"] == (
        "flash-attn==2.8.3: its official wheel could not be fetched"
    )
    assert wheels.details["flash-attn"] == (
        "no route to host (https://github.com/Dao-AILab/flash-attention/releases/download/v2.8.3/"
        "flash_attn-2.8.3%2Bcu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl); "
        "download this wheel on a machine that reaches github.com, put it into a "
        "folder here, and give the command again with --wheelhouse FOLDER; or "
        "`nox -s wheels -- cu126-torch27 flash-attn` compiles one, which this command then finds"
    )


def test_a_build_goes_on_without_an_optional_wheel_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []

    report_missing("i", gathered("cu126-torch27", tmp_path), strict=False, warn=said.append)

    (message,) = said
    assert message.endswith(
        "; unless you use it, nothing needs to be done: the image is built without it"
    )


def image_with_conv1d(*, optional: bool) -> Image:
    """Return an image with causal-conv1d, which must be compiled, in place of flash-attn."""
    template = image("cu130-torch211-sm90")
    conv1d = Pin(
        name="causal-conv1d", version="1.7.0", layer="kernels", optional=optional, compiled=True
    )
    other_pins = (pin for pin in template.pins if pin.name != "flash-attn")
    return replace(template, pins=(*other_pins, conv1d))


@pytest.mark.parametrize("optional", [True, False])
def test_a_compiled_wheel_is_taken(tmp_path: Path, optional: bool) -> None:
    wheel = tmp_path / CONV1D
    wheel.write_bytes(b"wheel")

    def find_conv1d(_image: Image, pin: Pin) -> Path | None:
        return wheel if pin.name == "causal-conv1d" else None

    wheels = gathered(image_with_conv1d(optional=optional), tmp_path, compiled=find_conv1d)

    assert dict(wheels.files) == {wheel.name: wheel}
    assert dict(wheels.missing) == {}


COMPILE_CONV1D = "`nox -s wheels -- cu130-torch211-sm90 causal-conv1d` compiles it"


def test_an_optional_package_that_nobody_compiled_is_missing_with_the_command(
    tmp_path: Path,
) -> None:
    wheels = gathered(image_with_conv1d(optional=True), tmp_path)

    assert wheels.details["causal-conv1d"] == COMPILE_CONV1D


def test_a_required_package_that_nobody_compiled_is_an_error_with_the_command(
    tmp_path: Path,
) -> None:
    cause = (
        "needs causal-conv1d==1.7.0, which no index has as a wheel, "
        "and which is not compiled for this image yet"
    )
    with pytest.raises(UserError, match=f"{cause}\n    next: {COMPILE_CONV1D} once"):
        gathered(image_with_conv1d(optional=False), tmp_path)


# --- compiled extensions of packages that the lock has as pure Python -----------------------------


def test_a_compiled_wheel_takes_the_place_of_the_locks_pure_python(tmp_path: Path) -> None:
    wheel = tmp_path / COLOSSALAI
    wheel.write_bytes(b"wheel")
    requested_extensions: list[str] = []

    def find_extensions(_image: Image, pin: Pin) -> Path | None:
        requested_extensions.append(pin.extension_source)
        return wheel if pin.extension_source else None

    wheels = gathered("cu124-torch25-colossalai", tmp_path, compiled=find_extensions)

    assert wheels.files[COLOSSALAI] == wheel
    assert "colossalai extensions" not in wheels.missing
    assert "colossalai" in requested_extensions
    replacing = image("cu124-torch25-colossalai").choose_compiled_wheels(wheels.files)
    assert replacing == {"colossalai": COLOSSALAI}


def test_a_wheelhouse_may_have_the_wheel_with_extensions(tmp_path: Path) -> None:
    (tmp_path / COLOSSALAI).write_bytes(b"wheel")

    wheels = gathered("cu124-torch25-colossalai", tmp_path, wheelhouse=tmp_path)

    assert COLOSSALAI in wheels.files


def test_a_wheel_of_pure_python_has_no_extensions(tmp_path: Path) -> None:
    (tmp_path / "colossalai-0.5.0-py3-none-any.whl").write_bytes(b"wheel")

    wheels = gathered("cu124-torch25-colossalai", tmp_path, wheelhouse=tmp_path)

    assert "colossalai extensions" in wheels.missing


def test_extensions_that_nobody_compiled_are_missing_with_the_command(tmp_path: Path) -> None:
    wheels = gathered("cu130-torch213-axolotl-multigpu", tmp_path)

    assert wheels.missing["deepspeed extensions"] == (
        "deepspeed==0.18.9's compiled extensions, which were not compiled for this image"
    )
    compile_command = "`nox -s wheels -- cu130-torch213-axolotl-multigpu deepspeed-ops`"
    assert compile_command in wheels.details["deepspeed extensions"]
    assert "deepspeed" not in wheels.missing, "the package itself is there, as pure Python"


# --- downloads of official wheels -----------------------------------------------------------------


OFFICIAL = "flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"


def zipped(text: str) -> bytes:
    """Return a wheel of which one file has this text, repeated."""
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("flash_attn/__init__.py", text * 10_000)
        return buffer.getvalue()


CONTENT = zipped("content")
ALTERED = zipped("altered")
"""A wheel as good as the other, of other bytes: being a zip is no proof of anything."""


def official_wheel(server: Server) -> Prebuilt:
    return Prebuilt(
        name="flash-attn",
        version="2.8.3",
        filename=OFFICIAL,
        url=f"http://{server.host}/v2.8.3/{OFFICIAL.replace('+', '%2B')}",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def replying(server: Server, *replies: Reply | None) -> Server:
    """Let the server give one reply to each request, and the last one to all that follow."""
    remaining = list(replies)
    server.answer = lambda *_: remaining.pop(0) if len(remaining) > 1 else remaining[0]
    return server


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_wheel_with_the_right_hash_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    wheel = official_wheel(replying(server, (200, {}, CONTENT), (500, {}, b"")))

    first = obtain(wheel, cache=tmp_path).read_bytes()
    second = obtain(wheel, cache=tmp_path).read_bytes()

    assert first == second == CONTENT
    assert server.count("GET", "/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.7cxx11abiTRUE") == 1
    assert names_in(tmp_path) == [OFFICIAL]


def test_a_redirect_is_followed_and_what_it_leads_to_is_checked(
    server: Server, tmp_path: Path
) -> None:
    moved = (302, {"Location": f"http://{server.host}/blob"}, b"")

    with pytest.raises(UserError, match="refused"):
        obtain(official_wheel(replying(server, moved, (200, {}, ALTERED))), cache=tmp_path)
    assert names_in(tmp_path) == []

    wheel = obtain(official_wheel(replying(server, moved, (200, {}, CONTENT))), cache=tmp_path)
    assert wheel.read_bytes() == CONTENT
    assert server.count("GET", "/blob") == 2


@pytest.mark.parametrize(
    "body",
    [ALTERED, CONTENT[: len(CONTENT) // 2], b"<html>sign in</html>"],
    ids=["altered", "half of it", "a page to sign in"],
)
def test_wrong_bytes_are_refused_with_place_cause_and_next_step(
    server: Server, tmp_path: Path, body: bytes
) -> None:
    with pytest.raises(UserError) as error:
        obtain(official_wheel(replying(server, (200, {}, body))), cache=tmp_path)

    (problem,) = error.value.problems
    assert problem.where == f"127.0.0.1: {OFFICIAL}"
    assert f"{len(body)} bytes with sha256 {hashlib.sha256(body).hexdigest()}" in problem.cause
    assert hashlib.sha256(CONTENT).hexdigest() in problem.cause
    assert problem.cause.startswith("the file is refused: ")
    assert problem.then.startswith("nothing was kept; ask whoever serves it")
    assert names_in(tmp_path) == []


def test_wrong_bytes_in_the_cache_are_refused_and_stay_there(
    server: Server, tmp_path: Path
) -> None:
    cached = tmp_path / OFFICIAL
    cached.write_bytes(ALTERED)

    with pytest.raises(UserError) as error:
        obtain(official_wheel(replying(server, (200, {}, CONTENT))), cache=tmp_path)

    assert server.seen == [], "nothing is downloaded over it"
    (problem,) = error.value.problems
    assert problem.where == str(cached)
    assert "refused" in problem.cause
    assert problem.then == f"`rm {cached}`: the next build fetches it anew"


@pytest.mark.parametrize(
    ("reply", "cause", "step"),
    [
        (
            (200, {"Content-Length": str(len(CONTENT))}, CONTENT[:-100]),
            rf"IncompleteRead\({len(CONTENT) - 100} bytes read, 100 more expected",
            "on a machine that reaches 127.0.0.1",
        ),
        ((404, {}, b"<html>no such page</html>"), "404 Client Error", "does not have this wheel"),
        (None, "Remote end closed connection|RemoteDisconnected", "on a machine that reaches"),
    ],
    ids=["half a file", "no such file", "a server that hangs up"],
)
def test_a_download_that_breaks_off_leaves_nothing_in_the_cache(
    server: Server, tmp_path: Path, reply: Reply | None, cause: str, step: str
) -> None:
    with pytest.raises(NotFetched) as error:
        obtain(official_wheel(replying(server, reply)), cache=tmp_path)

    problem = error.value.problems[0]
    assert re.match(r"http://127.0.0.1:\d+/v2.8.3/flash_attn-.*linux_x86_64.whl$", problem.where)
    assert re.search(cause, problem.cause)
    assert step in problem.then
    assert names_in(tmp_path) == []


def test_a_server_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with serving() as server:
        wheel = official_wheel(server)

    with pytest.raises(NotFetched, match=r"refused|unreachable"):
        obtain(wheel, cache=tmp_path)
    assert names_in(tmp_path) == []


def test_builds_at_once_keep_one_whole_wheel(server: Server, tmp_path: Path) -> None:
    wheel = official_wheel(replying(server, (200, {}, CONTENT)))

    with ThreadPoolExecutor(3) as pool:
        contents = list(pool.map(lambda _: obtain(wheel, cache=tmp_path).read_bytes(), range(6)))

    assert contents == [CONTENT] * 6
    assert names_in(tmp_path) == [OFFICIAL]


def image_with_official_wheel(server: Server, *, optional: bool) -> Image:
    template = sources.image("cu126-torch27")
    pins = []
    for pin in template.pins:
        pins.append(replace(pin, optional=optional) if pin.name == "flash-attn" else pin)
    return replace(template, pins=tuple(pins), prebuilt=(official_wheel(server),))


@pytest.mark.parametrize("optional", [True, False])
def test_a_build_takes_the_right_bytes_and_stops_at_wrong_ones(
    server: Server, tmp_path: Path, optional: bool
) -> None:
    """Also if the package is optional: going without it would hide that somebody altered a file."""
    to_build = image_with_official_wheel(server, optional=optional)
    download = partial(obtain, cache=tmp_path)
    replying(server, (200, {}, ALTERED), (200, {}, CONTENT))

    with pytest.raises(UserError, match="refused"):
        prebuilt.gather(to_build, wheelhouse=None, official=download)

    wheels = prebuilt.gather(to_build, wheelhouse=None, official=download)
    assert wheels.digests() == {OFFICIAL: hashlib.sha256(CONTENT).hexdigest()}
    assert not wheels.missing


def test_a_build_that_cannot_download_what_it_requires_stops(tmp_path: Path) -> None:
    with serving() as server:
        to_build = image_with_official_wheel(server, optional=False)

    with pytest.raises(UserError) as error:
        prebuilt.gather(to_build, wheelhouse=None, official=partial(obtain, cache=tmp_path))

    (problem,) = error.value.problems
    assert re.match(r"http://127.0.0.1:\d+/v2.8.3/flash_attn-.*linux_x86_64.whl$", problem.where)
    assert "onnection refused" in problem.cause
    assert problem.then.endswith(
        "`nox -s wheels -- cu126-torch27 flash-attn` compiles one, which this command then finds"
    )


# --- the cache of compiled wheels -----------------------------------------------------------------


def test_a_stored_wheel_is_found_by_its_key(tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    assert find_compiled(cache, "key") is None

    stored = store_compiled(cache, "key", "a-1-py3-none-any.whl", b"wheel", {"seconds": 1})

    assert find_compiled(cache, "key") == stored
    record = json.loads((stored.parent / "record.json").read_text())
    assert record["sha256"] == hashlib.sha256(b"wheel").hexdigest()
    assert names_in(cache) == ["key"]


def test_a_damaged_wheel_is_warned_of_and_not_taken(tmp_path: Path) -> None:
    warnings = list[str]()
    wheel = store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})

    wheel.write_bytes(b"other")

    assert find_compiled(tmp_path, "key", warnings.append) is None
    assert "not what its record says" in warnings[0]


@pytest.mark.parametrize(
    ("fault", "warning"),
    [
        ("no record", "/key has no record.json: its wheel is not taken"),
        ("no JSON", "/key/record.json can't be read (Expecting"),
        ("no wheel", "/key/a-1-py3-none-any.whl can't be read: No such file or directory"),
    ],
)
def test_the_warning_of_a_wheel_that_is_not_taken_names_what_is_wrong(
    tmp_path: Path, fault: str, warning: str
) -> None:
    warnings = list[str]()
    wheel = store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})
    record = wheel.parent / "record.json"
    if fault == "no record":
        record.unlink()
    elif fault == "no JSON":
        record.write_text("no")
    else:
        wheel.unlink()

    assert find_compiled(tmp_path, "key", warnings.append) is None
    assert [text.startswith(f"{tmp_path}{warning}") for text in warnings] == [True], warnings


def test_a_wheel_with_a_damaged_record_is_not_taken_and_can_be_stored_anew(
    tmp_path: Path,
) -> None:
    wheel = store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})
    (wheel.parent / "record.json").write_text("{")
    assert find_compiled(tmp_path, "key") is None

    store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})

    assert find_compiled(tmp_path, "key") == wheel


def test_an_image_takes_the_wheel_of_its_own_recipe_and_no_other(tmp_path: Path) -> None:
    torch28, cache = image("cu128-torch28"), tmp_path / "compiled"
    find_wheel = wheel_finder(SOURCES.matrix, cache)
    pin = torch28.pin("flash-attn")
    assert pin is not None
    assert find_wheel(torch28, pin) is None

    key = recipe_of("cu128-torch28", "flash-attn").key
    wheel = store_compiled(cache, key, FLASH_ATTN, b"wheel", {})

    assert gathered(torch28, tmp_path, compiled=find_wheel).files == {wheel.name: wheel}
    assert gathered("cu126-torch28", tmp_path, compiled=find_wheel).files == {}
