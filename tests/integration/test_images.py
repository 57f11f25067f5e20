"""A real image of several gigabytes is built and judged, built again, and interrupted.

test_faults.py breaks it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.context import render
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import OWNER_LABEL, Engine, ImageInfo
from images.locking import lock_file
from images.planning.image import Image
from tests.support import commands
from tests.support.broken_images import NAME
from tests.support.checkout import ROOT
from tests.support.engine_contents import containers, saved
from validate.claims import ClaimSet

pytestmark = pytest.mark.engine


def test_the_base_image_is_green_and_got_its_name(
    base_image: ImageInfo, engine: Engine, out: Path, claims: ClaimSet
) -> None:
    verdict = json.loads((out / NAME / "verdict.json").read_text())
    assert set(verdict) == {
        "schema_version",
        "image",
        "digest",
        "evidence_sha256",
        "overall",
        "claims",
    }
    assert (verdict["image"], verdict["digest"], verdict["overall"]) == (
        NAME,
        base_image.digest,
        "PASS",
    )
    assert [row for row in verdict["claims"] if row["verdict"] == "FAIL"] == []
    assert {row["check"] for row in verdict["claims"]} >= {
        "pins",
        "files",
        "libraries",
        "toolkit",
        "environment",
        "native",
        "compiler",
        "triton",
        "4bit-llama",
    }
    unproven = [row for row in verdict["claims"] if row["verdict"] == "UNPROVEN"]
    assert all(row["subject"] == "flash-attn" and not row["required"] for row in unproven)
    assert engine.find(f"{NAME}-candidate") is None
    for name in ("build.json", "evidence.json", "junit.xml", "report.md", "context/Dockerfile"):
        assert (out / NAME / name).stat().st_size > 100
    assert claims.image == NAME


def test_layers_that_are_built_anew_are_the_base_images_and_hold_no_trace_of_this_machine(
    engine: Engine, image: Image, base: BaseContext, base_image: ImageInfo
) -> None:
    """Build every step of the real templates, with small packages only.

    New marks are planted in the CA and index settings. The step of packages, user and environment
    is the base image's own: its layer is the same on whatever day it is made.
    """
    mark = f"planted-{uuid.uuid4().hex}"
    locks = dict.fromkeys(lock_file.read(image, CHECKOUT.locks).files, b"") | {
        name: content
        for name, content in lock_file.read(image, CHECKOUT.locks).files.items()
        if name in ("light.txt", "toolkit.txt", "tools.txt")
    }
    host = dict(host_settings().files())
    host["host/env"] += f"export UV_INDEX_PLANTED_PASSWORD={mark}\n".encode()
    host["host/ca.crt"] = host.get("host/ca.crt", b"") + f"# {mark}\n".encode()
    tag = "truetag-test-traces"
    engine.build(render.render(image, locks, base, host=host), tag)
    try:
        # An old engine dates /etc where a registry's base has no /etc/hosts.
        assert (
            base.origin != "bootstrapped" or engine.inspect(tag).layers[:2] == base_image.layers[:2]
        )
        names = set()
        for layer, member, content in saved(engine, tag):
            names.add(member.name)
            assert mark.encode() not in content, f"{member.name} in layer {layer}"
    finally:
        engine.remove(tag, force=True)
    assert any("liger_kernel" in name for name in names) and any(
        name.endswith("bin/ptxas") for name in names
    )
    lent = (
        "run/host",
        "run/locks",
        "run/scripts",
        "run/suite",
        "run/tools",
        "run/uv",
        "opt/tools",
        "var/cache/uv",
    )
    kept = [name for name in names if name.startswith(lent)]
    assert not kept


def test_rebuilding_uses_the_engines_cache(
    engine: Engine, base_image: ImageInfo, built: Mapping[str, Any], tmp_path: Path
) -> None:
    """And what no tier has judged gets no name: the one that is asked for has nothing to run on."""
    assert built["steps"], "the engine told nothing of its steps"
    asked = ("--tier", "gpu", "--gpus", "none", "--out", str(tmp_path))
    finished = commands.run("build", NAME, *asked, DOCKER_HOST=engine.facts.url)
    assert finished.returncode == 1 and "static and cpu tier was left out" in " ".join(
        finished.stderr.split()
    )
    assert engine.find(f"{NAME}-candidate") is not None
    engine.untag(f"{NAME}-candidate")
    again = json.loads((tmp_path / NAME / "build.json").read_text())
    assert all(step["cached"] for step in again["steps"] if " RUN " in step["name"])
    assert again["layers"] == list(base_image.layers)


def test_a_build_that_changes_nothing_shows_the_verdict_of_before(
    engine: Engine, base_image: ImageInfo, out: Path
) -> None:
    """Its evidence is that of before, and the image gets its name as if it had been measured."""
    evidence = (out / NAME / "evidence.json").read_bytes()
    verdict = (out / NAME / "verdict.json").read_bytes()

    finished = commands.run("build", NAME, "--out", str(out), DOCKER_HOST=engine.facts.url)

    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
    said = " ".join(finished.stdout.split())
    assert re.search(r"was measured \d+ \w+ ago on this machine; --again measures anew", said)
    assert "measured static.pins" not in finished.stdout + finished.stderr
    assert (out / NAME / "evidence.json").read_bytes() == evidence
    assert (out / NAME / "verdict.json").read_bytes() == verdict
    assert engine.inspect(NAME).digest == base_image.digest
    assert engine.find(f"{NAME}-candidate") is None


def test_an_index_that_fails_midway_leaves_no_name(
    engine: Engine, out: Path, tmp_path: Path
) -> None:
    """The error has the step, the cause and the next command, after several tries with pauses.

    Nothing is left that could be taken for an image, or for a verdict about one.
    """
    name = "cu124-torch26"
    engine.untag(name)
    earlier_verdict = tmp_path / name / "verdict.json"
    earlier_verdict.parent.mkdir()
    earlier_verdict.write_text('{"overall": "PASS"}')
    dead = {
        "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    }
    environment = {
        "DOCKER_HOST": engine.facts.url,
        "PIP_RETRIES": "0",
        "UV_HTTP_RETRIES": "0",
        **dead,
    }
    finished = commands.run("build", name, "--out", str(tmp_path), **environment)
    assert finished.returncode == 1
    said = " ".join((finished.stdout + finished.stderr).split())
    assert "attempt 3 of 3" in said
    assert (
        "tools.sh" in said
        and "the network failed" in said
        and "build again, which keeps what is finished" in said
    )
    assert "Traceback" not in said
    assert engine.find(name) is None and engine.find(f"{name}-candidate") is None
    assert not earlier_verdict.exists()


def test_an_interrupt_leaves_nothing_running_and_no_name(
    engine: Engine, base_image: ImageInfo, tmp_path: Path
) -> None:
    """Ctrl-C comes in the middle of a build, and while one of the same name waits for it.

    The name stays with the image that had it.
    """
    with building(engine, tmp_path / "first") as first:
        begun = told(first, "[system")
        with building(engine, tmp_path / "second") as second:
            waits = told(second, "waits: another process is building the image of this name")
            interrupt(second, waits)
        rest = interrupt(first, begun)
    assert "nothing is left running" in rest
    assert (
        engine.inspect(NAME).digest == base_image.digest
        and engine.find(f"{NAME}-candidate") is None
    )
    owners = [one.labels.get(OWNER_LABEL, "") for one in containers(engine)]
    assert not [one for one in owners if f":{first.pid}:" in one or f":{second.pid}:" in one]


def test_an_interrupted_validation_leaves_no_candidate(
    engine: Engine, base_image: ImageInfo, tmp_path: Path
) -> None:
    with building(engine, tmp_path, no_cache=False) as child:
        interrupt(child, told(child, "measured "))
    assert (
        engine.inspect(NAME).digest == base_image.digest
        and engine.find(f"{NAME}-candidate") is None
    )


def building(engine: Engine, out: Path, *, no_cache: bool = True) -> subprocess.Popen[str]:
    environment = {**os.environ, "DOCKER_HOST": engine.facts.url}
    command = [
        sys.executable,
        "-u",
        "-m",
        "images",
        "build",
        NAME,
        *(["--no-cache"] * no_cache),
        "--out",
        str(out),
    ]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def told(child: subprocess.Popen[str], words: str) -> str:
    """The first line with these words. Fails with all that was printed if the child ends first."""
    assert child.stdout is not None
    printed = []
    for line in child.stdout:
        printed.append(line)
        if words in line:
            return line
    raise AssertionError(f"ended without {words!r}:\n{''.join(printed)}")


def interrupt(child: subprocess.Popen[str], before: str) -> str:
    """Press Ctrl-C. Returns what it still says."""
    assert child.stdout is not None
    child.send_signal(signal.SIGINT)
    rest = child.stdout.read()
    assert child.wait(timeout=300) == 130 and "Traceback" not in rest, before + rest
    return rest
