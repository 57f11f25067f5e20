"""Fat binaries are read as the driver chooses from them; damaged ones are refused."""

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
    """Return (arch, variant, is PTX, kernels with their sizes) of each entry of each region."""
    regions = []
    for region in fatbin.read_regions(data):
        rows = []
        for entry in region.entries:
            kernels = fatbin.read_kernels(data, entry)
            rows.append((entry.arch, entry.variant, entry.is_ptx, kernels))
        regions.append(rows)
    return regions


def entry_for(arch: int, *, ptx: bool = False, variant: str = "") -> Entry:
    """Return an entry that lies nowhere, for tests of what runs where."""
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
    for_the_linker = fatbins.library(region, section="__nv_relfatbin")
    for_the_host = fatbins.elf([(".text", 1, 0, b"code")], machine=62)

    assert read(for_the_linker) == []
    assert read(for_the_host) == []


@pytest.mark.parametrize(
    ("entry", "runs_on", "not_on"),
    [
        (entry_for(80), [80, 86, 89], [75, 90, 100]),
        (entry_for(86), [86, 89], [80, 90]),
        (entry_for(90, variant="a"), [90], [91, 100]),
        (entry_for(100, variant="f"), [100, 103], [90, 110, 120]),
        (entry_for(80, ptx=True), [80, 90, 120], [75]),
        (entry_for(90, ptx=True, variant="a"), [90], [100]),
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
    entries = (
        entry_for(80, ptx=True),
        entry_for(80),
        entry_for(86),
        entry_for(90),
        entry_for(90, variant="a"),
    )

    entry = fatbin.Region(0, entries).best_entry(target)

    assert entry is not None
    assert (entry.arch, "ptx" if entry.is_ptx else entry.variant) == chosen


def test_the_driver_takes_nothing_where_nothing_runs() -> None:
    assert fatbin.Region(0, (entry_for(80), entry_for(90, ptx=True))).best_entry(75) is None


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


def with_decoded_size(size: int) -> bytes:
    """Return a library whose only entry claims that its LZ4 decodes to so many bytes."""
    data = bytearray(fatbins.library(fatbins.region(Code(arch=80, kernels={"a": 1}, flags=LZ4))))
    # The size is the last field of the entry's header, which follows that of the region.
    begin = bytes(data).index(b"\x50\xed\x55\xba") + 16 + 56
    data[begin : begin + 8] = size.to_bytes(8, "little")
    return bytes(data)


def test_a_bomb_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = with_decoded_size(1 << 29)

    tracemalloc.start()
    with pytest.raises(FatbinError):
        read(bomb)
    _, most_memory = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most_memory < 1 << 20


def test_compressed_code_of_no_bytes_is_refused_by_a_thread_that_has_decompressed_nothing() -> None:
    data = with_decoded_size(0)

    with ThreadPoolExecutor(max_workers=1) as new_thread, pytest.raises(FatbinError):
        new_thread.submit(read, data).result()


def resized(entry: bytes, *, size: int = 0, compressed: int = 0) -> bytes:
    """Return an entry whose header claims so many more bytes than it has."""
    header = bytearray(entry[:64])
    for at, length, more in ((8, 8, size), (16, 4, compressed)):
        said = int.from_bytes(header[at : at + length], "little") + more
        header[at : at + length] = said.to_bytes(length, "little")
    return bytes(header) + entry[64:]


def region_of(*entries: bytes) -> bytes:
    """Return a region of entries that are made already."""
    body = b"".join(entries)
    return fatbins.region()[:8] + len(body).to_bytes(8, "little") + body


def marked(code: Code) -> bytes:
    """Return an entry with the mark of pruning, whether it still has its code or not."""
    return b"\x80\0" + fatbins.entry(code)[2:]


def of_entries(*entries: bytes) -> bytes:
    """Return a library with one region of entries that are made already."""
    return fatbins.library(region_of(*entries))


PLAIN, ZSTD = 0x11, 0x8000
CODINGS = {"plain": PLAIN, "lz4": LZ4, "zstd": ZSTD}


def stored(flags: int, name: str = "a") -> bytes:
    """Return an entry without padding. What is called zstd holds LZ4: nobody decodes it here."""
    code_flags = flags & ~ZSTD | (LZ4 if flags & ZSTD else 0)
    padded = fatbins.entry(Code(arch=80, kernels={name: 1}, flags=code_flags))
    # The compressed size, or the size of plain code.
    size = int.from_bytes(padded[16:20], "little") or int.from_bytes(padded[56:64], "little")
    header = bytearray(padded[:64])
    header[8:16] = size.to_bytes(8, "little")
    header[40:48] = flags.to_bytes(8, "little")
    return bytes(header) + padded[64 : 64 + size]


@pytest.mark.parametrize("flags", CODINGS.values(), ids=CODINGS)
def test_up_to_seven_bytes_of_padding_follow_the_content_of_an_entry(flags: int) -> None:
    first, second = stored(flags), stored(flags, "b")

    for padding in range(8):
        padded = resized(first, size=padding) + bytes(padding)
        (region,) = fatbin.read_regions(of_entries(padded, second))
        assert len(region.entries) == 2


@pytest.mark.parametrize("flags", CODINGS.values(), ids=CODINGS)
def test_an_entry_that_is_longer_than_its_content_is_refused(flags: int) -> None:
    first, second = stored(flags), stored(flags, "b")
    too_long = [resized(first, size=padding) + bytes(padding) for padding in range(8, 12)]
    takes_in_the_next = resized(first, size=len(second)) + second
    wrong = [*too_long, takes_in_the_next]
    if flags != PLAIN:
        stores_more_than_it_has_room_for = resized(first, compressed=1) + second
        wrong.append(stores_more_than_it_has_room_for)

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
