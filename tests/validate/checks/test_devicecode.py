"""device-code: a library has code for the claimed GPUs, and a pruned one for no others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.planning import expectations
from tests.support import elves, fatbins
from tests.support.device_code import code_claim, judged, pruned_claim
from tests.support.fatbins import LZ4, SPECIFIC, Code
from tests.support.judging import fails, says
from tests.support.site_packages import Site
from tests.validate.binaries.test_fatbin import marked, region_of
from validate.binaries import fatbin
from validate.checks.static import devicecode
from validate.claims import Claim
from validate.judging import Status

REAL_BYTES, STUB_BYTES = 8000, 128
"""Bytes of a kernel with code, and of one that is there in name only."""
KERNEL = "_ZN5flash3bwdEv"


def code(arch: int, name: str = "k", size: int = REAL_BYTES, **more: Any) -> Code:
    """Return the entry of a region with one kernel for an architecture."""
    return Code(arch=arch, kernels={name: size}, **more)


def codes(*archs: int, flags: int = 0x11) -> list[Code]:
    """Return an entry for each architecture, with the same kernel."""
    return [code(arch, flags=flags) for arch in archs]


def ptx(arch: int, **more: Any) -> Code:
    return code(arch, size=0, ptx=True, **more)


FOR_80_AND_90 = {"80": "cubin", "90": "cubin"}
WHOLE = fatbins.region(code(80), code(90))
"""A region as its package brings it."""
PRUNED = fatbins.region(code(80, emptied=True), code(90))
"""The same without its code for sm_80."""
DAMAGED = bytearray(fatbins.region(code(80)))
DAMAGED[24] = 255
DAMAGED_LIBRARY = fatbins.library(bytes(DAMAGED))
WITH_PTX_FOR_90 = fatbins.library(fatbins.region(code(80), ptx(80)))
"""A library whose kernels reach sm_90 only through PTX."""


def install(site: Site, *regions: bytes) -> None:
    """Install a distribution whose library has these regions."""
    site.install("xformers", "1.0", {"xformers/_C.so": fatbins.library(*regions)})


# ---- Claims of kind `kernels`: each kernel.

UPSTREAMS_GAP = {"file": "xformers/_C.so", "archs": [90], "reason": "upstream"}


@pytest.mark.parametrize(
    ("library", "claim", "words"),
    [
        pytest.param(
            fatbins.library(WHOLE),
            code_claim({**FOR_80_AND_90, "86": "cubin"}),
            "1 kernel in 1 file",
            id="code-for-sm-80-runs-on-sm-86",
        ),
        pytest.param(
            WITH_PTX_FOR_90, code_claim({"80": "cubin", "90": "jit"}), "", id="ptx-where-it-will-do"
        ),
        pytest.param(
            fatbins.library(
                fatbins.region(code(80, "tiny", STUB_BYTES), code(90, "tiny", STUB_BYTES))
            ),
            code_claim(FOR_80_AND_90),
            "",
            id="kernels-that-are-small-everywhere-are-no-stubs",
        ),
        pytest.param(
            fatbins.library(fatbins.region(code(80))),
            code_claim(FOR_80_AND_90, known_gaps=[UPSTREAMS_GAP]),
            "WARNING: no sm_90 in _C.so (upstream)",
            id="known-gap-of-upstream",
        ),
    ],
)
def test_code_for_each_claimed_gpu_passes_and_a_known_gap_is_a_warning(
    site: Site, library: bytes, claim: Claim, words: str
) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": library})

    status, reason, _ = judged(claim)

    assert status is Status.PASS, reason
    assert words in reason


LACKS_A_KERNEL = Code(arch=80, kernels={"k": REAL_BYTES, KERNEL: REAL_BYTES})


@pytest.mark.parametrize(
    ("library", "words"),
    [
        pytest.param(
            fatbins.library(WHOLE, fatbins.region(code(80, KERNEL))),
            "1 of 2 kernels in xformers/_C.so have no code for sm_90: _ZN5flash3bwdEv",
            id="region-without-the-architecture",
        ),
        pytest.param(
            fatbins.library(fatbins.region(LACKS_A_KERNEL, code(90))),
            KERNEL,
            id="region-without-the-kernel",
        ),
        pytest.param(
            fatbins.library(fatbins.region(code(80, KERNEL), code(90, KERNEL, STUB_BYTES))),
            "empty stubs for sm_90: _ZN5flash3bwdEv",
            id="stub",
        ),
        pytest.param(
            fatbins.library(fatbins.region(code(80), code(90, emptied=True))),
            "was emptied",
            id="emptied",
        ),
        pytest.param(
            WITH_PTX_FOR_90,
            "have only PTX for sm_90, where machine code is expected: k",
            id="ptx-where-it-will-not-do",
        ),
        pytest.param(elves.make(), "no code for any GPU", id="no-device-code"),
        pytest.param(DAMAGED_LIBRARY, "can't be read", id="damaged"),
    ],
)
def test_a_library_without_code_for_a_claimed_gpu_fails(
    site: Site, library: bytes, words: str
) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": library})

    fails(judged(code_claim(FOR_80_AND_90)), words)


def test_a_library_that_is_not_there_fails(site: Site) -> None:
    site.install("xformers", "1.0", {"xformers/other.so": elves.make()})

    fails(judged(code_claim(FOR_80_AND_90)), "has no library xformers/_C.so")


def by_design(first: int, last: int) -> dict[str, Any]:
    """Return a row that says on which architectures `wide` kernels must be real."""
    return {"kernels": "wide_*", "needed": [[first, last]], "reason": "-"}


@pytest.mark.parametrize(
    ("name", "rows", "status"),
    [
        pytest.param("gemm_sm80", [], Status.PASS, id="named-for-an-older-generation"),
        pytest.param("gemm_sm90", [], Status.FAIL, id="named-for-this-one"),
        pytest.param("enable_sm80_to_sm89", [], Status.PASS, id="named-for-a-range-below"),
        pytest.param("SM75_copy_Sm90_gemm", [], Status.FAIL, id="uses-instructions-of-older-ones"),
        pytest.param("SM90_copy_Sm100_gemm", [], Status.PASS, id="named-for-a-newer-one"),
        pytest.param("wide_k", [by_design(80, 89)], Status.PASS, id="by-design-not-needed-here"),
        pytest.param("wide_k", [by_design(80, 99)], Status.FAIL, id="by-design-needed-here"),
    ],
)
def test_a_kernel_for_other_gpus_may_be_a_stub_on_sm_90(
    site: Site, name: str, rows: list[dict[str, Any]], status: Status
) -> None:
    install(site, fatbins.region(code(80, name), code(90, name, STUB_BYTES)))

    assert judged(code_claim({"90": "cubin"}, by_design=rows)).status is status


def test_each_row_of_kernels_by_design_has_a_reason_and_ranges_of_architectures() -> None:
    rows = [row for rows in expectations.KERNELS_BY_DESIGN.values() for row in rows]

    assert rows
    for row in rows:
        assert row["reason"]
        assert all(low <= high for low, high in row["needed"])


# ---- What need not be there, and what this machine can't read.


def test_a_package_that_need_not_have_device_code_may_have_none(site: Site) -> None:
    site.install("xformers", "1.0", {"xformers/other.so": elves.make()})

    claim = code_claim(FOR_80_AND_90, files=[], also=["xformers/_C.so"])
    assert judged(claim).status is Status.NOT_APPLICABLE


def test_device_code_that_need_not_be_there_and_can_not_be_read_fails(site: Site) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": DAMAGED_LIBRARY})

    claim = code_claim(FOR_80_AND_90, files=[], also=["xformers/_C.so"])
    fails(judged(claim), "can't be read")


@pytest.fixture
def no_lz4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without liblz4: code that is compressed with it can't be read there."""

    def refuse(name: str) -> None:
        raise OSError(name)

    fatbin._load_decoder.cache_clear()
    monkeypatch.setattr(fatbin.ctypes, "CDLL", refuse)
    yield
    fatbin._load_decoder.cache_clear()


COMPRESSED = fatbins.library(fatbins.region(*codes(80, 90, flags=LZ4)))


@pytest.mark.usefixtures("no_lz4")
@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(code_claim({"90": "cubin"}, files=["xformers/*.so"]), id="kernels"),
        pytest.param(pruned_claim(files=["xformers/*.so"]), id="pruned"),
    ],
)
def test_what_this_machine_can_not_decompress_is_unproven(site: Site, claim: Claim) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": COMPRESSED})

    status, reason, next_step = judged(claim)

    assert status is Status.UNPROVEN, reason
    assert "this machine has no liblz4.so.1" in reason
    assert "apt-get install liblz4-1" in next_step


@pytest.mark.usefixtures("no_lz4")
@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(code_claim({"90": "cubin"}, files=["xformers/*.so"]), id="kernels"),
        pytest.param(pruned_claim(files=["xformers/*.so"]), id="pruned"),
    ],
)
def test_what_this_machine_can_not_decompress_hides_no_other_fault(
    site: Site, claim: Claim
) -> None:
    site.install(
        "xformers", "1.0", {"xformers/_C.so": COMPRESSED, "xformers/bad.so": DAMAGED_LIBRARY}
    )

    fails(judged(claim), "xformers/bad.so can't be read")


# ---- Claims of kind `files`: any code of the file as a whole.

IN_TWO_REGIONS = fatbins.library(
    fatbins.region(code(80, "k80")),
    fatbins.region(code(90, "k90")),
)
FOR_90 = code_claim({"90": "cubin"})
FOR_90_AS_A_WHOLE = code_claim({"90": "cubin"}, kind="files")
EMPTIED = fatbins.region(code(80, emptied=True), code(80, ptx=True, emptied=True))
"""A region that has no code left."""


@pytest.mark.parametrize(
    ("library", "claim", "words"),
    [
        pytest.param(
            IN_TWO_REGIONS,
            code_claim(FOR_80_AND_90, kind="files"),
            "",
            id="each-gpu-has-code-in-some-region",
        ),
        pytest.param(
            IN_TWO_REGIONS,
            code_claim({**FOR_80_AND_90, "100": "cubin"}, kind="files"),
            "no code for sm_100",
            id="one-gpu-has-none",
        ),
        pytest.param(
            fatbins.library(EMPTIED, PRUNED), FOR_90_AS_A_WHOLE, "", id="one-region-is-emptied"
        ),
        pytest.param(
            fatbins.library(EMPTIED),
            FOR_90_AS_A_WHOLE,
            "holds no code for any GPU",
            id="every-region-is-emptied",
        ),
    ],
)
def test_a_library_as_a_whole_must_have_some_code_for_each_gpu(
    site: Site, library: bytes, claim: Claim, words: str
) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": library})

    says(judged(claim), words)


# ---- Pruned libraries. Pruning leaves zeros, and a mark that the driver believes.


def marks(*archs: int, emptied: bool, beside: list[Code] | None = None) -> bytes:
    """Return a region with an entry for each architecture that is marked as taken out.

    `emptied`: the code was really taken out. `beside` are entries without a mark.
    """
    entries = [marked(code(arch, emptied=emptied)) for arch in archs]
    entries += [fatbins.entry(unmarked) for unmarked in beside or []]
    return region_of(*entries)


@pytest.mark.parametrize(
    ("library", "claim", "words"),
    [
        pytest.param(fatbins.library(PRUNED), FOR_90, "", id="the-code-is-there"),
        pytest.param(
            fatbins.library(PRUNED), code_claim({"80": "cubin"}), "sm_80", id="it-was-taken-out"
        ),
        pytest.param(
            fatbins.library(EMPTIED, PRUNED), FOR_90, "emptied", id="with-an-emptied-region"
        ),
        pytest.param(
            fatbins.library(PRUNED, marks(90, emptied=True)),
            FOR_90,
            "was emptied",
            id="with-a-region-that-is-marked-and-empty",
        ),
        # Marked code for another GPU hides nothing of what this one would run.
        pytest.param(
            fatbins.library(marks(80, emptied=False, beside=codes(90))),
            FOR_90,
            "",
            id="other-code-is-marked",
        ),
        pytest.param(
            fatbins.library(marks(80, emptied=False, beside=codes(80, 90))),
            FOR_90,
            "",
            id="other-code-is-marked-and-there-unmarked",
        ),
        pytest.param(
            fatbins.library(marks(80, emptied=False, beside=codes(89))),
            code_claim({"89": "cubin"}),
            "",
            id="older-code-of-the-generation-is-marked",
        ),
    ],
)
def test_a_pruned_library_must_have_the_code_that_it_was_pruned_for(
    site: Site, library: bytes, claim: Claim, words: str
) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": library})

    says(judged(claim), words)


@pytest.mark.parametrize("kind", ["kernels", "files"])
@pytest.mark.parametrize(
    ("region", "target"),
    [
        pytest.param(marks(90, emptied=False), 90, id="alone"),
        pytest.param(
            marks(90, emptied=False, beside=[*codes(80), ptx(80)]), 90, id="beside-older-code"
        ),
        pytest.param(
            marks(86, emptied=False, beside=codes(80)), 86, id="beside-older-code-that-runs"
        ),
        pytest.param(marks(90, emptied=False, beside=codes(90)), 90, id="beside-the-same-unmarked"),
        pytest.param(region_of(marked(ptx(80))), 90, id="ptx"),
        pytest.param(
            region_of(marked(code(90, flags=SPECIFIC))), 90, id="architecture-specific-code"
        ),
    ],
)
def test_code_behind_a_mark_fails_for_the_driver_passes_over_it(
    site: Site, kind: str, region: bytes, target: int
) -> None:
    install(site, fatbins.region(*codes(80, 90)), region)

    words = f"xformers/_C.so has code for sm_{target} in 1 regions that are marked as taken out"
    fails(judged(code_claim({str(target): "jit"}, kind=kind)), words)

    # It is a fault, too, in a library that has nothing else and need not have code. The reason does
    # not end where it would name the code that is there instead.
    install(site, region)
    status, reason, _ = judged(
        code_claim({str(target): "jit"}, kind=kind, files=[], also=["xformers/*"])
    )
    assert status is Status.FAIL
    assert not reason.endswith("but ")


# ---- Claims of kind `pruned`: no code that no claimed GPU has a use for.

SECTIONS = [".nv_fatbin", "__nv_relfatbin"]
"""What the driver reads, and what only the device linker reads. Pruning cuts both."""
WHOLE_LIBRARY = fatbins.library(WHOLE)
START_OF_CODE = WHOLE_LIBRARY.index(fatbins.cubin({"k": REAL_BYTES}))
HALF_PRUNED = WHOLE_LIBRARY[:START_OF_CODE] + bytes(64) + WHOLE_LIBRARY[START_OF_CODE + 64 :]
"""A library of which only the first bytes of the code for sm_80 are gone."""


@pytest.mark.parametrize(
    ("library", "words"),
    [
        pytest.param(fatbins.library(PRUNED), "", id="only-for-the-claimed-gpu"),
        pytest.param(fatbins.library(PRUNED, fatbins.region(ptx(80))), "", id="ptx-that-serves-it"),
        pytest.param(fatbins.library(EMPTIED, PRUNED), "", id="a-region-is-emptied"),
        pytest.param(
            fatbins.library(PRUNED, marks(80, emptied=True)), "", id="a-region-is-marked-and-empty"
        ),
        pytest.param(
            fatbins.library(PRUNED, marks(80, emptied=False)), "sm_80", id="a-mark-and-still-there"
        ),
        pytest.param(HALF_PRUNED, "_C.so", id="only-half-taken-out"),
    ],
)
def test_a_pruned_library_must_have_no_code_for_other_gpus(
    site: Site, library: bytes, words: str
) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": library})

    says(judged(pruned_claim()), words)


@pytest.mark.parametrize("section", SECTIONS)
def test_code_that_was_not_pruned_fails_in_each_section(site: Site, section: str) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": fatbins.library(WHOLE, section=section)})

    fails(judged(pruned_claim()), "for sm_80, which the GPUs of this image (sm_90) never run")


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize(
    "region",
    [
        pytest.param(marks(80, 90, emptied=False), id="all-marked"),
        pytest.param(marks(80, emptied=False, beside=codes(90)), id="other-code-marked"),
        pytest.param(marks(90, emptied=False), id="needed-code-marked"),
    ],
)
def test_marked_code_that_is_still_there_fails_in_each_section(
    site: Site, section: str, region: bytes
) -> None:
    site.install("xformers", "1.0", {"xformers/_C.so": fatbins.library(region, section=section)})

    fails(judged(pruned_claim()), "which is only marked as taken out")


def test_the_reason_names_what_serves_in_place_of_the_claimed_architecture(site: Site) -> None:
    install(site, PRUNED, fatbins.region(ptx(80)))

    reason = judged(pruned_claim()).reason

    assert reason.endswith("alone, and compute_80 where a library has none")


def test_nvidias_own_libraries_count_only_where_they_were_pruned(site: Site) -> None:
    install(site, PRUNED)
    cublas = {"nvidia/cublas/lib/libcublasLt.so.12": fatbins.library(WHOLE)}
    site.install("nvidia-cublas-cu12", "1.0", cublas)

    assert judged(pruned_claim()).status is Status.PASS
    fails(judged(pruned_claim(nvidia=True)), "libcublasLt.so.12")


def test_a_pruned_environment_without_any_device_code_fails(site: Site) -> None:
    contents = {"xformers/_C.so": fatbins.elf([], machine=62), "xformers/text.so": b"INPUT(-lc)"}
    site.install("xformers", "1.0", contents)

    fails(judged(pruned_claim()), "no library with GPU code at all")


# ---- Finding the files.


@pytest.mark.parametrize(
    "pattern",
    ["**/*.so", "a/**/b*.so", "**/m/*.so", "a/**/m/b.so", "[a]/**/*.so", "*/**/b.so", "a/b.so"],
)
def test_files_are_found_as_path_glob_finds_them(pattern: str, tmp_path: Path) -> None:
    for file in ("b.so", "a/b.so", "a/x/.b.so", "a/x/bc.so", "a/m/b.so", "z/m/b.so", "z/b.so.1"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to("a")

    found = devicecode.glob_files(str(tmp_path), pattern)

    assert sorted(found) == sorted(map(str, tmp_path.glob(pattern)))
