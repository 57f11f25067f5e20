"""A newer engine than most machines': Debian sid's (28.5), in each kind.

It passes the engine tests, and images are built and judged on it. Trixie's (26.1) builds, runs,
pulls and gives layers in test_buildx.py and test_publish.py.
"""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from images.building import validating
from images.context.labels import BaseContext
from images.engine import Engine, connect
from tests.support.checkout import ROOT
from tests.support.engine_contents import built
from tests.support.other_engine import Kind, Other
from tests.support.small_base import python_base
from tests.support.thin import EINOPS, EINOPS_CLAIM
from validate.claims import ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine
TESTS = Path(__file__).with_name("test_engine.py")


NEEDS_CGROUPS = "test_a_bounded_memory_is_a_bound_and_the_kill_is_told"
"""Without cgroup v2 and systemd, a rootless engine bounds no memory (docs/engines.md)."""


def test_engine_tests_pass_on_the_newest_engine(
    sid: Other, engine: Engine, base: BaseContext
) -> None:
    if base.origin == "bootstrapped":
        sid.take(base.reference, engine)  # making it again would show nothing
    with connect(sid.url) as newer:
        version = newer.facts.version
    assert Version(version) >= Version("28.5"), version
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    if sid.kind is Kind.ROOTLESS:
        command += ["--deselect", f"{TESTS.relative_to(ROOT)}::{NEEDS_CGROUPS}"]
    environment = {**os.environ, "DOCKER_HOST": sid.url}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0 and "skipped" not in last, done.stdout[-4000:] + done.stderr[-1000:]
    logging.getLogger("truetag.tests").warning("engine %s: %s", version, last)


def test_an_image_is_built_measured_and_judged(
    sid: Other, engine: Engine, base: BaseContext
) -> None:
    """Of two packages that are claimed, it has one."""
    lacking = replace(EINOPS_CLAIM, subject="lacking")
    claims = ClaimSet(image="cu126-torch27", claims=(EINOPS_CLAIM, lacking))
    site = "/usr/local/lib/python3.11/dist-packages"
    files: dict[str, bytes | Path] = {}
    for path, content in EINOPS.items():
        files[f"site/{path}"] = content

    with python_base(engine, base) as python:
        sid.take(python, engine)
    dockerfile = f"FROM {python}\nCOPY site {site}\nUSER 1001\n"
    with connect(sid.url) as newer:
        with built(newer, "truetag-test-judged", dockerfile, files, network="none") as tag:
            _, verdict = validating.measure_and_judge(newer, tag, claims, [Tier.STATIC])
        assert newer.find("truetag-test-judged") is None

    rows = {row.claim.subject: row.status for row in verdict.claims}
    assert rows == {"einops": Status.PASS, "lacking": Status.FAIL}
