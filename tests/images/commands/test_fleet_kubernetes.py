"""`fleet render --kubernetes` and `fleet collect`: what a rendering leaves, and which jobs logs speak of."""

import json
import os
import subprocess
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from images import cli
from images.commands import executors, fleet_kubernetes
from images.commands.fleet_kubernetes import FOLDER, KubernetesArguments
from images.errors import UserError
from images.fleet import gather
from images.fleet.config import WorkerType
from images.fleet.gather import Located
from images.fleet.kubernetes import render
from images.fleet.kubernetes.render import Rendered
from images.fleet.ledger import Ledger
from images.fleet.planning import FleetImage
from images.host.hashing import sha256
from images.validation import trial
from tests.support.fleet_records import NAME, claim, claims, installed, job
from validate import logged
from validate.claims import Tier
from validate.evidence import Measurement, Outcome, Record

PIP = claims(claim("pip"))


def rendered(number: int, **more: object) -> Rendered:
    return Rendered.of(job(number, PIP, **more), "/root", PIP, suite={})


def log(one: Rendered) -> str:
    """Of a pod that kept the claim."""
    (plan,) = render.plans(one)
    measured = Measurement(subject="pip", seconds=0.1, evidence=installed())
    record = Record(probe="static.x", outcome=Outcome.COMPLETED, seconds=1, measurements=(measured,))
    begin = {"rendering": one.fingerprint, "claims": sha256(render.claims_file(plan, one.job)), "suite": one.suite}
    return "\n".join(logged.lines({"job": one.job.key, "container": plan.name, "pod": "p1"}, begin, [record]))


def collected(folder: Path, *of: Rendered, encoding: str = "utf-8") -> dict[str, bool]:
    """Key of each job that `collect` tells of -> whether it has a verdict."""
    file = folder / "logs.txt"
    file.write_text("\n".join(map(log, of)), encoding=encoding)
    outcomes = fleet_kubernetes.read(KubernetesArguments(logs=[file]), Ledger(folder), None)
    return {one.job.key: one.verdict is not None for one in outcomes}


def test_a_rendering_takes_the_place_of_the_one_before_it(tmp_path: Path) -> None:
    """Jobs of an older one would be without a log for ever, and `collect` would end with 1."""
    older, newer = rendered(1), rendered(2)
    for one in (older, newer):
        fleet_kubernetes.keep(tmp_path / FOLDER, [one], [])
    assert collected(tmp_path, newer) == {newer.job.key: True}


def test_logs_of_a_longer_key_are_not_those_of_a_job(tmp_path: Path) -> None:
    """A job with a record is told of only where a log is its own."""
    short, longer = rendered(1), rendered(1, only=("pip",))
    assert longer.job.key.startswith(short.job.key)
    fleet_kubernetes.keep(tmp_path / FOLDER, [short, longer], [])
    assert collected(tmp_path, short, longer) == {short.job.key: True, longer.job.key: True}
    assert collected(tmp_path, longer) == {longer.job.key: True}


@pytest.mark.parametrize(
    ("states", "waits"),
    [
        ("a SuccessCriteriaMet Complete\nb FailureTarget Failed\n", 0),
        ("a Failed\nb \n", 1),
        ("a \nb Complete\n", 1),
        ("a FailureTarget\nb Complete\n", 1),
        ("", 0),
        (None, 1),
    ],
)
def test_waiting_ends_when_every_job_ended_well_or_not(states: str | None, waits: int, tmp_path: Path) -> None:
    """bash runs the printed loop. In kubectl's place stands what it prints of these Jobs, then of ended ones; None: it
    fails first.
    """
    (tmp_path / "first").write_text("exit 1" if states is None else f"printf '{states}'")
    ended = 'if [ -e first ]; then mv first now; . ./now; else printf "a Complete\nb Failed\n"; fi'
    kubectl = f'case "$2" in pods) echo a pod;; job) {ended};; esac'
    sleep = 'echo waited | tee -a waits; [ "$(wc -l <waits)" -lt 3 ] || kill $PPID'  # a loop that never ends is red
    for name, program in (("kubectl", kubectl), ("sleep", sleep)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    (line,) = [one for one in fleet_kubernetes.then(Path("m.yaml"), Path("out")) if one.startswith("until")]
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=path, check=True, capture_output=True, text=True)
    assert done.stdout.count("waited") == done.stdout.count("a pod") == waits and not done.stderr
    assert """-o jsonpath='{range .items[*]}{.metadata.name} {.status.conditions[*].type}{"\\n"}{end}'""" in line


def test_the_server_applies_what_is_too_large_for_an_annotation() -> None:
    """`kubectl apply` alone keeps the object in one: 262,144 bytes in all (Kubernetes' TotalAnnotationSizeLimitB)."""
    suite = {path: content for path, content in trial.suite_files(PIP).items() if path != "claims.json"}
    assert max(len(json.dumps(one)) for one in render.manifests([], suite)) > 262_144
    assert fleet_kubernetes.then(Path("m.yaml"), Path("out"))[0] == "kubectl apply --server-side -f m.yaml"


def test_a_container_without_a_log_hides_no_other(tmp_path: Path) -> None:
    """kubectl ends with the first one that it can't read, unless it is told not to."""
    (line,) = [one for one in fleet_kubernetes.then(Path("m.yaml"), Path("out")) if one.startswith("kubectl logs")]
    with pytest.raises(UserError) as refused:
        fleet_kubernetes.read(KubernetesArguments(), Ledger(tmp_path), None)
    for told in (line, refused.value.problems[0].then):
        assert {"--ignore-errors", "--all-containers", "--tail=-1"} <= set(told.split())


def test_rendering_says_how_to_delete_a_job_whose_template_changed() -> None:
    """Its name stays, and Kubernetes changes no template: `field is immutable`."""
    jobs = [rendered(1), rendered(2)]
    *_, last = fleet_kubernetes.told(Path("m.yaml"), Path("out"), jobs)
    assert last == f"  kubectl delete job --ignore-not-found {jobs[0].name} {jobs[1].name}"


def test_what_is_rendered_is_read_again_as_it_was(tmp_path: Path) -> None:
    replaces = datetime(2026, 11, 22, 1, 2, 3, 456789, tzinfo=UTC)
    one = rendered(1).model_copy(update={"replaces": replaces})
    again = Rendered.model_validate_json(one.model_dump_json())
    assert again == one and again.replaces == replaces


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_logs_are_read_as_shells_write_them(encoding: str, tmp_path: Path) -> None:
    """PowerShell's `>` writes UTF-16."""
    one = rendered(1)
    fleet_kubernetes.keep(tmp_path / FOLDER, [one], [])
    assert collected(tmp_path, one, encoding=encoding) == {one.job.key: True}


def test_manifests_say_everything_where_it_is_used(tmp_path: Path) -> None:
    """Tools that edit a Job's labels would change those of its pods, too, where one is an alias of the other."""
    found = render.manifests([(rendered(1), WorkerType())], {})
    text = fleet_kubernetes.keep(tmp_path, [], found).read_text()
    assert tuple(yaml.safe_load_all(text)) == found
    assert not [one for one in yaml.scan(text) if isinstance(one, yaml.AliasToken | yaml.AnchorToken)]


def test_a_job_that_may_still_run_is_told_apart_from_one_whose_logs_are_damaged(tmp_path: Path) -> None:
    """Deleting it would end its pods."""
    silent, running, damaged = (rendered(number) for number in (1, 2, 3))
    fleet_kubernetes.keep(tmp_path / FOLDER, [silent, running, damaged], [])
    logs, lines = tmp_path / "logs.txt", log(damaged).splitlines()
    logs.write_text("\n".join([*log(running).splitlines()[:-1], lines[0], *lines[2:]]))
    outcomes = fleet_kubernetes.read(KubernetesArguments(logs=[logs]), Ledger(tmp_path), None)
    with pytest.raises(UserError) as refused:
        fleet_kubernetes.require_verdicts(outcomes)
    lost, *waiting = refused.value.problems
    assert lost.where == f"{damaged.job.key} (Job {damaged.name})" and "lines are missing" in lost.cause
    assert [one.where for one in waiting] == [f"not yet collected: Job {one.name}" for one in (silent, running)]
    for one, problem in zip((damaged, silent, running), refused.value.problems, strict=True):
        ended = f"only if `kubectl get job {one.name}` shows Complete or Failed"
        assert f"{ended}, `kubectl delete job {one.name}`" in problem.then


def test_a_job_of_which_only_an_older_rendering_logged_is_not_yet_collected(tmp_path: Path) -> None:
    older, newer = rendered(1), rendered(1).model_copy(update={"suite": "another"})
    fleet_kubernetes.keep(tmp_path / FOLDER, [newer], [])
    logs = tmp_path / "logs.txt"
    logs.write_text(log(older))
    (outcome,) = fleet_kubernetes.read(KubernetesArguments(logs=[logs]), Ledger(tmp_path), None)
    assert outcome.may_run and outcome.name == newer.name != older.name


def test_what_pods_judged_as_well_as_they_can_is_not_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = claims(claim("pip"), claim("volume", number="C8", tier=Tier.CPU, probe="cpu.home"))
    one = Rendered.of(job(1, held, tiers=(Tier.STATIC, Tier.CPU)), "/root", held, suite={})
    fleet_kubernetes.keep(tmp_path / FOLDER, [one], [])
    assert collected(tmp_path, one) == {one.job.key: True}
    image = FleetImage(name=NAME, digest=one.job.digest, archs=(), ptx=(), claims=held)
    monkeypatch.setattr(executors, "local_engine", lambda _url: nullcontext(None))
    monkeypatch.setattr(gather, "images", lambda *_rest: [Located(planned=image, found=None)])
    (tmp_path / "fleet.yaml").write_text("workers: {cpu: {}}\n")
    words = ["fleet", "render", "--kubernetes", NAME, "--through", "a.test/b"]
    places = ["--fleet", str(tmp_path / "fleet.yaml"), "--out", str(tmp_path)]
    done = CliRunner().invoke(cli.app, [*words, *places], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "1 pairs get no Job" in done.output and "C8 volume" in done.output
    assert f"`nox -s validate -- NAME` judges these of {NAME}" in done.output
