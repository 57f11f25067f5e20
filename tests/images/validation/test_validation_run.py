"""A validation run: its containers, what they may use, and what happens where one ends badly."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from images.engine import ContainerSpec, EngineError, EngineErrorKind, Exit
from images.engine.gpus import NO_GPU, Attachment
from images.errors import Problem, UserError
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.validation import containers, validation_run
from tests.support.claims import bare_claims
from tests.support.engine_contents import image_info
from validate import channel, checks
from validate.claims import ADMISSION, Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import judge
from validate.judging import Status

CLAIMS = bare_claims("cu126-torch27").measurable_inside()
CPU = ClaimSet(
    image="a",
    claims=(
        Claim(
            check="compiler",
            subject="c",
            tier=Tier.CPU,
            probe="cpu.compiler",
            statement="it compiles",
        ),
    ),
)
RANKS = ClaimSet(
    image="a",
    claims=(
        Claim(
            check="collectives", subject="c", tier=Tier.MULTIGPU, probe="multigpu.a", statement=""
        ),
    ),
)
H100 = Gpu(name="H100", capability=(9, 0), memory=80 << 30)


class Engine:
    """Its containers print a record of each probe that they were given claims for."""

    def __init__(
        self,
        on_start: Callable[[list[str]], None] = lambda _probes: None,
        *,
        end: Exit | None = None,
        refuses: EngineErrorKind | None = None,
    ) -> None:
        self.on_start, self.end, self.refuses = (
            on_start,
            end or Exit(code=0, oom=False, error=""),
            refuses,
        )
        self.specs: list[ContainerSpec] = []
        self.cancelled = threading.Event()
        self.facts = SimpleNamespace(
            memory=1 << 34, cpus=2, version="1", architecture="amd64", local=False
        )

    def inspect(self, _reference: str) -> Any:
        return image_info(tags=("a:1",))

    def steps(self, _reference: str) -> list[str]:
        return []

    def cancel(self) -> None:
        self.cancelled.set()

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[Any]:
        self.specs.append(spec)
        if spec.ulimits and self.refuses:
            raise EngineError(Problem(where="a:1", cause="the engine says: no"), self.refuses)
        claims: list[Claim] = []
        keys: list[str] = []

        def start(stdin: bytes) -> None:
            keys.append(stdin.decode().strip())
            self.on_start([claim.probe for claim in claims])

        yield SimpleNamespace(
            put=lambda files, _to: claims.extend(
                ClaimSet.loads(files["claims.json"].decode()).claims
            ),
            start=start,
            lines=lambda timeout, most: self.lines(claims, keys[0]),
            get_file=lambda path, most: (_ for _ in ()).throw(FileNotFoundError(path)),
            has=self.has,
            wait=lambda timeout: self.end,
        )

    def has(self, _path: str) -> bool:
        return False

    def lines(self, claims: Sequence[Claim], key: str) -> Iterator[Any]:
        yield "stderr", "noise"
        for probe in dict.fromkeys(claim.probe for claim in claims):
            measured = tuple(
                Measurement(subject=one.subject, seconds=1.0, evidence={})
                for one in claims
                if one.probe == probe
            )
            record = Record(
                probe=probe, outcome=Outcome.COMPLETED, seconds=1.0, measurements=measured
            )
            yield "stdout", channel.sign(key, json.dumps(asdict(record)))


def measure(engine: Any, claims: ClaimSet, **options: Any) -> Evidence:
    return validation_run.validate(engine, "a:1", claims, **{"tiers": tuple(Tier), **options})


def gpus(*found: Gpu) -> Attachment:
    inventory = Inventory(driver="570.1", gpus=found, source="NVML")
    return Attachment(mode=GpuMode.NVIDIA, reason="-", inventory=inventory)


def test_ranks_run_without_limits_where_the_engine_may_not_set_them_and_any_other_refusal_is_an_error() -> (
    None
):
    engine = Engine(refuses=EngineErrorKind.ULIMIT)
    assert measure(engine, RANKS, gpus=gpus(H100)).host["ulimits"] == "the engine says: no"
    assert [spec.ulimits for spec in engine.specs] == [containers.RANKS_ULIMITS, {}]
    engine = Engine(refuses=EngineErrorKind.OTHER)
    with pytest.raises(EngineError):
        measure(engine, RANKS, gpus=gpus(H100))
    assert len(engine.specs) == 1


def test_what_takes_more_memory_than_a_run_has_is_the_images_own_doing() -> None:
    evidence = measure(Engine(end=Exit(code=137, oom=True, error="")), CPU)
    assert evidence.host["out_of_memory"] and evidence.record_of("cpu.compiler")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1, "ended with status 1: something there stopped it"),
        (143, "ended with status 143: something there stopped it"),
        (137, "`cpu` was killed .*heard of no kill for memory"),
    ],
)
def test_a_suite_that_was_stopped_gives_no_verdict(code: int, told: str) -> None:
    with pytest.raises(UserError, match=told):
        measure(Engine(end=Exit(code=code, oom=False, error="")), CPU)


def test_a_record_that_was_not_signed_not_asked_for_or_came_before_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lines(_engine: Engine, _claims: object, own: str) -> Iterator[Any]:
        for key, probe, subject in (
            ("", "cpu.compiler", "forged"),
            ("0" * 64, "cpu.compiler", "of another key"),
            (own, "cpu.other", "not asked for"),
            (own, "cpu.compiler", "c"),
            (own, "cpu.compiler", "again"),
        ):
            measured = (Measurement(subject=subject, seconds=1.0, evidence={}),)
            text = json.dumps(
                asdict(
                    Record(
                        probe=probe, outcome=Outcome.COMPLETED, seconds=1.0, measurements=measured
                    )
                )
            )
            yield "stdout", channel.sign(key, text) if key else text

    monkeypatch.setattr(Engine, "lines", lines)
    (record,) = measure(Engine(), CPU).records
    assert [one.subject for one in record.measurements] == ["c"]


def test_an_image_in_which_the_suite_does_not_start_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "lines", lambda *_: iter([("stderr", "no python3")]))
    with pytest.raises(UserError, match="did not start in it: no python3"):
        measure(Engine(), CPU)


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", "null", '{"probe": "a"}', '{"a": ' * 9999, '{"measurements": [3]}']
)
def test_what_is_no_record_is_read_as_none(line: str) -> None:
    assert containers.parse_record(line) is None


def test_records_of_one_probe_from_several_containers_are_one_and_as_well_as_the_worst() -> None:
    def record(subject: str, outcome: Outcome) -> Record:
        measured = (
            (Measurement(subject=subject, seconds=1, evidence={}),)
            if outcome is Outcome.COMPLETED
            else ()
        )
        return Record(
            probe="cpu.home", outcome=outcome, seconds=1.0, measurements=measured, log=subject
        )

    well, crashed = record("a", Outcome.COMPLETED), record("b", Outcome.CRASHED)
    (merged,) = validation_run.merge_records([well, crashed, record("c", Outcome.COMPLETED)])
    assert merged.outcome is Outcome.CRASHED
    assert [found.subject for found in merged.measurements] == ["a", "c"]
    assert (merged.seconds, merged.log) == (3.0, "abc")


FROM_OUTSIDE = {one.probe for one in CLAIMS.claims if checks.settings(one.probe).reads_files_only}


def measure_files_and_code(
    on_start: Callable[[list[str]], None], *, run_anyway: bool = True
) -> tuple[Engine, Evidence]:
    """The stub's records are empty: no claim about files holds."""
    engine = Engine(on_start)
    return engine, measure(engine, CLAIMS, tiers=(Tier.STATIC, Tier.CPU), run_anyway=run_anyway)


def test_files_are_read_first_and_then_what_asks_python_runs_beside_what_runs_code() -> None:
    """Neither of the two ends before the other has begun."""
    begun: list[str] = []
    both = threading.Barrier(2, timeout=60)

    def on_start(probes: list[str]) -> None:
        begun.append(probes[0])
        if probes[0] in begun[1:3]:
            both.wait()

    _, evidence = measure_files_and_code(on_start)
    assert begun[0] in FROM_OUTSIDE and not {*begun[1:]} & FROM_OUTSIDE
    assert {probe.partition(".")[0] for probe in begun[1:3]} == {"static", "cpu"}
    assert {record.probe for record in evidence.records} >= {
        *begun,
        "static.hygiene",
        "cpu.arbitrary_uid",
    }


def test_after_an_error_no_container_begins() -> None:
    begun: list[str] = []
    both = threading.Barrier(2, timeout=60)

    def on_start(probes: list[str]) -> None:
        if probes[0] in FROM_OUTSIDE:
            return
        begun.append(probes[0])
        both.wait()
        raise EngineError(Problem(where="a:1", cause="gone"), EngineErrorKind.OTHER)

    with pytest.raises(EngineError, match="gone"):
        measure_files_and_code(on_start)
    assert len(begun) == 2


def test_an_interrupt_stops_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()
    monkeypatch.setattr(Engine, "cancel", lambda _self: cancelled.set())

    first = threading.Lock()

    def on_start(probes: list[str]) -> None:
        if probes[0] in FROM_OUTSIDE:
            return
        if first.acquire(blocking=False):  # a second interrupt could come after the test
            os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(60), "it runs on, and nobody stops it"

    with pytest.raises(KeyboardInterrupt):
        measure_files_and_code(on_start)
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("cpus", "ranks", "gib", "jobs"),
    [(64, 1, 80, 6), (4, 1, 80, 4), (64, 1, 8, 2), (64, 2, 80, 3), (64, 8, 80, 1), (64, 1, 0, 1)],
)
def test_probes_on_gpus_are_bounded_by_cores_memory_and_ranks(
    cpus: int, ranks: int, gib: int, jobs: int
) -> None:
    engine = Engine()
    engine.facts.cpus = cpus
    gpu = Gpu(name="H100", capability=(9, 0), memory=gib << 30)
    of_gpu = ClaimSet(
        image="a",
        claims=(Claim(check="numerics", subject="a", tier=Tier.GPU, probe="gpu.a", statement=""),),
    )
    measure(engine, RANKS if ranks > 1 else of_gpu, gpus=gpus(*[gpu] * ranks))
    (spec,) = engine.specs
    assert list(spec.cmd)[-2:] == ["--jobs", str(jobs)]


def test_only_containers_of_the_gpu_tiers_get_gpus() -> None:
    plans = containers.plan_containers("", CLAIMS, gpus(H100))
    assert {plan.name: plan.gpus.attached for plan in plans if plan.gpus.attached} == {
        "gpu": True,
        "multigpu": True,
    }
    assert not any(plan.gpus.attached for plan in containers.plan_containers("", CLAIMS, NO_GPU))


def test_nothing_of_an_image_is_run_whose_files_have_no_known_origin() -> None:
    engine, evidence = measure_files_and_code(lambda _probes: None, run_anyway=False)
    assert [spec.user for spec in engine.specs] == [
        None,
        "0",
    ]  # a look at ld.so.preload, not started; the reader
    assert {record.probe for record in evidence.records} <= FROM_OUTSIDE
    why = "nothing of the image was run: files/recorded failed"
    assert (
        evidence.host["unsupported"]["imports/torch"] == why
        and evidence.host["unsupported"]["system/tools"] == why
    )
    assert not any(key.startswith("origin/") for key in evidence.host["unsupported"])
    _, asked = measure_files_and_code(lambda _probes: None)
    assert asked.record_of("cpu.imports") and "unsupported" not in asked.host


def test_an_image_is_read_first_whatever_was_asked_for_and_only_what_fails_is_told_besides() -> (
    None
):
    asked = CLAIMS.in_tiers([Tier.CPU]).named_by(["compiler/triton-launcher"])
    engine = Engine()
    evidence = measure(engine, asked, tiers=(Tier.CPU,))
    assert [spec.user for spec in engine.specs] == [
        None,
        "0",
    ]  # as above: no container of the image's own
    verdict = judge(evidence.claim_set, evidence)
    assert {one.claim.check for one in verdict.claims_with(Status.FAIL)} == {*ADMISSION} - {
        "lookup",
        "origin",
    }
    assert verdict.overall is Status.FAIL
    (compiler,) = (one for one in verdict.claims if one.claim.check == "compiler")
    assert compiler.reason.startswith("nothing of the image was run: files/recorded failed: ")
    # Where nothing fails, evidence is of what was asked for alone; of a custom base nothing is known.
    unknown = replace(
        asked, admission=tuple(replace(one, unproven="a custom base") for one in asked.admission)
    )
    for own in (unknown, replace(asked, admission=())):
        engine = Engine()
        evidence = measure(engine, own, tiers=(Tier.CPU,))
        assert evidence.claims == asked.claims and [one.probe for one in evidence.records] == [
            "cpu.compiler"
        ]
        assert [spec.user for spec in engine.specs] == [None]


def test_nothing_of_an_image_is_run_whose_reader_ran_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, kept = Engine.lines, "static.symbols"
    monkeypatch.setattr(
        Engine, "lines", lambda *given: (one for one in whole(*given) if kept in one[1])
    )
    asked = CLAIMS.named_by(["symbols/resolved", "compiler/triton-launcher", "records/locked"])
    evidence = measure(
        engine := Engine(end=Exit(code=137, oom=True, error="")), replace(asked, admission=())
    )
    assert [spec.user for spec in engine.specs] == [None, "0"] and [
        one.probe for one in evidence.records
    ] == [kept]
    why = "nothing of the image was run: records/locked failed"
    assert evidence.host["unsupported"]["compiler/triton-launcher"] == why


def test_an_image_that_would_hang_its_engine_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "has", lambda _self, path: path == "/etc/group")
    with pytest.raises(UserError, match="its /etc/group is no file"):
        measure(
            engine := Engine(lambda _probes: pytest.fail("it was started")),
            CLAIMS.named_by(["files/recorded"]),
        )
    assert len(engine.specs) == 1


def test_what_reads_files_alone_is_read_alone() -> None:
    evidence = measure(engine := Engine(), CLAIMS.named_by(["files/recorded"]))
    assert [one.probe for one in evidence.records] == ["static.files"] and len(engine.specs) == 2


def test_a_derived_image_is_known_by_its_steps_whatever_engines_call_the_image_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A matrix may give its images a prefix: the engine has none of the name that claims have."""
    steps = ["USER 1001", "WORKDIR /workspace", 'CMD ["bash"]', "RUN pip install wandb"]
    monkeypatch.setattr(Engine, "steps", lambda _self, _reference: steps)
    assert measure(Engine(), CPU).host["steps_above"] == 1
