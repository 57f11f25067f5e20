"""Audits for real: an image that attacks its auditor, and one of ours with faults that no promise is needed to see."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from images.audit import conduct, report
from images.audit.conduct import AuditOptions
from images.audit.model import Audit, Outcome, Severity
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import Engine, ImageInfo
from tests.support import hostile_image
from tests.support.broken_images import NAME
from tests.support.engine_contents import built
from tests.support.sources import SOURCES
from validate.terminal import wrapped

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
AUDITED = yaml.safe_load(Path(__file__).with_name("audited.yaml").read_text(encoding="utf-8"))


def _audit(engine: Engine, reference: str, options: AuditOptions) -> Audit:
    found, _evidence = conduct.audit(engine, reference, SOURCES.facts, options)
    return found


@pytest.fixture(scope="module")
def hostile(engine: Engine, base: BaseContext) -> Iterator[Audit]:
    files = dict(hostile_image.context(base.reference))
    with built(engine, "truetag-test-hostile", bytes(files.pop("Dockerfile")).decode(), files) as tag:
        yield _audit(engine, tag, AuditOptions(timeout=60))


def test_a_hostile_image_is_read_to_the_end_and_all_that_it_plants_is_named(hostile: Audit) -> None:
    found = {one.key: one.text for one in hostile.faults(Severity.ERROR)}
    assert "/usr/local/bin/python3 is no machine code" in found["audit/interpreters"]
    assert "/usr/local/bin/nvidia-smi" in found["audit/driver"]
    assert "/etc/ld.so.preload loads /evil.so into every process" in found["environment/preload"]
    assert "LD_PRELOAD=/evil.so" in found["environment/variables"]
    assert {one.prefix for one in hostile.environments} == {"/usr/local", "/opt/hangs"}


def test_what_it_prints_of_our_own_probes_does_not_count(hostile: Audit) -> None:
    checks = {(one.check, one.subject, one.environment): one for one in hostile.checks}
    files = checks["files", "recorded", "/usr/local"]
    assert files.outcome is Outcome.FAULT and "pipe of evil" in files.text and "1.0 is missing" in files.text
    flooded = checks["compiler", "c-extension", "/usr/local"]
    assert flooded.outcome is Outcome.FAULT and "printed more than" in flooded.text
    hung = checks["compiler", "c-extension", "/opt/hangs"]
    assert hung.outcome is Outcome.FAULT and "did not end within 60 s" in hung.text


def test_nothing_that_it_says_steers_a_terminal_a_browser_or_a_workflow(hostile: Audit) -> None:
    shown = "\n".join(wrapped(line, 40, report.INDENT) for line in report.terminal(hostile))
    assert re.fullmatch(r"([*|].*\n?)+", shown), "each line begins with a character of ours"
    html, json_text = report.html(hostile), report.dumps(hostile)
    for text in (shown, html, json_text, report.sarif(hostile, "Dockerfile")):
        assert not CONTROL.search(text)
        assert "owned" in text, "the test would see nothing if the names were left out"
        assert "##[" not in text and not re.search(r"(?m)^\s*::error::", text)
    assert "<script>" not in html and "&lt;script&gt;" in html and "[red]" in shown
    assert "\\x3a:error::owned" in html and "#\\x23[error]owned" in html
    json.loads(json_text)


def test_an_audit_that_runs_nothing_needs_no_program_of_the_image(engine: Engine, base: BaseContext) -> None:
    secret = "RUN echo \"api_key = 'Qm9keSBvZiBhIHNlY3JldA'\" > /etc/service.conf"
    steps = f"{secret}\nRUN rm /usr/bin/dash\nUSER root"
    with built(engine, "truetag-test-unhealthy", f"FROM {base.reference}\n{steps}\n") as tag:
        found = {one.key for one in _audit(engine, tag, AuditOptions(run=False)).faults()}
    assert {"hygiene/secrets", "image/user"} <= found


@pytest.fixture(scope="module")
def faulty(engine: Engine, parent: ImageInfo) -> Iterator[Audit]:
    layers = "\n".join(AUDITED["layers"])
    dockerfile = f"FROM {NAME}\nUSER root\n{layers}\nUSER {parent.user}\n"
    with built(engine, "truetag-test-audited", dockerfile, host_settings().files()) as tag:
        yield _audit(engine, tag, AuditOptions(run=False))


def test_faults_that_need_no_promise_are_found_and_nothing_else(faulty: Audit) -> None:
    found = {one.key: one.text for one in faulty.faults()}
    assert set(found) == set(AUDITED["found"])
    assert [name for name, told in AUDITED["found"].items() if told not in found[name]] == []


def test_an_audit_says_where_the_image_runs(faulty: Audit) -> None:
    torch = next(one for one in faulty.runs if one.package == "torch")
    assert (torch.on["80"], torch.on["120"]) == ("machine code", "no")
    assert [one.partition(" or")[0] for one in faulty.drivers] == ["CUDA 12.6: driver 525.60.13"]
    assert "PASS" not in report.dumps(faulty) and "PASS" not in report.html(faulty)
