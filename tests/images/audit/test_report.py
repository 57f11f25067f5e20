"""An audit in its forms: SARIF, JSON by its schema, HTML. None of them looks like a verdict."""

import json
from html import escape

import jsonschema_rs
import pytest

from images.audit import report
from images.audit.model import NO_VALIDATION
from tests.support.audit_samples import audit, check
from tests.support.checkout import ROOT

FAULTY = audit([check("x needs liby.so", fix="install it"), check("a%b\nc", name="hygiene", subject="secrets")])


def test_sarif_has_a_rule_and_a_place_for_each_fault() -> None:
    (run,) = json.loads(report.sarif(FAULTY, "docker/Dockerfile"))["runs"]
    assert [one["id"] for one in run["tool"]["driver"]["rules"]] == ["libraries/libraries", "hygiene/secrets"]
    assert [one["level"] for one in run["results"]] == ["error", "error"]
    places = [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in run["results"]]
    assert places == ["docker/Dockerfile"] * 2
    assert "/opt/venv: x needs liby.so Fix: install it." in run["results"][0]["message"]["text"]
    assert run["properties"]["notice"] == NO_VALIDATION


def test_json_keeps_to_its_schema_and_is_no_verdict() -> None:
    schema = json.loads((ROOT / "docs" / "schema" / "audit.schema.json").read_text())
    written = json.loads(report.dumps(FAULTY))
    jsonschema_rs.validator_for(schema).validate(written)
    assert not jsonschema_rs.validator_for(schema).is_valid({**written, "overall": "PASS"})
    assert written["kind"] == "truetag-audit" and written["notice"] == NO_VALIDATION
    assert not {"overall", "claims", "verdict"} & written["audit"].keys()
    verdict = json.loads((ROOT / "docs" / "schema" / "verdict.schema.json").read_text())
    assert not jsonschema_rs.validator_for(verdict).is_valid(written)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "<img src=x onerror=y>", "</table>"])
def test_the_page_escapes_all_that_the_image_says(text: str) -> None:
    html = report.html(audit([check(text)]))
    assert escape(text) in html and (text not in html or text == "</table>")
    assert NO_VALIDATION in html and "default-src 'none'" in html
