"""A validation run: its containers, what they may use, and what happens if one ends badly.

The engine is a fake. Its containers print a record for every probe that they get claims for.
"""

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
from validate.claims import ADMISSION, GPU_TIERS, Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import judge
from validate.judging import Status


def claim_of(check: str, tier: Tier, probe: str) -> Claim:
    return Claim(check=check, subject="c", tier=tier, probe=probe, statement="")


def claim_set(*claims: Claim) -> ClaimSet:
    return ClaimSet(image="a", claims=claims)


ALL_CLAIMS = bare_claims("cu126-torch27").of_container()
CPU_CLAIM = claim_set(claim_of("compiler", Tier.CPU, "cpu.compiler"))
GPU_CLAIM = claim_set(claim_of("numerics", Tier.GPU, "gpu.a"))
RANKS_CLAIM = claim_set(claim_of("collectives", Tier.MULTIGPU, "multigpu.a"))

PROBES_OF_FILES = {
    claim.probe for claim in ALL_CLAIMS.claims if checks.settings(claim.probe).reads_files_only
}
"""Probes that our own Python runs before anything of the image is started."""

WELL = Exit(code=0, oom=False, error="")
OUT_OF_MEMORY = Exit(code=137, oom=True, error="")
SECONDS = 60
"""How long a test waits for something that comes at once, before it fails."""

# The users of containers: LOOK reads files of the image and is not started; READER is root.
LOOK = None
READER = "0"


class Engine:
    """An engine whose containers print a record of each probe that they get claims for.

    `on_start` is called with these probes when a container starts. `end` is how containers end.
    `refuses`: the kind of error with which the engine refuses containers that ask for ulimits.
    """

    def __init__(
        self,
        on_start: Callable[[list[str]], None] = lambda _probes: None,
        *,
        end: Exit = WELL,
        refuses: EngineErrorKind | None = None,
    ) -> None:
        self.on_start = on_start
        self.end = end
        self.refuses = refuses
        self.specs: list[ContainerSpec] = []
        self.cancelled = threading.Event()
        self.facts = SimpleNamespace(
            memory=1 << 34, cpus=2, version="1", architecture="amd64", local=False
        )

    @property
    def users(self) -> list[str | None]:
        """The users of all containers, in the order in which these were made."""
        return [spec.user for spec in self.specs]

    def inspect(self, _reference: str) -> Any:
        return image_info(tags=("a:1",))

    def steps(self, _reference: str) -> list[str]:
        return []

    def history(self, _reference: str) -> list[tuple[str, int]]:
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

        def put(files: dict[str, bytes], _folder: str) -> None:
            claims.extend(ClaimSet.loads(files["claims.json"].decode()).claims)

        def start(stdin: bytes) -> None:
            keys.append(stdin.decode().strip())
            self.on_start([claim.probe for claim in claims])

        def get_file(path: str, most: int) -> bytes:
            raise FileNotFoundError(path)

        yield SimpleNamespace(
            put=put,
            start=start,
            lines=lambda timeout, most: self.lines(claims, keys[0]),
            get_file=get_file,
            has=self.has,
            wait=lambda timeout: self.end,
        )

    def has(self, _path: str) -> bool:
        return False

    def lines(self, claims: Sequence[Claim], key: str) -> Iterator[tuple[str, str]]:
        """Yield what a container prints: stream and line."""
        yield "stderr", "noise"
        for probe in dict.fromkeys(claim.probe for claim in claims):
            subjects = [claim.subject for claim in claims if claim.probe == probe]
            yield "stdout", channel.sign(key, record_line(probe, *subjects))


def record_line(probe: str, *subjects: str) -> str:
    """Return the record of a probe that measured these subjects, as the suite prints it."""
    measurements = [Measurement(subject=subject, seconds=1.0, evidence={}) for subject in subjects]
    record = Record(
        probe=probe, outcome=Outcome.COMPLETED, seconds=1.0, measurements=tuple(measurements)
    )
    return json.dumps(asdict(record))


def measure(engine: Any, claims: ClaimSet, **options: Any) -> Evidence:
    """Measure claims of all tiers, unless `options` says otherwise."""
    return validation_run.validate(engine, "a:1", claims, **{"tiers": tuple(Tier), **options})


def measure_static_and_cpu(
    on_start: Callable[[list[str]], None] = lambda _probes: None, *, run_anyway: bool = True
) -> tuple[Engine, Evidence]:
    """Measure all claims of an image. The records are empty: no claim about files holds."""
    engine = Engine(on_start)
    evidence = measure(engine, ALL_CLAIMS, tiers=(Tier.STATIC, Tier.CPU), run_anyway=run_anyway)
    return engine, evidence


def gpu_with(memory: int = 80 << 30) -> Gpu:
    return Gpu(name="H100", capability=(9, 0), memory=memory)


def attached(*gpus: Gpu) -> Attachment:
    inventory = Inventory(driver="570.1", gpus=gpus, source="NVML")
    return Attachment(mode=GpuMode.NVIDIA, reason="-", inventory=inventory)


# --- limits that an engine refuses ----------------------------------------------------------------


def test_ranks_run_without_limits_if_the_engine_may_not_set_them() -> None:
    engine = Engine(refuses=EngineErrorKind.ULIMIT)

    evidence = measure(engine, RANKS_CLAIM, gpus=attached(gpu_with()))

    assert evidence.host["ulimits"] == "the engine says: no"
    assert [spec.ulimits for spec in engine.specs] == [containers.RANKS_ULIMITS, {}]


def test_any_other_refusal_of_the_engine_is_an_error() -> None:
    engine = Engine(refuses=EngineErrorKind.OTHER)

    with pytest.raises(EngineError):
        measure(engine, RANKS_CLAIM, gpus=attached(gpu_with()))

    assert len(engine.specs) == 1


# --- how a container ends -------------------------------------------------------------------------


def test_a_container_that_runs_out_of_memory_is_noted_and_its_records_count() -> None:
    evidence = measure(Engine(end=OUT_OF_MEMORY), CPU_CLAIM)

    assert evidence.host["out_of_memory"]
    assert evidence.record_of("cpu.compiler")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (1, "ended with status 1: something in the image stopped them"),
        (143, "ended with status 143: something in the image stopped them"),
        (137, "`cpu` was killed .*reports no lack of memory"),
    ],
)
def test_a_suite_that_something_outside_of_it_stopped_gives_no_verdict(
    code: int, message: str
) -> None:
    engine = Engine(end=Exit(code=code, oom=False, error=""))

    with pytest.raises(UserError, match=message):
        measure(engine, CPU_CLAIM)


def test_an_image_in_which_the_suite_does_not_start_is_an_error_with_what_was_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "lines", lambda *_: iter([("stderr", "no python3")]))

    with pytest.raises(UserError, match="did not start in the image: no python3"):
        measure(Engine(), CPU_CLAIM)


# --- records --------------------------------------------------------------------------------------


def test_only_the_first_signed_record_of_a_probe_that_was_asked_for_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other_key = "0" * 64

    def lines(_engine: Engine, _claims: object, key: str) -> Iterator[tuple[str, str]]:
        yield "stdout", record_line("cpu.compiler", "not signed")
        yield "stdout", channel.sign(other_key, record_line("cpu.compiler", "of another key"))
        yield "stdout", channel.sign(key, record_line("cpu.other", "not asked for"))
        yield "stdout", channel.sign(key, record_line("cpu.compiler", "c"))
        yield "stdout", channel.sign(key, record_line("cpu.compiler", "again"))

    monkeypatch.setattr(Engine, "lines", lines)

    (record,) = measure(Engine(), CPU_CLAIM).records

    assert [measurement.subject for measurement in record.measurements] == ["c"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"probe": "a"}',
        pytest.param('{"a": ' * 9999, id="nested too deep"),
        '{"measurements": [3]}',
    ],
)
def test_a_line_that_is_no_record_is_read_as_none(line: str) -> None:
    assert containers.parse_record(line) is None


def test_the_records_of_a_probe_from_several_containers_become_one_with_the_worst_outcome() -> None:
    def record(subject: str, *measurements: Measurement, outcome: Outcome) -> Record:
        return Record(
            probe="cpu.home",
            outcome=outcome,
            seconds=1.0,
            measurements=measurements,
            log=subject,
        )

    def completed(subject: str) -> Record:
        measurement = Measurement(subject=subject, seconds=1, evidence={})
        return record(subject, measurement, outcome=Outcome.COMPLETED)

    crashed = record("b", outcome=Outcome.CRASHED)

    (merged,) = validation_run.merge_records([completed("a"), crashed, completed("c")])

    assert merged.outcome is Outcome.CRASHED
    assert [measurement.subject for measurement in merged.measurements] == ["a", "c"]
    assert (merged.seconds, merged.log) == (3.0, "abc")


# --- the order of containers ----------------------------------------------------------------------


def test_files_are_read_first_then_static_and_cpu_containers_run_side_by_side() -> None:
    first_probes: list[str] = []
    both_have_begun = threading.Barrier(2, timeout=SECONDS)

    def on_start(probes: list[str]) -> None:
        first_probes.append(probes[0])
        # The reader of files is the first. The two after it get on only if both have begun.
        if probes[0] in first_probes[1:3]:
            both_have_begun.wait()

    _, evidence = measure_static_and_cpu(on_start)

    reader, *others = first_probes
    assert reader in PROBES_OF_FILES
    assert not set(others) & PROBES_OF_FILES
    assert {probe.partition(".")[0] for probe in others[:2]} == {"static", "cpu"}
    measured = {record.probe for record in evidence.records}
    assert measured >= {*first_probes, "static.hygiene", "cpu.arbitrary_uid"}


@pytest.mark.parametrize(
    ("cpus", "gib", "are_side_by_side"),
    [
        # Four containers of 12 GiB, and one of 24 with the GPUs.
        pytest.param(16, 72, True, id="large machine"),
        pytest.param(8, 72, False, id="few cores"),
        pytest.param(16, 71, False, id="little memory"),
    ],
)
def test_gpu_checks_run_beside_the_cpus_on_a_large_machine_only(
    cpus: int, gib: int, are_side_by_side: bool
) -> None:
    machine = SimpleNamespace(cpus=cpus, memory=gib << 30)
    plans = containers.plan_containers("", ALL_CLAIMS, attached(gpu_with()))

    side_by_side, one_by_one = validation_run.split_plans(machine, plans)  # type: ignore[arg-type]

    names = [plan.name for plan in side_by_side]
    assert ("gpu" in names) == are_side_by_side
    assert {"cpu", "static", "any-user"} <= set(names)
    later = [plan.name for plan in one_by_one]
    assert later == [
        *([] if are_side_by_side else ["gpu"]),
        "gpu-times",
        "multigpu",
        "multinode",
    ]


def test_the_container_with_gpus_takes_the_place_of_no_other() -> None:
    """On 12 cores, three containers without GPUs run at once."""
    first_probes: list[str] = []
    all_have_begun = threading.Barrier(4, timeout=SECONDS)

    def on_start(probes: list[str]) -> None:
        first_probes.append(probes[0])
        # The reader of files is the first. The four after it get on only if all have begun.
        if probes[0] in first_probes[1:5]:
            all_have_begun.wait()

    engine = Engine(on_start)
    engine.facts.cpus = 12
    engine.facts.memory = 60 << 30

    measure(
        engine,
        ALL_CLAIMS,
        tiers=(Tier.STATIC, Tier.CPU, Tier.GPU),
        gpus=attached(gpu_with()),
        run_anyway=True,
    )

    assert any(probe.startswith("gpu.") for probe in first_probes[1:5])


def test_checks_that_measure_times_have_a_container_after_all_others() -> None:
    plans = containers.plan_containers("", ALL_CLAIMS, attached(gpu_with()))

    probes = {plan.name: {claim.probe for claim in plan.claims.claims} for plan in plans}
    assert {"gpu.speed", "gpu.step"} <= probes["gpu-times"]
    assert not probes["gpu-times"] & probes["gpu"]


def test_after_an_error_no_further_container_begins() -> None:
    first_probes: list[str] = []
    both_have_begun = threading.Barrier(2, timeout=SECONDS)

    def on_start(probes: list[str]) -> None:
        if probes[0] in PROBES_OF_FILES:
            return
        first_probes.append(probes[0])
        both_have_begun.wait()
        raise EngineError(Problem(where="a:1", cause="gone"), EngineErrorKind.OTHER)

    with pytest.raises(EngineError, match="gone"):
        measure_static_and_cpu(on_start)

    assert len(first_probes) == 2


def test_an_interrupt_stops_the_containers_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()
    monkeypatch.setattr(Engine, "cancel", lambda _self: cancelled.set())
    # Only the first container interrupts: a second interrupt could come after the test.
    interrupts = threading.Lock()

    def on_start(probes: list[str]) -> None:
        if probes[0] in PROBES_OF_FILES:
            return
        if interrupts.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(SECONDS), "it runs on, and nobody stops it"

    with pytest.raises(KeyboardInterrupt):
        measure_static_and_cpu(on_start)

    assert cancelled.is_set()


# --- GPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "gpus", "gib_of_gpu", "jobs"),
    [
        pytest.param(64, 1, 80, 6, id="at most six"),
        pytest.param(4, 1, 80, 4, id="one a core"),
        pytest.param(64, 1, 8, 2, id="one for 3 GiB of GPU memory"),
        pytest.param(64, 2, 80, 3, id="with two ranks half as many"),
        pytest.param(64, 8, 80, 1, id="with eight ranks one"),
        pytest.param(64, 1, 0, 1, id="always one"),
    ],
)
def test_probes_on_gpus_are_bounded_by_cores_memory_and_ranks(
    cpus: int, gpus: int, gib_of_gpu: int, jobs: int
) -> None:
    engine = Engine()
    engine.facts.cpus = cpus
    gpu = gpu_with(memory=gib_of_gpu << 30)
    claims = RANKS_CLAIM if gpus > 1 else GPU_CLAIM

    measure(engine, claims, gpus=attached(*[gpu] * gpus))

    (spec,) = engine.specs
    assert list(spec.cmd)[-2:] == ["--jobs", str(jobs)]


def test_only_containers_of_the_gpu_tiers_get_gpus() -> None:
    plans = containers.plan_containers("", ALL_CLAIMS, attached(gpu_with()))
    plans_without_gpus = containers.plan_containers("", ALL_CLAIMS, NO_GPU)

    assert {plan.name for plan in plans if plan.gpus.attached} == {*GPU_TIERS, "gpu-times"}
    assert not any(plan.gpus.attached for plan in plans_without_gpus)


# --- admission ------------------------------------------------------------------------------------


def test_no_program_of_an_image_runs_if_its_files_are_broken() -> None:
    engine, evidence = measure_static_and_cpu(run_anyway=False)

    assert engine.users == [LOOK, READER]
    assert {record.probe for record in evidence.records} <= PROBES_OF_FILES
    unsupported = evidence.host["unsupported"]
    reason = "nothing of the image was run: files/recorded failed"
    assert unsupported["imports/torch"] == reason
    assert unsupported["system/tools"] == reason
    assert not any(key.startswith("origin/") for key in unsupported)


def test_programs_of_a_broken_image_run_if_a_person_asks_for_it() -> None:
    _, evidence = measure_static_and_cpu(run_anyway=True)

    assert evidence.record_of("cpu.imports")
    assert "unsupported" not in evidence.host


def test_admission_claims_that_nobody_chose_are_measured_and_reported_if_they_fail() -> None:
    chosen = ALL_CLAIMS.in_tiers([Tier.CPU]).named_by(["compiler/triton-launcher"])
    engine = Engine()

    evidence = measure(engine, chosen, tiers=(Tier.CPU,))
    verdict = judge(evidence.claim_set, evidence)

    assert engine.users == [LOOK, READER], "no container of the image's own Python"
    failed_checks = {judged.claim.check for judged in verdict.claims_with(Status.FAIL)}
    # These two need a lock and a recipe, which these claims are made without.
    assert failed_checks == {*ADMISSION} - {"lookup", "origin"}
    assert verdict.overall is Status.FAIL
    (compiler,) = (judged for judged in verdict.claims if judged.claim.check == "compiler")
    assert compiler.reason.startswith("nothing of the image was run: files/recorded failed: ")


@pytest.mark.parametrize("admission", ["unproven", "none"])
def test_without_a_broken_admission_claim_evidence_is_about_the_chosen_claims_only(
    admission: str,
) -> None:
    chosen = ALL_CLAIMS.in_tiers([Tier.CPU]).named_by(["compiler/triton-launcher"])
    # On a custom base, admission claims are unproven.
    unproven = [replace(claim, unproven="a custom base") for claim in chosen.admission]
    admission_claims = tuple(unproven) if admission == "unproven" else ()
    engine = Engine()

    evidence = measure(engine, replace(chosen, admission=admission_claims), tiers=(Tier.CPU,))

    assert evidence.claims == chosen.claims
    assert [record.probe for record in evidence.records] == ["cpu.compiler"]
    # The one container is that of the image's own user.
    assert engine.users == [None]


def test_no_program_of_an_image_runs_if_the_reader_of_its_files_ran_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_lines = Engine.lines
    last_probe = "static.symbols"

    def lines_of_last_probe(
        engine: Engine, claims: Sequence[Claim], key: str
    ) -> Iterator[tuple[str, str]]:
        for stream, line in all_lines(engine, claims, key):
            if last_probe in line:
                yield stream, line

    monkeypatch.setattr(Engine, "lines", lines_of_last_probe)
    engine = Engine(end=OUT_OF_MEMORY)
    chosen = ALL_CLAIMS.named_by(["symbols/resolved", "compiler/triton-launcher", "records/locked"])

    evidence = measure(engine, replace(chosen, admission=()))

    assert engine.users == [LOOK, READER]
    assert [record.probe for record in evidence.records] == [last_probe]
    reason = "nothing of the image was run: records/locked failed"
    assert evidence.host["unsupported"]["compiler/triton-launcher"] == reason


def test_an_image_that_would_hang_its_engine_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder stands in place of /etc/group, which the engine reads at each start."""
    monkeypatch.setattr(Engine, "has", lambda _self, path: path == "/etc/group")
    engine = Engine(on_start=lambda _probes: pytest.fail("it was started"))

    with pytest.raises(UserError, match="/etc/group in the image is no file"):
        measure(engine, ALL_CLAIMS.named_by(["files/recorded"]))

    assert engine.users == [LOOK]


def test_a_claim_about_files_needs_no_container_of_the_images_own_python() -> None:
    engine = Engine()

    evidence = measure(engine, ALL_CLAIMS.named_by(["files/recorded"]))

    assert [record.probe for record in evidence.records] == ["static.files"]
    assert len(engine.specs) == 2


# --- derived images -------------------------------------------------------------------------------


def test_a_derived_image_is_recognised_by_its_build_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name says nothing: a matrix may give its images a prefix."""
    steps_of_ours = ["USER 1001", "WORKDIR /workspace", 'CMD ["bash"]']
    steps = [*steps_of_ours, "RUN pip install wandb"]
    monkeypatch.setattr(Engine, "steps", lambda _self, _reference: steps)

    evidence = measure(Engine(), CPU_CLAIM)

    assert evidence.host["steps_above"] == 1
