"""`fleet run`: what it ends with, and what it takes over. The executor does as it is told."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from images import cli
from images.commands import fleet as fleet_command
from images.config.names import Arch
from images.errors import UserError
from images.fleet import images
from images.fleet.executors import Ended, Placed
from images.fleet.folder import JobFolder
from images.fleet.model import FleetRun, Job, Lease
from images.fleet.planning import FleetImage
from tests.images.fleet.test_run import Obedient, go
from tests.support import commands
from tests.support.fleet_records import NAME, claim, claims, installed, job, result
from tests.support.sources import SOURCES
from validate.claims import Tier

PIP = claims(claim("pip"))


def call(folder: Path, *arguments: str, action: str = "run") -> Result:
    """Raises UserError as the verb does."""
    file = folder / "fleet.yaml"
    file.write_text("workers: {cpu: {}, h100: {arch: '9.0', gpus: 2}}\n")
    words = ["fleet", action, *arguments, "--fleet", str(file), "--out", str(folder)]
    return CliRunner().invoke(cli.app, words, catch_exceptions=False)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Obedient:
    """In the place of this machine's engine."""
    made = Obedient({})
    made.name = "local"
    monkeypatch.setattr(fleet_command, "open_executor", lambda *_: made)
    monkeypatch.setattr(fleet_command, "_local_engine", lambda _url: nullcontext(None))
    return made


def answer(executor: Obedient, *jobs: Job) -> None:
    executor.answers = {one.key: Ended(key=one.key, result=result(one, PIP, pip=installed())) for one in jobs}


def found_as(monkeypatch: pytest.MonkeyPatch, *located: FleetImage) -> None:
    """Where the image of the command line is, at each look."""
    looks = iter([*located, *[located[-1]] * 5])
    monkeypatch.setattr(images, "locate", lambda *_: next(looks))


def an_image(one: Job, **more: Any) -> FleetImage:
    plain = FleetImage(name=NAME, digest=one.digest, archs=(), ptx=(), claims=PIP, reference=one.reference)
    return replace(plain, **more)


@pytest.mark.parametrize(("version", "status"), [("25.0", 0), ("24.0", 1)])
def test_what_workers_of_a_dead_submitter_recorded_is_judged_and_not_repeated(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch, version: str, status: int
) -> None:
    folder, one = JobFolder(tmp_path), job(1, PIP)
    found_as(monkeypatch, an_image(one))
    folder.note(one)
    folder.keep(result(one, PIP, pip=installed(version)))
    assert call(tmp_path, NAME, "--tier", "static").exit_code == status
    assert not executor.started and (folder.job_path(one.key) / "report.md").is_file()


def test_what_a_run_that_was_killed_while_it_leased_left_is_taken_over(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = job(1, PIP), job(2, PIP)

    class Killed(JobFolder):
        def take(self, asked: FleetRun, one: Job) -> Lease:
            if one == two:
                raise KeyboardInterrupt
            return super().take(asked, one)

    with pytest.raises(KeyboardInterrupt):
        go(Killed(tmp_path), executor, one, two)
    JobFolder(tmp_path).take(FleetRun(id="dead", owner="ann", executor="local"), one)
    said = call(tmp_path, action="status").output
    assert " left " in said and f"`nox -s fleet -- run {NAME} --on local` goes on" in " ".join(said.split())
    found_as(monkeypatch, an_image(one))
    answer(executor, one)
    assert call(tmp_path, NAME, "--tier", "static").exit_code == 0 and executor.started == [one.key]


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("nowhere", 1), ("leased", 1)])
def test_run_ends_with_0_where_everything_asked_for_was_judged(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch, fault: str, code: int
) -> None:
    folder, one = JobFolder(tmp_path), job(1, PIP)
    found_as(monkeypatch, an_image(one, why_not="it is nowhere" if fault == "nowhere" else ""))
    answer(executor, one)
    other = FleetRun(id="other", owner="ann", executor="local")
    with folder.running(other):
        if fault == "leased":
            folder.take(other, one)
        done = call(tmp_path, NAME, "--tier", "static")
    assert done.exit_code == code
    assert ("1 matrix cell" in done.output) is bool(code)
    if not fault:
        assert (folder.job_path(one.key) / "report.md").is_file()
        assert call(tmp_path, NAME, "--tier", "static").exit_code == 0, "fresh by now"
        assert executor.started == [one.key]


def test_run_judges_again_what_was_judged_too_long_ago(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, one = JobFolder(tmp_path), job(1, PIP)
    found_as(monkeypatch, an_image(one))
    old = result(one, PIP, days=30, pip=installed())
    folder.note(one)
    folder.keep(old)
    verdict = {"evidence_sha256": old.record.evidence_sha256}
    (folder.job_path(one.key) / "verdict.json").write_text(json.dumps(verdict))
    answer(executor, one)
    assert call(tmp_path, NAME, "--tier", "static").exit_code == 0
    assert executor.started == [one.key] and folder.record(one.key) != old.record


@pytest.mark.parametrize("version", ["25.0", "24.0"])
def test_an_image_that_staging_lacks_is_built_first_and_then_validated_on_gpus(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """One command: a build that validates what needs no GPU, then GPU tiers of what was built; nothing twice."""
    both = claims(claim("pip"), claim("pip", number="G1", tier=Tier.GPU))
    digest, context, folder = "sha256:" + "ab" * 32, "c" * 64, JobFolder(tmp_path)
    lacking = an_image(job(1, PIP), digest=context, reference="", staging="a.test/b", claims=both, archs=(Arch(9, 0),))
    there = replace(lacking, digest=digest, reference=f"a.test/b@{digest}", staging="")
    found_as(monkeypatch, lacking, there)
    resolved = {"digest": digest, "reference": there.reference, "claims": json.loads(PIP.dumps())}
    monkeypatch.setattr(images, "resolved", lambda one, *_: one.model_copy(update=resolved))

    def start(placed: Sequence[Placed]) -> Mapping[str, str]:
        executor.started.clear()
        for each in placed:
            one = Job.model_validate_json(each.task.job)
            build = {"digest": digest} if one.context else {}
            made = result(one, both.of(one.tiers), digest=digest, build=build, pip=installed(version))
            executor.answers = {**executor.answers, each.key: Ended(key=each.key, result=made)}
        return Obedient.start(executor, placed)

    monkeypatch.setattr(executor, "start", start)
    done = call(tmp_path, NAME, "--staging", "a.test/b")
    assert done.exit_code == (0 if version == "25.0" else 1), done.output
    built, on_gpu = (Job.model_validate_json(each.task.job) for each in executor.placed)
    assert (built.context, built.tiers) == (context, (Tier.STATIC, Tier.CPU))
    assert (on_gpu.digest, on_gpu.tiers, on_gpu.arch, on_gpu.context) == (digest, (Tier.GPU,), "9.0", "")
    assert (folder.job_path(built.key) / "build.json").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--on", "slurm"], "--staging: no registry is named"),
        (["--on", "slurm", "--engine", "unix:///x"], "does not reach workers of slurm"),
        (["--on", "kube"], "--on kube: is nothing that runs jobs"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_begins(
    tmp_path: Path, executor: Obedient, words: list[str], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        call(tmp_path, NAME, *words)
    assert not executor.placed


def test_status_of_an_empty_folder_says_what_begins_a_run(tmp_path: Path) -> None:
    done = commands.call("fleet", "status", "--out", str(tmp_path))
    said = " ".join(done.stdout.split())
    assert done.returncode == 0 and "nothing was leased or judged" in said and "nox -s fleet" in said


def test_progress_tells_a_builders_words_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """BuildKit's steps stand in brackets, as rich's markup does."""
    fleet_command._progress("key", "[system 1/2] RUN exit 3 [/x]: failed")
    assert "[system 1/2] RUN exit 3 [/x]: failed" in capsys.readouterr().err


def test_a_plan_of_everything_leaves_out_what_has_no_lock_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {str(one.name) for one, _ in fleet_command._requested([], [], SOURCES)}
    assert "cu126-torch25" in wanted and "cu121-torch25" not in wanted
    said = capsys.readouterr().err
    assert "left out, as they have no lock of their pins: " in said and "cu121-torch25" in said
    ((named, _),) = fleet_command._requested(["cu121-torch25"], [], SOURCES)
    assert str(named.name) == "cu121-torch25", "what is named is no silent omission"
