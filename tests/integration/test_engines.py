"""The engine tests on a newer engine than most machines': Debian sid's (28.5), empty, in each kind.

Trixie's (26.1) builds, runs, pulls and gives layers in test_bake.py and test_publish.py.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from images.context.labels import BaseContext
from images.engine import Engine, connect
from tests.support.checkout import ROOT
from tests.support.other_engine import Kind, Other, other_engine

pytestmark = pytest.mark.engine
TESTS = Path(__file__).with_name("test_engine.py")


NEEDS_CGROUPS = "test_a_bounded_memory_is_a_bound_and_the_kill_is_told"
"""Without cgroup v2 and systemd, a rootless engine bounds no memory (docs/engines.md)."""


@pytest.fixture(scope="module", params=list(Kind))
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


@pytest.fixture(scope="module")
def sid(kind: Kind) -> Iterator[Other]:
    with other_engine("sid", kind) as running:
        yield running


def test_engine_tests_pass_on_the_newest_engine(
    sid: Other, kind: Kind, engine: Engine, base: BaseContext
) -> None:
    if base.origin == "bootstrapped":
        sid.take(base.reference, engine)  # making it again would show nothing
    with connect(sid.url) as newer:
        version = newer.facts.version
    assert Version(version) >= Version("28.5"), version
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    if kind is Kind.ROOTLESS:
        command += ["--deselect", f"{TESTS.relative_to(ROOT)}::{NEEDS_CGROUPS}"]
    environment = {**os.environ, "DOCKER_HOST": sid.url}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0 and "skipped" not in last, done.stdout[-4000:] + done.stderr[-1000:]
    logging.getLogger("truetag.tests").warning("engine %s: %s", version, last)
