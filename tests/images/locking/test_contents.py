"""What files of locks bring: read by ranges, kept beside the locks; damaged files and poor servers are told."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from images.config.paths import CHECKOUT
from images.errors import UserError
from images.locking import contents, lock_file, measure_contents
from images.locking.contents import FileContents
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.locking.measure_contents import LockedFile
from tests.support import wheels
from tests.support.http_server import Reply, serving
from tests.support.sources import image
from tests.support.torch_index import Indexes
from validate.environment import wheel_contents
from validate.environment.wheel_contents import Contents

HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
KNOWN = st.builds(
    FileContents,
    wheel=st.none() | st.builds(Contents, HEX, st.text("abc", max_size=8)),
    files=st.text("abc", max_size=8),
    native=st.booleans(),
    bytecode=st.lists(HEX, max_size=2, unique=True).map(sorted).map(tuple),
    pruned=st.dictionaries(HEX, st.builds(Contents, HEX, st.text("abc", max_size=8)), max_size=2),
)
EMPTY = b"PK\5\6" + bytes(18)
"""A zip archive of nothing."""
WHEEL = LockedFile(package=Package(name="small", version="1.0", hashes=()), digest="", source=False, toolkit=False)


@given(known=st.dictionaries(HEX, KNOWN, min_size=1, max_size=3))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, known: dict[str, FileContents]) -> None:
    folder = tmp_path_factory.mktemp("locks")
    package = Package(name="small", version="1.0", hashes=tuple(known))
    path = folder / contents.place(package)
    path.parent.mkdir()
    path.write_bytes(contents.written(known))
    assert contents.read([package], folder) == known
    assert contents.read([Package(name="other", version="1", hashes=("00",))], folder) == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"00": {"digest": "x"}}', '{"00": {"pruned": 1}}', '{"00": {"bytecode": 1}}']
)
def test_a_damaged_file_is_told_with_the_next_command(tmp_path: Path, text: str) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "small-1.0.json").write_text(text)
    with pytest.raises(UserError) as caught:
        contents.read([Package(name="small", version="1.0", hashes=("00",))], tmp_path)
    assert "is damaged" in caught.value.problems[0].cause and "nox -s lock" in caught.value.problems[0].then


def test_the_record_of_a_wheel_is_read_and_not_the_wheel(tmp_path: Path) -> None:
    filler = {"small/big.bin": bytes(range(256)) * 20_000}
    wheel = wheels.make(tmp_path, {**wheels.FILES, **filler})
    with zipfile.ZipFile(wheel) as opened:
        expected = contents.rows_of(opened)
    with serving() as server:
        Indexes(server).files["/small.whl"] = wheel.read_bytes()
        measured = measure_contents._measure(WHEEL, f"http://{server.host}/small.whl", requests.Session())
        assert len(server.seen) == 1, "its end is all that is read"
    assert measured.wheel == wheel_contents.contents(expected) and "small/big.bin" in expected


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, {}, b"the whole file"), "does not answer range requests"),
        ((404, {}, b""), "404"),
        ((206, {"Content-Range": "bytes 0-9/10"}, b"no archive"), "can't be read"),
        ((206, {"Content-Range": f"bytes 0-{len(EMPTY) - 1}/{len(EMPTY)}"}, EMPTY), "0 RECORD files"),
    ],
)
def test_a_server_that_gives_no_wheel_is_told_with_the_next_command(reply: Reply, words: str) -> None:
    with serving() as server, pytest.raises(UserError) as caught:
        server.answer = lambda *_: reply
        measure_contents._measure(WHEEL, f"http://{server.host}/a/small.whl", requests.Session())
    problem = caught.value.problems[0]
    assert problem.where == "small.whl" and words in problem.cause and "nox -s lock" in problem.then


def small_lock(digest: str) -> Lock:
    inputs = lock_file.load(CHECKOUT.locks / "cu126-torch27").inputs
    package = Package(name="small", version="1.0", hashes=(digest,))
    layers = {**dict.fromkeys(inputs.layers, ()), "light": (package,), "toolkit": (package,)}
    return Lock(inputs=inputs, files={}, layers=layers)


def test_files_are_measured_once_and_those_of_no_lock_are_left_over(tmp_path: Path) -> None:
    wheel, digest, calls = wheels.make(tmp_path, {**wheels.FILES, "nvidia/part/lib/x.so.1": b"x"}), "ab" * 32, []
    with serving() as server:
        Indexes(server).files["/small-1.0-py3-none-any.whl"] = wheel.read_bytes()

        def run(arguments: list[str]) -> CompletedProcess[str]:
            calls.append(arguments)
            output = Path(arguments[arguments.index("-o") + 1])
            url = f"http://{server.host}/small-1.0-py3-none-any.whl"
            files = f'wheels = [{{ url = "{url}", hashes = {{ sha256 = "{digest}" }} }}]'
            output.write_text(f'[[packages]]\nname = "small"\nversion = "1.0"\n{files}\n')
            return CompletedProcess([], 0, "", "")

        locks = {"x": small_lock(digest)}
        found = measure_contents.update(locks, tmp_path, run=run)  # type: ignore[arg-type]
        lock_file.put(found, tmp_path)
        known = replace(locks["x"], contents=contents.read(locks["x"].packages(), tmp_path))
        assert measure_contents.update({"x": known}, tmp_path, run=run) == {}  # type: ignore[arg-type]
    assert len(calls) == 2, "once for the layers, once for the toolkit"
    row = json.loads(found["wheels/small-1.0.json"])[digest]
    assert row["paths"] == "lib64/x.so.1"
    with zipfile.ZipFile(wheel) as opened:
        rows = contents.rows_of(opened)
    assert row["digest"] == wheel_contents.contents(rows).digest and row["native"]
    (tmp_path / "wheels" / "gone-1.json").write_text("{}")
    assert measure_contents.leftovers(locks.values(), tmp_path) == [tmp_path / "wheels" / "gone-1.json"]


def test_a_file_that_the_index_lost_is_told(tmp_path: Path) -> None:
    def run(arguments: list[str]) -> CompletedProcess[str]:
        Path(arguments[arguments.index("-o") + 1]).write_text("")
        return CompletedProcess([], 0, "", "")

    with pytest.raises(UserError, match=r"no longer has small 1\.0"):
        measure_contents.update({"x": small_lock("ab" * 32)}, tmp_path, run=run)  # type: ignore[arg-type]


def test_every_file_of_a_lock_of_the_repository_is_known() -> None:
    """But for the toolkit's compiler of Debian, all that images hold is a wheel or a source archive of the lock."""
    for folder in sorted(path for path in CHECKOUT.locks.iterdir() if (path / lock_file.RECORD).is_file()):
        lock = lock_file.load(folder)
        packages = [*lock.packages(), *lock.layers["toolkit"]]
        known = contents.read(packages, folder.parent)
        assert {one.name for one in packages for digest in one.hashes if digest not in known} == set(), folder.name
        sources = {one.hashes[0] for one in lock.packages() if one.name in lock.inputs.from_source}
        assert all(known[digest].files for digest in sources)
    read = lock_file.read(image("cu126-torch27"), CHECKOUT.locks)
    assert read.contents == contents.read([one for layer in read.layers.values() for one in layer], CHECKOUT.locks)
