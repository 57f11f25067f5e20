"""`build --on` and `nightly --on`: what workers can't do is refused, and what an image gets for their verdict."""

import json
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from images import cli
from images.building.trying import Described
from images.commands import executors, fleet
from images.errors import Problem, UserError
from images.fleet import booking, travel
from images.fleet.builds import submitting
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.executors.executor import Ended, Placed
from images.fleet.travel import Found
from images.locking.inputs import lock_inputs
from images.nightly import canary, results
from images.nightly import judge as nightly_judge
from tests.images.fleet.test_builds import DIGEST, Obedient, job, result
from tests.support.fleet_records import NAME, claim, claims
from tests.support.nightly_samples import at
from validate.evidence import Evidence

PIP = claims(claim("pip"))
REFERENCE = f"a.test/b@sha256:{'1' * 64}"


def call(*words: str) -> Result:
    """Raises UserError as the verb does."""
    return CliRunner().invoke(cli.app, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "named", "then"),
    [
        (("--base", "mine:1"), "--base mine:1", "HOST/NAME@sha256"),
        (("--wheelhouse", "."), "--wheelhouse", "--wheel-mirror"),
        (("--offline",), "--offline", "without --on"),
        (("--jobs", "2"), "--jobs", "slurm.at_once"),
        (("--compile",), "--compile", f"nox -s wheels -- {NAME}"),
        (("--tier", "gpu"), "--tier gpu", f"nox -s fleet -- run {NAME} --on slurm --tier gpu"),
        (("--engine", "unix:///x"), "--engine unix:///x", "DOCKER_HOST"),
        (("--gpus", "cdi"), "--gpus cdi", f"nox -s fleet -- run {NAME} --on slurm"),
    ],
)
def test_what_workers_can_not_build_is_refused_with_the_next_command(
    words: tuple[str, ...], named: str, then: str
) -> None:
    with pytest.raises(UserError) as told:
        call("build", NAME, "--on", "slurm", "--through", "a.test/b", *words)
    (problem,) = told.value.problems
    assert problem.where == named and then in problem.then


def test_a_nightly_run_on_workers_refuses_what_they_can_not_do_all_at_once() -> None:
    words = ("--on", "ray", "--base", "mine:1", "--wheelhouse", ".", "--tier", "multigpu", "--gpus", "cdi")
    with pytest.raises(UserError) as told:
        call("nightly", NAME, *words, "--through", "a.test/b")
    assert [one.where for one in told.value.problems] == [
        "--base mine:1",
        "--wheelhouse",
        "--gpus cdi",
        "--through",
        "--tier multigpu",
        "security updates",
    ]
    assert all(one.then for one in told.value.problems)


@pytest.mark.parametrize("verb", ["build", "nightly"])
def test_settings_of_workers_need_workers(verb: str) -> None:
    with pytest.raises(UserError, match="--through: is about workers"):
        call(verb, NAME, "--through", "a.test/b")
    with pytest.raises(UserError, match="--on condor: is nothing that runs jobs"):
        call(verb, NAME, "--on", "condor")


def test_a_build_on_workers_needs_a_registry() -> None:
    with pytest.raises(UserError, match="no registry is named"):
        call("build", NAME, "--on", "slurm")


def there(labels: Mapping[str, str] | None = None, digest: str = DIGEST) -> Found:
    """What a registry has."""
    described = Described(labels=labels or {}, history=[])
    return Found(digest=digest, described=described, home="/", reference="a.test/b@sha256:2")


def answered(monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[BuildJob]:
    """Workers that measure pip 25.0, a registry with what they built, and a checkout that asks for no more. Gets the
    jobs."""
    told: list[BuildJob] = []

    def answer(placed: Placed) -> Ended:
        told.append(BuildJob.model_validate_json(placed.task.job))  # type: ignore[attr-defined]
        given = {"reference": REFERENCE, "run": placed.task.run, **more}  # type: ignore[attr-defined]
        built: BuildResult = result(told[-1], **given)
        return Ended(key=placed.key, result=built)

    monkeypatch.setattr(executors, "executor", lambda *_rest: Obedient(answer))
    monkeypatch.setattr(executors, "local_engine", lambda _url: nullcontext(None))
    monkeypatch.setattr(submitting, "claims_of", lambda *_rest: PIP)
    monkeypatch.setattr(travel, "in_registry", lambda *_rest: there())
    return told


def test_an_image_that_workers_built_and_this_machine_judged_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = answered(monkeypatch)
    done = call("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path), "--no-cache")
    assert done.exit_code == 0 and f"{NAME} is validated" in done.stdout and REFERENCE in done.stdout
    assert [(one.image, one.through, one.no_cache, one.tiers) for one in told] == [
        (NAME, "a.test/b", True, ("static", "cpu"))
    ]
    assert {path.name for path in (tmp_path / NAME).iterdir()} >= {"build.json", "evidence.json", "verdict.json"}


def test_a_killed_build_is_resumed_with_the_verdict_of_what_its_workers_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of the killed run is not built again; the other one is."""
    told = answered(monkeypatch)
    images = (NAME, "cu126-torch25")
    words = ("build", *images, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    seen = executors.executor

    def interrupting(*given: Any) -> Obedient:
        executor = seen(*given)
        answer, answers = executor.answer, iter((True, False))

        def one(placed: Placed) -> Ended:
            if next(answers):
                return answer(placed)
            raise KeyboardInterrupt

        executor.answer = one
        return executor

    monkeypatch.setattr(executors, "executor", interrupting)
    assert call(*words).exit_code == 130
    shutil.rmtree(tmp_path / NAME)
    monkeypatch.setattr(executors, "executor", seen)
    other = replace(Evidence.loads(result(job(image=images[1])).evidence), image=images[1])
    with pytest.raises(UserError) as failed:  # the worker of this test measures the first image alone
        call(*words, "--resume")
    (problem,) = failed.value.problems
    assert problem.where == told[1].key and problem.cause.startswith(f"the evidence is of {NAME}")
    assert json.loads((tmp_path / NAME / "build.json").read_text())["worker"]["node"] == "n1"
    again = answered(monkeypatch, evidence=other.dumps())
    monkeypatch.setattr(submitting, "claims_of", lambda image, *_rest: replace(PIP, image=str(image.name)))
    assert call(*words, "--resume").exit_code == 0
    assert [one.image for one in (*told, *again)] == [*images, images[1]], "evidence that is none is put aside"
    with pytest.raises(UserError, match="left these jobs: 2 of 2 judged") as told_then:
        call(*words, "--resume")
    assert told_then.value.code == 2


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_while_one_job_of_a_killed_run_is_resumed_another_process_builds_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: tuple[str, ...]
) -> None:
    """A living process has what it took, and not all that the run before it had."""
    told, ledger = answered(monkeypatch), BuildLedger(tmp_path / "builds")
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    for options in ((), ("--no-cache",)):
        assert call(*words, *options).exit_code == 0
    left = booking.new_run("slurm", [one.key for one in told])
    with ledger.running(left):
        for one in list(told):
            ledger.put_aside(one.key)
            ledger.book(booking.booking(left, one.key, "7"), one)
        ledger.note_run(left)
    seen, theirs = executors.executor, list[int]()

    def beside(*given: Any) -> Obedient:
        executor = seen(*given)
        answer = executor.answer

        def one(placed: Placed) -> Ended:
            monkeypatch.setattr(executors, "executor", seen)
            theirs.append(call(*words, "--no-cache", *resume).exit_code)
            return answer(placed)

        executor.answer = one
        return executor

    monkeypatch.setattr(executors, "executor", beside)
    assert call(*words, "--resume").exit_code == 0 and theirs == [0]
    assert len(told) == 4 and all(one.ended for one in ledger.runs())


def test_what_another_cluster_got_since_resume_looked_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process resumes the same job on Slurm in between, and is killed once it is submitted."""
    told, ledger = answered(monkeypatch), BuildLedger(tmp_path / "builds")
    words = ("build", NAME, "--through", "a.test/b", "--out", str(tmp_path))
    assert call(*words, "--on", "ray").exit_code == 0
    (one,) = told
    ledger.put_aside(one.key)
    left, theirs = booking.new_run("ray", [one.key]), booking.new_run("slurm", [one.key])
    with ledger.running(left):
        ledger.note_run(left)
    seen = executors.executor

    def overtaken(*given: Any) -> Obedient:
        with ledger.running(theirs):
            ledger.book(booking.booking(theirs, one.key, "7"), one)
            ledger.note_run(theirs)
        return seen(*given)

    monkeypatch.setattr(executors, "executor", overtaken)
    with pytest.raises(UserError, match="or was killed, give this command again with --resume"):
        call(*words, "--on", "ray", "--resume")
    booked = ledger.booked(one.key)
    assert booked and (booked.run, booked.cluster_id) == (theirs.id, "7") and len(told) == 1
    monkeypatch.setattr(executors, "executor", seen)
    with pytest.raises(UserError, match=f"{theirs.id} was on slurm\n    next: add --on slurm"):
        call(*words, "--on", "ray", "--resume")
    assert call(*words, "--on", "slurm", "--resume").exit_code == 0 and len(told) == 2


def down(*_rest: object) -> Found:
    raise UserError(Problem(where="a.test", cause="does not answer"), code=1)


@pytest.mark.parametrize(
    ("registry", "built_again"),
    [(down, False), (lambda *_rest: None, False), (lambda *_rest: there(digest="sha256:" + "cd" * 32), True)],
)
def test_what_could_not_be_judged_is_judged_by_resume_and_built_again_where_that_can_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Any, built_again: bool
) -> None:
    told, said = answered(monkeypatch), list[str]()
    monkeypatch.setattr(executors, "tell", lambda _key, text: said.append(text))
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    monkeypatch.setattr(travel, "in_registry", registry)
    with pytest.raises(UserError):
        call(*words)
    assert any("is kept: the same command with --resume judges it again" in line for line in said) is not built_again
    monkeypatch.setattr(travel, "in_registry", lambda *_rest: there())
    assert call(*words, "--resume").exit_code == 0 and len(told) == 1 + built_again


def test_a_job_that_another_process_has_is_no_failure_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (told, said), ledger = (answered(monkeypatch), list[str]()), BuildLedger(tmp_path / "builds")
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    assert call(*words).exit_code == 0
    monkeypatch.setattr(executors, "tell", lambda _key, text: said.append(text))
    other = booking.new_run("slurm", [told[0].key])
    with ledger.running(other):
        ledger.book(booking.booking(other, told[0].key), told[0])
        with pytest.raises(UserError, match="if it fails or was killed, give this command again with --resume"):
            call(*words)
    assert [line.partition(",")[0] for line in said] == [f"is left to {other.owner}"] and len(told) == 1


def test_the_order_of_tiers_makes_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = answered(monkeypatch)
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    for tiers in (("static", "cpu"), ("cpu", "static"), ("cpu", "static", "cpu")):
        call(*words, *(word for tier in tiers for word in ("--tier", tier)))
    assert len({one.key for one in told}) == 1 and len(told) == 3


def test_the_address_of_a_wheel_mirror_lies_in_no_file_that_others_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, sent = answered(monkeypatch), list[Placed]()
    seen, url = executors.executor, "https://a.test/a-token/wheels"

    def watched(*given: Any) -> Obedient:
        executor = seen(*given)
        executor.started = sent
        return executor

    monkeypatch.setattr(executors, "executor", watched)
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    call(*words)
    call(*words, "--wheel-mirror", url)
    assert [one.task.wheel_mirror for one in sent] == ["", url]  # type: ignore[attr-defined]
    assert told[0].key != told[1].key, "another mirror makes another job"
    files = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not [text for text in files if "a-token" in text]


def test_only_a_build_on_workers_is_resumed() -> None:
    with pytest.raises(UserError, match="--resume: is about workers, and none are asked\n    next: leave it out"):
        call("build", NAME, "--resume", "--engine", "unix:///x")


def test_the_next_build_says_what_this_one_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch)
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    assert "takes about" not in call(*words).stderr, "there is no record"
    kept = json.loads((tmp_path / NAME / "build.json").read_text())
    kept["worker"]["seconds"] = 179.0
    (tmp_path / NAME / "build.json").write_text(json.dumps(kept))
    assert "started; takes about 3 min" in call(*words).stderr


def test_an_image_with_a_failed_claim_or_without_the_cpu_tier_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    answered(monkeypatch)
    with pytest.raises(UserError, match="the cpu tier was left out: it gets no name, and is a"):
        call(*words, "--tier", "static")
    monkeypatch.setattr(submitting, "claims_of", lambda *_rest: claims(claim("pip", version="24.0")))
    with pytest.raises(UserError, match=r"1 claim failed \(\w+ .*\): it gets no name") as told:
        call(*words)
    assert told.value.code == 1


def test_an_image_that_nobody_measured_gets_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured = Evidence(image=NAME, digest=DIGEST, records=(), claims=PIP.claims)
    answered(monkeypatch, evidence=unmeasured.dumps())
    with pytest.raises(UserError, match="nobody measured S1 pip: it gets no name"):
        call("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))


def test_the_labels_of_the_image_in_the_registry_count_and_not_those_that_a_worker_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("build", NAME, "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    answered(monkeypatch, labels={"told": "by the worker"})
    asked: list[Mapping[str, str]] = []
    monkeypatch.setattr(submitting, "claims_of", lambda _image, _lock, labels, *_rest: asked.append(labels) or PIP)
    monkeypatch.setattr(travel, "in_registry", lambda *_rest: there({"a": "b"}))
    assert call(*words).exit_code == 0 and asked == [{"a": "b"}]
    custom = there({"dev.truetag.base-origin": "custom"})
    for found, why in (
        (None, "is not there"),
        (there(digest="sha256:" + "cd" * 32), "its worker built"),
        (custom, "stands on a custom base"),
    ):
        monkeypatch.setattr(travel, "in_registry", lambda *_rest, found=found: found)
        with pytest.raises(UserError, match=why):
            call(*words)
    assert len(asked) == 1


def test_what_the_system_refuses_for_one_image_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch)
    (tmp_path / NAME / "evidence.json").mkdir(parents=True)
    with pytest.raises(UserError) as told:
        call("build", NAME, "cu126-torch25", "--on", "slurm", "--through", "a.test/b", "--out", str(tmp_path))
    here, other = told.value.problems
    assert here.where.endswith(f"{NAME}/evidence.json") and other.where.startswith("cu126-torch25")


def test_what_a_worker_could_not_build_is_told_as_it_told_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, digest="", problems=[{"where": "step 3", "cause": "no space", "then": "make room"}])
    with pytest.raises(UserError, match="step 3: no space\n    next: make room"):
        call("build", NAME, "--on", "ray", "--through", "a.test/b", "--out", str(tmp_path))


def test_a_validation_on_workers_is_a_run_of_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[tuple[Any, ...]] = []
    monkeypatch.setattr(fleet, "act", lambda *given: acted.append(given))
    words = ("validate", NAME, "--on", "ray://head:1", "--through", "a.test/b", "--claim", "S1", "--out", str(tmp_path))
    call(*words)
    call(*words, "--image", "mine:1")
    for (action, how, what, _, selectors, _, ledger), (named, images) in zip(
        acted, (([NAME], None), ([], [f"{NAME}=mine:1"])), strict=True
    ):
        assert (action, how.on, how.through, what.claim) == ("run", "ray://head:1", "a.test/b", ["S1"])
        assert (selectors, what.image, ledger.folder) == (named, images, tmp_path / "fleet")
    with pytest.raises(UserError, match="names one file"):
        call(*words, "--json", "verdict.json")


@pytest.mark.parametrize("over", [True, False])
def test_a_nightly_run_has_workers_judge_its_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    """Two jobs, described and judged here: nothing fails that did not fail in the control, so nothing is bisected."""
    told = answered(monkeypatch)
    monkeypatch.setattr(travel, "in_registry", lambda one, *_rest: there() if one.identifier == NAME else None)
    moved = at({"torchao": "0.12.0"})
    moved = replace(moved, lock=replace(moved.lock, inputs=lock_inputs(moved.image)))
    monkeypatch.setattr(canary, "newest", lambda *_rest: moved)
    monkeypatch.setattr(nightly_judge.measure_contents, "update", lambda *_rest: {})
    words = [
        "--on",
        "slurm",
        "--no-updates",
        "--tier",
        "static",
        *(["--over", "--through", "a.test/b"] if over else []),
    ]
    folder = ["--out", str(tmp_path / "out"), "--results", str(tmp_path / "lines")]
    done = call("nightly", NAME, *words, *folder)
    control, newer = results.read(tmp_path / "lines")
    assert isinstance(control, results.JobLine) and isinstance(newer, results.JobLine)
    open_or_not = results.Outcome.UNPROVEN if over else results.Outcome.PASS  # pip alone was measured, and is asked
    assert (done.exit_code, control.outcome, control.digest, newer.digest) == (0, open_or_not, DIGEST, DIGEST)
    assert [(one.label, one.pins, one.through) for one in told] == [
        ("control", {}, ""),
        ("canary", {"torchao": "0.12.0"}, ""),
    ]
    assert {one.over for one in told} == {"a.test/b@sha256:2" if over else ""}
    assert [one.name for one in newer.changes] == ["torchao"]


def test_versions_are_laid_over_no_image_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate is none: it has no verdict, or a bad one."""
    answered(monkeypatch)
    words = ("--on", "slurm", "--through", "a.test/b", "--no-updates", "--over")
    candidate = f"{NAME}-candidate"
    monkeypatch.setattr(travel, "in_registry", lambda one, *_rest: there() if one.identifier == candidate else None)
    with pytest.raises(UserError, match=f"nox -s build -- {NAME}"):
        call("nightly", NAME, *words, "--out", str(tmp_path), "--results", str(tmp_path))
