"""A worker: what it pulls, builds and validates, without an engine; and that it tidies up, however often it is told."""

import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import Problem, UserError
from images.fleet import images, worker
from images.fleet.folder import JobFolder
from images.fleet.model import Job
from images.fleet.worker import Task
from tests.support.checkout import ROOT
from tests.support.fleet_records import NAME, claim, claims, installed, job, result
from validate.claims import Tier
from validate.evidence import Evidence

PROGRAM = """
import time
from images.fleet import worker
worker.end_on_sigterm()
try:
    print("ready", flush=True)
    time.sleep(600)
finally:
    print("tidying", flush=True)
    input()
    print("tidied", flush=True)
"""


def test_a_second_sigterm_does_not_end_the_tidying_up() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout and child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "tidying\n"
    child.send_signal(signal.SIGTERM)
    told, _ = child.communicate("go on\n")
    assert told == "tidied\n" and child.returncode != 0


DIGEST, CONTEXT = "sha256:" + "ab" * 32, "c" * 64
STEP = Problem(where="step 3", cause="a step failed", then="read the log")


class Site:
    """An engine, a builder and a registry, in the little that a worker asks of them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, staged: bool, fails: bool = False, context: str = CONTEXT
    ) -> None:
        self.did: list[str] = []
        self.staged, self.fails = staged, fails
        self.facts = SimpleNamespace(version="28.5", local=True)
        self.sdk = SimpleNamespace(images=lambda **_: [])
        self.info = SimpleNamespace(id=DIGEST)
        held_to = claims(claim("pip"))
        self.evidence = Evidence.loads(result(job(1, held_to), held_to, digest=DIGEST, pip=installed()).evidence)
        there = images.Found(digest=DIGEST, labels={}, history=(), reference="a.test/b@x")
        monkeypatch.setattr(worker, "connect", lambda _url, **_: self)
        monkeypatch.setattr(images, "context_digest", lambda *_: context)
        monkeypatch.setattr(images, "in_registry", lambda *_: there if self.staged else None)
        monkeypatch.setattr(images, "send", self.send)
        monkeypatch.setattr(worker, "build_all", self.build)
        monkeypatch.setattr(worker, "_validated", lambda *_: self.did.append("validated") or self.evidence)

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def sweep(self) -> tuple[str, ...]:
        return ()

    def alone(self, _work: str, waiting: object) -> AbstractContextManager[None]:
        return nullcontext()

    def find(self, _reference: str) -> Any:
        return None

    def pull(self, reference: str, platform: str) -> Any:
        self.did.append(f"pulled {reference}")
        return self.info

    def untag(self, tag: str) -> None:
        self.did.append(f"untagged {tag}")

    def build(self, _engine: object, _images: object, options: Any, _progress: object) -> list[Any]:
        self.did.append("built")
        if self.fails:
            return [UserError(STEP, code=1)]
        folder = options.out / f"{NAME}{options.suffix}"
        folder.mkdir()
        (folder / "evidence.json").write_text(self.evidence.dumps())
        (folder / "build.json").write_text(json.dumps({"digest": DIGEST}))
        return [SimpleNamespace(info=self.info)]

    def send(self, _engine: object, _info: object, repository: object, *_: object) -> str:
        self.did.append(f"pushed to {repository}")
        self.staged = True
        return "a.test/b@x"


def task(folder: Path | None = None) -> Task:
    built = Job(image=NAME, tiers=(Tier.STATIC, Tier.CPU), context=CONTEXT, staging="a.test/b")
    return Task(job=built.model_dump_json(), executor="local", matrix="", folder=str(folder or ""))


@pytest.mark.parametrize("staged", [False, True])
def test_an_image_that_staging_lacks_is_built_pushed_and_loses_its_name_and_one_that_is_there_is_pulled(
    monkeypatch: pytest.MonkeyPatch, staged: bool
) -> None:
    site = Site(monkeypatch, staged=staged)
    record = worker.perform(task()).record
    name = f"{NAME}-fleet-u{os.getuid()}"
    built = ["built", "pushed to a.test/b", f"untagged {name}", f"untagged {name}-candidate"]
    assert site.did == (["pulled a.test/b@x", "validated"] if staged else built)
    assert (record.digest, record.reference) == (DIGEST, "a.test/b@x")
    assert record.build == ({} if staged else {"digest": DIGEST})


def test_a_build_that_fails_leaves_no_name_and_another_checkout_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, staged=False, fails=True)
    with pytest.raises(UserError, match="a step failed"):
        worker.perform(task())
    assert [one.partition(" ")[0] for one in site.did] == ["built", "untagged", "untagged"]
    other = Site(monkeypatch, staged=False, context="d" * 64)
    with pytest.raises(UserError, match="its build context is dddddddddddd in the worker's checkout"):
        worker.perform(task())
    assert not other.did


def test_a_second_worker_of_a_job_builds_nothing_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slurm requeued it, or a submitter was killed and another one resumed: the record of the first is there."""
    site, folder = Site(monkeypatch, staged=False), JobFolder(tmp_path)
    for _ in range(2):
        worker.perform_and_keep(task(tmp_path))
    assert site.did.count("built") == 1
    (key,) = folder.job_keys()
    folder.put_aside(key)  # or the first was killed once it had pushed
    worker.perform_and_keep(task(tmp_path))
    assert site.did.count("built") == 1 and site.did[-1] == "validated"
