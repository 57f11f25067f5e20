"""Every claim that is written for an image has a judge, and keeps to the published schema."""

import json
from typing import Any

import jsonschema_rs
import pytest

from images.planning import plan
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from validate import checks

ACCEPTED = [planned.image for planned in plan.plan(SOURCES) if planned.image is not None]
SCHEMA = json.loads((ROOT / "docs" / "schema" / "evidence.schema.json").read_text())
CLAIM = jsonschema_rs.Draft202012Validator({"$ref": "#/$defs/Claim", "$defs": SCHEMA["$defs"]})


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda accepted: str(accepted.name))
def test_what_is_written_for_an_image_has_a_judge(accepted: Any) -> None:
    found = image_claims(ClaimContext(image=accepted, facts=SOURCES.facts))
    for claim in json.loads(found.dumps())["claims"]:
        CLAIM.validate(claim)
    assert [claim for claim in found.claims if checks.judge_of(claim) is None] == []
