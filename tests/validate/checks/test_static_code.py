"""S4 and S5 on small environments: what a library lacks of symbols, and a kernel of code, is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from images.planning import expectations
from tests.support import elves, fatbins
from tests.support.fatbins import SPECIFIC, Code
from tests.support.judging import fails
from tests.validate.binaries.test_fatbin import marked, region_of
from tests.validate.checks.test_static_probes import Site, claim, judged, site
from validate.checks.static import devicecode, symbols
from validate.judging import Status

__all__ = ["site"]
HOST = ["libcuda.so.1"]

# ---- S4


def linked(**row: Any) -> Any:
    return claim("S4", "symbols", "symbols", {"host": HOST, "exceptions": [row] if row else []})


def library(**parts: Any) -> bytes:
    return elves.make(runpath="$ORIGIN", **parts)


def test_symbols_of_the_closure_the_interpreter_and_the_driver_are_there(site: Site) -> None:
    site.install(
        "pkg",
        "1.0",
        {
            "pkg/one.so": library(needed=["two.so", "libcuda.so.1"], undefined=["of_two", "cuInit", "PyLong_FromLong"]),
            "pkg/two.so": library(exports=["of_two"], weak=["nowhere"]),
        },
    )
    assert judged(symbols, linked()).status is Status.PASS


@pytest.mark.parametrize(
    ("undefined", "culprit"),
    [("_ZN3c1010TensorImpl5sizesEv", "c10::TensorImpl::sizes"), ("cuInit", "cuInit"), ("plain", "plain")],
)
def test_an_undefined_symbol_is_named_with_its_library(site: Site, undefined: str, culprit: str) -> None:
    """Without the driver among its needs, a driver's symbol is as undefined as any other."""
    site.install("pkg", "1.0", {"pkg/one.so": library(undefined=[undefined])})
    fails(judged(symbols, linked()), "pkg/one.so of pkg", culprit)


def test_a_version_that_the_library_does_not_define_is_named(site: Site) -> None:
    wanting = library(needed=["libx.so.1"], needs_versions={"libx.so.1": ["X_1", "X_9"]})
    site.install(
        "pkg",
        "1.0",
        {"pkg/one.so": wanting, "pkg/libx.so.1": library(soname="libx.so.1", defines_versions=["libx.so.1", "X_1"])},
    )
    fails(judged(symbols, linked()), "X_9 of libx.so.1")


def test_an_exception_excuses_its_symbols_alone(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/one.so": library(undefined=["plugin_entry"])})
    row = {"path": "pkg/one.so", "reason": "-"}
    assert judged(symbols, linked(**row, symbols=["plugin_*"])).status is Status.PASS
    assert judged(symbols, linked(**row, symbols=["other_*"])).status is Status.FAIL


def test_symbols_of_nothing_prove_nothing(site: Site) -> None:
    assert judged(symbols, linked()).status is Status.FAIL


# ---- S5

REAL, STUB = 8000, 128


def code_claim(archs: dict[str, str], *, kind: str = "kernels", **more: Any) -> Any:
    expect = {"files": ["pkg/lib.so"], "also": [], "archs": archs, "known_gaps": [], "kind": kind}
    expect = {**expect, **({"by_design": []} if kind == "kernels" else {}), **more}
    return claim("S5", "pkg", "devicecode", expect)


def install(site: Site, *regions: bytes) -> None:
    site.install("pkg", "1.0", {"pkg/lib.so": fatbins.library(*regions)})


CUBINS = {"80": "cubin", "90": "cubin"}


def test_every_kernel_for_every_arch_passes(site: Site) -> None:
    install(site, fatbins.region(Code(arch=80, kernels={"k": REAL}), Code(arch=90, kernels={"k": REAL})))
    found = judged(devicecode, code_claim({**CUBINS, "86": "cubin"}))
    assert found.status is Status.PASS, found.reason
    assert "1 kernels" in found.reason


def _one_region_lacks_an_arch(site: Site) -> None:
    whole = fatbins.region(Code(arch=80, kernels={"fwd": REAL}), Code(arch=90, kernels={"fwd": REAL}))
    install(site, whole, fatbins.region(Code(arch=80, kernels={"_ZN5flash3bwdEv": REAL})))


def _one_kernel_is_left_out(site: Site) -> None:
    kernels = {"fwd": REAL, "_ZN5flash3bwdEv": REAL}
    install(site, fatbins.region(Code(arch=80, kernels=kernels), Code(arch=90, kernels={"fwd": REAL})))


def _one_kernel_is_a_stub(site: Site) -> None:
    install(
        site,
        fatbins.region(
            Code(arch=80, kernels={"_ZN5flash3bwdEv": REAL}), Code(arch=90, kernels={"_ZN5flash3bwdEv": STUB})
        ),
    )


def _code_was_emptied(site: Site) -> None:
    install(
        site,
        fatbins.region(Code(arch=80, kernels={"k": REAL}), Code(arch=90, kernels={"k": REAL}, emptied=True)),
    )


def _only_ptx(site: Site) -> None:
    install(site, fatbins.region(Code(arch=80, kernels={"k": REAL}), Code(arch=80, kernels={"k": 0}, ptx=True)))


def _no_code_at_all(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/lib.so": elves.make()})


def _no_file(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/other.so": elves.make()})


def _damaged(site: Site) -> None:
    region = bytearray(fatbins.region(Code(arch=80, kernels={"k": REAL})))
    region[24] = 255
    install(site, bytes(region))


@pytest.mark.parametrize(
    ("breaks", "culprit"),
    [
        (_one_region_lacks_an_arch, "1 of 2 kernels in pkg/lib.so have no code for sm_90: flash::bwd"),
        (_one_kernel_is_left_out, "flash::bwd"),
        (_one_kernel_is_a_stub, "empty stubs for sm_90: flash::bwd"),
        (_code_was_emptied, "was emptied"),
        (_only_ptx, "PTX alone, where machine code is expected, sm_90: k"),
        (_no_code_at_all, "no code for any GPU"),
        (_no_file, "has no pkg/lib.so"),
        (_damaged, "can't be read"),
    ],
    ids=lambda value: getattr(value, "__name__", "")[1:],
)
def test_broken_device_code_is_named(site: Site, breaks: Any, culprit: str) -> None:
    breaks(site)
    fails(judged(devicecode, code_claim(CUBINS)), culprit)


def test_ptx_is_enough_where_no_more_is_claimed(site: Site) -> None:
    _only_ptx(site)
    assert judged(devicecode, code_claim({"80": "cubin", "90": "jit"})).status is Status.PASS


@pytest.mark.parametrize(
    ("name", "archs", "status"),
    [
        ("gemm_sm80", {"90": "cubin"}, Status.PASS),
        ("gemm_sm90", {"90": "cubin"}, Status.FAIL),
        ("enable_sm80_to_sm89", {"90": "cubin"}, Status.PASS),
        ("SM75_copy_Sm90_gemm", {"90": "cubin"}, Status.FAIL),
        ("SM90_copy_Sm100_gemm", {"90": "cubin"}, Status.PASS),
    ],
)
def test_a_kernel_named_after_other_archs_may_be_empty(
    site: Site, name: str, archs: dict[str, str], status: Status
) -> None:
    install(site, fatbins.region(Code(arch=80, kernels={name: REAL}), Code(arch=90, kernels={name: STUB})))
    assert judged(devicecode, code_claim(archs)).status is status


@pytest.mark.parametrize(("needed", "status"), [([[80, 89]], Status.PASS), ([[80, 99]], Status.FAIL)])
def test_a_kernel_that_is_empty_by_design_is_told(site: Site, needed: list[list[int]], status: Status) -> None:
    install(site, fatbins.region(Code(arch=80, kernels={"wide_k": REAL}), Code(arch=90, kernels={"wide_k": STUB})))
    row = {"kernels": "wide_*", "needed": needed, "reason": "-"}
    assert judged(devicecode, code_claim(CUBINS, by_design=[row])).status is status


def test_small_kernels_alike_on_all_archs_are_no_stubs(site: Site) -> None:
    install(site, fatbins.region(*(Code(arch=arch, kernels={"tiny": STUB}) for arch in (80, 90))))
    assert judged(devicecode, code_claim(CUBINS)).status is Status.PASS


def test_a_gap_of_upstream_is_said_and_passes(site: Site) -> None:
    install(site, fatbins.region(Code(arch=80, kernels={"k": REAL})))
    found = judged(
        devicecode, code_claim(CUBINS, known_gaps=[{"file": "pkg/lib.so", "archs": [90], "reason": "upstream"}])
    )
    assert found.status is Status.PASS
    assert "WARNING" in found.reason
    assert "upstream" in found.reason


def test_by_file_any_code_for_an_arch_will_do(site: Site) -> None:
    regions = [fatbins.region(Code(arch=arch, kernels={f"k{arch}": REAL})) for arch in (80, 90)]
    install(site, *regions)
    assert judged(devicecode, code_claim(CUBINS, kind="files")).status is Status.PASS
    found = judged(devicecode, code_claim({**CUBINS, "100": "cubin"}, kind="files"))
    assert (found.status, "no code for sm_100" in found.reason) == (Status.FAIL, True)


def test_what_is_not_there_and_need_not_be_is_not_applicable(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/other.so": elves.make()})
    asked = code_claim(CUBINS, files=[], also=["pkg/lib.so"])
    assert judged(devicecode, asked).status is Status.NOT_APPLICABLE


def test_what_need_not_be_there_and_cannot_be_read_is_a_fault(site: Site) -> None:
    _damaged(site)
    found = judged(devicecode, code_claim(CUBINS, files=[], also=["pkg/lib.so"]))
    assert (found.status, "can't be read" in found.reason) == (Status.FAIL, True)


def test_every_kernel_excused_has_its_reason() -> None:
    rows = [row for rows in expectations.KERNELS_BY_DESIGN.values() for row in rows]
    assert rows
    assert all(row["reason"] and low <= high for row in rows for low, high in row["needed"])


# ---- S5 of images for one architecture


def surplus(*, nvidia: bool = False, by_design: Any = ()) -> Any:
    also = ["**/*.so", "**/*.so.*"]
    return code_claim({"90": "cubin"}, kind="pruned", nvidia=nvidia, files=also, by_design_of=dict(by_design))


ONLY = fatbins.region(Code(arch=80, kernels={"k": REAL}, emptied=True), Code(arch=90, kernels={"k": REAL}))
ALL = fatbins.region(Code(arch=80, kernels={"k": REAL}), Code(arch=90, kernels={"k": REAL}))


def test_code_for_one_arch_alone_passes_both_ways(site: Site) -> None:
    install(site, ONLY)
    found = judged(devicecode, surplus())
    assert (found.status, found.reason) == (Status.PASS, "1 libraries hold code for sm_90 alone")
    assert judged(devicecode, code_claim({"90": "cubin"})).status is Status.PASS
    assert judged(devicecode, code_claim({"80": "cubin"})).status is Status.FAIL


def test_what_serves_in_place_of_the_arch_is_said(site: Site) -> None:
    install(site, ONLY, fatbins.region(Code(arch=80, kernels={"k": REAL}, ptx=True)))
    found = judged(devicecode, surplus())
    assert found.status is Status.PASS
    assert found.reason.endswith("alone, and compute_80 where a library has none")


@pytest.mark.parametrize("section", [".nv_fatbin", "__nv_relfatbin"])
def test_code_for_another_arch_is_named_with_its_size(site: Site, section: str) -> None:
    site.install("pkg", "1.0", {"pkg/lib.so": fatbins.library(ALL, section=section)})
    found = judged(devicecode, surplus())
    assert found.status is Status.FAIL
    assert "pkg/lib.so has" in found.reason and "sm_80" in found.reason


def test_code_that_was_only_half_taken_out_is_found(site: Site) -> None:
    whole = fatbins.library(ALL)
    at = whole.index(fatbins.cubin({"k": REAL}))
    site.install("pkg", "1.0", {"pkg/lib.so": whole[:at] + bytes(64) + whole[at + 64 :]})
    assert judged(devicecode, surplus()).status is Status.FAIL


def test_nvidias_own_libraries_count_only_where_they_are_pruned(site: Site) -> None:
    install(site, ONLY)
    site.install("nvidia-cublas-cu12", "1.0", {"nvidia/cublas/lib/libx.so.12": fatbins.library(ALL)})
    assert judged(devicecode, surplus()).status is Status.PASS
    fails(judged(devicecode, surplus(nvidia=True)), "libx.so.12")


def test_an_environment_without_device_code_is_not_pruned_but_broken(site: Site) -> None:
    site.install("pkg", "1.0", {"pkg/lib.so": fatbins.elf([], machine=62), "pkg/text.so": b"INPUT(-lc)"})
    assert judged(devicecode, surplus()).status is Status.FAIL


def test_a_library_whose_code_was_taken_out_whole_serves_nothing(site: Site) -> None:
    emptied = [Code(arch=arch, kernels={"k": REAL}, ptx=ptx, emptied=True) for arch, ptx in ((80, False), (80, True))]
    install(site, fatbins.region(*emptied), ONLY)
    assert judged(devicecode, surplus()).status is Status.PASS
    fails(judged(devicecode, code_claim({"90": "cubin"})), "emptied")
    assert judged(devicecode, code_claim({"90": "cubin"}, kind="files")).status is Status.PASS
    install(site, fatbins.region(*emptied))
    assert judged(devicecode, code_claim({"90": "cubin"}, kind="files")).status is Status.FAIL


def marks(*kinds: tuple[int, bool], beside: Sequence[Code] = ()) -> bytes:
    """A region whose entries say that their code was taken out; `kinds` are the arch and whether it really was."""
    codes = [Code(arch=arch, kernels={"k": REAL}, emptied=gone) for arch, gone in kinds]
    return region_of(*map(marked, codes), *map(fatbins.entry, beside))


def test_entries_marked_as_taken_out_are_believed_only_where_they_hold_nothing(site: Site) -> None:
    install(site, ONLY, marks((80, True)))
    assert judged(devicecode, surplus()).status is Status.PASS
    install(site, ONLY, marks((80, False)))
    fails(judged(devicecode, surplus()), "sm_80")
    install(site, ONLY, marks((90, True)))
    assert "was emptied" in judged(devicecode, code_claim({"90": "cubin"})).reason


def cubins(*archs: int, flags: int = 0x11) -> list[Code]:
    return [Code(arch=arch, kernels={"k": REAL}, flags=flags) for arch in archs]


PTX_80 = Code(arch=80, kernels={"k": 0}, ptx=True)


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
def test_code_behind_the_mark_is_none_that_the_driver_takes(site: Site, kind: str, region: bytes, target: int) -> None:
    install(site, fatbins.region(*cubins(80, 90)), region)
    found = judged(devicecode, code_claim({str(target): "jit"}, kind=kind))
    assert found.status is Status.FAIL
    assert f"the sm_{target} code of 1 regions in pkg/lib.so is marked as taken out, and the driver" in found.reason
    install(site, region)
    found = judged(devicecode, code_claim({str(target): "jit"}, kind=kind, files=[], also=["pkg/*"]))
    assert found.status is Status.FAIL and not found.reason.endswith("but ")


@pytest.mark.parametrize(("beside", "target"), [(cubins(90), 90), (cubins(80, 90), 90), (cubins(89), 89)])
def test_code_behind_the_mark_that_is_for_others_hides_nothing(site: Site, beside: list[Code], target: int) -> None:
    install(site, marks((80, False), beside=beside))
    assert judged(devicecode, code_claim({str(target): "cubin"})).status is Status.PASS


def test_a_pruner_that_marks_and_takes_nothing_out_is_found_wherever_it_was(site: Site) -> None:
    for section in (".nv_fatbin", "__nv_relfatbin"):
        for region in (marks((80, False), (90, False)), marks((80, False), beside=cubins(90)), marks((90, False))):
            site.install("pkg", "1.0", {"pkg/lib.so": fatbins.library(region, section=section)})
            found = judged(devicecode, surplus())
            assert found.status is Status.FAIL and "marked as taken out, and still there" in found.reason


def test_a_library_pruned_for_another_gpu_serves_nothing(site: Site) -> None:
    install(site, marks((90, True)), ONLY)
    fails(judged(devicecode, code_claim({"90": "cubin"})), "was emptied")
    assert judged(devicecode, code_claim({"100": "cubin"})).status is Status.FAIL
