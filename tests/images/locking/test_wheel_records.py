"""What files of locks bring: read by ranges, kept beside the locks; damaged files and poor servers are told."""

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
from images.locking import lock_file, measure_records, wheel_records
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.locking.wheel_records import WheelRecord
from tests.support import wheels
from tests.support.http_server import Reply, serving
from tests.support.sources import image
from tests.support.torch_index import Indexes
from validate.environment import wheel_contents

HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
KNOWN = st.builds(
    WheelRecord, record=HEX, native=st.booleans(), pruned=st.dictionaries(HEX, HEX, max_size=2)
)
EMPTY = b"PK\5\6" + bytes(18)
"""A zip archive of nothing."""


@given(known=st.dictionaries(HEX, KNOWN, min_size=1, max_size=3))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, known: dict[str, WheelRecord]
) -> None:
    folder = tmp_path_factory.mktemp("locks")
    package = Package(name="small", version="1.0", hashes=tuple(known))
    (folder / wheel_records.FILE).write_bytes(wheel_records.serialize({"small 1.0": known}))
    assert wheel_records.read_for([package], folder) == known
    assert (
        wheel_records.read_for([Package(name="other", version="1", hashes=("00",))], folder) == {}
    )


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"small 1.0": {"00": {"digest": "x"}}}', '{"small 1.0": 1}']
)
def test_a_damaged_file_is_told_with_the_next_command(tmp_path: Path, text: str) -> None:
    (tmp_path / wheel_records.FILE).write_text(text)
    with pytest.raises(UserError) as caught:
        wheel_records.read(tmp_path)
    assert (
        "is damaged" in caught.value.problems[0].cause
        and "nox -s lock" in caught.value.problems[0].then
    )


def test_the_record_of_a_wheel_is_read_and_not_the_wheel(tmp_path: Path) -> None:
    filler = {"small/big.bin": bytes(range(256)) * 20_000}
    wheel = wheels.make(tmp_path, {**wheels.FILES, **filler})
    with zipfile.ZipFile(wheel) as opened:
        expected = wheel_records.rows_of(opened)
    with serving() as server:
        Indexes(server).files["/small.whl"] = wheel.read_bytes()
        measured = measure_records._measure(f"http://{server.host}/small.whl", requests.Session())
        assert len(server.seen) == 1, "its end is all that is read"
    assert measured.record == wheel_contents.digest_of(expected) and "small/big.bin" in expected


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, {}, b"the whole file"), "does not answer range requests"),
        ((404, {}, b""), "404"),
        ((206, {"Content-Range": "bytes 0-9/10"}, b"no archive"), "can't be read"),
        (
            (206, {"Content-Range": f"bytes 0-{len(EMPTY) - 1}/{len(EMPTY)}"}, EMPTY),
            "0 RECORD files",
        ),
    ],
)
def test_a_server_that_gives_no_wheel_is_told_with_the_next_command(
    reply: Reply, words: str
) -> None:
    with serving() as server, pytest.raises(UserError) as caught:
        server.answer = lambda *_: reply
        measure_records._measure(f"http://{server.host}/a/small.whl", requests.Session())
    problem = caught.value.problems[0]
    assert problem.where == "small.whl" and words in problem.cause and "nox -s lock" in problem.then


def small_lock(digest: str) -> Lock:
    inputs = lock_file.load(CHECKOUT.locks / "cu126-torch27").inputs
    package = Package(name="small", version="1.0", hashes=(digest,))
    layers = {**dict.fromkeys(inputs.layers, ()), "light": (package,), "toolkit": (package,)}
    return Lock(inputs=inputs, files={}, layers=layers)


def test_records_are_read_once_and_those_of_no_lock_are_left_out(tmp_path: Path) -> None:
    wheel, digest, calls = (
        wheels.make(tmp_path, {**wheels.FILES, "small/x.so.1": b"x"}),
        "ab" * 32,
        [],
    )
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
        found = measure_records.update(locks, tmp_path, run=run)  # type: ignore[arg-type]
        lock_file.put(found, tmp_path)
        known = replace(
            locks["x"], wheel_records=wheel_records.read_for(locks["x"].packages(), tmp_path)
        )
        assert measure_records.update({"x": known}, tmp_path, run=run) == {}  # type: ignore[arg-type]
    assert len(calls) == 1
    with zipfile.ZipFile(wheel) as opened:
        record = wheel_contents.digest_of(wheel_records.rows_of(opened))
    table = {"small 1.0": {digest: WheelRecord(record=record, native=True)}}
    assert wheel_records.read(tmp_path) == table
    assert measure_records.without_leftovers(locks.values(), tmp_path) == {}
    (tmp_path / wheel_records.FILE).write_bytes(
        wheel_records.serialize({**table, "gone 1": {"cd": WheelRecord(record="x")}})
    )
    assert measure_records.without_leftovers(locks.values(), tmp_path) == found


def test_a_file_that_the_index_lost_is_told(tmp_path: Path) -> None:
    def run(arguments: list[str]) -> CompletedProcess[str]:
        Path(arguments[arguments.index("-o") + 1]).write_text("")
        return CompletedProcess([], 0, "", "")

    with pytest.raises(UserError, match=r"no longer has small 1\.0"):
        measure_records.update({"x": small_lock("ab" * 32)}, tmp_path, run=run)  # type: ignore[arg-type]


def test_the_record_of_every_wheel_of_a_lock_of_the_repository_is_known_and_no_other() -> None:
    folders = sorted(
        path for path in CHECKOUT.locks.iterdir() if (path / lock_file.RECORD).is_file()
    )
    table = wheel_records.read(CHECKOUT.locks)
    known = {digest: row for rows in table.values() for digest, row in rows.items()}
    locks = [replace(lock_file.load(folder), wheel_records=known) for folder in folders]
    assert {
        folder.name: measure_records.lacking(lock)
        for folder, lock in zip(folders, locks, strict=True)
    } == {folder.name: [] for folder in folders}
    assert measure_records.without_leftovers(locks, CHECKOUT.locks) == {}
    assert wheel_records.serialize(table) == (CHECKOUT.locks / wheel_records.FILE).read_bytes()
    read = lock_file.read(image("cu126-torch27"), CHECKOUT.locks)
    assert read.wheel_records.keys() == {
        digest for package in read.packages() for digest in package.hashes
    }
