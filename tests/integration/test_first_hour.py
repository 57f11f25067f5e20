"""What people do first with an image: commands of docs/using.md, a package, a derived image."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from images.building import validating
from images.engine import Engine, ImageInfo
from images.planning import plan
from tests.support import commands, wheels
from tests.support.broken_images import NAME, judged
from tests.support.checkout import ROOT
from tests.support.engine_contents import built
from tests.support.sources import SOURCES
from validate import judging
from validate.claims import ORIGIN_PROBE
from validate.judging import Status

pytestmark = pytest.mark.engine

_VOLUME = f"truetag-test-first-hour-{os.getpid()}"


@pytest.fixture
def shell(engine: Engine, base_image: ImageInfo, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield variables for Docker's own command line. Its volume is removed afterwards."""
    environment = {**os.environ, "DOCKER_HOST": engine.facts.url}
    yield environment
    subprocess.run(["docker", "volume", "rm", "--force", _VOLUME], env=environment, check=False)


def printed_commands() -> list[str]:
    """Return the first three commands of docs/using.md, with a volume of our own."""
    text = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [block.replace("truetag-cache", _VOLUME) for block in blocks[:3]]


@pytest.mark.parametrize("uid", [os.getuid(), 12345])
def test_the_first_commands_work_as_they_are_printed(
    shell: dict[str, str], tmp_path: Path, uid: int
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    os.chown(folder, uid, uid)
    if uid != os.getuid():
        # Somebody with another uid types the commands: `id` says so.
        (tmp_path / "id").write_text(f"#!/bin/sh\necho {uid}\n")
        (tmp_path / "id").chmod(0o755)
    environment = {**shell, "PATH": f"{tmp_path}:{shell['PATH']}"}
    outputs = []

    for command in printed_commands():
        process = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        outputs.append(process.stdout)

    _, training, parameter_count = outputs
    assert "step 1: loss" in training
    assert parameter_count.strip().isdigit(), "as the second container read it"


def test_a_derived_image_that_moves_a_pin_fails_as_the_base_image_would(
    engine: Engine, base_image: ImageInfo, tmp_path: Path
) -> None:
    wheel = wheels.module(tmp_path, "einops", "99.0")
    mount = f"--mount=type=bind,source={wheel.name},target=/run/{wheel.name}"
    step = f"RUN {mount} pip install --no-index --no-deps /run/{wheel.name}"
    dockerfile = f"FROM {NAME}\nUSER root\n{step}\nUSER 1001\n"
    options = ("--tier", "static", "--claim", "pins", "--out", str(tmp_path))

    with built(engine, "truetag-test-moved", dockerfile, {wheel.name: wheel}) as tag:
        process = commands.run(
            "validate", NAME, "--image", tag, *options, DOCKER_HOST=engine.facts.url
        )

    assert process.returncode == 1
    assert "einops 99.0 is installed, and 0.8.2 is expected" in " ".join(process.stdout.split())
    assert "packages moved: 1 (einops 0.8.2 to 99.0)" in process.stdout


def test_readme_prints_the_fault_and_who_is_named(
    engine: Engine, base_image: ImageInfo, tmp_path: Path
) -> None:
    """README.md calls the image `broken`; here it has another name, and another base image."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.partition("$ printf '")[2].partition("```")[0]
    example = example.replace("cu126-torch25", NAME).replace("cuda124", "cuda126")
    dockerfile, _, below_dockerfile = example.partition("' |")
    printed = below_dockerfile.partition("--claim bitsandbytes\n")[2]

    with built(engine, "truetag-test-readme", dockerfile.replace("\\n", "\n")) as tag:
        options = ("--image", tag, "--claim", "bitsandbytes", "--gpus", "none")
        process = commands.run(
            "validate", NAME, *options, "--out", str(tmp_path), DOCKER_HOST=engine.facts.url
        )

    output = without_digests(process.stdout.replace(tag, "broken"))
    missing = [part for part in without_digests(printed).split(" ... ") if part not in output]
    assert missing == [], output
    assert process.returncode == 1


def without_digests(text: str) -> str:
    """Return a text in one line, without digests, which differ from image to image."""
    return " ".join(word for word in text.split() if not word.startswith("sha256:"))


def test_what_a_derived_image_does_to_its_base_image_is_told_whoever_owns_the_files(
    engine: Engine, base_image: ImageInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RECORD or dpkg list some of them; of others, layers, settings or Python's start tell."""
    monkeypatch.setattr(judging, "_FAULTS_SHOWN", 200)
    faults = yaml.safe_load(
        Path(__file__).with_name("derived_faults.yaml").read_text(encoding="utf-8")
    )
    (planned,) = plan.select([NAME], SOURCES)
    image = planned.image
    assert image is not None
    dockerfile = "\n".join([f"FROM {NAME}", "USER root", *faults, ""])
    with built(engine, "truetag-test-derived-faults", dockerfile) as tag:
        derived = engine.inspect(tag)
        only = (
            *("origin/layers", "lookup", "modes", "environment"),
            *("image/settings", "image/labels", "state"),
        )
        steps = engine.steps(tag)
        claims = validating.claims_of(
            image, SOURCES, derived.labels, steps, validating.ANYWHERE, only=only
        )
        verdict = judged(engine, tag, claims)

    # A derived image may change files: that is listed, and other checks judge it.
    (origin,) = (row for row in verdict.claims if row.claim.probe == ORIGIN_PROBE)
    assert origin.status is Status.PASS
    reports = [row.reason for row in verdict.claims if row.status is Status.FAIL]
    for change in origin.evidence["changes"]:
        assert change["step"].startswith("RUN ")
        reports += [f"{path}: {difference}" for path, difference in change["replaced"].items()]
        reports += [f"{path} removed" for path in change["removed"]]
    for fault in faults.values():
        assert any(fault in report for report in reports), (fault, reports)
