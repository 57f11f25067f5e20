"""A second run of a real image: its evidence stands for as long as nothing differs."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from images.building import earlier_run, run_files, validating
from images.config import paths
from images.context.labels import BaseContext
from images.engine import Engine
from images.validation import containers
from tests.support.engine_contents import built
from tests.support.small_base import python_base
from tests.support.thin import EINOPS, EINOPS_CLAIM
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status

pytestmark = pytest.mark.engine

CLAIMS = ClaimSet(image="cu126-torch27", claims=(EINOPS_CLAIM,))


@pytest.fixture(scope="module")
def python(engine: Engine, base: BaseContext) -> Iterator[str]:
    with python_base(engine, base) as reference:
        yield reference


@contextmanager
def thin(engine: Engine, python: str, *steps: str) -> Iterator[str]:
    """Yield an image with one package, and with these steps on top."""
    copy = "COPY site /usr/lib/python3/dist-packages"
    dockerfile = "\n".join([f"FROM {python}", copy, *steps, ""])
    files: dict[str, bytes | Path] = {}
    for path, content in EINOPS.items():
        files[f"site/{path}"] = content
    files["site/note.txt"] = b"a note\n"
    tag = f"truetag-test-earlier:{uuid.uuid4().hex[:12]}"
    with built(engine, tag, dockerfile, files, network="none"):
        yield tag


@pytest.fixture(scope="module")
def unchanged(engine: Engine, python: str) -> Iterator[str]:
    with thin(engine, python) as tag:
        yield tag


def measure(
    engine: Engine, tag: str, claims: ClaimSet = CLAIMS, earlier: Evidence | None = None
) -> tuple[Evidence, list[str]]:
    """Measure an image, and return its evidence with what was said of the earlier run."""
    said: list[str] = []
    evidence, _ = validating.measure_and_judge(
        engine, tag, claims, (Tier.STATIC,), earlier=earlier, say=said.append
    )
    return evidence, said


@pytest.fixture(scope="module")
def first(engine: Engine, unchanged: str, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The evidence of a run, as it is read from the files that the run left."""
    folder = tmp_path_factory.mktemp("first")
    evidence, said = measure(engine, unchanged)
    verdict = judge(evidence.claim_set, evidence)
    assert verdict.overall is Status.PASS, verdict
    assert said == []
    run_files.record_validation(folder, evidence, verdict)
    read = earlier_run.read(folder)
    assert read is not None
    return read


def test_the_same_image_is_not_measured_again(
    engine: Engine, unchanged: str, first: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a container was made to measure what had been measured")

    monkeypatch.setattr(engine, "container", refuse)

    evidence, said = measure(engine, unchanged, earlier=first)

    assert evidence is first
    assert said == []


@pytest.mark.parametrize(
    "step",
    [
        "RUN echo another >> /usr/lib/python3/dist-packages/note.txt",
        "ENV TRUETAG_TEST=1",
        "LABEL org.example.test=1",
    ],
)
def test_an_image_with_another_file_variable_or_label_is_measured(
    engine: Engine, python: str, first: Evidence, step: str
) -> None:
    with thin(engine, python, step) as tag:
        evidence, said = measure(engine, tag, earlier=first)

    assert said == ["measured again: the image differs"]
    assert evidence.digest != first.digest


def test_another_suite_or_claim_is_measured_on_the_same_image(
    engine: Engine,
    unchanged: str,
    first: Evidence,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other_claim = replace(EINOPS_CLAIM, expect={**EINOPS_CLAIM.expect, "version": "0.9"})
    other_claims = replace(CLAIMS, claims=(other_claim,))
    other_suite = tmp_path / "validate"
    shutil.copytree(paths.SUITE, other_suite, ignore=shutil.ignore_patterns("__pycache__"))
    with (other_suite / "report.py").open("a") as file:
        file.write("# another line\n")

    failing, said_of_claim = measure(engine, unchanged, other_claims, first)
    monkeypatch.setattr(containers, "SUITE", other_suite)
    evidence, said_of_suite = measure(engine, unchanged, earlier=first)

    why, failed = said_of_claim
    assert why == "measured again: a claim differs"
    assert failed.startswith("failed so far: pins/einops: einops 0.8.2 is installed")
    assert judge(failing.claim_set, failing).overall is Status.FAIL
    assert said_of_suite == ["measured again: the suite differs"]
    assert evidence.digest == first.digest
    assert evidence is not first
