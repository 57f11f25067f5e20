"""A worker runs an ordinary verb: how it is called, cancelled, and what counts of what it leaves."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import failed
from images.fleet import worker
from images.fleet.worker import Lost, Measured, Task
from tests.support.fleet_records import NAME, claim, claims, evidence_of, installed
from validate.claims import Tier

DIGEST = "sha256:" + "ab" * 32
BUILD = Task(image=NAME, tiers=(Tier.STATIC, Tier.CPU))
PULL = Task(image=NAME, tiers=(Tier.STATIC,), only=("pins",), reference=f"a.test/b@{DIGEST}")
Verb = Callable[[Path], str]


def test_a_task_is_a_verb_with_its_options() -> None:
    assert BUILD.arguments("/o") == [
        "build",
        NAME,
        "--tier",
        "static",
        "--tier",
        "cpu",
        "--out",
        "/o",
    ]
    assert PULL.arguments("/o") == [
        *(
            "validate",
            NAME,
            "--image",
            PULL.reference,
            "--tier",
            "static",
            "--claim",
            "pins",
            "--out",
            "/o",
        )
    ]
    assert (BUILD.key, PULL.key) == (NAME, f"{NAME}-abababababab")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine that has every image, and a verb that leaves what `verb` writes."""
    fake = SimpleNamespace(pulled=[], verb=lambda _folder: "", find=lambda _reference: None)
    fake.pull = fake.pulled.append
    fake.inspect = lambda digest: SimpleNamespace(id=digest, labels={"a": "b"})
    fake.steps = lambda _image_id: ["RUN x"]

    def run_verb(arguments: Sequence[str], _log: Path) -> str:
        folder = Path(arguments[-1], "validate" if arguments[0] == "validate" else "", "image")
        folder.mkdir(parents=True)
        told: str = fake.verb(folder)
        return told

    monkeypatch.setattr(worker, "run_verb", run_verb)
    monkeypatch.setattr(worker, "connect", lambda **_: nullcontext(fake))
    monkeypatch.setattr(
        worker, "push_by_digest", lambda _engine, info, staging: f"{staging}@{info.id}"
    )
    return fake


def leave(*names: str) -> Verb:
    """Return a verb that writes these files, as it does when it is killed in between."""
    evidence = evidence_of(claims(claim("pip")), pip=installed())

    def verb(folder: Path) -> str:
        for name in names:
            (folder / name).write_text(evidence.dumps() if name == "evidence.json" else "{}")
        return "measured static.pins\nerror cu126: 2 claims failed\n      next: read it"

    return verb


def test_what_was_pulled_is_measured(engine: SimpleNamespace) -> None:
    engine.verb = leave("evidence.json", "verdict.json")
    result = worker.perform(PULL, "n1")
    assert isinstance(result, Measured) and engine.pulled == [PULL.reference]
    assert (result.reference, result.machine, result.build) == (PULL.reference, "n1", "")
    assert result.labels == {"a": "b"} and json.loads(result.evidence)["image"] == NAME


@pytest.mark.parametrize(("staging", "pushed"), [("a.test/lab", "a.test/lab@sha256:"), ("", "")])
def test_what_was_built_is_pushed_by_digest_where_there_is_a_registry(
    engine: SimpleNamespace, staging: str, pushed: str
) -> None:
    engine.verb = leave("evidence.json", "build.json", "verdict.json")
    task = Task(image=NAME, tiers=(Tier.STATIC,), staging=staging)
    result = worker.perform(task, "n1")
    assert isinstance(result, Measured) and result.build == "{}" and not engine.pulled
    assert result.reference.startswith(pushed) and bool(result.reference) == bool(staging)


def test_half_a_run_is_no_evidence(engine: SimpleNamespace) -> None:
    """`validate` leaves what it measured, whoever kills it: the verdict is its last file."""
    engine.verb = leave("evidence.json")
    result = worker.perform(PULL, "n1")
    assert result == Lost(cause="on n1: error cu126: 2 claims failed\n      next: read it")


def test_a_verb_that_was_killed_is_told_with_its_last_line(engine: SimpleNamespace) -> None:
    engine.verb = lambda _folder: "measured static.pins\nmeasured static.files\n"
    result = worker.perform(BUILD, "n1")
    assert isinstance(result, Lost) and result.cause.endswith(
        "it was killed; its last line was: measured static.files"
    )


def test_an_image_that_cannot_be_pulled_is_told(engine: SimpleNamespace) -> None:
    def refuse(_reference: str) -> None:
        raise failed("a.test/b", "no basic auth credentials", "docker login a.test")

    engine.pull = refuse
    result = worker.perform(PULL, "n1")
    assert (
        isinstance(result, Lost)
        and "no basic auth credentials" in result.cause
        and "docker login" in result.cause
    )


TIDIES_UP = """
import signal, sys, time
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, interrupt)
print("begun", flush=True)
try:
    time.sleep(600)
finally:
    print("tidied up", flush=True)
"""


def test_a_cancelled_task_lets_its_verb_tidy_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray raises it in the main thread of the worker, Slurm's SIGTERM does so too."""
    log, run = tmp_path / "log", subprocess.Popen

    def program(_command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
        return run([sys.executable, "-c", TIDIES_UP], stdout=more["stdout"], stderr=more["stderr"])

    def interrupt() -> None:
        while "begun" not in log.read_text():
            time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr(worker.subprocess, "Popen", program)
    log.touch()
    main = threading.main_thread().ident
    assert main
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        worker.run_verb(["validate"], log)
    assert log.read_text().startswith("begun\ntidied up\n")


def test_a_verb_says_what_is_wrong_with_its_options(tmp_path: Path) -> None:
    log = worker.run_verb(["validate", "no-such-image", "--out", str(tmp_path)], tmp_path / "log")
    assert worker.last_words(log).startswith("error no-such-image: ")
