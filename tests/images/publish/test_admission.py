"""Admission policies against the schemas that their readers publish.

tests/support/crds has the schemas of policy-controller (commit f925c0c) and Kyverno (111e07b), without descriptions.
Neither program nor its command-line validator is in a package index.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import validator_for

from images.publish import admission
from images.publish.admission import AdmissionRule, Reader
from images.registry.reference import Repository
from tests.support.checkout import ROOT
from validate.claims import Tier

KEY = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----\n"
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
RULE = AdmissionRule(
    repositories=[Repository.parse("ghcr.io/me/images"), Repository.parse("ghcr.io/me/staging")],
    key=KEY,
    tiers=(Tier.GPU, Tier.CPU),
    days=30,
)
SCHEMAS = {Reader.POLICY_CONTROLLER: "clusterimagepolicies.json", Reader.KYVERNO: "clusterpolicies.json"}


def faults(reader: Reader, policy: Any) -> list[str]:
    schema = json.loads((ROOT / "tests" / "support" / "crds" / SCHEMAS[reader]).read_text())
    return [str(error.instance_path) for error in validator_for(schema).iter_errors(policy)]


def text(reader: Reader) -> str:
    return admission.policy(RULE, reader, NOW)


@pytest.mark.parametrize("reader", SCHEMAS)
def test_a_policy_keeps_to_the_schema_of_its_reader(reader: Reader) -> None:
    assert faults(reader, yaml.safe_load(text(reader))) == []


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every object of a policy."""
    if isinstance(found, dict):
        yield path
    rows = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in rows:
        yield from places(value, (*path, key))


@pytest.mark.parametrize("reader", SCHEMAS)
def test_a_key_that_the_reader_does_not_know_is_found_wherever_it_stands(reader: Reader) -> None:
    policy = yaml.safe_load(text(reader))
    for path in places(policy["spec"]):
        broken = deepcopy(policy)
        place = broken["spec"]
        for key in path:
            place = place[key]
        place["unknownKey"] = "x"
        assert faults(reader, broken), path


def test_the_policy_controller_gets_the_key_the_rule_and_every_repository() -> None:
    spec = yaml.safe_load(text(Reader.POLICY_CONTROLLER))["spec"]
    globs = [one["glob"] for one in spec["images"]]
    assert globs == [f"ghcr.io/me/{name}{end}" for name in ("images", "staging") for end in (":*", "@*")]
    (authority,) = spec["authorities"]
    assert authority["key"]["data"] == KEY
    (attestation,) = authority["attestations"]
    rego = admission.rego_rule(RULE, package="sigstore", name="isCompliant")
    assert attestation["policy"] == {"type": "rego", "data": rego}
    assert 'passed_lately("gpu")' in rego and 'passed_lately("cpu")' in rego and "30 * 24" in rego


def test_docker_hub_has_the_name_that_its_reader_gives_it() -> None:
    rule = replace(RULE, repositories=[Repository.parse("docker.io/me/images")])
    policies = {reader: yaml.safe_load(admission.policy(rule, reader, NOW)) for reader in SCHEMAS}
    globs = [one["glob"] for one in policies[Reader.POLICY_CONTROLLER]["spec"]["images"]]
    assert globs == ["index.docker.io/me/images:*", "index.docker.io/me/images@*"]
    (images,) = policies[Reader.KYVERNO]["spec"]["rules"][0]["verifyImages"]
    assert images["imageReferences"] == ["docker.io/me/images:*", "docker.io/me/images@*"]


def test_kyverno_asks_for_each_tier() -> None:
    (rule,) = yaml.safe_load(text(Reader.KYVERNO))["spec"]["rules"]
    (images,) = rule["verifyImages"]
    (attestation,) = images["attestations"]
    assert attestation["attestors"][0]["entries"][0]["keys"]["publicKeys"] == KEY
    conditions = [(one["key"], one["operator"], one["value"]) for one in attestation["conditions"][0]["all"]]
    for tier in ("gpu", "cpu"):
        age = f"{{{{ time_since('', truetagTiers.{tier}.measuredOn, '') }}}}"
        assert (f"{{{{ truetagTiers.{tier}.result }}}}", "Equals", "PASSED") in conditions
        assert (age, "DurationLessThanOrEquals", "720h") in conditions
        assert (age, "DurationGreaterThanOrEquals", "0s") in conditions


def test_cosign_gets_the_dates_of_the_day() -> None:
    assert 'measuredOn!: >="2026-10-23T12:00:00Z" & <="2026-11-22T12:00:00Z"' in text(Reader.COSIGN)


def test_every_reader_has_a_template() -> None:
    folder = Path(ROOT, "templates", "admission")
    assert all(text(reader) for reader in Reader) and len(list(folder.iterdir())) == len(Reader) + 1
