"""What the writers of claims expect, and what probes yielded, keeps to the contracts that judges read by."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from images.planning import plan
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support import recorded
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from validate import checks

ACCEPTED = [planned.image for planned in plan.check(SOURCES) if planned.image is not None]
SCHEMA = json.loads((ROOT / "docs" / "schema" / "evidence.schema.json").read_text())
CLAIM = jsonschema_rs.Draft202012Validator({"$ref": "#/$defs/Claim", "$defs": SCHEMA["$defs"]})
RECORD = jsonschema_rs.Draft202012Validator({"$ref": "#/$defs/Record", "$defs": SCHEMA["$defs"]})
H100 = "cu130-torch211-py312-sm90/h100"


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda accepted: str(accepted.name))
def test_what_is_written_for_an_image_keeps_to_the_contracts(accepted: Any) -> None:
    found = image_claims(ClaimContext(image=accepted, facts=SOURCES.facts))
    for claim in json.loads(found.dumps())["claims"]:
        CLAIM.validate(claim)
    assert [claim for claim in found.claims if checks.judge_of(claim) is None] == []


def test_a_claim_that_lacks_what_its_judge_reads_is_refused() -> None:
    (claim,) = (one for one in recorded.data(H100)["claims"] if (one["id"], one["subject"]) == ("G1", "gemm-fp32"))
    CLAIM.validate(claim)
    expect = {name: value for name, value in claim["expect"].items() if name != "facts"}
    with pytest.raises(jsonschema_rs.ValidationError):
        CLAIM.validate({**claim, "expect": expect})


@pytest.mark.parametrize(
    ("probe", "key"), [("static.files", "wrong"), ("cpu.threads", "openmp"), ("gpu.device", "libcuda")]
)
def test_evidence_that_lacks_what_its_judge_reads_is_refused(probe: str, key: str) -> None:
    (record,) = (one for one in recorded.data(H100)["records"] if one["probe"] == probe)
    RECORD.validate(record)
    measurements = [
        {**one, "evidence": {name: value for name, value in one["evidence"].items() if name != key}}
        for one in record["measurements"]
    ]
    with pytest.raises(jsonschema_rs.ValidationError):
        RECORD.validate({**record, "measurements": measurements})
