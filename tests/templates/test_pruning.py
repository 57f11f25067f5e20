"""Pruning takes out code that one GPU architecture has no use for, and nothing else.

Damaged files are refused, and not changed.
"""

import csv
import json
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.config.matrix import load
from images.context import pruner
from images.planning import plan
from tests.support import fatbins
from tests.support.checkout import ROOT, script
from tests.support.fatbins import FAMILY, LZ4, SPECIFIC, Code
from tests.support.wheels import record_hash
from validate.binaries import fatbin
from validate.binaries.kernel_states import Excuses, KernelByDesign

pruning = script(ROOT / "templates" / "pruner" / "pruning.py")
NONE = Excuses(())
"""No kernel is excused. (None in its place: the library is NVIDIA's own.)"""


def pruned(data: bytes, arch: int = 90, excuses: Excuses | None = NONE) -> bytes:
    """Return a library as prune_file would leave it."""
    result = bytearray(data)
    cut = pruning.cut(data, arch, excuses)
    for begin, end in cut.spans:
        result[begin:end] = bytes(end - begin)
    for at in cut.marks:
        result[at : at + 2] = b"\x80\0"
    return bytes(result)


def left(data: bytes) -> list[set[str]]:
    """Return the code that each region still has: `sm90a`, `ptx80`."""
    regions = []
    for region in fatbin.read_regions(data, fatbin.ALL_SECTIONS):
        names = set()
        for entry in region.entries:
            if not fatbin.is_emptied(data, entry):
                names.add(f"{'ptx' if entry.is_ptx else 'sm'}{entry.arch}{entry.variant}")
        regions.append(names)
    return regions


K = {"kernel": 4000}
"""A kernel that is large enough to be no stub."""


def code(arch: int, *, ptx: bool = False, flags: int = 0x11) -> Code:
    """Return code for an architecture that has the kernel K."""
    return Code(arch=arch, kernels=K, ptx=ptx, flags=flags)


@pytest.mark.parametrize(
    ("codes", "kept"),
    [
        ([code(80), code(90), code(100), code(90, ptx=True)], {"sm90"}),
        ([code(90), code(90, flags=SPECIFIC), code(80)], {"sm90", "sm90a"}),
        ([code(80), code(90, flags=SPECIFIC | LZ4), code(80, ptx=True)], {"sm90a"}),
        ([code(80), code(86), code(80, ptx=True), code(75, ptx=True)], {"ptx80"}),
        ([code(80), code(80, ptx=True), code(100, ptx=True)], {"ptx80"}),
        ([code(80), code(90, ptx=True, flags=SPECIFIC), code(80, ptx=True)], {"ptx90a"}),
        ([code(80), code(100)], {"sm80", "sm100"}),
        ([code(80, ptx=True), code(100), code(100, ptx=True)], {"ptx80"}),
    ],
)
def test_exact_code_stays_else_what_serves_in_its_place(codes: list[Code], kept: set[str]) -> None:
    assert left(pruned(fatbins.library(fatbins.region(*codes)))) == [kept]


@pytest.mark.parametrize(
    ("arch", "codes", "kept"),
    [
        (89, [code(80), code(86), code(90), code(80, ptx=True)], {"sm86"}),
        (89, [code(80), code(86, flags=SPECIFIC), code(90)], {"sm80"}),
        (103, [code(100, flags=FAMILY), code(90), code(90, ptx=True)], {"sm100f"}),
        (
            100,
            [code(100, flags=FAMILY), code(100, flags=SPECIFIC), code(103)],
            {"sm100f", "sm100a"},
        ),
        (75, [code(80), code(70), code(80, ptx=True)], {"sm70"}),
    ],
)
def test_the_best_of_the_same_major_stands_in(arch: int, codes: list[Code], kept: set[str]) -> None:
    assert left(pruned(fatbins.library(fatbins.region(*codes)), arch)) == [kept]


def test_each_region_of_each_section_is_pruned_by_itself() -> None:
    with_90 = fatbins.region(code(80), code(90))
    without_90 = fatbins.region(code(80), code(80, ptx=True))
    sections = [
        (".nv_fatbin", 1, 0, with_90 + without_90),
        ("__nv_relfatbin", 1, 0, with_90),
        (".nv_fatbin", 1, 0, with_90),
    ]
    data = fatbins.elf(sections, machine=62)

    assert left(pruned(data)) == [{"sm90"}, {"ptx80"}, {"sm90"}, {"sm90"}]


@pytest.mark.parametrize("kind", [4, 8, 64, 0x80])
def test_entries_of_unknown_kinds_stay(kind: int) -> None:
    sm80, sm90 = fatbins.entry(code(80)), fatbins.entry(code(90))
    unknown = kind.to_bytes(2, "little") + sm80[2:]
    entries = sm80 + sm90 + unknown
    region = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
    before = fatbins.library(region)

    after = pruned(before)

    assert unknown in after
    assert sm80 in before and sm80 not in after


def many(*archs: int, size: int = 4000, **more: int) -> list[Code]:
    """Return code for each of these architectures, with a kernel `k` and the kernels in `more`."""
    return [Code(arch=arch, kernels={"k": size, **more}) for arch in archs]


FAULTY = {
    "a kernel without code": [*many(80, 100)],
    "PTX for newer GPUs alone": [Code(arch=100, kernels=K, ptx=True)],
    "a stub": [*many(80), *many(90, size=16)],
    "one kernel is left out": [*many(80, lone=4000), *many(90)],
    "its PTX lacks a kernel": [*many(80, lone=4000), Code(arch=80, kernels=K, ptx=True)],
    "code emptied upstream": [*many(80), Code(arch=90, kernels=K, emptied=True)],
}


@pytest.mark.parametrize("codes", FAULTY.values(), ids=FAULTY)
def test_a_region_with_a_fault_stays_whole_and_the_others_do_not(codes: list[Code]) -> None:
    faulty, sound = fatbins.region(*codes), fatbins.region(code(80), code(90))

    after = pruned(fatbins.library(sound, faulty))

    assert faulty in after
    assert left(after)[0] == {"sm90"}


def test_a_kernel_that_is_for_another_gpu_by_its_name_is_no_fault() -> None:
    data = fatbins.library(fatbins.region(*many(80, gemm_sm80=4000), *many(90)))

    assert left(pruned(data)) == [{"sm90"}]


def test_a_kernel_that_a_row_excuses_is_no_fault() -> None:
    data = fatbins.library(fatbins.region(*many(80, wide=4000), *many(90)))
    row: KernelByDesign = {"kernels": "wi*", "needed": [[80, 89]], "reason": "-"}

    assert left(pruned(data)) == [{"sm80", "sm90"}]
    assert left(pruned(data, excuses=Excuses([row]))) == [{"sm90"}]


def test_a_region_of_nvidias_libraries_may_lose_all_its_code() -> None:
    """Regions without code for a GPU are common there. So the library is judged as a whole."""
    sound, other = fatbins.region(code(80), code(90)), fatbins.region(code(80), code(100))
    library = fatbins.library(sound, other)

    assert left(pruned(library, excuses=None)) == [{"sm90"}, set()]


def test_a_library_of_nvidias_without_any_code_for_the_gpu_stays_whole() -> None:
    """It is a fault, which `device-code` must see."""
    sound, other = fatbins.region(code(80), code(90)), fatbins.region(code(80), code(100))
    emptied = fatbins.region(code(80), Code(arch=90, kernels=K, emptied=True))
    for_the_linker_only = fatbins.elf(
        [(".nv_fatbin", 1, 0, other), ("__nv_relfatbin", 1, 0, sound)], machine=62
    )

    for library in (fatbins.library(other), fatbins.library(emptied), for_the_linker_only):
        assert pruned(library, excuses=None) == library


def test_code_for_the_device_linker_is_taken_out_whatever_is_left() -> None:
    """`device-code` does not look at it, because the driver never sees it."""
    data = fatbins.library(fatbins.region(code(80), code(100)), section="__nv_relfatbin")

    assert left(pruned(data)) == [set()]


def without_sections(data: bytes) -> bytes:
    """Return a library as `sstrip` leaves it. Loaders need no section headers."""
    return data[:40] + bytes(8) + data[48:58] + bytes(6) + data[64:]


BITS_32 = b"\x7fELF\x01\x01\x01" + bytes(200)


@pytest.mark.parametrize("content", [BITS_32, BITS_32[:8], b"\x7fELF\x01"])
def test_a_32_bit_helper_is_let_be(tmp_path: Path, content: bytes) -> None:
    files = {"pkg/helper.so": content, "pkg/lib.so": GOOD}
    prune(install(tmp_path, "pkg", files))
    assert (tmp_path / "pkg/helper.so").read_bytes() == content
    assert (tmp_path / "pkg/lib.so").read_bytes() == pruned(GOOD)


def test_a_library_without_section_headers_is_let_be(tmp_path: Path) -> None:
    files = {
        "pkg/stripped.so": without_sections(GOOD),
        "pkg/host.so": without_sections(fatbins.elf([], machine=62)),
    }
    record = install(tmp_path, "pkg", files)
    prune(record)
    assert list(as_recorded(record)) == [*files, "pkg-1.0.dist-info/RECORD"]


CODES = st.builds(
    code,
    st.sampled_from([50, 75, 80, 86, 90, 100, 103, 120]),
    ptx=st.booleans(),
    flags=st.sampled_from([0x11, LZ4, SPECIFIC, FAMILY, LZ4 | SPECIFIC]),
)
LIBRARIES = st.lists(st.lists(CODES, max_size=6), max_size=4).map(
    lambda regions: fatbins.library(*(fatbins.region(*codes) for codes in regions))
)


@settings(max_examples=300)
@given(LIBRARIES, st.sampled_from([75, 80, 86, 89, 90, 100, 103, 120]))
def test_nothing_moves_nothing_else_changes_and_twice_is_once(data: bytes, arch: int) -> None:
    cut, after = pruning.cut(data, arch, NONE), pruned(data, arch)

    # Only the code that is cut and the marks may change.
    assert len(after) == len(data)
    before_without_cut, after_without_cut = bytearray(data), bytearray(after)
    marks = [(offset, offset + 2) for offset in cut.marks]
    for begin, end in (*cut.spans, *marks):
        before_without_cut[begin:end] = after_without_cut[begin:end] = bytes(end - begin)
    assert before_without_cut == after_without_cut
    assert pruning.cut(after, arch, NONE).entries == ()
    for before, region in zip(
        fatbin.read_regions(data, fatbin.ALL_SECTIONS),
        fatbin.read_regions(after, fatbin.ALL_SECTIONS),
        strict=True,
    ):
        assert region.entries == (before.needed_entries(arch) or before.entries)
        assert region.best_entry(arch) == before.best_entry(arch)
        for entry in region.entries:
            assert fatbin.read_kernels(after, entry) == fatbin.read_kernels(data, entry)
        assert len(region.entries) + len(region.taken_out) == len(before.entries)
        assert all(fatbin.is_emptied(after, entry) for entry in region.taken_out)


GOOD = fatbins.elf(
    [
        (".text", 1, 0, b"machine code of the host" * 9),
        (
            ".nv_fatbin",
            1,
            0,
            fatbins.region(code(80, flags=LZ4), code(90))
            + bytes(8)
            + fatbins.region(code(80), code(86)),
        ),
        ("__nv_relfatbin", 1, 0, fatbins.region(code(75), code(90, ptx=True))),
        (".data", 1, 0, b"constants" * 20),
    ],
    machine=62,
)


@settings(max_examples=600)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_a_damaged_file_is_refused_or_only_loses_code_of_its_entries(
    changes: list[tuple[int, int]],
) -> None:
    damaged = bytearray(GOOD)
    for position, value in changes:
        damaged[position] = value
    try:
        after = pruned(bytes(damaged))
    except fatbin.FatbinError:
        return
    assert len(after) == len(damaged)
    text, data = GOOD.index(b"machine code"), GOOD.index(b"constants")
    assert after[: text + 216] == damaged[: text + 216]
    assert after[data:] == damaged[data:]


@pytest.mark.parametrize("excuses", [NONE, None], ids=["by kernel", "as NVIDIA's"])
@pytest.mark.parametrize("flags", [0x11, LZ4])
def test_no_damaged_header_takes_the_code_that_was_asked_for(
    flags: int, excuses: Excuses | None
) -> None:
    """Whatever one byte of the headers says: the file is refused, or the code for sm_90 stays.

    It may go only if the damaged header says that the code is for another architecture.
    """
    sm80, sm90 = code(80, flags=flags), code(90, flags=flags)
    good = fatbins.library(fatbins.region(sm90), fatbins.region(sm80, sm90))
    first = good.index(fatbins.entry(sm80))
    second = first + len(fatbins.entry(sm80))
    for position in (*range(first, first + 64), *range(second, second + 64)):
        for value in range(0, 256, 5):
            damaged = bytearray(good)
            damaged[position] ^= value
            try:
                after = pruned(bytes(damaged), excuses=excuses)
            except fatbin.FatbinError:
                continue
            arch = int.from_bytes(damaged[second + 28 : second + 32], "little")
            may_go = excuses is None and arch != 90
            stays = after[second + 64 :] == good[second + 64 :]
            assert stays or may_go, (position, value)


@pytest.mark.parametrize("cut", range(1, len(GOOD), 211))
def test_a_file_that_ends_too_early_is_refused(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(GOOD[:cut])
    if cut < 4:
        assert pruning.plan_file(file, 90, NONE).entries == ()
        return
    with pytest.raises(pruning.PruningError, match=r"lib\.so"):
        pruning.plan_file(file, 90, NONE)


def with_section(data: bytes, index: int, *, offset: int, size: int) -> bytes:
    """Return a library in which a section is said to lie elsewhere."""
    at = int.from_bytes(data[40:48], "little") + index * 64 + 24
    return data[:at] + offset.to_bytes(8, "little") + size.to_bytes(8, "little") + data[at + 16 :]


REGION = fatbins.region(code(80), code(90))


def over_the_section_headers() -> bytes:
    """Return a library whose section headers lie inside its device code."""
    data = bytearray(fatbins.elf([(".nv_fatbin", 1, 0, REGION + bytes(200))], machine=62))
    table, inside = int.from_bytes(data[40:48], "little"), 64 + len(REGION) + 8
    data[inside : inside + 192] = data[table : table + 192]
    data[40:48] = inside.to_bytes(8, "little")
    return bytes(data)


WITH_DATA = fatbins.elf([(".nv_fatbin", 1, 0, REGION), (".data", 1, 0, b"constants")], machine=62)


@pytest.mark.parametrize(
    "data",
    [
        with_section(WITH_DATA, 2, offset=80, size=9),
        with_section(fatbins.library(REGION), 1, offset=0, size=64),
        over_the_section_headers(),
    ],
    ids=["another section", "the file's own header", "the section headers"],
)
def test_code_over_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(fatbin.FatbinError, match="overlaps with something else"):
        pruning.cut(data, 90, NONE)


@pytest.mark.parametrize("second", [".nv_fatbin", "__nv_relfatbin"])
def test_two_sections_of_code_over_one_another_are_refused(second: str) -> None:
    good = fatbins.elf([(".nv_fatbin", 1, 0, REGION), (second, 1, 0, REGION)], machine=62)
    assert len(pruning.cut(good, 90, NONE).entries) == 2
    with pytest.raises(fatbin.FatbinError, match="sections of device code overlap"):
        pruning.cut(with_section(good, 2, offset=64, size=len(REGION)), 90, NONE)


def install(site: Path, name: str, files: dict[str, bytes], end: str = "\n") -> Path:
    """Write the files of a package and its RECORD, and return the RECORD.

    `end`: the end of its lines.
    """
    rows = []
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        rows.append(f"{path},{record_hash(content)},{len(content)}")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    record = info / "RECORD"
    record.write_bytes("".join(f"{row}{end}" for row in [*rows, f"{info.name}/RECORD,,"]).encode())
    return record


def as_recorded(record: Path) -> Iterator[str]:
    """Yield the paths of a RECORD. Raises AssertionError for a file with another hash or size."""
    for path, digest, size in csv.reader(record.read_text().splitlines()):
        if digest:
            content = (record.parent.parent / path).read_bytes()
            assert (digest, int(size)) == (record_hash(content), len(content)), path
        yield path


def prune(*records: Path, **options: object) -> list[str]:
    """Prune packages, and return the paths of the files that changed."""
    changes: list[Any] = []
    all_options = pruning.PruneOptions(**{"arch": 90, "nvidia": False, **options})
    pruning.prune_packages(records, all_options, changes.append)
    return [change.path for change in changes]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_package_is_pruned_and_its_record_stays_true(tmp_path: Path, end: str) -> None:
    files = {
        "pkg/__init__.py": b"",
        "pkg/lib.so.1": GOOD,
        "pkg/host.so": fatbins.elf([], machine=62),
        "pkg/x.so": b"INPUT(-lc)",
    }
    record = install(tmp_path, "pkg", files, end)
    before = record.read_bytes().split(end.encode())

    changed = prune(record)
    changed_by_second_run = prune(record)

    assert (tmp_path / "pkg/lib.so.1").read_bytes() == pruned(GOOD)
    assert list(as_recorded(record)) == [*files, "pkg-1.0.dist-info/RECORD"]
    after = record.read_bytes().split(end.encode())
    changed_lines = [old for old, new in zip(before, after, strict=True) if old != new]
    assert changed_lines == [before[1]]
    assert changed == ["pkg/lib.so.1"]
    assert not changed_by_second_run


def test_mode_times_and_the_other_name_of_a_hard_link_stay(tmp_path: Path) -> None:
    record = install(tmp_path, "pkg", {"lib.so": GOOD})
    file, cache = tmp_path / "lib.so", tmp_path / "cache"
    cache.hardlink_to(file)
    file.chmod(0o751)
    os.utime(file, (1, 2))

    prune(record)

    status = file.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o751, 2)
    assert cache.read_bytes() == GOOD and file.read_bytes() == pruned(GOOD)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cache",
        "lib.so",
        "pkg-1.0.dist-info",
    ]


def test_a_link_to_a_library_stays_a_link(tmp_path: Path) -> None:
    record = install(tmp_path, "pkg", {"pkg/lib.so.1": GOOD, "pkg/lib.so": b""})
    link = tmp_path / "pkg/lib.so"
    link.unlink()
    link.symlink_to("lib.so.1")
    assert prune(record) == ["pkg/lib.so.1"]
    assert link.is_symlink() and link.read_bytes() == pruned(GOOD)


def test_what_is_taken_out_takes_no_disk(tmp_path: Path) -> None:
    many_kernels = {f"k{number}_sm80": 9 for number in range(30_000)}
    big = fatbins.library(fatbins.region(Code(arch=80, kernels=many_kernels), code(90)))
    record = install(tmp_path, "pkg", {"lib.so": big})
    before = (tmp_path / "lib.so").stat()

    prune(record)

    after = (tmp_path / "lib.so").stat()
    assert after.st_size == before.st_size > 700_000
    assert after.st_blocks < before.st_blocks / 10


def test_one_bad_file_leaves_every_package_as_it_was(tmp_path: Path) -> None:
    bad = bytearray(GOOD)
    bad[GOOD.index(b"\x50\xed\x55\xba")] = 0
    first = install(tmp_path, "one", {"one/lib.so": GOOD})
    second = install(tmp_path, "two", {"two/lib.so": bytes(bad)})

    with pytest.raises(pruning.PruningError, match=r"two/lib\.so"):
        prune(first, second)

    assert (tmp_path / "one/lib.so").read_bytes() == GOOD
    assert (tmp_path / "two/lib.so").read_bytes() == bad
    assert not list(tmp_path.rglob("*.pruning"))


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = install(tmp_path, "pkg", {"lib.so": GOOD})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    with pytest.raises(pruning.PruningError, match="No space left"):
        prune(record)
    assert (tmp_path / "lib.so").read_bytes() == GOOD
    assert not list(tmp_path.rglob("*.pruning"))


def test_a_record_that_finds_the_disk_full_stays_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel writes what fits, and says so only by how much it wrote."""
    record = install(tmp_path, "pkg", {"lib.so": GOOD})
    before, whole, written = record.read_bytes(), os.pwrite, []

    def full(target: int, content: bytes, at: int) -> int:
        if len(content) == 2:
            return whole(target, content, at)
        if written:
            raise OSError(28, "No space left on device")
        written.append(whole(target, content[:20], at))
        return written[0]

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(pruning.PruningError, match=r"RECORD: .*No space left"):
        prune(record)
    assert written and record.read_bytes() == before
    assert not list(tmp_path.rglob("*.pruning"))


@pytest.mark.parametrize(
    "line", [b"pkg/\xff.py,,\n", b'"' + b"x" * 200_000 + b'",,\n'], ids=["no UTF-8", "no csv"]
)
def test_a_record_that_is_no_text_is_named(tmp_path: Path, line: bytes) -> None:
    record = install(tmp_path, "pkg", {"lib.so": GOOD})
    record.write_bytes(before := record.read_bytes() + line)
    with pytest.raises(pruning.PruningError, match="RECORD: "):
        prune(record)
    assert (record.read_bytes(), (tmp_path / "lib.so").read_bytes()) == (before, GOOD)


NVIDIAS = {"nvidia/cublas/lib/libcublas.so.12": GOOD}


@pytest.mark.parametrize(
    ("name", "files"),
    [("nvidia_cublas_cu12", NVIDIAS), ("torch", {"torch/lib/libcublas.so.12": GOOD})],
)
def test_nvidias_own_libraries_are_pruned_only_where_the_matrix_says_so(
    tmp_path: Path, name: str, files: dict[str, bytes]
) -> None:
    record = install(tmp_path, name, files)
    (path,) = files
    prune(record)
    assert (tmp_path / path).read_bytes() == GOOD
    prune(record, nvidia=True)
    assert (tmp_path / path).read_bytes() == pruned(GOOD, excuses=None)
    list(as_recorded(record))


def test_libraries_that_nothing_loads_are_removed_with_their_lines(tmp_path: Path) -> None:
    names = [f"bnb/lib_{variant}.so" for variant in ("cuda118", "cuda126", "cpu", "rocm62")]
    record = install(tmp_path, "bnb", {"bnb/__init__.py": b"", **dict.fromkeys(names, GOOD)})
    keep = ("bnb/lib_cuda126.so", "bnb/lib_cpu.so")
    alternatives = pruning.Alternatives(files="bnb/lib_*.so", keep=keep)

    prune(record, alternatives=(alternatives,))

    assert list(as_recorded(record)) == ["bnb/__init__.py", *keep, "bnb-1.0.dist-info/RECORD"]
    assert sorted(path.name for path in (tmp_path / "bnb").iterdir()) == [
        "__init__.py",
        "lib_cpu.so",
        "lib_cuda126.so",
    ]


def test_a_library_that_two_packages_list_is_removed_for_both(tmp_path: Path) -> None:
    files = {"bnb/lib_cuda118.so": GOOD, "bnb/lib_cpu.so": GOOD}
    records = [install(tmp_path, name, files) for name in ("one", "two")]
    alternatives = pruning.Alternatives(files="bnb/lib_*.so", keep=("bnb/lib_cpu.so",))

    prune(*records, alternatives=(alternatives,))

    for record in records:
        assert list(as_recorded(record)) == ["bnb/lib_cpu.so", f"{record.parent.name}/RECORD"]
    assert not (tmp_path / "bnb/lib_cuda118.so").exists()


def test_alternatives_without_the_one_that_is_needed_are_refused(tmp_path: Path) -> None:
    record = install(tmp_path, "bnb", {"bnb/lib_cuda118.so": GOOD})
    alternatives = pruning.Alternatives(files="bnb/lib_*.so", keep=("bnb/lib_cuda126.so",))

    with pytest.raises(pruning.PruningError, match=r"lib_cuda126\.so should stay"):
        prune(record, alternatives=(alternatives,))

    assert (tmp_path / "bnb/lib_cuda118.so").exists()


def program(folder: Path) -> tuple[Path, Path]:
    """Write the pruner as a build step has it, and return an environment for it to prune.

    Returns the environment's interpreter and its folder of packages.
    """
    (planned,) = plan.select(["cu126-torch27-sm90"], load())
    assert planned.image and planned.image.pruning
    for path, content in pruner.files(planned.image.pruning).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(
            content.replace(b'"/run/before"', repr(str(folder / "before")).encode())
        )
    (folder / "before").write_bytes(b"")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    return folder / "venv/bin/python", site


def test_the_program_prunes_what_this_step_installed(tmp_path: Path) -> None:
    """It runs by the environment's interpreter, with nothing but the files of the context."""
    python, site = program(tmp_path)
    files = {}
    for variant in ("cuda118", "cuda126", "cpu"):
        files[f"bitsandbytes/libbitsandbytes_{variant}.so"] = GOOD
    record = install(site, "bitsandbytes", files)

    process = subprocess.run(
        [python, "-I", "-B", tmp_path / "pruner"], capture_output=True, text=True
    )

    assert process.returncode == 0, process.stderr
    assert "libbitsandbytes_cuda118.so: removed" in process.stdout
    assert "libbitsandbytes_cuda126.so:" in process.stdout
    assert len(list(as_recorded(record))) == 3
    assert not list(tmp_path.rglob("__pycache__/pruning*"))


def test_the_program_names_a_damaged_file_and_fails(tmp_path: Path) -> None:
    python, site = program(tmp_path)
    install(site, "damaged", {"damaged/lib.so": GOOD[:-1]})

    process = subprocess.run(
        [python, "-I", "-B", tmp_path / "pruner"], capture_output=True, text=True
    )

    assert process.returncode == 1
    assert "damaged/lib.so" in process.stderr and "Traceback" not in process.stderr


def test_what_earlier_steps_installed_is_let_be(tmp_path: Path) -> None:
    """Their layer is made already: a second copy of a library in this one would only add to it."""
    python, site = program(tmp_path)
    old = install(site, "old", {"old/lib.so": GOOD})
    before = old.read_bytes()
    begin = ["sh", ROOT / "templates/scripts/record_change_times.sh", tmp_path, tmp_path / "before"]
    subprocess.run(begin, check=True)
    install(site, "new", {"new/lib.so": GOOD})
    subprocess.run([python, "-I", "-B", tmp_path / "pruner"], check=True, capture_output=True)
    assert (site / "old/lib.so").read_bytes() == GOOD and old.read_bytes() == before
    assert (site / "new/lib.so").read_bytes() == pruned(GOOD)


def test_kernels_are_excused_by_the_rows_of_their_own_package(tmp_path: Path) -> None:
    python, site = program(tmp_path)
    row: KernelByDesign = {"kernels": "wide*", "needed": [[80, 89]], "reason": "-"}
    options_file = tmp_path / "pruner/options.json"
    options = {**json.loads(options_file.read_text()), "by_design": {"flash-attn": [row]}}
    options_file.write_text(json.dumps(options))
    data = fatbins.library(fatbins.region(*many(80, wide=4000), *many(90)))
    for name in ("flash_attn", "other"):
        install(site, name, {f"{name}/lib.so": data})
    subprocess.run([python, "-I", "-B", tmp_path / "pruner"], check=True, capture_output=True)
    assert (site / "other/lib.so").read_bytes() == data
    assert (site / "flash_attn/lib.so").read_bytes() == pruned(data, excuses=Excuses([row])) != data
