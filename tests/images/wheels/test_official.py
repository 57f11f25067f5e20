"""Official wheels against a server of our own: the table's bytes are taken, and nothing else is."""

import hashlib
import io
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from images.errors import UserError
from images.planning.image import Image, Prebuilt
from images.wheels import prebuilt
from images.wheels.prebuilt import NotFetched, WheelSource, obtain
from tests.support import sources
from tests.support.http_server import Reply, Server, serving

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


def test_the_right_bytes_are_taken_once_and_kept(tmp_path: Path) -> None:
    with serving() as server:
        wanted = wheel(answering(server, (200, {}, WHOLE), (500, {}, b"")))
        for _ in range(2):
            assert obtain(wanted, WheelSource(cache=tmp_path)).read_bytes() == WHOLE
        assert server.count("GET", "/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.7cxx11abiTRUE") == 1
    assert kept(tmp_path) == [NAME]


def test_a_redirect_is_followed_and_its_end_is_checked_too(tmp_path: Path) -> None:
    with serving() as server:
        source, moved = WheelSource(cache=tmp_path), (302, {"Location": f"http://{server.host}/blob"}, b"")
        with pytest.raises(UserError, match="refused"):
            obtain(wheel(answering(server, moved, (200, {}, OTHER))), source)
        assert kept(tmp_path) == []
        assert obtain(wheel(answering(server, moved, (200, {}, WHOLE))), source).read_bytes() == WHOLE
        assert server.count("GET", "/blob") == 2


@pytest.mark.parametrize("body", [OTHER, WHOLE[: len(WHOLE) // 2], b"<html>sign in</html>"])
def test_wrong_bytes_are_refused_with_place_cause_and_next_step(tmp_path: Path, body: bytes) -> None:
    with serving() as server, pytest.raises(UserError) as caught:
        obtain(wheel(answering(server, (200, {}, body))), WheelSource(cache=tmp_path))
    (problem,) = caught.value.problems
    assert problem.where == f"127.0.0.1: {NAME}"
    assert f"{len(body)} bytes with sha256 {hashlib.sha256(body).hexdigest()}" in problem.cause
    assert hashlib.sha256(WHOLE).hexdigest() in problem.cause and problem.cause.endswith("refused")
    assert problem.then.startswith("nothing was kept; ask whoever serves it")
    assert kept(tmp_path) == []


def test_wrong_bytes_in_the_cache_are_refused_and_stay_for_whoever_looks(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(OTHER)
    with serving() as server, pytest.raises(UserError) as caught:
        obtain(wheel(answering(server, (200, {}, WHOLE))), WheelSource(cache=tmp_path))
    assert server.seen == []
    (problem,) = caught.value.problems
    assert problem.where == str(tmp_path / NAME) and "refused" in problem.cause
    assert problem.then == f"`rm {tmp_path / NAME}`: the next build fetches it anew"


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ((200, {"Content-Length": str(len(WHOLE))}, WHOLE[:-100]), f"off after {len(WHOLE) - 100} of {len(WHOLE)}"),
        ((404, {}, b"<html>no such page</html>"), "HTTP Error 404"),
        (None, "Remote end closed connection|RemoteDisconnected"),
    ],
    ids=["half a file", "no such file", "a server that hangs up"],
)
def test_what_does_not_come_whole_is_not_taken(tmp_path: Path, reply: Reply | None, cause: str) -> None:
    with serving() as server, pytest.raises(NotFetched) as caught:
        obtain(wheel(answering(server, reply)), WheelSource(cache=tmp_path))
    problem = caught.value.problems[0]
    assert problem.where == "127.0.0.1" and re.search(cause, problem.cause)
    assert problem.then == "--wheel-mirror URL takes it from another server, --wheelhouse FOLDER from a folder"
    assert kept(tmp_path) == []


def test_a_dead_server_is_said_and_a_mirror_without_its_address(tmp_path: Path) -> None:
    with serving() as server:
        wanted, mirror = wheel(server), f"http://user:secret@{server.host}/wheels"
    with pytest.raises(NotFetched, match=r"refused|unreachable"):
        obtain(wanted, WheelSource(cache=tmp_path))
    with pytest.raises(NotFetched) as caught:
        obtain(wanted, WheelSource(cache=tmp_path, mirror=mirror))
    assert caught.value.problems[0].where == "--wheel-mirror" and kept(tmp_path) == []
    assert "secret" not in str(caught.value) and server.host not in str(caught.value)


def test_a_mirror_has_the_same_names_and_hashes(tmp_path: Path) -> None:
    with serving() as server:
        wanted = replace(wheel(server), url="https://releases.invalid/v2.8.3/x.whl")
        source = WheelSource(cache=tmp_path, mirror=f"http://{server.host}/wheels/")
        answering(server, (200, {}, OTHER), (200, {}, WHOLE))
        with pytest.raises(UserError, match=r"--wheel-mirror: flash_attn.* refused"):
            obtain(wanted, source)
        assert obtain(wanted, source).read_bytes() == WHOLE
        assert [path for _, path, _ in server.seen] == [f"/wheels/{NAME.replace('+', '%2B')}"] * 2


@pytest.mark.parametrize("mirror", ["/srv/wheels", "file:///srv/wheels", "mirror.example/wheels"])
def test_a_mirror_is_a_web_address(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(UserError, match="--wheel-mirror: is no web address") as caught:
        WheelSource(cache=tmp_path, mirror=mirror)
    assert "--wheelhouse FOLDER" in caught.value.problems[0].then


def test_builds_at_once_keep_one_whole_wheel(tmp_path: Path) -> None:
    with serving() as server, ThreadPoolExecutor(3) as pool:
        wanted = wheel(answering(server, (200, {}, WHOLE)))
        found = list(pool.map(lambda _: obtain(wanted, WheelSource(cache=tmp_path)).read_bytes(), range(6)))
    assert found == [WHOLE] * 6 and kept(tmp_path) == [NAME]


# --- what a build makes of it -----------------------------------------------------------------------------------------


def image(server: Server, *, optional: bool) -> Image:
    usual = sources.image("cu126-torch27")
    pins = tuple(replace(pin, optional=optional) if pin.name == "flash-attn" else pin for pin in usual.pins)
    return replace(usual, pins=pins, prebuilt=(wheel(server),))


@pytest.mark.parametrize("optional", [True, False])
def test_a_build_takes_the_right_bytes_and_stops_at_wrong_ones(tmp_path: Path, optional: bool) -> None:
    """Also where the package is optional: to go without it in silence would hide that somebody altered a file."""
    with serving() as server:
        wanted, source = image(server, optional=optional), WheelSource(cache=tmp_path)
        answering(server, (200, {}, OTHER), (200, {}, WHOLE))
        with pytest.raises(UserError, match="refused"):
            prebuilt.gather(wanted, wheelhouse=None, official=source)
        found = prebuilt.gather(wanted, wheelhouse=None, official=source)
    assert found.digests() == {NAME: hashlib.sha256(WHOLE).hexdigest()} and not found.missing


def test_a_build_that_cannot_fetch_goes_without_an_option_and_stops_for_what_it_needs(tmp_path: Path) -> None:
    with serving() as server:
        wanted, needed = image(server, optional=True), image(server, optional=False)
    found = prebuilt.gather(wanted, wheelhouse=None, official=WheelSource(cache=tmp_path))
    assert not found.files and "could not be fetched" in found.missing["flash-attn"]
    with pytest.raises(UserError) as caught:
        prebuilt.gather(needed, wheelhouse=None, official=WheelSource(cache=tmp_path))
    (problem,) = caught.value.problems
    assert problem.where == "127.0.0.1" and "could not be fetched" in problem.cause
    assert problem.then.endswith("`nox -s wheels -- cu126-torch27 flash-attn` compiles one")
