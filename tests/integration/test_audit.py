"""Audits for real: of an image that attacks its auditor, of one with faults, and of a venv.

The faults can be seen without any claim of the image's author.
"""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from images.audit import measure
from images.audit.expected import AUDIT_JUDGES
from images.audit.measure import Options
from images.building import run_files
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import Engine, ImageInfo
from images.validation import host_look
from tests.support import hostile_image
from tests.support.broken_images import NAME
from tests.support.commands import call
from tests.support.engine_contents import built
from tests.support.sources import SOURCES
from validate import report
from validate.judge import Verdict, explain, judge
from validate.judging import Status

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
AUDITED = yaml.safe_load(Path(__file__).with_name("audited.yaml").read_text(encoding="utf-8"))


def audited(engine: Engine, reference: str, folder: Path, *, run: bool = True) -> Verdict:
    """Audit an image as the verb does, and leave its files."""
    options = Options(facts=SOURCES.facts, run=run, say=logging.getLogger("truetag.tests").debug)
    evidence = measure.audit_image(engine, reference, options)
    verdict = explain(judge(evidence.claim_set, evidence, judges=AUDIT_JUDGES))
    run_files.record_validation(folder, evidence, verdict)
    return verdict


def faults(verdict: Verdict) -> dict[str, str]:
    return {row.claim.key: row.reason for row in verdict.claims_with(Status.FAIL)}


@pytest.fixture(scope="module")
def hostile(
    engine: Engine, base: BaseContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Verdict, Path]]:
    folder = tmp_path_factory.mktemp("hostile")
    files = dict(hostile_image.context(base.reference))
    with built(
        engine, "truetag-test-hostile", bytes(files.pop("Dockerfile")).decode(), files
    ) as tag:
        yield audited(engine, tag, folder, run=False), folder


@pytest.mark.engine
def test_a_hostile_image_is_read_to_the_end_and_all_that_it_plants_is_named(
    hostile: tuple[Verdict, Path],
) -> None:
    found = {row.claim.subject: row.reason for row in hostile[0].claims_with(Status.FAIL)}
    assert "/usr/local/bin/nvidia-smi" in found["driver"]
    assert "/etc/ld.so.preload loads /evil.so into every process" in found["preload"]
    assert "LD_PRELOAD=/evil.so" in found["variables"]
    others = [row for row in hostile[0].claims if row.claim.subject == "of-/opt/hangs"]
    assert [row.status for row in others] == [Status.UNPROVEN], "what was not looked at is named"


@pytest.mark.engine
def test_nothing_that_it_says_steers_a_terminal_a_page_or_a_workflow(
    hostile: tuple[Verdict, Path],
) -> None:
    verdict, folder = hostile
    shown = "\n".join(report.lines(verdict))
    for text in (
        shown,
        (folder / "verdict.json").read_text(),
        (folder / "junit.xml").read_text(),
    ):
        assert not CONTROL.search(text)
        assert "##[" not in text and not re.search(r"(?m)^\s*::error::", text)
    assert "<script>" not in (folder / "report.md").read_text()


@pytest.fixture(scope="module")
def faulty(
    engine: Engine, base_image: ImageInfo, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Verdict]:
    layers = "\n".join(AUDITED["layers"])
    dockerfile = f"FROM {NAME}\nUSER root\n{layers}\nUSER {base_image.user}\n"
    with built(engine, "truetag-test-audited", dockerfile, host_settings().files()) as tag:
        yield audited(engine, tag, tmp_path_factory.mktemp("faulty"), run=False)


@pytest.mark.engine
def test_faults_that_need_no_promise_are_found_and_nothing_else(faulty: Verdict) -> None:
    found = faults(faulty)
    assert set(found) == set(AUDITED["found"]), found
    assert [name for name, told in AUDITED["found"].items() if told not in found[name]] == []


@pytest.mark.engine
def test_steps_that_make_bytes_travel_for_nothing_are_named_with_layer_and_bytes(
    engine: Engine,
) -> None:
    """As with `chown -R`, which doubled 9 GB of an image (topoteretes/cognee#3691)."""
    dockerfile = "FROM scratch\nCOPY model /\nCOPY --chown=1000:1000 model /\nCOPY small /\n"
    files = {"model/app/model": bytes(3_000_000), "small/app/small": b"1"}
    with built(engine, "truetag-test-wasted", dockerfile, files) as tag:
        rows = host_look.wasted_evidence(engine, engine.inspect(tag))

    assert [(row["layer"], row["how"], row["files"], row["bytes"]) for row in rows] == [
        (2, "copied", 1, 3_000_000)
    ]
    # BuildKit leaves `--chown` out of the history.
    assert rows[0]["step"].startswith("COPY model /")
    assert rows[0]["largest"] == "/app/model"


def test_an_environments_folder_is_audited_without_an_engine(tmp_path: Path) -> None:
    """Its evidence is judged again as any other is."""
    folder, out = tmp_path / "venv", tmp_path / "audit"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    info = site / "some-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: some\nVersion: 1.0\nRequires-Dist: other>=2\n"
    )
    (info / "RECORD").write_text("some.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")
    (site / "some.py").write_text("altered = True\n")
    done = call("audit", str(folder), "--out", str(out))
    assert done.returncode == 1, done.stderr
    verdict = json.loads((out / "verdict.json").read_text())
    reasons = {
        row["subject"]: row["reason"] for row in verdict["claims"] if row["verdict"] == "FAIL"
    }
    assert "some 1.0 requires other, which is not installed" in reasons["requirements"]
    assert any("some.py" in reason and "altered" in reason for reason in reasons.values())
    again = call("validate", "--evidence", str(out / "evidence.json"), "--json")
    assert json.loads(again.stdout)["claims"] == verdict["claims"], again.stderr


def test_a_folder_that_is_no_environment_is_told(tmp_path: Path) -> None:
    done = call("audit", str(tmp_path))
    assert (
        done.returncode == 2
        and "is no Python environment" in done.stderr
        and "next:" in done.stderr
    )
