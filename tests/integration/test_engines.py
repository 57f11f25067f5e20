"""The engine tests on a newer engine than most machines': Debian sid's (28.5), empty.

Trixie's (26.1) builds, runs, pulls and gives layers in test_bake.py and test_publish.py.
"""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.context.labels import BaseContext
from images.engine import Engine, connect
from tests.support.checkout import ROOT
from tests.support.other_engine import Kind, Other, other_engine

pytestmark = pytest.mark.engine
TESTS = Path(__file__).with_name("test_engine.py")


@pytest.fixture(scope="module", params=[Kind.CLASSIC, Kind.CONTAINERD])
def sid(request: pytest.FixtureRequest) -> Iterator[Other]:
    with other_engine("sid", request.param) as found:
        yield found


def test_engine_tests_pass_on_the_newest_engine(
    sid: Other, engine: Engine, base: BaseContext
) -> None:
    if base.origin == "bootstrapped":
        sid.take(base.reference, engine)  # making it again would show nothing
    with connect(sid.url) as newer:
        version = newer.facts.version
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found and (int(found[1]), int(found[2])) >= (28, 5), version
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    environment = {**os.environ, "DOCKER_HOST": sid.url}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0 and "skipped" not in last, done.stdout[-4000:] + done.stderr[-1000:]
    logging.getLogger("truetag.tests").warning("engine %s: %s", version, last)
