"""Fat binaries are read as the driver would choose from them; damaged ones are refused, and never hang."""

from __future__ import annotations

import contextlib
import tracemalloc

import fatbins
import pytest
from fatbins import FAMILY, LZ4, SPECIFIC, Code
from hypothesis import given, settings
from hypothesis import strategies as st

from validate import fatbin, lz4
from validate.fatbin import Entry, FatbinError
from validate.mangled import readable


def read(data: bytes) -> list[list[tuple[int, str, bool, dict[str, int]]]]:
    return [
        [
            (
                entry.arch,
                entry.variant,
                entry.ptx,
                {name: kernel.size for name, kernel in fatbin.kernels(data, entry).items()},
            )
            for entry in region.entries
        ]
        for region in fatbin.regions(data)
    ]


def of(arch: int, *, ptx: bool = False, variant: str = "") -> Entry:
    return Entry(ptx=ptx, arch=arch, variant=variant, at=0, offset=0, stored=0, room=0, whole=0, coding="")


def test_every_region_entry_and_kernel_is_found() -> None:
    data = fatbins.library(
        fatbins.region(
            Code(arch=80, kernels={"a": 128, "b": 256}), Code(arch=90, kernels={"a": 64}, flags=LZ4 | SPECIFIC)
        ),
        fatbins.region(Code(arch=100, kernels={"c": 32}, flags=FAMILY), Code(arch=80, kernels={"c": 0}, ptx=True)),
    )
    assert read(data) == [
        [(80, "", False, {"a": 128, "b": 256}), (90, "a", False, {"a": 64})],
        [(100, "f", False, {"c": 32}), (80, "", True, {"c": 0})],
    ]


def test_code_for_the_device_linker_is_not_counted() -> None:
    region = fatbins.region(Code(arch=90, kernels={"a": 1}, ptx=True))
    assert read(fatbins.library(region, section="__nv_relfatbin")) == []


def test_a_library_without_device_code_has_no_region() -> None:
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
    ("target", "chosen"), [(80, (80, "")), (86, (86, "")), (89, (86, "")), (90, (90, "a")), (120, (80, "ptx"))]
)
def test_the_driver_takes_machine_code_before_ptx_and_the_nearest(target: int, chosen: tuple[int, str]) -> None:
    entries = (of(80, ptx=True), of(80), of(86), of(90), of(90, variant="a"))
    entry = fatbin.Region(0, entries).serving(target)
    assert entry is not None
    assert (entry.arch, "ptx" if entry.ptx else entry.variant) == chosen


def test_no_entry_serves_an_older_gpu() -> None:
    assert fatbin.Region(0, (of(80), of(90, ptx=True))).serving(75) is None


def test_emptied_code_is_seen() -> None:
    data = fatbins.library(fatbins.region(Code(arch=80, kernels={"a": 9}, emptied=True)))
    (region,) = fatbin.regions(data)
    assert fatbin.is_emptied(data, region.entries[0])


GOOD = fatbins.library(
    fatbins.region(Code(arch=80, kernels={"a": 1, "b": 2}, flags=LZ4), Code(arch=90, kernels={"a": 3}))
)


@pytest.mark.parametrize("cut", range(0, len(GOOD), 37))
def test_a_cut_file_is_refused_or_read_as_far_as_it_goes(cut: int) -> None:
    try:
        read(GOOD[:cut])
    except FatbinError:
        return
    assert cut == 0 or GOOD[:cut][:4] != b"\x7fELF"


@settings(max_examples=400, deadline=2000)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_corrupted_bytes_never_hang_or_fill_memory(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for position, value in changes:
        data[position] = value
    with contextlib.suppress(FatbinError):
        read(bytes(data))


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


def test_without_native_decoders_lz4_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(GOOD)
    monkeypatch.setattr(fatbin, "_native", lambda *_: None)
    fatbin._native_lz4.cache_clear()
    assert read(GOOD) == expected
    fatbin._native_lz4.cache_clear()


# ---- LZ4

MATCHES = b"\x34abc\x03\x00" + b"\x10d" + b"\x50vwxyz"


def test_overlapping_matches_repeat() -> None:
    assert lz4.decompress(b"\x34abc\x03\x00\x50vwxyz", 16) == b"abcabcabcabvwxyz"


def test_long_lengths_go_on() -> None:
    data = bytes(range(256)) * 3
    assert lz4.decompress(fatbins.lz4_literals(data), len(data)) == data


@given(st.binary(max_size=300), st.integers(0, 5000))
def test_any_bytes_decode_to_the_size_promised_or_are_refused(block: bytes, size: int) -> None:
    with contextlib.suppress(lz4.Lz4Error):
        assert len(lz4.decompress(block, size)) == size


@given(st.binary(max_size=2000))
def test_what_was_packed_comes_out(data: bytes) -> None:
    assert lz4.decompress(fatbins.lz4_literals(data), len(data)) == data


# ---- names


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN2at6native5copy_ERKNS_6TensorE", "at::native::copy_"),
        ("_ZNK3c1010TensorImpl5sizesEv", "c10::TensorImpl::sizes"),
        ("_ZTVN5torch8autograd4NodeE", "vtable of torch::autograd::Node"),
        ("_Z35kOptimizerStatic8bit1StateBlockwiseIfLi0EE", "kOptimizerStatic8bit1StateBlockwise"),
        ("_ZSt4cout", "std::cout"),
        (
            "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnBwdSm90INS1_14CollectiveMain",
            "cutlass::device_kernel<flash::enable_sm90_or_later<FlashAttnBwdSm90<CollectiveMain>>>",
        ),
        ("PyFloat_FromDouble", "PyFloat_FromDouble"),
        ("_ZN", "_ZN"),
        ("_ZN9999x", "_ZN9999x"),
    ],
)
def test_symbols_are_made_readable(symbol: str, name: str) -> None:
    assert readable(symbol) == name
