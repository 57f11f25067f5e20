"""device-code says of a pruned library what it says of the library as its package brings it: pruning hides no fault."""

import tempfile
from functools import partial
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fatbins
from tests.support.fatbins import FAMILY, LZ4, SPECIFIC, Code
from tests.templates.test_pruning import BITS_32, FAULTY, K, code, pruned, without_sections
from tests.validate.checks.test_static_code import code_claim, surplus
from tests.validate.checks.test_static_probes import Site, judged, site
from validate.binaries.kernel_states import Excuses
from validate.checks.static import devicecode
from validate.judging import Status

__all__ = ["site"]
SOUND = fatbins.region(code(80), code(90))
ONLY_90 = fatbins.library(fatbins.region(code(90)))
ROW = {"kernels": "wide*", "needed": [[80, 89]], "reason": "-"}


def install(site: Site, data: bytes, name: str = "pkg/lib.so") -> None:
    site.install("pkg", "1.0", {name: data})


def verdict(claim: Any) -> tuple[Status, str]:
    found = judged(devicecode, claim)
    return found.status, found.reason


@pytest.mark.parametrize("codes", FAULTY.values(), ids=FAULTY)
def test_what_is_left_to_show_a_fault_is_no_surplus_and_code_of_a_sound_region_is(
    site: Site, codes: list[Code]
) -> None:
    whole = fatbins.library(SOUND, fatbins.region(*codes))
    install(site, pruned(whole))
    status, reason = verdict(surplus())
    assert (
        status is Status.PASS
        and "1 regions left unpruned because they lack kernels for it" in reason
    )
    install(site, whole)
    status, reason = verdict(surplus())
    assert status is Status.FAIL and "for sm_80 that sm_90 has no use for" in reason


NAMES = ("k", "l", "wide", "x_sm80", "x_sm90", "x_sm100")
SIZES = (16, 4000, 9000)
TARGETS = st.sampled_from([75, 80, 86, 89, 90, 100, 103])
ENTRIES = tuple(
    partial(Code, arch=arch, ptx=ptx, flags=flags, emptied=emptied)
    for emptied in [False] * 5 + [True]
    for ptx in (False, True)
    for flags in (0x11, LZ4, SPECIFIC, FAMILY)
    for arch in (75, 80, 86, 90, 100, 103)
)
KERNELS = tuple(
    tuple(
        dict(zip(names, sizes, strict=True))
        for names in permutations(NAMES, count)
        for sizes in product(SIZES, repeat=count)
    )
    for count in (1, 2, 3, 4)
)
"""By their number: few are as likely as many. Both tables are whole, so that a draw is one choice and not one a field:
choosing took Hypothesis twice as long as the pruner and `device-code` take together."""
CODES = st.builds(
    lambda entry, kernels: entry(kernels=kernels),
    st.sampled_from(ENTRIES),
    st.one_of(*map(st.sampled_from, KERNELS)),
)
REGIONS = st.lists(
    st.lists(CODES, max_size=5).map(lambda codes: fatbins.region(*codes)), max_size=3
)


@settings(max_examples=1000)
@given(REGIONS, TARGETS, st.sampled_from(["cubin", "jit"]), st.sampled_from([(), (ROW,)]))
def test_s5_says_the_same_before_and_after_slicing(
    regions: list[bytes], target: int, how: str, rows: tuple[dict[str, Any], ...]
) -> None:
    """Of kernels. That a library has no code at all is another fault, so here it has some."""
    whole = fatbins.library(fatbins.region(code(target)), *regions)
    claim = code_claim({str(target): how}, by_design=rows)
    assert faults(pruned(whole, target, Excuses(rows)), claim) == faults(whole, claim)


@settings(max_examples=500)
@given(REGIONS, TARGETS, st.sampled_from(["cubin", "jit"]))
def test_s5_says_the_same_of_nvidias_libraries(regions: list[bytes], target: int, how: str) -> None:
    whole = fatbins.library(*regions)
    claim = code_claim({str(target): how}, kind="files")
    assert faults(pruned(whole, target, None), claim) == faults(whole, claim)


def faults(data: bytes, claim: Any) -> tuple[Status, dict[str, Any]]:
    """What `device-code` finds in a library, and of how many kernels."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        targets, by_design = (
            tuple(map(int, claim.expect["archs"])),
            tuple(claim.expect.get("by_design", ())),
        )
        task = devicecode.FileTask(
            subject="pkg",
            file=file.name,
            shown="pkg/lib.so",
            targets=targets,
            by_design=by_design,
            kind=claim.expect["kind"],
        )
        _, found = devicecode.inspect_file(task)
    (served,) = found["served"].values()
    counted = (
        {sort: served.get(sort, 0) for sort in FAULTS} if isinstance(served, dict) else {"": served}
    )
    return devicecode.judge(
        claim.subject, claim.expect, {"files": {"pkg/lib.so": found}}
    ).status, counted


FAULTS = ("absent", "stub", "jit", "emptied")


def test_rows_of_one_package_excuse_no_other(site: Site) -> None:
    region = fatbins.region(Code(arch=80, kernels={**K, "wide": 4000}), code(90))
    whole = fatbins.library(region)
    install(site, whole)
    assert verdict(surplus(by_design={"other": [ROW]}))[0] is Status.PASS
    assert verdict(surplus(by_design={"pkg": [ROW]}))[0] is Status.FAIL
    install(site, pruned(whole, excuses=Excuses([ROW])))
    assert verdict(surplus(by_design={"pkg": [ROW]}))[0] is Status.PASS
    assert verdict(code_claim({"90": "cubin"}, by_design=[ROW]))[0] is Status.PASS


def test_nvidias_library_without_any_code_stays_as_it_is(site: Site) -> None:
    name = "nvidia/cublas/lib/libcublas.so.12"
    whole = fatbins.library(fatbins.region(code(80), code(100)))
    claim = code_claim({"90": "cubin"}, files=[name], kind="files")
    for data in (whole, pruned(whole, excuses=None)):
        install(site, data, name)
        assert verdict(surplus(nvidia=True))[0] is Status.PASS
        assert verdict(claim) == (Status.FAIL, f"{name} has no code for sm_90, but sm_100, sm_80")
    install(
        site, fatbins.library(fatbins.region(code(90)), fatbins.region(code(80), code(100))), name
    )
    assert verdict(surplus(nvidia=True))[0] is Status.FAIL


@pytest.mark.parametrize(
    "claim",
    [surplus(), surplus(nvidia=True), code_claim({"90": "cubin"}), code_claim({"90": "jit"})],
)
def test_device_code_that_no_section_table_leads_to_is_unreadable(site: Site, claim: Any) -> None:
    site.install(
        "pkg",
        "1.0",
        {"pkg/lib.so": without_sections(fatbins.library(SOUND)), "pkg/other.so": ONLY_90},
    )
    status, reason = verdict(claim)
    assert (
        status is Status.FAIL
        and "pkg/lib.so can't be read: it has device code, but no section table" in reason
    )


def test_a_library_of_the_host_alone_needs_no_section_table(site: Site) -> None:
    host = without_sections(fatbins.elf([(".text", 1, 0, b"code")], machine=62))
    site.install("pkg", "1.0", {"pkg/lib.so": host, "pkg/other.so": ONLY_90, "pkg/old.so": BITS_32})
    assert verdict(surplus()) == (Status.PASS, "1 libraries hold code for sm_90 alone")
