"""A comparison as Markdown says what was found, and no more."""

from dataclasses import replace

import pytest

from images.comparison import tables
from images.comparison.differences import ImageRecord, compare
from images.validation.rows import ClaimRow, StepRow, TierCount
from validate.claims import Tier
from validate.judging import Status

STEP = StepRow(seconds=0.3, spread=0.01, peak=40_000_000_000, loss=5.35)
COUNTS = {Status.PASS: 1, Status.FAIL: 2, Status.KNOWN: 1}
TIERS = {
    Tier.CPU: TierCount(verdict=Status.PASS, counts={Status.PASS: 2}),
    Tier.GPU: TierCount(verdict=Status.FAIL, counts=COUNTS),
}
BEFORE = ImageRecord(
    label="A",
    name="cu126-torch25",
    source="run 1",
    digest="sha256:0123456789abcdef",
    gpus=["NVIDIA H200"],
    packages={"torch": "2.5.1", "gone": "1"},
    pins=["torch"],
    all_packages=True,
    bytes=6_000_000_000,
    layers={"base": "1", "torch": "2", "cuda": "3", "settings": "4"},
    layer_bytes={"base": 129_000_000, "torch": 2_000_000_000, "cuda": 3_000_000_000},
    tiers=TIERS,
    steps={"eager": STEP},
)
"""All that can be recorded of an image, but claims and Debian's packages."""


def claim(subject: str, verdict: Status, reason: str) -> ClaimRow:
    """A claim of the gpu tier."""
    return ClaimRow(
        check="attention",
        subject=subject,
        tier=Tier.GPU,
        verdict=verdict,
        required=True,
        reason=reason,
    )


def text_of(after: ImageRecord, before: ImageRecord = BEFORE) -> list[str]:
    """The lines of the Markdown, with single spaces."""
    text = tables.markdown(compare(before, after))
    return [" ".join(line.split()) for line in text.splitlines()]


def test_packages_that_came_and_went_have_a_hyphen_for_the_other_image() -> None:
    after = replace(BEFORE, label="B", packages={"torch": "2.6", "new": "3"})

    lines = text_of(after)

    assert "### Packages: 3 changes" in lines
    assert "| torch | 2.5.1 | 2.6 | pinned |" in lines
    assert "| gone | 1 | - | |" in lines
    assert "| new | - | 3 | |" in lines


def test_packages_of_debian_and_the_toolkit_have_a_section_of_their_own() -> None:
    before = replace(BEFORE, system_packages={"libc6": "2.36"})
    after = replace(before, label="B", system_packages={"libc6": "2.41"})

    lines = text_of(after, before)

    assert "### Packages of Debian and the CUDA toolkit: 1 change" in lines
    assert "| libc6 | 2.36 | 2.41 | |" in lines


def test_sizes_are_those_of_layers_that_are_not_the_same_the_largest_first() -> None:
    after = replace(
        BEFORE,
        label="B",
        bytes=5_500_000_000,
        layers={"base": "1", "torch": "9", "light": "5", "settings": "6"},
        layer_bytes={"base": 129_000_000, "torch": 2_100_000_000, "light": 900_000},
    )

    lines = text_of(after)

    start = lines.index("### Size, unpacked")
    assert lines[start + 4 : start + 11] == [
        "| cuda | 3.00 GB | - | | removed |",
        "| torch | 2.00 GB | 2.10 GB | +100.0 MB | changed |",
        "| light | - | 0.9 MB | | added |",
        "| settings | - | - | | changed |",
        "| whole image | 6.00 GB | 5.50 GB | -500.0 MB | |",
        "",
        "- the same: base",
    ]


def test_claims_that_share_a_reason_name_it_once() -> None:
    # Given two claims that fail for one reason, with a character that would end a cell
    reason = "no | kernel"
    before = replace(
        BEFORE, claims=[claim("sdpa", Status.PASS, "fine"), claim("flash", Status.PASS, "")]
    )
    after = replace(
        BEFORE,
        label="B",
        claims=[claim("sdpa", Status.FAIL, reason), claim("flash", Status.FAIL, reason)],
    )

    lines = text_of(after, before)

    assert "| gpu | FAIL, 1 of 4 claims passed | FAIL, 1 of 4 claims passed |" in lines
    assert not [line for line in lines if line.startswith("- B, cpu")], "all of it passed"
    assert "- B, gpu, not passed: 2 FAIL, 1 KNOWN" in lines, "what became of the others"
    assert "### Claims that changed: 2" in lines
    assert "| gpu | attention/sdpa | PASS | FAIL |" in lines
    assert "- B, attention/sdpa, attention/flash: no | kernel" in lines
    assert not [line for line in lines if "fine" in line], "a claim that holds needs no reason"


def test_claims_with_the_same_verdict_have_both_reasons_and_say_what_is_required() -> None:
    failed = claim("sdpa", Status.FAIL, "off by 1e-3")
    long_reason = "an illegal memory access was encountered " * 10
    before = replace(BEFORE, claims=[failed])
    changed = failed.model_copy(update={"reason": long_reason, "required": False})

    lines = text_of(replace(BEFORE, label="B", claims=[changed]), before)

    assert "| gpu | attention/sdpa | FAIL | FAIL, not required |" in lines
    assert "- A, attention/sdpa: off by 1e-3" in lines
    assert f"- B, attention/sdpa: {long_reason[:240].strip()} ..." in lines


def test_claims_that_one_run_did_not_measure_are_counted_apart_from_those_that_changed() -> None:
    measured = [claim("new", Status.KNOWN, "a fault"), claim("other", Status.PASS, "")]

    lines = text_of(replace(BEFORE, label="B", claims=measured))

    start = lines.index("### Claims that changed: 0")
    assert lines[start + 1 : start + 4] == [
        "",
        "- B, attention/new: a fault",
        "- measured in B only: 2 (attention/new: KNOWN, attention/other)",
    ]


def test_a_section_without_changes_is_its_title() -> None:
    lines = text_of(replace(BEFORE, label="B"))

    start = lines.index("### Packages: 0 changes")
    assert lines[start + 1 : start + 3] == ["", "### Size, unpacked"]


def test_a_size_of_the_whole_image_that_is_not_recorded_is_no_row() -> None:
    before = replace(BEFORE, bytes=0)
    after = replace(before, label="B", layers={"base": "2"})

    lines = text_of(after, before)

    assert "### Size, unpacked" in lines
    assert not [line for line in lines if "whole image" in line]


@pytest.mark.parametrize(
    ("gpu", "judgement"),
    [("NVIDIA H200", "slower"), ("NVIDIA H100", "not judged: other GPUs")],
)
def test_a_step_is_judged_only_on_the_same_gpu(gpu: str, judgement: str) -> None:
    slow = STEP.model_copy(update={"seconds": 0.39})

    lines = text_of(replace(BEFORE, label="B", gpus=[gpu], steps={"eager": slow}))

    before, after = "300.0 ms +-1.0%, 40.00 GB, 5.350", "390.0 ms +-1.0%, 40.00 GB, 5.350"
    assert f"| eager | {before} | {after} | +30.0% {judgement} |" in lines


def test_without_records_nothing_is_said_to_be_equal() -> None:
    nothing = ImageRecord(label="B", name="cu126-torch26", source="-", digest="sha256:1")

    lines = text_of(nothing)

    assert not [line for line in lines if line.startswith(("### Packages", "### Claims"))]
    assert "| whole image | 6.00 GB | - | | |" in lines
    assert "| gpu | FAIL, 1 of 4 claims passed | - |" in lines
    assert "| eager | 300.0 ms +-1.0%, 40.00 GB, 5.350 | - | not judged |" in lines
    assert lines[-1].startswith("- B: packages, packages that the matrix does not pin, ")


def test_sizes_that_neither_record_has_are_no_table() -> None:
    nothing = ImageRecord(label="A", name="cu126-torch26", source="-", digest="sha256:1")

    lines = text_of(replace(nothing, label="B"), nothing)

    assert not [line for line in lines if "whole image" in line or "Size" in line]


def test_tables_are_aligned_and_nothing_ends_their_cells() -> None:
    after = replace(BEFORE, label="B", packages={"torch": "2.6|x", "gone": "1"})

    text = tables.markdown(compare(BEFORE, after))

    assert text.startswith(
        "### cu126-torch25\n"
        "\n"
        "|       | A                          | B                          |\n"
        "| ---   | ---                        | ---                        |\n"
        "| from  | run 1                      | run 1                      |\n"
    )
    assert "| torch   | 2.5.1 | 2.6\\|x | pinned |\n" in text
    assert text.endswith("\n") and not text.endswith("\n\n")
