"""origin/wheels, judged: what differs is named, what is not known is UNPROVEN and no PASS."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.judging import judge_claim, says
from validate.claims import Claim, Tier
from validate.judging import Finding, Status

CLAIM = Claim(check="origin", subject="wheels", tier=Tier.STATIC, probe="static.wheels", statement="")
EXPECT: dict[str, Any] = cases(__file__, "expected")
HELD: dict[str, Any] = cases(__file__, "held")


def judged(torch: dict[str, Any], deepspeed: dict[str, Any] | None = None, **expect: Any) -> Finding:
    found = {"torch": [{**HELD, **torch}], "deepspeed": [{**HELD, "digest": "any", **(deepspeed or {})}]}
    return judge_claim(replace(CLAIM, expect={**EXPECT, **expect}), {"distributions": found})


@pytest.mark.parametrize(("torch", "deepspeed", "words"), cases(__file__, "differs"))
def test_what_differs_is_named(torch: dict[str, Any], deepspeed: dict[str, Any], words: str) -> None:
    says(judged({"digest": "bad", **torch}, deepspeed), words)


def test_what_is_not_known_was_moved_or_is_not_there_is_no_pass() -> None:
    """A child may move what is no pin: `pins` names it."""
    unknown = {"einops": "`nox -s lock` reads it"}
    assert judged({}, unknown=unknown).status is Status.UNPROVEN
    assert judged({"digest": "bad"}, unknown=unknown).status is Status.FAIL
    assert judged({"digest": "of another version", "version": "2.8.0"}).status is Status.PASS
    assert judge_claim(replace(CLAIM, expect=EXPECT), {"distributions": {}}).status is Status.FAIL
