"""symbols and device-code on small environments: what a library lacks of symbols, and a kernel of code, is named."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from images.planning import expectations
from tests.support import elves, fatbins
from tests.support.fatbins import LZ4, SPECIFIC, Code
from tests.support.judging import fails, says
from tests.validate.binaries.test_fatbin import marked, region_of
from tests.validate.checks.test_static_probes import Site, claim, judged, site
from validate.binaries import dynsym, fatbin
from validate.checks.static import devicecode, symbols
from validate.judging import Status

__all__ = ["site"]
HOST = ["libcuda.so.1"]

# ---- `symbols`


def linked(**row: Any) -> Any:
    return claim("symbols", "resolved", "symbols", host=HOST, exceptions=[row] if row else [])


def library(**parts: Any) -> bytes:
    return elves.make(runpath="$ORIGIN", **parts)


def test_symbols_of_the_closure_the_interpreter_and_the_driver_are_there(site: Site) -> None:
    fails(judged(symbols, linked()), "there is no library whose symbols could be looked up")
    one = library(
        needed=["two.so", "libcuda.so.1"], undefined=["of_two", "cuInit", "PyLong_FromLong"]
    )
    site.install(
        "pkg",
        "1.0",
        {"pkg/one.so": one, "pkg/two.so": library(exports=["of_two"], weak=["nowhere"])},
    )
    assert judged(symbols, linked()).status is Status.PASS


@pytest.mark.parametrize(
    "undefined",
    ["_ZN3c1010TensorImpl5sizesEv", "cuInit", "plain"],
)
def test_an_undefined_symbol_is_named_with_its_library(site: Site, undefined: str) -> None:
    """Without the driver among its needs, a driver's symbol is as undefined as any other."""
    site.install("pkg", "1.0", {"pkg/one.so": library(undefined=[undefined])})
    fails(judged(symbols, linked()), "pkg/one.so of pkg", undefined)


def test_a_version_that_the_library_does_not_define_is_named(site: Site) -> None:
    wanting = library(needed=["libx.so.1"], needs_versions={"libx.so.1": ["X_1", "X_9"]})
    having = library(soname="libx.so.1", defines_versions=["libx.so.1", "X_1"])
    site.install("pkg", "1.0", {"pkg/one.so": wanting, "pkg/libx.so.1": having})
    fails(judged(symbols, linked()), "X_9 of libx.so.1")


def test_an_exception_excuses_its_symbols_alone(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/one.so": library(undefined=["plugin_entry"])})
    row = {"path": "pkg/one.so", "reason": "-"}
    assert judged(symbols, linked(**row, symbols=["plugin_*"])).status is Status.PASS
    assert judged(symbols, linked(**row, symbols=["other_*"])).status is Status.FAIL


REAL, STUB = 8000, 128


def code_claim(archs: dict[str, str], *, kind: str = "kernels", **more: Any) -> Any:
    expect = {"files": ["pkg/lib.so"], "also": [], "archs": archs, "known_gaps": [], "kind": kind}
    expect = {**expect, **({"by_design": []} if kind == "kernels" else {}), **more}
    return claim("device-code", "pkg", "devicecode", **expect)


def install(site: Site, *regions: bytes) -> None:
    site.install("pkg", "1.0", {"pkg/lib.so": fatbins.library(*regions)})


def code(arch: int, name: str = "k", size: int = REAL, **more: Any) -> Code:
    return Code(arch=arch, kernels={name: size}, **more)


CUBINS = {"80": "cubin", "90": "cubin"}
BWD = "_ZN5flash3bwdEv"
PTX_80 = code(80, size=0, ptx=True)
ONLY = fatbins.region(code(80, emptied=True), code(90))
ALL = fatbins.region(code(80), code(90))
ONLY_PTX = fatbins.library(fatbins.region(code(80), PTX_80))
GAP = {"file": "pkg/lib.so", "archs": [90], "reason": "upstream"}
DAMAGED = bytearray(fatbins.region(code(80)))
DAMAGED[24] = 255


@pytest.mark.parametrize(
    ("library", "asked", "words"),
    [
        (fatbins.library(ALL), code_claim({**CUBINS, "86": "cubin"}), "1 kernels"),
        (ONLY_PTX, code_claim({"80": "cubin", "90": "jit"}), ""),
        # small kernels alike on all archs are no stubs
        (
            fatbins.library(fatbins.region(code(80, "tiny", STUB), code(90, "tiny", STUB))),
            code_claim(CUBINS),
            "",
        ),
        (
            fatbins.library(fatbins.region(code(80))),
            code_claim(CUBINS, known_gaps=[GAP]),
            "WARNING: no sm_90 in lib.so (upstream)",
        ),
    ],
)
def test_kernels_that_are_there_and_known_gaps_pass(
    site: Site, library: bytes, asked: Any, words: str
) -> None:
    site.install("pkg", "1.0", {"pkg/lib.so": library})
    found = judged(devicecode, asked)
    assert found.status is Status.PASS and words in found.reason, found.reason


@pytest.mark.parametrize(
    ("library", "culprit"),
    [
        (
            fatbins.library(ALL, fatbins.region(code(80, BWD))),
            "1 of 2 kernels in pkg/lib.so have no code for sm_90: _ZN5flash3bwdEv",
        ),
        (
            fatbins.library(
                fatbins.region(Code(arch=80, kernels={"k": REAL, BWD: REAL}), code(90))
            ),
            "_ZN5flash3bwdEv",
        ),
        (
            fatbins.library(fatbins.region(code(80, BWD), code(90, BWD, STUB))),
            "empty stubs for sm_90: _ZN5flash3bwdEv",
        ),
        (fatbins.library(fatbins.region(code(80), code(90, emptied=True))), "was emptied"),
        (ONLY_PTX, "PTX alone, where machine code is expected, sm_90: k"),
        (elves.make(), "no code for any GPU"),
        (b"", "has no pkg/lib.so"),
        (fatbins.library(bytes(DAMAGED)), "can't be read"),
    ],
)
def test_broken_device_code_is_named(site: Site, library: bytes, culprit: str) -> None:
    site.install(
        "pkg", "1.0", {"pkg/lib.so" if library else "pkg/other.so": library or elves.make()}
    )
    fails(judged(devicecode, code_claim(CUBINS)), culprit)


@pytest.fixture
def no_lz4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without the library: what is compressed with it can't be read, whatever image it is of."""
    fatbin._load_decoder.cache_clear()
    monkeypatch.setattr(fatbin.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    yield
    fatbin._load_decoder.cache_clear()


@pytest.mark.usefixtures("no_lz4")
@pytest.mark.parametrize("kind", ["kernels", "pruned"])
def test_what_this_machine_can_not_decode_proves_nothing_and_hides_no_other_fault(
    site: Site, kind: str
) -> None:
    packed = fatbins.library(fatbins.region(code(80, flags=LZ4), code(90, flags=LZ4)))
    more: dict[str, Any] = {"nvidia": False, "by_design_of": {}} if kind == "pruned" else {}
    asked = code_claim({"90": "cubin"}, kind=kind, files=["pkg/*.so"], **more)
    site.install("pkg", "1.0", {"pkg/lib.so": packed})
    found = judged(devicecode, asked)
    assert found.status is Status.UNPROVEN, found
    assert (
        "this machine has no liblz4.so.1" in found.reason
        and "apt-get install liblz4-1" in found.reason
    )
    site.install("other", "1.0", {"pkg/bad.so": fatbins.library(bytes(DAMAGED))})
    fails(judged(devicecode, asked), "pkg/bad.so can't be read")


@pytest.mark.parametrize(
    ("name", "by_design", "status"),
    [
        ("gemm_sm80", (), Status.PASS),
        ("gemm_sm90", (), Status.FAIL),
        ("enable_sm80_to_sm89", (), Status.PASS),
        ("SM75_copy_Sm90_gemm", (), Status.FAIL),
        ("SM90_copy_Sm100_gemm", (), Status.PASS),
        ("wide_k", [{"kernels": "wide_*", "needed": [[80, 89]], "reason": "-"}], Status.PASS),
        ("wide_k", [{"kernels": "wide_*", "needed": [[80, 99]], "reason": "-"}], Status.FAIL),
    ],
)
def test_a_kernel_for_other_archs_by_name_or_design_is_free(
    site: Site, name: str, by_design: Any, status: Status
) -> None:
    install(site, fatbins.region(code(80, name), code(90, name, STUB)))
    assert (
        judged(devicecode, code_claim({"90": "cubin"}, by_design=list(by_design))).status is status
    )


def test_what_need_not_be_there_is_a_fault_only_where_it_can_not_be_read(site: Site) -> None:
    asked = code_claim(CUBINS, files=[], also=["pkg/lib.so"])
    site.install("pkg", "1.0", {"pkg/other.so": elves.make()})
    assert judged(devicecode, asked).status is Status.NOT_APPLICABLE
    install(site, bytes(DAMAGED))
    fails(judged(devicecode, asked), "can't be read")


def test_every_kernel_excused_has_its_reason() -> None:
    rows = [row for rows in expectations.KERNELS_BY_DESIGN.values() for row in rows]
    assert rows
    assert all(row["reason"] and low <= high for row in rows for low, high in row["needed"])


def surplus(*, nvidia: bool = False, by_design: Any = ()) -> Any:
    also = ["**/*.so", "**/*.so.*"]
    return code_claim(
        {"90": "cubin"}, kind="pruned", nvidia=nvidia, files=also, by_design_of=dict(by_design)
    )


def test_nvidias_own_libraries_count_only_where_they_are_pruned(site: Site) -> None:
    install(site, ONLY)
    site.install(
        "nvidia-cublas-cu12", "1.0", {"nvidia/cublas/lib/libx.so.12": fatbins.library(ALL)}
    )
    assert judged(devicecode, surplus()).status is Status.PASS
    fails(judged(devicecode, surplus(nvidia=True)), "libx.so.12")


def test_an_environment_without_device_code_is_not_pruned_but_broken(site: Site) -> None:
    site.install(
        "pkg", "1.0", {"pkg/lib.so": fatbins.elf([], machine=62), "pkg/text.so": b"INPUT(-lc)"}
    )
    assert judged(devicecode, surplus()).status is Status.FAIL


def marks(*kinds: tuple[int, bool], beside: Sequence[Code] = ()) -> bytes:
    """A region whose entries say that their code was taken out; `kinds` are the arch and whether it really was."""
    return region_of(
        *(marked(code(arch, emptied=gone)) for arch, gone in kinds), *map(fatbins.entry, beside)
    )


def cubins(*archs: int, flags: int = 0x11) -> list[Code]:
    return [code(arch, flags=flags) for arch in archs]


@pytest.mark.parametrize("kind", ["kernels", "files"])
@pytest.mark.parametrize(
    ("region", "target"),
    [
        (marks((90, False)), 90),
        (marks((90, False), beside=[*cubins(80), PTX_80]), 90),
        (marks((86, False), beside=cubins(80)), 86),
        (marks((90, False), beside=cubins(90)), 90),
        (region_of(marked(PTX_80)), 90),
        (region_of(*map(marked, cubins(90, flags=SPECIFIC))), 90),
    ],
)
def test_code_behind_the_mark_is_none_that_the_driver_takes(
    site: Site, kind: str, region: bytes, target: int
) -> None:
    install(site, fatbins.region(*cubins(80, 90)), region)
    words = (
        f"the sm_{target} code of 1 regions in pkg/lib.so is marked as taken out, and the driver"
    )
    fails(judged(devicecode, code_claim({str(target): "jit"}, kind=kind)), words)
    install(site, region)
    found = judged(
        devicecode, code_claim({str(target): "jit"}, kind=kind, files=[], also=["pkg/*"])
    )
    assert found.status is Status.FAIL and not found.reason.endswith("but ")


def of(*regions: bytes, section: str = ".nv_fatbin") -> bytes:
    return fatbins.library(*regions, section=section)


WHOLE = of(ALL)
HALF = WHOLE.index(fatbins.cubin({"k": REAL}))
APART = of(*(fatbins.region(code(arch, f"k{arch}")) for arch in (80, 90)))
EMPTIED = fatbins.region(*(code(80, ptx=ptx, emptied=True) for ptx in (False, True)))
FOR_90, FOR_90_BY_FILE = code_claim({"90": "cubin"}), code_claim({"90": "cubin"}, kind="files")
SECTIONS = (".nv_fatbin", "__nv_relfatbin")


@pytest.mark.parametrize(
    ("library", "asked", "words"),
    [
        # any code for an arch will do in a file as a whole
        (APART, code_claim(CUBINS, kind="files"), ""),
        (APART, code_claim({**CUBINS, "100": "cubin"}, kind="files"), "no code for sm_100"),
        (of(ONLY), surplus(), ""),
        (of(ONLY), FOR_90, ""),
        (of(ONLY), code_claim({"80": "cubin"}), "sm_80"),
        (of(ONLY, fatbins.region(code(80, ptx=True))), surplus(), ""),
        *(
            (of(ALL, section=section), surplus(), "for sm_80 that sm_90 has no use for")
            for section in SECTIONS
        ),
        # only half taken out
        (WHOLE[:HALF] + bytes(64) + WHOLE[HALF + 64 :], surplus(), "lib.so"),
        # taken out whole
        (of(EMPTIED, ONLY), surplus(), ""),
        (of(EMPTIED, ONLY), FOR_90, "emptied"),
        (of(EMPTIED, ONLY), FOR_90_BY_FILE, ""),
        (of(EMPTIED), FOR_90_BY_FILE, "holds no code for any GPU"),
        # marks are believed only where nothing is left
        (of(ONLY, marks((80, True))), surplus(), ""),
        (of(ONLY, marks((80, False))), surplus(), "sm_80"),
        (of(ONLY, marks((90, True))), FOR_90, "was emptied"),
        *(
            (of(region, section=section), surplus(), "marked as taken out, and still there")
            for section in SECTIONS
            for region in (
                marks((80, False), (90, False)),
                marks((80, False), beside=cubins(90)),
                marks((90, False)),
            )
        ),
        # and hide nothing that is for others
        *(
            (of(marks((80, False), beside=cubins(*archs))), FOR_90, "")
            for archs in ((90,), (80, 90))
        ),
        (of(marks((80, False), beside=cubins(89))), code_claim({"89": "cubin"}), ""),
    ],
)
def test_what_is_left_in_a_library_is_what_it_is_for(
    site: Site, library: bytes, asked: Any, words: str
) -> None:
    site.install("pkg", "1.0", {"pkg/lib.so": library})
    says(judged(devicecode, asked), words)


def test_what_serves_in_place_of_the_arch_is_said(site: Site) -> None:
    install(site, ONLY, fatbins.region(code(80, ptx=True)))
    assert judged(devicecode, surplus()).reason.endswith(
        "alone, and compute_80 where a library has none"
    )


@pytest.mark.parametrize(
    ("any_python", "undefined"), [(False, [b"PyNew_Thing", b"other"]), (True, [b"other"])]
)
def test_what_another_python_may_export_is_excused_and_nothing_else(
    any_python: bool, undefined: list[bytes]
) -> None:
    nothing = frozenset[bytes]()
    needs = dynsym.Symbols(
        exports=nothing,
        undefined=frozenset((b"PyNew_Thing", b"other")),
        defined_versions=frozenset(),
        needed_versions={},
    )
    task = symbols.SymbolTask(
        path="a.so",
        owners=(),
        scope=(),
        file_of={},
        needs_driver=False,
        any_python=any_python,
    )
    found = symbols.find_lacking(task, {"a.so": needs})
    assert found and found["undefined"] == [name.decode() for name in undefined]


@pytest.mark.parametrize(
    "pattern",
    ["**/*.so", "a/**/b*.so", "**/m/*.so", "a/**/m/b.so", "[a]/**/*.so", "*/**/b.so", "a/b.so"],
)
def test_files_are_found_as_path_glob_finds_them(pattern: str, tmp_path: Path) -> None:
    for file in ("b.so", "a/b.so", "a/x/.b.so", "a/x/bc.so", "a/m/b.so", "z/m/b.so", "z/b.so.1"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to("a")
    assert sorted(devicecode.glob_files(str(tmp_path), pattern)) == sorted(
        map(str, tmp_path.glob(pattern))
    )
