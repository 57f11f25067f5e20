"""What people do with the installed package only, in a folder without matrix.yaml.

They verify an image, and audit one.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.context.labels import BaseContext
from images.engine import Engine
from images.registry.client import Registry
from images.registry.reference import Repository
from tests.support.checkout import ROOT
from tests.support.engine_contents import built
from tests.support.installed import install, truetag
from tests.support.published import days_ago, published
from tests.support.small_base import python_base


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory)


@pytest.fixture
def repository(registry: str, place: str) -> Iterator[Registry]:
    with Registry(Repository(registry, f"installed/{place}")) as found:
        yield found


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_an_image_is_verified_and_the_output_says_what_was_not_compared(
    installed: Path, repository: Registry, empty: Path
) -> None:
    image = published(repository, "one", date=days_ago(1))
    done = truetag(
        installed, empty, "verify", image.reference, "--unsigned", "--gate", "static,gpu"
    )
    told = " ".join(done.stdout.replace("│", " ").split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "UNPROVEN gate static,gpu no matrix.yaml is here, and no key stands for the claims of the"
        in told
    )
    assert "FAIL" not in told
    assert (
        truetag(installed, empty, "verify", image.reference, "--gate", "static").returncode == 1
    ), "not signed"
    done = truetag(installed, empty, "verify", image.reference, "--unsigned")
    assert done.returncode == 1 and "the cpu tier was not judged" in done.stdout, (
        "the gate is the default one"
    )


def test_what_moves_tags_needs_the_matrix(
    installed: Path, repository: Registry, empty: Path
) -> None:
    """Only matrix.yaml has aliases, rows of several platforms, and the claims of a statement."""
    image = published(repository, "one", date=days_ago(1))
    done = truetag(installed, empty, "promote", image.reference, "--to", "127.0.0.1:9/x")
    assert done.returncode == 2 and "matrix.yaml: is missing" in done.stderr, done.stderr
    assert "go to the folder that has yours" in " ".join(done.stderr.split())


@pytest.mark.engine
def test_an_image_is_audited_as_a_pull_request_is(
    installed: Path, engine: Engine, base: BaseContext, empty: Path
) -> None:
    (line,) = re.findall(
        r"(?m)^ *- run: truetag (audit candidate .*)$",
        (ROOT / "docs/audit-workflow.yml").read_text(),
    )
    packages = "RUN python3 -c \"import os; os.makedirs('/usr/lib/python3/dist-packages')\""
    with (
        python_base(engine, base) as small,
        built(engine, "truetag-test-pull", f"FROM {small}\n{packages}\n") as python,
    ):
        words = [python if word == "candidate" else word for word in shlex.split(line)]
        done = truetag(installed, empty, *words, "--engine", engine.facts.url)
    assert done.returncode in (0, 1) and "next:" not in done.stderr, done.stderr
    found = json.loads((empty / "audit" / "verdict.json").read_text())
    assert found["image"] == f"audit of {python}" and found["claims"]
