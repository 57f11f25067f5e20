"""A comparison as lines for a terminal and as Markdown: both say what was found, and no more."""

from dataclasses import replace

import pytest

from images.comparison import tables
from images.comparison.differences import ImageRecord, compare
from images.validation.rows import ClaimRow, StepRow, TierCount
from validate.claims import Tier
from validate.judging import Status

STEP = StepRow(seconds=0.3, spread=0.01, peak=40_000_000_000, loss=5.35)
TIERS = {Tier.GPU: TierCount(verdict=Status.FAIL, counts={Status.PASS: 1, Status.FAIL: 2})}
BEFORE = ImageRecord(
    label="A",
    name="cu126-torch25",
    source="run 1",
    platform="linux/amd64",
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
    """The lines for a terminal, with single spaces."""
    return [" ".join(line.split()) for line in tables.text_lines(compare(before, after))]


def test_packages_that_came_and_went_have_a_hyphen_for_the_other_image() -> None:
    after = replace(BEFORE, label="B", digest="sha256:1", packages={"torch": "2.6", "new": "3"})

    lines = text_of(after)

    assert "Packages: 3 changes" in lines
    assert "torch 2.5.1 2.6 pinned" in lines
    assert "gone 1 -" in lines
    assert "new - 3" in lines


def test_sizes_are_those_of_layers_that_are_not_the_same_the_largest_first() -> None:
    after = replace(
        BEFORE,
        label="B",
        digest="sha256:1",
        bytes=5_500_000_000,
        layers={"base": "1", "torch": "9", "light": "5", "settings": "6"},
        layer_bytes={"base": 129_000_000, "torch": 2_100_000_000, "light": 900_000},
    )

    lines = text_of(after)

    start = lines.index("Size, unpacked")
    assert lines[start + 2 : start + 8] == [
        "cuda 3.00 GB - removed",
        "torch 2.00 GB 2.10 GB +100.0 MB changed",
        "light - 0.9 MB added",
        "settings - - changed",
        "whole image 6.00 GB 5.50 GB -500.0 MB",
        "1 layer is the same",
    ]


def test_settings_that_are_the_same_are_no_layer() -> None:
    lines = text_of(replace(BEFORE, label="B", digest="sha256:1"))

    assert "3 layers are the same" in lines
    assert not [line for line in lines if line.startswith("settings")]


def test_claims_that_share_a_reason_name_it_once() -> None:
    # Given two claims that fail for one reason, with a character that would end a cell
    reason = "no | kernel"
    before = replace(
        BEFORE, claims=[claim("sdpa", Status.PASS, ""), claim("flash", Status.PASS, "")]
    )
    after = replace(
        BEFORE,
        label="B",
        digest="sha256:1",
        claims=[claim("sdpa", Status.FAIL, reason), claim("flash", Status.FAIL, reason)],
    )

    lines = text_of(after, before)

    assert "gpu FAIL, 1 of 3 claims passed FAIL, 1 of 3 claims passed" in lines
    assert "Claims with another verdict: 2" in lines
    assert "gpu attention/sdpa PASS FAIL" in lines
    assert "B, attention/sdpa, attention/flash: no | kernel" in lines


def test_claims_with_the_same_verdict_say_what_else_differs() -> None:
    # Given a claim with two short reasons, and one with a long reason that nothing requires now
    failed = claim("sdpa", Status.FAIL, "off by 1e-3")
    unproven = claim("flash", Status.UNPROVEN, "no GPU")
    long_reason = "CUDA error: an illegal memory access was encountered " * 5
    before = replace(BEFORE, claims=[failed, unproven])
    after = replace(
        BEFORE,
        label="B",
        digest="sha256:1",
        claims=[
            failed.model_copy(update={"reason": "illegal memory access"}),
            unproven.model_copy(update={"reason": long_reason, "required": False}),
        ],
    )

    lines = list(tables.text_lines(compare(before, after)))

    start = lines.index("Claims with the same verdict, of which something else differs: 2")
    assert lines[start + 1 : start + 7] == [
        "  tier  claim            verdict   what differs",
        "  gpu   attention/sdpa   FAIL      reason",
        "  gpu   attention/flash  UNPROVEN  reason, no longer required",
        "  A, attention/sdpa: off by 1e-3",
        "  B, attention/sdpa: illegal memory access",
        "  2 longer reasons: `--markdown` and `--json` have them",
    ]
    text = tables.markdown(compare(before, after))
    assert "- A, attention/flash: no GPU\n" in text
    assert f"- B, attention/flash: {long_reason.strip()}\n" in text


def test_a_claim_of_one_run_has_a_section_of_its_own() -> None:
    after = replace(
        BEFORE, label="B", digest="sha256:1", claims=[claim("new", Status.KNOWN, "a fault")]
    )

    lines = text_of(after)

    assert "Claims with another verdict: 0" in lines
    assert "Claims that only one run judged: 1" in lines
    assert "gpu attention/new - KNOWN" in lines


@pytest.mark.parametrize(
    ("gpu", "difference"),
    [
        ("NVIDIA H200", "+30.0% slower (to 336.7 ms)"),
        ("NVIDIA H100", "+30.0% not judged"),
    ],
)
def test_a_step_is_judged_only_on_the_same_gpu(gpu: str, difference: str) -> None:
    slow = STEP.model_copy(update={"seconds": 0.39})

    lines = text_of(
        replace(BEFORE, label="B", digest="sha256:1", gpus=[gpu], steps={"eager": slow})
    )

    assert f"eager 300.0 ms +-1.0% 390.0 ms +-1.0% {difference}" in lines
    assert "memory 40.00 GB 40.00 GB +0.0%" in lines
    assert "loss 5.350 5.350 +0.000" in lines


def test_a_step_of_one_run_is_shown_beside_what_is_not_recorded() -> None:
    lines = text_of(replace(BEFORE, label="B", digest="sha256:1", steps={}))

    assert "eager 300.0 ms +-1.0% not recorded not judged" in lines
    assert "loss 5.350 not recorded" in lines


def test_without_records_nothing_is_said_to_be_equal() -> None:
    nothing = ImageRecord(
        label="B", name="cu126-torch26", source="-", platform="linux/amd64", digest="sha256:1"
    )

    lines = text_of(nothing)

    assert "Packages: not compared" in lines
    assert "whole image 6.00 GB not recorded" in lines
    assert "gpu FAIL, 1 of 3 claims passed not measured" in lines
    assert not [line for line in lines if line.startswith("Claims with another verdict")]
    assert "the packages of B are not recorded" in lines


def test_of_many_system_packages_the_first_are_shown_and_the_others_counted() -> None:
    system_packages = {f"lib{number:02}": "1" for number in range(45)}
    before = replace(BEFORE, system_packages=system_packages)
    moved = dict.fromkeys(system_packages, "2")

    lines = text_of(replace(BEFORE, label="B", digest="sha256:1", system_packages=moved), before)

    assert "Packages of Debian and the CUDA toolkit: 45 changes" in lines
    assert "lib39 1 2" in lines
    assert "lib40 1 2" not in lines
    assert "5 more: `--json` has all of them" in lines


def test_markdown_has_tables_whose_cells_nothing_ends() -> None:
    after = replace(BEFORE, label="B", digest="sha256:1", packages={"torch": "2.6|x", "gone": "1"})

    text = tables.markdown(compare(BEFORE, after))

    assert text.startswith("### cu126-torch25\n\n|  | image | measured | on | from |\n| --- |")
    assert "| torch | 2.5.1 | 2.6\\|x | pinned |\n" in text
    assert "\n### Not compared\n\n- Debian's packages" in text
    assert text.endswith("\n") and not text.endswith("\n\n")
