"""What a canary is made of: ranges, facts, and mixtures of old and new versions."""

from dataclasses import replace

import pytest

from images.config.names import ImageName
from images.config.schema import Nightly
from images.errors import Problem, UserError
from images.nightly import sets
from images.nightly.sets import Locked
from images.planning import plan
from tests.support.nightly_samples import CONTROL, MOVES, SOURCES, at
from validate.claims import ORIGIN_PROBE, Claim, Tier
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status


def test_held_layers_are_exact_and_pins_move_upward_within_ranges_and_facts() -> None:
    wanted = Nightly(ranges={"peft": "<1"}, stacks={"2.7": {"torchao": "<0.13"}})
    found = sets.list_requirements(CONTROL, wanted, {"xformers": ("0.0.32.post2",)})
    assert "torch==2.7.1" in found and "triton==3.3.1" in found
    assert "torchao>=0.11.0,<0.13" in found
    assert "xformers>=0.0.31.post1,!=0.0.32.post2" in found
    assert [line for line in found if line.startswith("peft>=") and line.endswith(",<1")]
    assert not [line for line in found if line.startswith("flash-attn")]
    beyond = sets.list_requirements(
        CONTROL, Nightly(ranges={"peft": "<0.18"}), {}
    )  # as a profile's pin over its stack's
    assert [line for line in beyond if line.startswith("peft")] == ["peft>=0.18.1"]
    above = sets.list_requirements(
        CONTROL, Nightly(ranges={"peft": "==0.19.*"}), {}
    )  # what somebody wants to try
    assert [line for line in above if line.startswith("peft")] == ["peft>=0.18.1,==0.19.*"]


def test_what_the_facts_speak_against_is_left_out_and_what_they_do_not_know_is_not() -> None:
    found = sets.find_refused_versions(CONTROL.image, SOURCES)
    assert "0.18.0" in found["torchao"]
    assert "0.12.0" not in found["torchao"]
    assert "bitsandbytes" not in found
    # A requirement between two packages is uv's to hold: both move together.
    name, pins = (
        ImageName.parse("cu130-torch214-unsloth"),
        {"unsloth": "2026.10.7", "unsloth-zoo": "2026.10.7"},
    )
    image = plan.plan_one(name, SOURCES, pins=pins).image
    assert image is not None
    assert "unsloth" not in sets.find_refused_versions(image, SOURCES)


def test_a_canary_is_not_held_to_a_record_that_nobody_can_have_made_yet() -> None:
    origin = Claim(
        check="origin", subject="layers", tier=Tier.STATIC, probe=ORIGIN_PROBE, statement="x"
    )

    def verdict(status: Status) -> Verdict:
        rows = [
            ClaimVerdict(claim=claim, status=status, reason="", seconds=0, evidence={})
            for claim in (origin, replace(origin, check="files", probe="static.files"))
        ]
        return Verdict(image="x", digest="", claims=tuple(rows), evidence_sha256="")

    for status, kept in (
        (Status.UNPROVEN, ["files"]),
        (Status.PASS, ["files"]),
        (Status.FAIL, ["origin", "files"]),
    ):
        found = sets.without_unproven_origin(verdict(status))
        assert [one.claim.check for one in found.claims] == kept


def test_changes_come_pins_first() -> None:
    names = [
        one.name
        for one in sets.list_changes(
            CONTROL.versions, at(MOVES).versions, ["torchao", "transformers", "peft"]
        )
    ]
    assert names == ["torchao", "transformers", "peft", "liger-kernel", "numpy"]
    assert at(MOVES).hash != CONTROL.hash == at({}).hash


def test_a_mixture_without_the_wanted_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def others(_control: Locked, chosen: dict[str, str], _run: object) -> Locked:
        return at({**chosen, "numpy": "1.0"})

    monkeypatch.setattr(sets, "relock", others)
    assert sets.mix_versions(CONTROL, at(MOVES), frozenset({"numpy"})) is None
    assert sets.mix_versions(CONTROL, at(MOVES), frozenset({"peft"})) is not None


def test_a_network_that_does_not_answer_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Locked:
        raise UserError(Problem(where="index", cause="can't be reached"), code=1)

    monkeypatch.setattr(sets, "relock", away)
    with pytest.raises(UserError):
        sets.mix_versions(CONTROL, at(MOVES), frozenset({"peft"}))
