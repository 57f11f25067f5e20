"""S10 wheels, judged: what differs is named, what is not known is UNPROVEN and no PASS."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.judging import judge_claim, says
from validate.claims import Claim, Tier
from validate.judging import Finding, Status

CLAIM = Claim(id="S10", subject="wheels", tier=Tier.STATIC, probe="static.wheels", statement="")
EXPECT: dict[str, Any] = {
    "wheels": {"torch": [{"digest": "good", "tags": ""}, {"digest": "other", "tags": ""}]},
    "sources": {"deepspeed": {"files": "", "made": ["deepspeed/made.py"]}},
    "unknown": {},
    "versions": {"torch": "2.7.1", "deepspeed": "2.7.1"},
}
HELD: dict[str, Any] = {
    "record": "/v/torch.dist-info/RECORD",
    "version": "2.7.1",
    "digest": "good",
    "files": 10,
    "strange": [],
    "strange_count": 0,
    "lacking": 0,
    "launchers": [],
}


def judged(torch: dict[str, Any], deepspeed: dict[str, Any] | None = None, **expect: Any) -> Finding:
    found = {"torch": [{**HELD, **torch}], "deepspeed": [{**HELD, "digest": "any", **(deepspeed or {})}]}
    return judge_claim(replace(CLAIM, expect={**EXPECT, **expect}), {"distributions": found})


@pytest.mark.parametrize(
    ("torch", "deepspeed", "words"),
    [
        *(
            ({"digest": digest}, {"strange": ["deepspeed/made.py"], "strange_count": 1}, "")
            for digest in ("good", "other")
        ),
        ({"strange": ["torch/a.py"], "strange_count": 1, "lacking": 1}, {}, "torch/a.py is not what the"),
        ({"strange": ["a"], "strange_count": 3, "lacking": 3}, {}, "2 more files are not what"),
        ({"lacking": 2}, {}, "RECORD lacks 2 files of the locked wheel of torch"),
        ({"strange": ["torch/a.py"], "strange_count": 1, "lacking": 1}, {}, "RECORD lacks 1 files of the locked wheel"),
        ({}, {}, "RECORD is not that of the locked wheel of torch"),
        ({"digest": "good", "launchers": ["/v/bin/torchrun"]}, {}, "/v/bin/torchrun is not the launcher"),
        ({"digest": "good"}, {"strange": ["b.py"], "strange_count": 1}, "b.py is in no file of the locked source"),
        ({"digest": "good"}, {"strange": ["deepspeed/made.py"], "strange_count": 5}, "4 more files are in no file of"),
    ],
)
def test_what_differs_is_named(torch: dict[str, Any], deepspeed: dict[str, Any], words: str) -> None:
    says(judged({"digest": "bad", **torch}, deepspeed), words)


def test_what_is_not_known_was_moved_or_is_not_there_is_no_pass() -> None:
    """A child may move what is no pin: S1 names it."""
    unknown = {"einops": "`nox -s lock` reads it"}
    assert judged({}, unknown=unknown).status is Status.UNPROVEN
    assert judged({"digest": "bad"}, unknown=unknown).status is Status.FAIL
    assert judged({"digest": "of another version", "version": "2.8.0"}).status is Status.PASS
    assert judge_claim(replace(CLAIM, expect=EXPECT), {"distributions": {}}).status is Status.FAIL
