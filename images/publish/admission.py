"""Admission policies: files that let a cluster run only images whose tiers passed lately. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from images.config.paths import TEMPLATES
from images.context.templates import environment
from images.publish.statements.intoto import TEST_RESULT
from images.publish.statements.test_results import EXTENSION
from images.registry.reference import DOCKER_HUB, Repository
from validate.claims import Tier


class Reader(StrEnum):
    """What enforces a policy."""

    POLICY_CONTROLLER = "policy-controller"
    KYVERNO = "kyverno"
    COSIGN = "cosign"


@dataclass(frozen=True, kw_only=True)
class AdmissionRule:
    """What an image must show."""

    repositories: Sequence[Repository]
    key: str
    """The public key in PEM."""
    tiers: Sequence[Tier]
    days: int
    """How old the verdict on each tier may be."""


_FILES: Mapping[Reader, str] = {
    Reader.POLICY_CONTROLLER: "policy-controller.yaml.j2",
    Reader.KYVERNO: "kyverno.yaml.j2",
    Reader.COSIGN: "cosign.cue.j2",
}


def policy(rule: AdmissionRule, reader: Reader, now: datetime) -> str:
    """The policy as a file of its reader. `now` counts for cosign alone: the others have a clock of their own."""
    rego = rego_rule(rule, package="sigstore", name="isCompliant").strip()  # policy-controller's query (its pkg/policy)
    dates = {"oldest": _utc(now - timedelta(days=rule.days)), "newest": _utc(now)}
    return _render(_FILES[reader], rule, rego=rego, docker_hub=f"{DOCKER_HUB}/", **dates)


def rego_rule(rule: AdmissionRule, *, package: str, name: str) -> str:
    """The rule in Rego, under the name that an evaluator asks for."""
    return _render("rule.rego.j2", rule, package=package, rule_name=name)


def _render(template: str, rule: AdmissionRule, **more: str) -> str:
    variables = {
        "repositories": [str(one) for one in rule.repositories],
        "key": rule.key.strip(),
        "tiers": [str(tier) for tier in rule.tiers],
        "days": rule.days,
        "predicate_type": TEST_RESULT,
        "extension": EXTENSION,
    }
    return environment(TEMPLATES / "admission").get_template(template).render(**variables, **more)


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
