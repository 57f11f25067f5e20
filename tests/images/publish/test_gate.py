"""What opens the gate: plain calls over judged evidence."""

from dataclasses import replace

import pytest

from images.errors import UserError
from images.publish import gate
from tests.support.attested import NAME, PIP, judged
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict

CPU = replace(PIP, tier=Tier.CPU)
PASS = judged(PIP)
CLAIMS = ClaimSet(image=NAME, claims=(PIP,))


OTHER = replace(PIP, subject="torch")
OPTIONAL = replace(PASS.claims[0], claim=replace(PIP, required=False))
LACKS = "the attestation has fewer claims than matrix.yaml today: it lacks S1"


@pytest.mark.parametrize(
    ("verdicts", "tiers", "claims", "refusals"),
    [
        ([PASS], [Tier.STATIC], CLAIMS, ()),
        ([PASS], [Tier.STATIC], None, ()),
        ([PASS, judged(CPU)], [Tier.STATIC, Tier.CPU], None, ()),
        ([PASS], [Tier.STATIC, Tier.GPU], CLAIMS, ("the gpu tier was not judged",)),
        ([], [Tier.STATIC], CLAIMS, ("the static tier was not judged",)),
        ([judged(OPTIONAL.claim)], [Tier.STATIC], None, ("the static tier was not judged",)),
        (
            [judged(replace(PIP, unproven="no wheel"))],
            [Tier.STATIC],
            None,
            ("S1 pip (static) is UNPROVEN: no wheel",),
        ),
        ([PASS], [Tier.STATIC], ClaimSet(image=NAME, claims=(PIP, OTHER)), (f"{LACKS} torch",)),
        (
            [replace(PASS, claims=(replace(OPTIONAL, claim=replace(PIP, subject="wheel")), OPTIONAL))],
            [Tier.STATIC],
            CLAIMS,
            (f"{LACKS} pip",),
        ),
    ],
    ids=[
        "passed",
        "by its own claims",
        "tiers of two machines",
        "a tier that nobody judged",
        "nothing",
        "optional alone",
        "unproven",
        "fewer claims than today",
        "optional in the attestation, required today",
    ],
)
def test_what_opens_the_gate(
    verdicts: list[Verdict], tiers: list[Tier], claims: ClaimSet | None, refusals: tuple[str, ...]
) -> None:
    assert gate.refusals(verdicts, tiers, claims) == refusals


def test_a_failure_is_not_made_up_for_by_another_verdict() -> None:
    (reason,) = gate.refusals([PASS, judged(PIP, version="25")], [Tier.STATIC], CLAIMS)
    assert reason.startswith("S1 pip (static) is FAIL")


def test_tiers_are_read() -> None:
    assert gate.parse_tiers("static, cpu") == (Tier.STATIC, Tier.CPU)
    with pytest.raises(UserError, match="static, cpu, gpu, multigpu"):
        gate.parse_tiers("static,tpu")


def test_what_an_emulator_ran_opens_the_gate_for_what_reads_files_alone() -> None:
    static, cpu = (
        replace(found, claims=tuple(replace(one, emulated="qemu-user 7.2") for one in found.claims))
        for found in (PASS, judged(CPU))
    )
    assert gate.refusals([static], [Tier.STATIC], CLAIMS) == ()
    assert gate.refusals([cpu], [Tier.CPU], None) == (
        "the cpu tier was measured under qemu-user 7.2, and not on the processor that it is for",
    )
    assert gate.refusals([cpu, judged(CPU)], [Tier.CPU], None) == ()
