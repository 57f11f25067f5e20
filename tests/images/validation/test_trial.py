"""A trial's containers: what they may use, and what happens where the engine may not set a limit."""

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from images.engine import ContainerSpec, EngineError, EngineErrorKind, Exit
from images.engine.gpus import NO_GPU
from images.errors import Problem, UserError
from images.planning import plan
from images.validation import containers, trial
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from images.validation.containers import ContainerPlan
from tests.support.sources import SOURCES
from validate.claims import IN_OWN_CONTAINER, MOUNTS, ClaimSet, Tier
from validate.evidence import Measurement, Outcome, Record

IMAGE: Any = SimpleNamespace(id="sha256:1", tags=("a:1",), env={}, architecture="amd64")


class Engine:
    """Refuses containers with limits for one reason; the suite prints one record in any other."""

    facts = SimpleNamespace(memory=1 << 34, cpus=2, architecture="amd64", podman=False, apptainer=False)

    def __init__(self, kind: EngineErrorKind, end: Exit | None = None) -> None:
        self.kind, self.end = kind, end or Exit(code=0, oom=False, error="")
        self.specs: list[ContainerSpec] = []

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[SimpleNamespace]:
        self.specs.append(spec)
        if spec.ulimits:
            raise EngineError(Problem(where="a:1", cause="the engine says: no"), self.kind)
        yield SimpleNamespace(
            put=lambda *_: None,
            start=lambda: None,
            lines=lambda timeout: iter([SimpleNamespace(stream="stdout", text="record")]),
            wait=lambda timeout: self.end,
        )


def measured(engine: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run ranks on an engine. Why they have not the limits that they should have."""
    monkeypatch.setattr(trial, "_record", lambda _line: SimpleNamespace())
    plan = ContainerPlan(claims=ClaimSet(image="a", claims=()), ranks=True)
    return trial._run_suite(engine, IMAGE, plan, trial.Trial(tiers=()))[2]


def test_ranks_run_without_limits_where_the_engine_may_not_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineErrorKind.ULIMIT)
    assert measured(engine, monkeypatch) == "the engine says: no"
    assert [spec.ulimits for spec in engine.specs] == [trial.RANKS_ULIMITS, {}]


def test_any_other_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineErrorKind.OTHER)
    with pytest.raises(EngineError):
        measured(engine, monkeypatch)
    assert len(engine.specs) == 1


@pytest.mark.parametrize(("code", "oom", "counts"), [(137, False, False), (137, True, True), (1, False, True)])
def test_a_container_that_somebody_killed_is_no_evidence_of_the_image(
    code: int, oom: bool, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes more memory than a trial has is the image's own doing."""
    engine = Engine(EngineErrorKind.ULIMIT, Exit(code=code, oom=oom, error=""))
    if counts:
        assert measured(engine, monkeypatch)
        return
    with pytest.raises(UserError, match=r"was killed from outside .* not for its memory"):
        measured(engine, monkeypatch)
    engine.facts = SimpleNamespace(**{**vars(Engine.facts), "apptainer": True})
    with pytest.raises(UserError, match="Apptainer can't tell whether for its memory"):
        measured(engine, monkeypatch)


def home_claims() -> ClaimSet:
    (planned,) = plan.select(["cu126-torch27"], SOURCES)
    assert planned.image is not None
    found = image_claims(ClaimContext(image=planned.image, facts=SOURCES.facts))
    return found.only(IN_OWN_CONTAINER)


def test_each_kind_of_mount_has_a_container_of_its_own_as_the_claims_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_record", lambda _line: SimpleNamespace())
    engine: Any = Engine(EngineErrorKind.OTHER)
    claims = home_claims()
    for plan_ in containers.planned("/root", claims, NO_GPU):
        if plan_.claims.claims:
            trial._run_suite(engine, IMAGE, plan_, trial.Trial(tiers=()))
    folder = "/home/trainer/.cache"
    assert {claim.expect["mount"] for claim in claims.claims} == MOUNTS.keys()
    for claim, spec in zip(claims.claims, engine.specs, strict=True):
        assert spec.user == f"{claim.expect['uid']}:{claim.expect['gid']}"
        assert (folder in spec.copied_volumes) == (claim.expect["mount"] == "volume")
        assert (folder in spec.volumes) == (claim.expect["mount"] == "foreign")
        assert (folder in spec.tmpfs) == (claim.expect["mount"] == "own")
        assert "/home/trainer" not in spec.tmpfs, "the folder is the image's, or the engine would copy nothing"
    assert any("uid=61234,gid=61234" in spec.tmpfs.get(folder, "") for spec in engine.specs)


def test_records_of_one_probe_from_several_containers_are_one_and_as_well_as_the_worst() -> None:
    def record(subject: str, outcome: Outcome) -> Record:
        measured = (Measurement(subject=subject, seconds=1, evidence={}),) if outcome is Outcome.COMPLETED else ()
        return Record(probe="cpu.home", outcome=outcome, seconds=1.0, measurements=measured, log=subject)

    well, crashed = record("a", Outcome.COMPLETED), record("b", Outcome.CRASHED)
    (merged,) = trial.merged([well, crashed, record("c", Outcome.COMPLETED)])
    assert merged.outcome is Outcome.CRASHED
    assert [found.subject for found in merged.measurements] == ["a", "c"]
    assert (merged.seconds, merged.log) == (3.0, "abc")


def test_what_was_measured_so_far_is_told_after_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe with containers still before it is left out, as its other claims would read as not found."""
    claims = home_claims()
    homes = claims.only(["cpu.home"])
    assert len(homes.claims) > 1
    host = "host.image"
    parsed = queue.SimpleQueue[Record]()  # containers run side by side
    for one in homes.claims:
        measured = (Measurement(subject=one.subject, seconds=1.0, evidence={}),)
        parsed.put(Record(probe="cpu.home", outcome=Outcome.COMPLETED, seconds=1.0, measurements=measured))
    monkeypatch.setattr(trial, "_record", lambda _line: parsed.get_nowait())
    alone = Record(probe=host, outcome=Outcome.COMPLETED, seconds=0.0)
    monkeypatch.setattr(trial.inspection, "records", lambda *_: iter([alone]))
    engine: Any = Engine(EngineErrorKind.OTHER)
    engine.facts = SimpleNamespace(
        memory=1 << 34, cpus=2, version="1", architecture="amd64", podman=False, apptainer=False
    )
    engine.inspect = lambda _reference: IMAGE
    told: list[list[str]] = []
    how = trial.Trial(tiers=tuple(Tier), on_evidence=lambda found: told.append([one.probe for one in found.records]))
    evidence = trial.run(engine, "a:1", homes, how)
    assert told == [[host]] * len(homes.claims) + [[host, "cpu.home"]]
    assert [one.probe for one in evidence.records] == [host, "cpu.home"]
    assert evidence.claims == homes.claims


# ---- side by side


def tried(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[str], None], cancel: Callable[[], None] = lambda: None
) -> Any:
    """A trial of all claims of static and cpu, each container replaced by `run`, which gets its first claim's probe."""
    engine: Any = SimpleNamespace(
        facts=SimpleNamespace(memory=1 << 34, cpus=2, version="1", architecture="amd64", podman=False, apptainer=False),
        inspect=lambda _reference: IMAGE,
        cancel=cancel,
    )
    monkeypatch.setattr(trial.inspection, "records", lambda *_: iter(()))

    def run_suite(_engine: object, _image: object, plan: Any, how: trial.Trial) -> tuple[list[Record], Exit, str]:
        probe = plan.claims.claims[0].probe
        run(probe)
        how.on_record(Record(probe=probe, outcome=Outcome.COMPLETED, seconds=1.0))
        return [], Exit(code=0, oom=False, error=""), ""

    monkeypatch.setattr(trial, "_run_suite", run_suite)
    (planned,) = plan.select(["cu126-torch27"], SOURCES)
    assert planned.image is not None
    claims = image_claims(ClaimContext(image=planned.image, facts=SOURCES.facts))
    return trial.run(engine, "a:1", claims, trial.Trial(tiers=(Tier.STATIC, Tier.CPU)))


def test_what_reads_files_runs_beside_what_runs_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the first two ends before the other has begun."""
    begun: list[str] = []
    both = threading.Barrier(2, timeout=60)

    def run(probe: str) -> None:
        begun.append(probe)
        if probe in begun[:2]:
            both.wait()

    evidence = tried(monkeypatch, run)
    assert {probe.partition(".")[0] for probe in begun[:2]} == {"static", "cpu"}
    assert {record.probe for record in evidence.records} == set(begun) >= {"static.hygiene", "cpu.arbitrary_uid"}


def test_after_an_error_no_container_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    both = threading.Barrier(2, timeout=60)

    def run(probe: str) -> None:
        begun.append(probe)
        both.wait()
        raise EngineError(Problem(where="a:1", cause="gone"), EngineErrorKind.OTHER)

    with pytest.raises(EngineError, match="gone"):
        tried(monkeypatch, run)
    assert len(begun) == 2


def test_an_interrupt_stops_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()

    def run(_probe: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(60), "it runs on, and nobody stops it"

    with pytest.raises(KeyboardInterrupt):
        tried(monkeypatch, run, cancelled.set)
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("cpus", "ranks", "gib", "at_once"),
    [(64, 1, 80, 6), (4, 1, 80, 4), (64, 1, 8, 2), (64, 2, 80, 3), (64, 8, 80, 1), (64, 1, 0, 1), (64, 1, None, 6)],
)
def test_probes_on_gpus_are_bounded_by_cores_memory_and_ranks(
    cpus: int, ranks: int, gib: int | None, at_once: int
) -> None:
    assert trial.at_once_on_gpus(cpus, ranks, gib if gib is None else gib << 30) == at_once
