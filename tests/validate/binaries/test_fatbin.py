"""Fat binaries are read as the driver would choose from them; damaged ones are refused, and never hang."""

import contextlib
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fatbins
from tests.support.fatbins import FAMILY, LZ4, SPECIFIC, Code
from validate.binaries import fatbin
from validate.binaries.fatbin import Entry, FatbinError


def read(data: bytes) -> list[list[tuple[int, str, bool, dict[str, int]]]]:
    return [
        [
            (entry.arch, entry.variant, entry.is_ptx, fatbin.read_kernels(data, entry))
            for entry in region.entries
        ]
        for region in fatbin.read_regions(data)
    ]


def of(arch: int, *, ptx: bool = False, variant: str = "") -> Entry:
    return Entry(
        is_ptx=ptx,
        arch=arch,
        variant=variant,
        header_offset=0,
        code_offset=0,
        stored_size=0,
        room=0,
        decoded_size=0,
        compression=None,
    )


def test_every_region_entry_and_kernel_is_found() -> None:
    data = fatbins.library(
        fatbins.region(
            Code(arch=80, kernels={"a": 128, "b": 256}),
            Code(arch=90, kernels={"a": 64}, flags=LZ4 | SPECIFIC),
        ),
        fatbins.region(
            Code(arch=100, kernels={"c": 32}, flags=FAMILY),
            Code(arch=80, kernels={"c": 0}, ptx=True),
        ),
    )
    assert read(data) == [
        [(80, "", False, {"a": 128, "b": 256}), (90, "a", False, {"a": 64})],
        [(100, "f", False, {"c": 32}), (80, "", True, {"c": 0})],
    ]


def test_a_library_without_device_code_or_with_the_device_linkers_alone_has_no_region() -> None:
    region = fatbins.region(Code(arch=90, kernels={"a": 1}, ptx=True))
    assert read(fatbins.library(region, section="__nv_relfatbin")) == []
    assert read(fatbins.elf([(".text", 1, 0, b"code")], machine=62)) == []


@pytest.mark.parametrize(
    ("entry", "runs_on", "not_on"),
    [
        (of(80), [80, 86, 89], [75, 90, 100]),
        (of(86), [86, 89], [80, 90]),
        (of(90, variant="a"), [90], [91, 100]),
        (of(100, variant="f"), [100, 103], [90, 110, 120]),
        (of(80, ptx=True), [80, 90, 120], [75]),
        (of(90, ptx=True, variant="a"), [90], [100]),
    ],
)
def test_what_runs_where(entry: Entry, runs_on: list[int], not_on: list[int]) -> None:
    assert [target for target in runs_on if entry.runs_on(target)] == runs_on
    assert not [target for target in not_on if entry.runs_on(target)]


@pytest.mark.parametrize(
    ("target", "chosen"),
    [(80, (80, "")), (86, (86, "")), (89, (86, "")), (90, (90, "a")), (120, (80, "ptx"))],
)
def test_the_driver_takes_machine_code_before_ptx_and_the_nearest(
    target: int, chosen: tuple[int, str]
) -> None:
    entries = (of(80, ptx=True), of(80), of(86), of(90), of(90, variant="a"))
    entry = fatbin.Region(0, entries).best_entry(target)
    assert entry is not None
    assert (entry.arch, "ptx" if entry.is_ptx else entry.variant) == chosen
    assert fatbin.Region(0, (of(80), of(90, ptx=True))).best_entry(75) is None


GOOD = fatbins.library(
    fatbins.region(
        Code(arch=80, kernels={"a": 1, "b": 2}, flags=LZ4), Code(arch=90, kernels={"a": 3})
    )
)


@pytest.mark.parametrize("cut", range(0, len(GOOD), 37))
def test_a_cut_file_is_refused_or_read_as_far_as_it_goes(cut: int) -> None:
    try:
        read(GOOD[:cut])
    except FatbinError:
        return
    assert cut == 0 or GOOD[:cut][:4] != b"\x7fELF"


@settings(max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_corrupted_bytes_never_hang_or_fill_memory(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for position, value in changes:
        data[position] = value
    before = time.process_time()
    with contextlib.suppress(FatbinError):
        read(bytes(data))
    assert time.process_time() - before < 10, "of this process alone: what else runs does not count"


def test_a_bomb_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    block = fatbins.region(Code(arch=80, kernels={"a": 1}, flags=LZ4))
    bomb = bytearray(fatbins.library(block))
    at = bytes(bomb).index(b"\x50\xed\x55\xba") + 16 + 56
    bomb[at : at + 8] = (1 << 29).to_bytes(8, "little")
    tracemalloc.start()
    with pytest.raises(FatbinError):
        read(bytes(bomb))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_compressed_code_of_no_bytes_is_refused_by_a_thread_that_has_decompressed_nothing() -> None:
    data = bytearray(fatbins.library(fatbins.region(Code(arch=80, kernels={"a": 1}, flags=LZ4))))
    decoded_size = bytes(data).index(b"\x50\xed\x55\xba") + 16 + 56
    data[decoded_size : decoded_size + 8] = bytes(8)

    with ThreadPoolExecutor(max_workers=1) as new_thread, pytest.raises(FatbinError):
        new_thread.submit(read, bytes(data)).result()


def resized(entry: bytes, *, size: int = 0, compressed: int = 0) -> bytes:
    """An entry whose header says that much more."""
    header = bytearray(entry[:64])
    for at, length, more in ((8, 8, size), (16, 4, compressed)):
        said = int.from_bytes(header[at : at + length], "little") + more
        header[at : at + length] = said.to_bytes(length, "little")
    return bytes(header) + entry[64:]


def region_of(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return fatbins.region()[:8] + len(body).to_bytes(8, "little") + body


def marked(code: Code) -> bytes:
    """An entry that says that its code was taken out."""
    return b"\x80\0" + fatbins.entry(code)[2:]


def of_entries(*entries: bytes) -> bytes:
    return fatbins.library(region_of(*entries))


CODINGS = {"plain": 0x11, "lz4": LZ4, "zstd": 0x8000}


def stored(flags: int, name: str = "a") -> bytes:
    """An entry without padding: what zstd made of it matters to nobody here."""
    made = fatbins.entry(
        Code(arch=80, kernels={name: 1}, flags=flags & ~0x8000 | (LZ4 if flags & 0x8000 else 0))
    )
    size = int.from_bytes(made[16:20], "little") or int.from_bytes(made[56:64], "little")
    header = bytearray(made[:64])
    header[8:16], header[40:48] = size.to_bytes(8, "little"), flags.to_bytes(8, "little")
    return bytes(header) + made[64 : 64 + size]


@pytest.mark.parametrize("flags", CODINGS.values(), ids=CODINGS)
def test_an_entry_ends_where_its_content_does_but_for_padding(flags: int) -> None:
    one, two = stored(flags), stored(flags, "b")
    for padding in range(8):
        (region,) = fatbin.read_regions(
            of_entries(resized(one, size=padding) + bytes(padding), two)
        )
        assert len(region.entries) == 2
    wrong = [resized(one, size=padding) + bytes(padding) for padding in range(8, 12)]
    wrong.append(resized(one, size=len(two)) + two)  # it takes in the next one
    wrong += (
        [resized(one, compressed=1) + two] if flags != CODINGS["plain"] else []
    )  # it stores more than it has room for
    for entries in wrong:
        with pytest.raises(FatbinError, match="and its content"):
            list(fatbin.read_regions(of_entries(entries)))


@pytest.mark.parametrize(("at", "value"), [(0, 0), (4, 1), (40, 1), (60, 0)])
def test_plain_machine_code_with_a_damaged_header_is_refused(at: int, value: int) -> None:
    entry = bytearray(stored(0x11))
    entry[64 + at] ^= value or 255
    with pytest.raises(FatbinError):
        list(fatbin.read_regions(of_entries(bytes(entry))))


def test_a_cubin_whose_program_headers_come_last_is_whole() -> None:
    entry = bytearray(stored(0x11))
    size = len(entry) - 64
    entry[64 + 32 : 64 + 40], entry[64 + 54 : 64 + 58] = size.to_bytes(8, "little"), b"\x38\0\x02\0"
    (region,) = fatbin.read_regions(of_entries(resized(bytes(entry), size=112) + bytes(112)))
    assert len(region.entries) == 1


@pytest.mark.parametrize("kind", [1, 8])
def test_a_cubin_with_a_section_outside_of_it_is_refused(kind: int) -> None:
    """But for one that takes no room in a file, like a kernel's shared memory."""
    content = fatbins.cubin({"k": 4000})
    data = bytearray(fatbins.library(fatbins.region(Code(arch=90, kernels={"k": 4000}))))
    row = data.index(content) + int.from_bytes(content[40:48], "little") + 3 * 64
    data[row + 4 : row + 8], data[row + 32 : row + 40] = (
        kind.to_bytes(4, "little"),
        (10**9).to_bytes(8, "little"),
    )
    if kind == 8:
        assert read(bytes(data)) == [[(90, "", False, {"k": 4000})]]
    else:
        with pytest.raises(FatbinError, match="outside of the file"):
            read(bytes(data))


def test_code_behind_the_mark_of_what_was_taken_out_is_no_entry_and_seen() -> None:
    there, gone = Code(arch=80, kernels={"a": 1}), Code(arch=86, kernels={"a": 1}, emptied=True)
    data = of_entries(*map(marked, (there, gone)), fatbins.entry(Code(arch=90, kernels={"a": 1})))
    (region,) = fatbin.read_regions(data)
    found = [
        [entry.arch for entry in entries]
        for entries in (region.entries, region.taken_out, region.hidden)
    ]
    assert found == [[90], [86], [80]]
