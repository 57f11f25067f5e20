"""What verbs try: the claims that `validate --claim` names."""

import pytest

from images.building import trying
from images.errors import UserError
from validate.claims import Claim, ClaimSet, Tier

CLAIMS = ClaimSet(
    image="a",
    claims=tuple(
        Claim(id=number, subject=subject, tier=tier, probe="cpu.examples", statement="")
        for number, subject, tier in (
            ("C1", "torch", Tier.CPU),
            ("P3", "example axolotl zero2", Tier.MULTIGPU),
            ("P3", "example axolotl zero2-offload", Tier.MULTIGPU),
            ("P3", "example axolotl fsdp2", Tier.MULTIGPU),
        )
    ),
)


def subjects(texts: list[str], tiers: tuple[Tier, ...] = tuple(Tier)) -> list[str]:
    return [claim.subject.split()[-1] for claim in trying.chosen(CLAIMS, tiers, texts).claims]


def test_claims_are_chosen_by_a_part_of_their_id_and_subject() -> None:
    assert subjects(["P3"]) == ["zero2", "zero2-offload", "fsdp2"]
    assert subjects(["fsdp2", "C1 torch"]) == ["torch", "fsdp2"]
    assert subjects(["=P3 example axolotl zero2"]) == ["zero2"]


def test_a_text_that_is_in_no_claim_of_these_tiers_is_refused_with_what_is_there() -> None:
    with pytest.raises(UserError) as refused:
        subjects(["P3", "G2"], (Tier.CPU,))
    assert [problem.where for problem in refused.value.problems] == ["--claim 'P3'", "--claim 'G2'"]
    assert all("C1 torch" in problem.then and "cpu" in problem.cause for problem in refused.value.problems)
