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
def shell(engine: Engine, parent: ImageInfo, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment for Docker's own command line, and a volume that goes again."""
    environment = {**os.environ, "DOCKER_HOST": engine.facts.url}
    yield environment
    subprocess.run(["docker", "volume", "rm", "--force", _VOLUME], env=environment, check=False)


def printed_commands() -> list[str]:
    """They are the first three of docs/using.md, as written there, but for the volume's name."""
    text = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    return [
        block.replace("truetag-cache", _VOLUME)
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[:3]
    ]


@pytest.mark.parametrize("uid", [os.getuid(), 12345])
def test_the_first_commands_work_as_they_are_printed(
    shell: dict[str, str], tmp_path: Path, uid: int
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    os.chown(folder, uid, uid)
    if uid != os.getuid():  # whoever types them there has another uid: `id` says so
        (tmp_path / "id").write_text(f"#!/bin/sh\necho {uid}\n")
        (tmp_path / "id").chmod(0o755)
    environment = {**shell, "PATH": f"{tmp_path}:{shell['PATH']}"}
    write, train, find = printed_commands()
    for command, said in ((write, ""), (train, "step 1: loss"), (find, "")):
        done = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    assert done.stdout.strip().isdigit(), "the number of parameters that the second container read"


def validated(
    engine: Engine, out: Path, *options: str, name: str, version: str
) -> subprocess.CompletedProcess[str]:
    """Build a child with one wheel more, and judge it from the command line."""
    tag, wheel = f"truetag-test-child-{name}", wheels.module(out, name, version)
    file = wheel.name
    step = (
        f"--mount=type=bind,source={file},target=/run/{file} "
        f"pip install --no-index --no-deps /run/{file}"
    )
    dockerfile = (
        f"FROM {NAME}\nUSER root\nRUN {step}\nRUN echo code >/workspace/train.py\nUSER 1001\n"
    )
    asked = ("--image", tag, "--tier", "static", "--out", str(out), *options)
    with built(engine, tag, dockerfile, {file: wheel}):
        return commands.run("validate", NAME, *asked, DOCKER_HOST=engine.facts.url)


def test_a_child_that_adds_a_package_and_code_is_well_and_what_it_added_is_named(
    engine: Engine, parent: ImageInfo, tmp_path: Path
) -> None:
    about = [
        word
        for claim in ("pins", "files", "environment", "image", "hygiene", "origin")
        for word in ("--claim", claim)
    ]
    done = validated(engine, tmp_path, *about, name="added", version="1.5")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "packages added: 1 (added 1.5)" in done.stdout
    report = (tmp_path / "validate" / "truetag-test-child-added" / "report.md").read_text()
    assert "- packages added: 1 (added 1.5)" in report


def test_a_child_that_moves_a_pin_fails_as_the_parent_would(
    engine: Engine, parent: ImageInfo, tmp_path: Path
) -> None:
    done = validated(engine, tmp_path, "--claim", "pins", name="einops", version="99.0")
    assert done.returncode == 1
    assert "einops 99.0 is installed, 0.8.2 is expected" in " ".join(done.stdout.split())
    assert "packages moved: 1 (einops 0.8.2 to 99.0)" in done.stdout


def test_readme_prints_the_fault_and_who_is_named(
    engine: Engine, parent: ImageInfo, tmp_path: Path
) -> None:
    """README.md calls the image broken: here it has another name, and another parent."""
    example = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("$ printf '")[2]
        .partition("```")[0]
    )
    example = example.replace("cu126-torch25", NAME).replace("cuda124", "cuda126")
    dockerfile, _, rest = example.partition("' |")
    with built(engine, "truetag-test-readme", dockerfile.replace("\\n", "\n")) as tag:
        asked = (
            "--image",
            tag,
            "--claim",
            "bitsandbytes",
            "--gpus",
            "none",
            "--out",
            str(tmp_path),
        )
        done = commands.run("validate", NAME, *asked, DOCKER_HOST=engine.facts.url)

    def words(text: str) -> str:
        return " ".join(word for word in text.split() if not word.startswith("sha256:"))

    said = words(done.stdout.replace(tag, "broken"))
    printed = words(rest.partition("--claim bitsandbytes\n")[2]).split(" ... ")
    assert [part for part in printed if part not in said] == [], said
    assert done.returncode == 1


def test_what_a_child_does_to_its_parent_is_told_whoever_owns_the_files(
    engine: Engine, parent: ImageInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RECORD or dpkg list some of them; of others, layers, settings or Python's start tell."""
    monkeypatch.setattr(judging, "_FAULTS_SHOWN", 200)
    faults = yaml.safe_load(Path(__file__).with_name("children.yaml").read_text(encoding="utf-8"))
    (image,) = (one.image for one in plan.select([NAME], SOURCES))
    assert image is not None
    dockerfile = "\n".join([f"FROM {NAME}", "USER root", *faults, ""])
    with built(engine, "truetag-test-child-faults", dockerfile) as tag:
        child = engine.inspect(tag)
        only = (
            "origin/layers",
            "lookup",
            "modes",
            "environment",
            "image/settings",
            "image/labels",
            "state",
        )
        steps = engine.steps(tag)
        claims = validating.claims_of(
            image, SOURCES, child.labels, steps, validating.ANYWHERE, only=only
        )
        verdict = judged(engine, tag, claims)
    told = [one.reason for one in verdict.claims if one.status is Status.FAIL]
    (origin,) = (one for one in verdict.claims if one.claim.probe == ORIGIN_PROBE)
    assert origin.status is Status.PASS, (
        "a derived image may change files: that is listed, and other checks judge it"
    )
    changes = origin.evidence["changes"]
    assert all(change["step"].startswith("RUN ") for change in changes)
    for change in changes:
        told += [f"{path}: {difference}" for path, difference in change["replaced"].items()]
        told += [f"{path} removed" for path in change["removed"]]
    assert [fault for fault in faults.values() if not any(fault in text for text in told)] == [], (
        told
    )
