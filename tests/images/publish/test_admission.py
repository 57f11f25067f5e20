"""The example of an admission policy against the schema that Kyverno publishes, and against what is attached.

tests/support/crds has Kyverno's schema (commit 111e07b), without descriptions. Neither Kyverno nor its command-line
validator is in a package index.
"""

import json
import re
from typing import Any

import yaml
from jsonschema_rs import validator_for

from images.publish.statements import TEST_RESULT
from tests.support.attested import DIGEST
from tests.support.checkout import ROOT
from tests.support.published import days_ago, result_of, validated

POLICY = yaml.safe_load((ROOT / "examples" / "kubernetes" / "admission-policy.yaml").read_text())


def faults(policy: Any) -> list[str]:
    schema = json.loads((ROOT / "tests" / "support" / "crds" / "clusterpolicies.json").read_text())
    return [str(error.instance_path) for error in validator_for(schema).iter_errors(policy)]


def test_the_example_keeps_to_the_schema_of_its_reader() -> None:
    assert faults(POLICY) == []


def test_the_example_asks_for_what_a_test_result_says() -> None:
    ((images,),) = [rule["verifyImages"] for rule in POLICY["spec"]["rules"]]
    (attestation,) = images["attestations"]
    assert attestation["type"] == TEST_RESULT
    said = result_of([validated(DIGEST, days_ago(1))])
    conditions = attestation["conditions"][0]["all"]
    for one in conditions:
        (path,) = re.findall(r"truetagTiers[.\w]+", one["key"])
        found: Any = said
        for key in path.split("."):
            found = found[key]
        assert found == one["value"] or path.endswith("measuredOn")
    assert len(conditions) == 3
