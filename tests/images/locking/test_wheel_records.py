"""RECORDs of locked wheels: read by range requests, and kept in a table beside the locks."""

import re
import zipfile
from collections.abc import Sequence
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
from tests.support.http_server import Reply, Server, serving
from tests.support.sources import image
from tests.support.torch_index import Indexes
from validate.environment import wheel_contents

SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
WHEEL_RECORDS = st.builds(WheelRecord, record=SHA256, native=st.booleans())
EMPTY_ZIP = b"PK\5\6" + bytes(18)
DIGEST = "ab" * 32


# --- the table ------------------------------------------------------------------------------------


@given(rows=st.dictionaries(SHA256, WHEEL_RECORDS, min_size=1, max_size=3))
def test_a_written_table_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, WheelRecord]
) -> None:
    folder = tmp_path_factory.mktemp("locks")
    (folder / wheel_records.FILE).write_bytes(wheel_records.serialize({"small 1.0": rows}))

    small = Package(name="small", version="1.0", hashes=tuple(rows))
    other = Package(name="other", version="1", hashes=("00",))
    assert wheel_records.read_for([small], folder) == rows
    assert wheel_records.read_for([other], folder) == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"small 1.0": {"00": {"digest": "x"}}}', '{"small 1.0": 1}']
)
def test_a_damaged_table_is_an_error_with_the_next_command(tmp_path: Path, text: str) -> None:
    (tmp_path / wheel_records.FILE).write_text(text)

    with pytest.raises(UserError) as error:
        wheel_records.read(tmp_path)

    problem = error.value.problems[0]
    assert "is damaged" in problem.cause
    assert "nox -s lock" in problem.then


# --- reading a RECORD from the index --------------------------------------------------------------


def test_only_the_end_of_a_wheel_is_read(tmp_path: Path) -> None:
    large_file = {"small/big.bin": bytes(range(256)) * 20_000}
    wheel = wheels.make(tmp_path, {**wheels.FILES, **large_file})
    with zipfile.ZipFile(wheel) as archive:
        rows = wheel_records.rows_of(archive)

    with serving() as server:
        Indexes(server).files["/small.whl"] = wheel.read_bytes()
        measured = measure_records._measure(
            f"http://{server.host}/small.whl", requests.Session(), {}
        )
        assert len(server.seen) == 1

    assert "small/big.bin" in rows
    assert measured.record == wheel_contents.digest_of(rows)


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ((200, {}, b"the whole file"), "does not answer range requests"),
        ((404, {}, b""), "404"),
        ((206, {"Content-Range": "bytes 0-9/10"}, b"no archive"), "can't be read"),
        (
            (206, {"Content-Range": f"bytes 0-{len(EMPTY_ZIP) - 1}/{len(EMPTY_ZIP)}"}, EMPTY_ZIP),
            "0 RECORD files",
        ),
    ],
    ids=["no ranges", "no file", "no archive", "no RECORD"],
)
def test_a_wheel_that_cannot_be_read_is_an_error_with_the_next_command(
    reply: Reply, cause: str
) -> None:
    with serving() as server, pytest.raises(UserError) as error:
        server.answer = lambda *_: reply
        measure_records._measure(f"http://{server.host}/a/small.whl", requests.Session(), {})

    problem = error.value.problems[0]
    assert problem.where == "small.whl"
    assert cause in problem.cause
    assert "nox -s lock" in problem.then


@pytest.mark.parametrize("damage", ["stream", "method"])
def test_a_wheel_with_a_damaged_record_is_an_error_and_no_traceback(damage: str) -> None:
    with serving() as server, pytest.raises(UserError) as error:
        Indexes(server).files["/small.whl"] = wheels.with_damaged_record(damage)
        measure_records._measure(f"http://{server.host}/small.whl", requests.Session(), {})

    assert "can't be read" in error.value.problems[0].cause


@pytest.mark.parametrize(
    ("path", "is_library"),
    [
        ("small/a.so", True),
        ("small/a.cpython-311-x86_64-linux-gnu.so", True),
        ("small/libcudart.so.12", True),
        ("small/style.source.json", False),
        ("small/notes.sorted.txt", False),
        ("small.so/a.py", False),
    ],
)
def test_a_wheel_is_native_if_the_name_of_a_file_is_that_of_a_library(
    tmp_path: Path, path: str, is_library: bool
) -> None:
    wheel = wheels.make(tmp_path, {**wheels.FILES, path: b"x"})

    with serving() as server:
        Indexes(server).files["/small.whl"] = wheel.read_bytes()
        measured = measure_records._measure(
            f"http://{server.host}/small.whl", requests.Session(), {}
        )

    assert measured.native is is_library


# --- renewing the table ---------------------------------------------------------------------------


class FakeUv:
    """Stands in for uv: it finds the wheel `small 1.0` on a server, or nothing."""

    def __init__(self, server: Server | None) -> None:
        self.server = server
        self.calls = 0

    def __call__(self, arguments: Sequence[str]) -> CompletedProcess[str]:
        self.calls += 1
        output = Path(arguments[arguments.index("-o") + 1])
        output.write_text(self._pylock(self.server) if self.server else "")
        return CompletedProcess([], 0, "", "")

    def _pylock(self, server: Server) -> str:
        url = f"http://{server.host}/small-1.0-py3-none-any.whl"
        wheel = f'{{ url = "{url}", hashes = {{ sha256 = "{DIGEST}" }} }}'
        return f'[[packages]]\nname = "small"\nversion = "1.0"\nwheels = [{wheel}]\n'


def small_lock() -> Lock:
    """Return a lock with the wheel `small 1.0` in a layer of the image, and in the toolkit."""
    inputs = lock_file.load(CHECKOUT.locks / "cu126-torch27").inputs
    package = Package(name="small", version="1.0", hashes=(DIGEST,))
    layers = {**dict.fromkeys(inputs.layers, ()), "light": (package,), "toolkit": (package,)}
    return Lock(inputs=inputs, files={}, layers=layers)


def test_a_record_is_read_once(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path, {**wheels.FILES, "small/x.so.1": b"x"})
    lock = small_lock()
    with serving() as server:
        Indexes(server).files["/small-1.0-py3-none-any.whl"] = wheel.read_bytes()
        uv = FakeUv(server)

        table_file = measure_records.update({"x": lock}, tmp_path, run=uv)
        lock_file.put(table_file, tmp_path)
        records = wheel_records.read_for(lock.packages(), tmp_path)
        again = measure_records.update(
            {"x": replace(lock, wheel_records=records)}, tmp_path, run=uv
        )

    assert again == {}
    assert uv.calls == 1
    with zipfile.ZipFile(wheel) as archive:
        record = wheel_contents.digest_of(wheel_records.rows_of(archive))
    row = WheelRecord(record=record, native=True)
    assert wheel_records.read(tmp_path) == {"small 1.0": {DIGEST: row}}


def test_wheels_that_no_lock_has_are_taken_out_of_the_table(tmp_path: Path) -> None:
    used = {"small 1.0": {DIGEST: WheelRecord(record="x")}}
    unused = {"gone 1": {"cd": WheelRecord(record="x")}}
    (tmp_path / wheel_records.FILE).write_bytes(wheel_records.serialize({**used, **unused}))

    table_file = measure_records.without_leftovers([small_lock()], tmp_path)
    lock_file.put(table_file, tmp_path)

    assert wheel_records.read(tmp_path) == used
    assert measure_records.without_leftovers([small_lock()], tmp_path) == {}


def test_a_wheel_that_the_index_has_lost_is_an_error(tmp_path: Path) -> None:
    uv_that_finds_nothing = FakeUv(None)

    with pytest.raises(UserError, match=r"no longer has small 1\.0"):
        measure_records.update({"x": small_lock()}, tmp_path, run=uv_that_finds_nothing)


# --- the committed table --------------------------------------------------------------------------


def committed_locks() -> dict[str, Lock]:
    """Return the locks of the repository, with the whole table as their wheels' records."""
    table = wheel_records.read(CHECKOUT.locks)
    known: dict[str, WheelRecord] = {}
    for rows in table.values():
        known.update(rows)
    locks = {}
    for folder in sorted(CHECKOUT.locks.iterdir()):
        if (folder / lock_file.RECORD).is_file():
            locks[folder.name] = replace(lock_file.load(folder), wheel_records=known)
    return locks


def test_the_committed_table_has_the_record_of_every_locked_wheel_and_no_other() -> None:
    locks = committed_locks()

    for name, lock in locks.items():
        assert measure_records.lacking(lock) == [], name
    assert measure_records.without_leftovers(locks.values(), CHECKOUT.locks) == {}


def test_the_committed_table_is_written_as_it_would_be_today() -> None:
    table = wheel_records.read(CHECKOUT.locks)

    committed = (CHECKOUT.locks / wheel_records.FILE).read_text()
    # Some rows have what an earlier version wrote after `native`.
    of_today = re.sub(r', "pruned": \{[^}]*\}', "", committed)
    assert wheel_records.serialize(table).decode() == of_today


def test_a_lock_is_read_with_the_records_of_all_its_wheels() -> None:
    lock = lock_file.read(image("cu126-torch27"), CHECKOUT.locks)

    digests: set[str] = set()
    for package in lock.packages():
        digests.update(package.hashes)
    assert lock.wheel_records.keys() == digests
