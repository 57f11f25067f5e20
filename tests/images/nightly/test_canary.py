"""What a canary is made of: ranges, facts, and mixtures of old and new versions."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from images.comparison.differences import list_changes
from images.config.names import ImageName
from images.config.schema import Nightly
from images.errors import Problem, UserError
from images.nightly import sets
from images.nightly.sets import Locked
from images.planning import plan
from tests.support.nightly_samples import CONTROL, MOVES, SOURCES, locked_at
from validate.claims import ORIGIN_PROBE, Claim, Tier
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status


def requirements_of(
    package: str, nightly: Nightly, refused: Mapping[str, Mapping[str, str]] | None = None
) -> list[str]:
    """The requirements of the control's canary that begin with a package's name."""
    lines = sets.list_requirements(CONTROL, nightly, refused or {})
    return [line for line in lines if line.startswith(package)]


# --- requirements ---------------------------------------------------------------------------------


def test_packages_of_the_layer_with_torch_keep_their_locked_versions() -> None:
    requirements = sets.list_requirements(CONTROL, Nightly(), {})

    assert "torch==2.7.1" in requirements
    assert "triton==3.3.1" in requirements


def test_a_pin_moves_upward_within_the_range_of_its_stack() -> None:
    nightly = Nightly(stacks={"2.7": {"torchao": "<0.13"}})

    assert requirements_of("torchao", nightly) == ["torchao>=0.11.0,<0.13"]


def test_a_pin_without_a_range_for_its_stack_has_that_of_all_stacks() -> None:
    assert requirements_of("peft", Nightly(ranges={"peft": "<1"})) == ["peft>=0.18.1,<1"]


def test_a_pin_does_not_move_to_a_refused_version() -> None:
    refused = {"xformers": {"0.0.32.post2": "needs another torch"}}

    assert requirements_of("xformers", Nightly(), refused) == [
        "xformers>=0.0.31.post1,!=0.0.32.post2"
    ]


def test_a_pin_that_is_in_no_index_is_not_resolved() -> None:
    assert requirements_of("flash-attn", Nightly()) == []


def test_a_range_below_the_pin_is_left_out() -> None:
    """A profile may pin beyond the range of its stack."""
    assert requirements_of("peft", Nightly(ranges={"peft": "<0.18"})) == ["peft>=0.18.1"]


def test_a_range_above_the_pin_is_kept() -> None:
    """Somebody wants to try just these versions."""
    assert requirements_of("peft", Nightly(ranges={"peft": "==0.19.*"})) == [
        "peft>=0.18.1,==0.19.*"
    ]


# --- refused versions -----------------------------------------------------------------------------


def test_versions_that_the_facts_speak_against_are_refused() -> None:
    refused = sets.find_refused_versions(CONTROL.image, SOURCES)

    assert "0.18.0" in refused["torchao"]
    assert "0.12.0" not in refused["torchao"]


def test_versions_that_the_facts_do_not_know_are_not_refused() -> None:
    assert "bitsandbytes" not in sets.find_refused_versions(CONTROL.image, SOURCES)


def test_a_requirement_between_two_packages_refuses_none_because_both_may_move() -> None:
    """unsloth needs an unsloth-zoo of its own version; uv moves them together."""
    name = ImageName.parse("cu130-torch214-unsloth")
    pins = {"unsloth": "2026.10.7", "unsloth-zoo": "2026.10.7"}
    image = plan.plan_one(name, SOURCES, pins=pins).image
    assert image is not None

    assert "unsloth" not in sets.find_refused_versions(image, SOURCES)


# --- what is compared -----------------------------------------------------------------------------

ORIGIN = Claim(
    check="origin", subject="layers", tier=Tier.STATIC, probe=ORIGIN_PROBE, statement="x"
)
FILES = replace(ORIGIN, check="files", probe="static.files")


@pytest.mark.parametrize(
    ("status", "compared_checks"),
    [
        (Status.UNPROVEN, ["files"]),
        (Status.PASS, ["files"]),
        (Status.FAIL, ["origin", "files"]),
    ],
)
def test_the_claim_about_the_origin_is_only_compared_if_it_failed(
    status: Status, compared_checks: list[str]
) -> None:
    """Nobody can have recorded a build of a canary's lock yet."""
    rows = []
    for claim in (ORIGIN, FILES):
        row = ClaimVerdict(claim=claim, status=status, reason="", seconds=0, evidence={})
        rows.append(row)
    verdict = Verdict(image="x", digest="", claims=tuple(rows), evidence_sha256="")

    compared = sets.without_unproven_origin(verdict)

    assert [row.claim.check for row in compared.claims] == compared_checks


def test_changes_of_pins_come_first() -> None:
    pinned = ["torchao", "transformers", "peft"]

    changes = list_changes(CONTROL.versions, locked_at(MOVES).versions, pinned)

    assert [change.name for change in changes] == [*pinned, "liger-kernel", "numpy"]


def test_the_hash_of_a_lock_changes_with_its_versions_and_with_nothing_else() -> None:
    assert locked_at({}).lock.hash == CONTROL.lock.hash
    assert locked_at(MOVES).lock.hash != CONTROL.lock.hash


# --- mixtures -------------------------------------------------------------------------------------


def test_a_mixture_without_the_version_that_was_asked_for_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def relock_with_another_numpy(
        _control: Locked, versions: dict[str, str], _run: object
    ) -> Locked:
        return locked_at({**versions, "numpy": "1.0"})

    monkeypatch.setattr(sets, "relock", relock_with_another_numpy)

    assert sets.mix_versions(CONTROL, locked_at(MOVES), frozenset({"numpy"})) is None
    assert sets.mix_versions(CONTROL, locked_at(MOVES), frozenset({"peft"})) is not None


def test_an_index_that_does_not_answer_is_an_error_and_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def relock_without_network(*_arguments: object) -> Locked:
        raise UserError(Problem(where="index", cause="can't be reached"), code=1)

    monkeypatch.setattr(sets, "relock", relock_without_network)

    with pytest.raises(UserError, match="can't be reached"):
        sets.mix_versions(CONTROL, locked_at(MOVES), frozenset({"peft"}))
