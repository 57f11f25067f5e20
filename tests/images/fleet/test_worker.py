"""A worker runs an ordinary verb: how it is called and cancelled, and which results count."""

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
from images.fleet.worker import EndedVerb, Lost, Measured, Task
from tests.support.fleet_records import DIGEST, NAME, claim, claims, evidence_of, installed
from validate.claims import Tier

BUILD_TASK = Task(image=NAME, tiers=(Tier.STATIC, Tier.CPU))
PULL_TASK = Task(image=NAME, tiers=(Tier.STATIC,), only=("pins",), reference=f"a.test/b@{DIGEST}")
PRINTED = "measured static.pins\nerror cu126: 2 claims failed\n      next: read it"
"""What a verb prints that ends with an error."""


# --- tasks ----------------------------------------------------------------------------------------


def test_a_task_to_build_is_the_verb_build_with_its_options() -> None:
    arguments = " ".join(BUILD_TASK.arguments("/o"))

    assert arguments == f"build {NAME} --tier static --tier cpu --out /o"
    assert BUILD_TASK.key == NAME


def test_a_task_to_pull_is_the_verb_validate_with_its_options() -> None:
    arguments = " ".join(PULL_TASK.arguments("/o"))

    image_options = f"--image {PULL_TASK.reference} --tier static --claim pins"
    assert arguments == f"validate {NAME} {image_options} --out /o"
    assert PULL_TASK.key == f"{NAME}-abababababab"


# --- results --------------------------------------------------------------------------------------

Verb = Callable[[Path], str]
"""Writes files to the folder of an image, and returns what it prints."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine that pulls every image. The worker runs the Verb `verb` of it in place of ours."""
    fake_engine = SimpleNamespace(pulled=[], verb=lambda _folder: "", find=lambda _reference: None)
    fake_engine.pull = fake_engine.pulled.append
    fake_engine.inspect = lambda digest: SimpleNamespace(
        handle=digest, digest=digest, labels={"a": "b"}
    )
    fake_engine.steps = lambda _image_id: ["RUN x"]

    def run_verb(arguments: Sequence[str], _log: Path) -> EndedVerb:
        verb, *_, out = arguments
        # `validate` writes to a folder of its own below --out.
        folder = Path(out, "validate" if verb == "validate" else "", "image")
        folder.mkdir(parents=True)
        return EndedVerb(-signal.SIGKILL, fake_engine.verb(folder))

    def push_by_digest(_engine: object, info: Any, staging: str) -> str:
        return f"{staging}@{info.digest}"

    monkeypatch.setattr(worker, "run_verb", run_verb)
    monkeypatch.setattr(worker, "connect", lambda **_: nullcontext(fake_engine))
    monkeypatch.setattr(worker, "push_by_digest", push_by_digest)
    return fake_engine


def verb_that_writes(*names: str) -> Verb:
    """Return a verb that writes only these files, as if it had been killed after them."""
    evidence = evidence_of(claims(claim("pip")), pip=installed())

    def verb(folder: Path) -> str:
        for name in names:
            content = evidence.dumps() if name == "evidence.json" else "{}"
            (folder / name).write_text(content)
        return PRINTED

    return verb


def test_a_pulled_image_is_measured(engine: SimpleNamespace) -> None:
    engine.verb = verb_that_writes("evidence.json", "verdict.json")

    result = worker.perform(PULL_TASK, "n1")

    assert isinstance(result, Measured)
    assert engine.pulled == [PULL_TASK.reference]
    assert result.reference == PULL_TASK.reference
    assert result.machine == "n1"
    assert result.build == ""
    assert result.labels == {"a": "b"}
    assert json.loads(result.evidence)["image"] == NAME


@pytest.mark.parametrize(
    ("staging", "reference"),
    [
        pytest.param("a.test/lab", f"a.test/lab@{DIGEST}", id="with a registry"),
        pytest.param("", "", id="without"),
    ],
)
def test_a_built_image_is_pushed_by_digest_if_the_task_names_a_registry(
    engine: SimpleNamespace, staging: str, reference: str
) -> None:
    engine.verb = verb_that_writes("evidence.json", "build.json", "verdict.json")

    result = worker.perform(Task(image=NAME, tiers=(Tier.STATIC,), staging=staging), "n1")

    assert isinstance(result, Measured)
    assert result.build == "{}"
    assert result.reference == reference
    assert not engine.pulled


def test_evidence_without_a_verdict_does_not_count(engine: SimpleNamespace) -> None:
    """The verdict is the last file of a verb, which may be killed before it."""
    engine.verb = verb_that_writes("evidence.json")

    result = worker.perform(PULL_TASK, "n1")

    assert result == Lost(cause="on n1: error cu126: 2 claims failed\n      next: read it")


def test_a_verb_that_was_killed_is_reported_with_its_last_line(engine: SimpleNamespace) -> None:
    engine.verb = lambda _folder: "measured static.pins\nmeasured static.files\n"

    result = worker.perform(BUILD_TASK, "n1")

    assert isinstance(result, Lost)
    assert result.cause.endswith(
        "the task was killed by signal 9 (Killed); its last line was: measured static.files"
    )


def test_an_image_that_can_not_be_pulled_is_reported(engine: SimpleNamespace) -> None:
    def refuse(_reference: str) -> None:
        raise failed("a.test/b", "no basic auth credentials", "docker login a.test")

    engine.pull = refuse

    result = worker.perform(PULL_TASK, "n1")

    assert isinstance(result, Lost)
    assert "no basic auth credentials" in result.cause
    assert "docker login" in result.cause


# --- the verb's process ---------------------------------------------------------------------------

PROGRAM_THAT_TIDIES_UP = """
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
    """A task is cancelled by KeyboardInterrupt in the main thread, on Ray and on Slurm."""
    log = tmp_path / "log"
    log.touch()
    start_process = subprocess.Popen
    main_thread = threading.main_thread().ident
    assert main_thread

    def start_program(_command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM_THAT_TIDIES_UP]
        return start_process(command, stdout=options["stdout"], stderr=options["stderr"])

    def interrupt_main_thread() -> None:
        while "begun" not in log.read_text():
            time.sleep(0.05)
        signal.pthread_kill(main_thread, signal.SIGINT)

    monkeypatch.setattr(worker.subprocess, "Popen", start_program)
    threading.Thread(target=interrupt_main_thread, daemon=True).start()

    with pytest.raises(KeyboardInterrupt):
        worker.run_verb(["validate"], log)

    assert log.read_text().startswith("begun\ntidied up\n")


def test_the_output_of_a_verb_says_what_is_wrong_with_its_options(tmp_path: Path) -> None:
    arguments = ["validate", "no-such-image", "--out", str(tmp_path)]

    ended = worker.run_verb(arguments, tmp_path / "log")

    assert ended.status == 2
    assert worker.last_words(ended).startswith("error no-such-image: ")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param(
            "{}['a']",
            "the task ended with exit status 1 and without a verdict; its last line was: KeyError: "
            "'a'",
            id="traceback",
        ),
        pytest.param(
            "import os; os.kill(os.getpid(), 9)",
            "the task was killed by signal 9 (Killed); it wrote nothing",
            id="killed",
        ),
        pytest.param(
            "",
            "the task ended with exit status 0 and without a verdict; it wrote nothing",
            id="silent",
        ),
    ],
)
def test_only_a_verb_that_was_killed_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    start_process = subprocess.Popen

    def start_program(_command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        return start_process(
            [sys.executable, "-c", program], stdout=options["stdout"], stderr=options["stderr"]
        )

    monkeypatch.setattr(worker.subprocess, "Popen", start_program)

    assert worker.last_words(worker.run_verb(["build"], tmp_path / "log")) == words
