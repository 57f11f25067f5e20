"""device-code says the same of a library before and after pruning: pruning hides no fault."""

import tempfile
from functools import partial
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fatbins
from tests.support.device_code import code_claim, judged, pruned_claim
from tests.support.fatbins import FAMILY, LZ4, SPECIFIC, Code
from tests.support.site_packages import Site
from tests.templates.test_pruning import BITS_32, FAULTY, K, code, pruned, without_sections
from validate.binaries.kernel_states import Excuses
from validate.checks.static import devicecode
from validate.claims import Claim
from validate.judging import Status

SOUND = fatbins.region(code(80), code(90))
"""A region with the same kernel for both architectures."""
ONLY_90 = fatbins.library(fatbins.region(code(90)))
WIDE_BY_DESIGN = {"kernels": "wide*", "needed": [[80, 89]], "reason": "-"}


def install(site: Site, library: bytes, path: str = "xformers/_C.so") -> None:
    site.install("xformers", "1.0", {path: library})


# ---- Single libraries.


@pytest.mark.parametrize("codes", FAULTY.values(), ids=FAULTY)
def test_a_region_with_a_fault_stays_whole_and_counts_as_no_surplus(
    site: Site, codes: list[Code]
) -> None:
    library = fatbins.library(SOUND, fatbins.region(*codes))
    install(site, pruned(library))

    status, reason, _ = judged(pruned_claim())

    assert status is Status.PASS, reason
    assert "1 regions left unpruned because they lack kernels for it" in reason


@pytest.mark.parametrize("codes", FAULTY.values(), ids=FAULTY)
def test_a_sound_region_beside_one_with_a_fault_must_be_pruned(
    site: Site, codes: list[Code]
) -> None:
    library = fatbins.library(SOUND, fatbins.region(*codes))
    install(site, library)

    status, reason, _ = judged(pruned_claim())

    assert status is Status.FAIL
    assert "for sm_80, which the GPUs of this image (sm_90) never run" in reason


def test_rows_by_design_of_one_package_excuse_no_other(site: Site) -> None:
    # For sm_90 the region lacks `wide`. That is a fault unless a row excuses it.
    library = fatbins.library(fatbins.region(Code(arch=80, kernels={**K, "wide": 4000}), code(90)))
    install(site, library)

    # With a fault, the region must stay whole. Excused, it has none, and must be pruned.
    assert judged(pruned_claim(by_design={"other": [WIDE_BY_DESIGN]})).status is Status.PASS
    assert judged(pruned_claim(by_design={"xformers": [WIDE_BY_DESIGN]})).status is Status.FAIL


def test_a_library_that_was_pruned_by_its_rows_passes_by_them(site: Site) -> None:
    library = fatbins.library(fatbins.region(Code(arch=80, kernels={**K, "wide": 4000}), code(90)))
    install(site, pruned(library, excuses=Excuses([WIDE_BY_DESIGN])))

    assert judged(pruned_claim(by_design={"xformers": [WIDE_BY_DESIGN]})).status is Status.PASS
    assert judged(code_claim({"90": "cubin"}, by_design=[WIDE_BY_DESIGN])).status is Status.PASS


CUBLAS = "nvidia/cublas/lib/libcublas.so.12"


def test_nvidias_library_without_code_for_the_gpu_stays_as_it_is(site: Site) -> None:
    library = fatbins.library(fatbins.region(code(80), code(100)))
    as_a_whole = code_claim({"90": "cubin"}, files=[CUBLAS], kind="files")

    for installed in (library, pruned(library, excuses=None)):
        install(site, installed, CUBLAS)

        assert judged(pruned_claim(nvidia=True)).status is Status.PASS
        reason = f"{CUBLAS} has no code for sm_90, only for sm_100, sm_80"
        assert judged(as_a_whole)[:2] == (Status.FAIL, reason)


def test_nvidias_library_with_code_for_the_gpu_must_be_pruned(site: Site) -> None:
    library = fatbins.library(fatbins.region(code(90)), fatbins.region(code(80), code(100)))
    install(site, library, CUBLAS)

    assert judged(pruned_claim(nvidia=True)).status is Status.FAIL


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(pruned_claim(), id="pruned"),
        pytest.param(pruned_claim(nvidia=True), id="pruned-with-nvidias"),
        pytest.param(code_claim({"90": "cubin"}), id="machine-code"),
        pytest.param(code_claim({"90": "jit"}), id="ptx"),
    ],
)
def test_device_code_that_no_section_table_leads_to_is_unreadable(site: Site, claim: Claim) -> None:
    library = without_sections(fatbins.library(SOUND))
    site.install("xformers", "1.0", {"xformers/_C.so": library, "xformers/other.so": ONLY_90})

    status, reason, _ = judged(claim)

    assert status is Status.FAIL
    assert "xformers/_C.so can't be read: it has device code, but no section table" in reason


def test_a_library_with_code_for_the_host_only_needs_no_section_table(site: Site) -> None:
    host_library = without_sections(fatbins.elf([(".text", 1, 0, b"code")], machine=62))
    contents = {
        "xformers/_C.so": host_library,
        "xformers/other.so": ONLY_90,
        "xformers/old.so": BITS_32,
    }
    site.install("xformers", "1.0", contents)

    assert judged(pruned_claim())[:2] == (Status.PASS, "1 library with code for sm_90 alone")


# ---- Libraries that Hypothesis draws.

KERNEL_NAMES = ("k", "l", "wide", "x_sm80", "x_sm90", "x_sm100")
KERNEL_BYTES = (16, 4000, 9000)
TARGETS = st.sampled_from([75, 80, 86, 89, 90, 100, 103])

# Both tables are whole, so that a draw is one choice and not one a field: choosing took Hypothesis
# twice as long as the pruner and `device-code` take together.
ENTRIES = tuple(
    partial(Code, arch=arch, ptx=ptx, flags=flags, emptied=emptied)
    # One entry in six is emptied.
    for emptied in [False] * 5 + [True]
    for ptx in (False, True)
    for flags in (0x11, LZ4, SPECIFIC, FAMILY)
    for arch in (75, 80, 86, 90, 100, 103)
)
"""Everything of an entry but its kernels."""
KERNELS_BY_COUNT = tuple(
    tuple(
        dict(zip(names, sizes, strict=True))
        for names in permutations(KERNEL_NAMES, count)
        for sizes in product(KERNEL_BYTES, repeat=count)
    )
    for count in (1, 2, 3, 4)
)
"""Kernels of an entry (name -> bytes), by their number: few are as likely as many."""
CODES = st.builds(
    lambda entry, kernels: entry(kernels=kernels),
    st.sampled_from(ENTRIES),
    st.one_of(*map(st.sampled_from, KERNELS_BY_COUNT)),
)
REGIONS = st.lists(
    st.lists(CODES, max_size=5).map(lambda codes: fatbins.region(*codes)), max_size=3
)

FAULTS = ("absent", "stub", "jit", "emptied")


def faults(library: bytes, claim: Claim) -> tuple[Status, dict[str, Any]]:
    """Return the verdict on a library, and how many kernels have which fault.

    Of a library that is looked at as a whole, return what serves the target in place of the counts.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        task = devicecode.FileTask(
            subject="xformers",
            file=file.name,
            shown="xformers/_C.so",
            targets=tuple(map(int, claim.expect["archs"])),
            by_design=tuple(claim.expect.get("by_design", ())),
            kind=claim.expect["kind"],
        )
        _, measured = devicecode.inspect_file(task)
    (served,) = measured["served"].values()
    counts: dict[str, Any] = {"served": served}
    if isinstance(served, dict):
        counts = {state: served.get(state, 0) for state in FAULTS}
    evidence: Any = {"files": {"xformers/_C.so": measured}}
    expect: Any = claim.expect
    return devicecode.judge(claim.subject, expect, evidence).status, counts


@settings(max_examples=1000)
@given(
    REGIONS,
    TARGETS,
    st.sampled_from(["cubin", "jit"]),
    st.sampled_from([(), (WIDE_BY_DESIGN,)]),
)
def test_pruning_changes_no_fault_of_any_kernel(
    regions: list[bytes], target: int, form: str, rows: tuple[dict[str, Any], ...]
) -> None:
    # A library without any code for the target has another fault, so here it has some.
    library = fatbins.library(fatbins.region(code(target)), *regions)
    claim = code_claim({str(target): form}, by_design=rows)

    after_pruning = pruned(library, target, Excuses(rows))

    assert faults(after_pruning, claim) == faults(library, claim)


@settings(max_examples=500)
@given(REGIONS, TARGETS, st.sampled_from(["cubin", "jit"]))
def test_pruning_changes_no_fault_of_nvidias_libraries(
    regions: list[bytes], target: int, form: str
) -> None:
    library = fatbins.library(*regions)
    claim = code_claim({str(target): form}, kind="files")

    after_pruning = pruned(library, target, None)

    assert faults(after_pruning, claim) == faults(library, claim)
