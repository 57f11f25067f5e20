"""What a trial gets of Apptainer, with a program in its place that unpacks nothing and runs commands where it stands.

It gives no container anything and takes nothing away: what the options do is seen with the real one alone, by hand
(tests/support/other_runtimes.py; Debian has it in sid).
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import images.apptainer
from images.apptainer import runtime
from images.apptainer.runtime import Apptainer, Published, published
from images.engine import ContainerSpec, EngineError, EngineErrorKind, NoEngine
from images.engine.failures import Cancelled
from images.errors import Problem, UserError

REFERENCE = "registry.test/lab/images@sha256:" + "1" * 64
PROGRAM = """#!/bin/sh
case "$*" in
  --version) echo apptainer version 1.4.5 ;;
  *build*broken*) case "$*" in *--no-https*) ;; *) exit 1 ;; esac
    [ "$APPTAINER_TMPDIR" ] && [ -d "$APPTAINER_TMPDIR" ] && echo no space left >&2; exit 255 ;;
  *build*) for one; do case "$one" in */root)
    mkdir -p "$one" ;; esac; done ;;
  *) while [ "$1" != /usr/bin/env ]; do shift; done; exec "$@" ;;
esac
"""


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apptainer]:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(runtime, "read_published", of_registry)
    with Apptainer() as found:
        yield found
    assert list((tmp_path / "scratch").iterdir()) == [], "an unpacked image is left"


def of_registry(reference: str) -> Published | None:
    config = {"config": {"Env": ["PATH=/usr/bin:/bin"]}}
    found = published(reference, "sha256:" + "2" * 64, config, plain_http="broken" in reference)
    return found if "none" not in reference else None


def test_a_container_of_an_image_that_is_named_by_its_digest(apptainer: Apptainer) -> None:
    info = apptainer.pull(REFERENCE)
    spec = ContainerSpec(info.id, ["sh", "-c", "echo $HOSTNAME $OWN"], env={"OWN": "x"}, volumes=["/judge"])
    with apptainer.container(spec) as container:
        container.put({"claims.json": b"{}"}, "/judge")
        container.start()
        assert [line.text for line in container.lines(timeout=60)] == ["validation x"]
        assert container.wait(timeout=60).code == 0
    assert apptainer.facts.version == "apptainer 1.4.5" and apptainer.facts.apptainer


def test_who_cancels_ends_what_runs_and_what_would_begin(apptainer: Apptainer) -> None:
    info = apptainer.inspect(REFERENCE)
    spec = ContainerSpec(info.id, ["sh", "-c", "echo began; exec sleep 600"])
    with pytest.raises(Cancelled), apptainer.container(spec) as container:
        container.start()
        lines = container.lines()
        assert next(lines).text == "began"
        threading.Thread(target=apptainer.cancel).start()
        assert list(lines) == []
    with pytest.raises(Cancelled), apptainer.container(spec):
        pass


@pytest.mark.parametrize(
    ("reference", "more", "said"),
    [
        ("registry.test/broken:1", {}, r"can't be unpacked \(status 255\): no space left"),
        (REFERENCE, {"user": "0"}, "can't give a container a user of its own"),
        (REFERENCE, {"ulimits": {"memlock": -1}}, "gives the limits of the user who starts it"),
    ],
)
def test_what_apptainer_can_not_give_is_refused(
    apptainer: Apptainer, reference: str, more: dict[str, Any], said: str
) -> None:
    """Else a claim of another user would pass as the caller's."""
    spec = ContainerSpec(apptainer.inspect(reference).id, ["true"], **more)
    with pytest.raises(UserError, match=said) as told, apptainer.container(spec):
        pass
    assert getattr(told.value, "kind", None) is (EngineErrorKind.ULIMIT if "ulimits" in more else None)


@pytest.mark.parametrize("reference", ["registry.test/none:1", "cu126-torch27", "sha256:" + "3" * 64])
def test_an_image_that_no_registry_has(apptainer: Apptainer, reference: str) -> None:
    assert apptainer.find(reference) is None
    with pytest.raises(EngineError, match="name one with its registry"):
        apptainer.inspect(reference)


def test_it_is_taken_where_no_engine_answers_and_never_by_root(
    apptainer: Apptainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise NoEngine(Problem(where="engine", cause="none answers"))

    monkeypatch.setattr(images.apptainer, "connect", nobody)
    with images.apptainer.open_runtime(None) as found:
        assert isinstance(found, Apptainer)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NoEngine):
        images.apptainer.open_runtime(None)
    with pytest.raises(UserError, match="root"):
        images.apptainer.open_runtime("apptainer")
