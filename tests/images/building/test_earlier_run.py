"""When the evidence of an earlier run stands for a new one: never if an input differs."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.building import earlier_run
from images.building.earlier_run import Inputs
from images.engine import ImageInfo, configuration
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import EngineFacts, engine_facts
from images.hardware.inventory import Gpu, GpuMode, Inventory, Link
from images.host.hashing import oci_digest
from images.validation import containers, validation_run
from tests.support.engine_contents import image_info
from tests.support.fleet_records import DIGEST, claim, claims, evidence_of, installed
from validate import checks
from validate.claims import ClaimSet, Tier
from validate.environment import nvml
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judging import Finding, known_fault, not_applicable, unproven

FACTS = EngineFacts(
    url="unix:///d",
    version="28.5",
    data_root="/",
    local=True,
    cpus=16,
    memory=64 << 30,
    runtimes=("runc",),
    further="the engine's ID",
)
GPU = Gpu(name="NVIDIA H100", capability=(9, 0), memory=80 << 30)
INVENTORY = Inventory(
    driver="570.1",
    gpus=(GPU, GPU),
    source="NVML",
    links=((0, 1, Link.NVLINK),),
    uuids=("GPU-aaaa", "GPU-bbbb"),
)
TWO_GPUS = Attachment(mode=GpuMode.NVIDIA, reason="chosen by auto", inventory=INVENTORY)
CLAIMS = claims(claim())
CPU_CLAIM = claim("torch", check="imports", tier=Tier.CPU, probe="cpu.imports")


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small suite and program in place of the real ones, whose files a test may change."""
    for name in ("validate/suite.py", "images/engine/client.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("before")
    monkeypatch.setattr(containers, "SUITE", tmp_path / "validate")
    monkeypatch.setattr(earlier_run, "RESOURCES", tmp_path)
    monkeypatch.setattr(validation_run, "find_machine_faults", lambda _engine, _gpus: [])
    return tmp_path


def describe(
    facts: EngineFacts = FACTS,
    image: ImageInfo | None = None,
    image_claims: ClaimSet = CLAIMS,
    tiers: tuple[Tier, ...] = (Tier.STATIC,),
    gpus: Attachment = TWO_GPUS,
    other_base: str = "",
    run_anyway: bool = False,
) -> Inputs:
    """Return the inputs of a run; a test changes one of them."""
    engine: Any = SimpleNamespace(facts=facts)
    return earlier_run.describe_inputs(
        engine,
        image or image_info(digest=DIGEST),
        image_claims,
        tiers,
        gpus,
        other_base=other_base,
        run_anyway=run_anyway,
    )


def finished(inputs: Inputs, **host: Any) -> Evidence:
    """Return the evidence of a run that ended well, with these inputs."""
    evidence = evidence_of(CLAIMS, pip=installed())
    evidence.host["inputs"] = inputs
    evidence.host.update(host)  # type: ignore[typeddict-item]
    return evidence


def reason_after(**change: Any) -> str:
    """Return why a run with one changed input is measured."""
    return earlier_run.reason_to_measure(finished(describe()), describe(**change))


def with_inventory(**fields: Any) -> Attachment:
    return replace(TWO_GPUS, inventory=replace(INVENTORY, **fields))


# --- inputs ---------------------------------------------------------------------------------------


def test_a_run_with_the_same_inputs_need_not_be_measured() -> None:
    assert reason_after() == ""


OTHER_GPU = replace(GPU, name="NVIDIA H200")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": image_info(digest="sha256:2")}, "the image differs"),
        ({"image_claims": claims(claim(version="25.1"))}, "a claim differs"),
        ({"image_claims": claims(claim(unproven="no wheel"))}, "a claim differs"),
        ({"image_claims": claims(claim(), CPU_CLAIM)}, "a claim differs"),
        (
            {"image_claims": replace(CLAIMS, admission=(claim("locked", check="records"),))},
            "a claim differs",
        ),
        ({"facts": replace(FACTS, version="28.6")}, "the engine differs"),
        ({"facts": replace(FACTS, further="another ID")}, "the engine differs"),
        ({"facts": replace(FACTS, containerd_images=True)}, "the engine differs"),
        (
            {"facts": replace(FACTS, version="28.5the", further=" engine's ID")},
            "the engine differs",
        ),
        ({"facts": replace(FACTS, cpus=15)}, "the number of cores differs"),
        ({"facts": replace(FACTS, memory=32 << 30)}, "the memory differs"),
        ({"facts": replace(FACTS, architecture="arm64")}, "the processor differs"),
        ({"gpus": with_inventory(driver="570.2")}, "the driver differs"),
        ({"gpus": with_inventory(gpus=(GPU, OTHER_GPU))}, "the list of GPUs differs"),
        ({"gpus": with_inventory(uuids=("GPU-aaaa", "GPU-cccc"))}, "the list of GPUs differs"),
        ({"gpus": with_inventory(links=((0, 1, Link.PCIE),))}, "the list of GPUs differs"),
        ({"gpus": replace(TWO_GPUS, mode=GpuMode.HOST_DRIVER)}, "the way to the GPUs differs"),
        (
            {"gpus": replace(TWO_GPUS, injected={"NCCL_NVLS_ENABLE": "0"})},
            "the way to the GPUs differs",
        ),
        ({"gpus": NO_GPU}, "the driver differs"),
        ({"tiers": (Tier.STATIC, Tier.CPU)}, "the choice of tiers differs"),
        ({"other_base": "org/base:7"}, "the base differs"),
        ({"run_anyway": True}, "--run-anyway differs"),
    ],
)
def test_each_input_that_differs_is_named_and_measured(
    change: Mapping[str, Any], reason: str
) -> None:
    assert reason_after(**change) == reason


def test_the_order_in_which_tiers_are_chosen_is_no_input() -> None:
    either_order = (Tier.STATIC, Tier.CPU), (Tier.CPU, Tier.STATIC)
    before, after = (describe(tiers=tiers) for tiers in either_order)

    assert earlier_run.reason_to_measure(finished(before), after) == ""


@pytest.mark.parametrize(
    ("local", "cpuinfo_after", "reason"),
    [
        pytest.param(True, "flags: avx512f\ncpu MHz: 2400", "the processor differs", id="other"),
        pytest.param(True, "flags: avx2\ncpu MHz: 800", "", id="other clock rate"),
        pytest.param(False, "flags: avx512f\ncpu MHz: 2400", "", id="of another machine"),
    ],
)
def test_the_processor_of_this_machine_is_an_input_if_the_engine_runs_on_it(
    local: bool,
    cpuinfo_after: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags: avx2\ncpu MHz: 2400")
    monkeypatch.setattr(
        earlier_run, "Path", lambda name: cpuinfo if name == "/proc/cpuinfo" else Path(name)
    )
    facts = replace(FACTS, local=local)
    before = describe(facts)
    cpuinfo.write_text(cpuinfo_after)

    assert earlier_run.reason_to_measure(finished(before), describe(facts)) == reason


def test_another_python_of_the_program_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe()
    monkeypatch.setattr(sys, "version", "3.99")

    assert earlier_run.reason_to_measure(finished(before), describe()) == "truetag differs"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("validate/suite.py", "the suite differs"),
        ("validate/new.py", "the suite differs"),
        ("images/engine/client.py", "truetag differs"),
    ],
)
def test_a_changed_file_of_the_suite_or_the_program_is_measured(
    checkout: Path, file: str, reason: str
) -> None:
    before = describe()
    (checkout / file).write_text("after")

    assert earlier_run.reason_to_measure(finished(before), describe()) == reason


def test_a_file_of_the_suite_with_another_name_is_measured(checkout: Path) -> None:
    before = describe()
    (checkout / "validate/suite.py").rename(checkout / "validate/other.py")

    reason = earlier_run.reason_to_measure(finished(before), describe())

    assert reason == "the suite differs"


@pytest.mark.parametrize(
    ("reading", "health"),
    [
        ({"power_limit": 400_000}, {"mig": [0, 0], "mode": [0]}),
        ({"power_limit": 700_000}, {"mig": [1, 1], "mode": [0]}),
        ({"power_limit": 700_000}, {"mig": [0, 0], "mode": [2]}),
    ],
)
def test_a_gpu_with_another_setting_is_measured(
    reading: Mapping[str, int], health: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_gpu(reading: Mapping[str, int], health: Mapping[str, Any]) -> None:
        reader = nullcontext(lambda: reading)
        monkeypatch.setattr(nvml, "open_gpu_reader", lambda *_: reader)
        monkeypatch.setattr(nvml, "read_health", lambda _: [health])

    set_gpu({"power_limit": 700_000}, {"mig": [0, 0], "mode": [0]})
    before = describe()
    set_gpu(reading, health)

    reason = earlier_run.reason_to_measure(finished(before), describe())

    assert reason == "a setting of the GPUs differs"


def test_a_gpu_that_became_faulty_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe()
    monkeypatch.setattr(validation_run, "find_machine_faults", lambda *_: ["GPU 0: it is taken"])

    reason = earlier_run.reason_to_measure(finished(before), describe())

    assert reason == "the machine's health differs"


def test_another_user_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user can't read the engine's store, so claims about it are UNPROVEN."""
    before = describe()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)

    assert earlier_run.reason_to_measure(finished(before), describe()) == "the user differs"


def test_an_engine_with_another_id_kernel_or_runc_is_another_engine() -> None:
    def further(kernel: str = "6.1", runc: str = "1.1", engine_id: str = "A") -> str:
        version = {"Components": [{"Name": "runc", "Version": runc}]}
        info = {"ID": engine_id, "KernelVersion": kernel}
        return engine_facts("unix:///d", version, info).further

    different = {further(), further(kernel="6.2"), further(runc="1.2"), further(engine_id="B")}

    assert len(different) == 4
    assert further() == further()


LAYER, OTHER_LAYER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.mark.parametrize(
    "change",
    [
        {"layers": [OTHER_LAYER]},
        {"Env": ["OMP_NUM_THREADS=1"]},
        {"Labels": {"org.example": "1"}},
        {"User": "0"},
        {"Cmd": ["python3"]},
    ],
    ids=["a file in a layer", "a variable", "a label", "the user", "the command"],
)
def test_whatever_differs_in_an_image_gives_it_another_digest(change: dict[str, Any]) -> None:
    """Its digest is that of its configuration, which names the layers by their content."""

    def digest(layers: list[str], **config: Any) -> str:
        inspected = {
            "Architecture": "amd64",
            "RootFS": {"Layers": layers},
            "Config": {"User": "1001", "Env": [], "Labels": {}, **config},
        }
        content = configuration.canonical_bytes(inspected, ["RUN true"])
        assert content is not None
        return oci_digest(content)

    before = digest([LAYER])
    after = digest(**{"layers": [LAYER], **change})

    reason = earlier_run.reason_to_measure(
        replace(finished(describe(image=image_info(digest=before))), digest=before),
        describe(image=image_info(digest=after)),
    )
    assert reason == "the image differs"


def test_evidence_of_another_image_is_not_taken_for_this_one() -> None:
    inputs = describe()

    moved = replace(finished(inputs), digest="sha256:3")

    assert earlier_run.reason_to_measure(moved, inputs) == "the image differs"


def test_evidence_of_a_release_that_recorded_no_inputs_is_measured() -> None:
    evidence = evidence_of(CLAIMS, pip=installed())

    reason = earlier_run.reason_to_measure(evidence, describe())

    assert reason == "what a run depends on here is not known"


def test_an_input_that_the_earlier_run_did_not_record_differs() -> None:
    recorded = dict(describe())
    del recorded["the base"]

    reason = earlier_run.reason_to_measure(finished(recorded), describe())

    assert reason == "the base differs"


def test_a_run_whose_inputs_became_unknown_is_measured() -> None:
    reason = earlier_run.reason_to_measure(finished(describe()), {})

    assert reason == "what a run depends on here is not known"


@pytest.mark.parametrize("inventory", [None, replace(INVENTORY, uuids=())])
def test_gpus_that_cannot_be_told_from_others_are_measured(inventory: Inventory | None) -> None:
    unknown = describe(gpus=replace(TWO_GPUS, inventory=inventory))

    reason = earlier_run.reason_to_measure(finished(unknown), unknown)

    assert reason == "what a run depends on here is not known"


def test_neither_inputs_nor_inventory_publish_what_tells_a_gpu_or_an_engine_from_others() -> None:
    recorded = json.dumps([describe(), INVENTORY.as_json()])

    assert "GPU-aaaa" not in recorded
    assert FACTS.further not in recorded


# --- what the earlier run left open ---------------------------------------------------------------


def record(claim_of_record: Any, outcome: Outcome = Outcome.COMPLETED) -> Record:
    measurement = Measurement(subject=claim_of_record.subject, seconds=0.1, evidence={})
    return Record(
        probe=claim_of_record.probe, outcome=outcome, seconds=1, measurements=(measurement,)
    )


@pytest.mark.parametrize(
    ("fields", "host", "reason"),
    [
        pytest.param({}, {"faults": ["GPU 0: taken"]}, "the machine had a fault", id="a fault"),
        pytest.param({}, {"out_of_memory": True}, "a container ran out of memory", id="memory"),
        pytest.param(
            {"records": (record(claim(), Outcome.TIMED_OUT),)},
            {},
            "static.pins did not run to its end",
            id="timed out",
        ),
        pytest.param(
            {"records": (record(claim(), Outcome.CRASHED),)},
            {},
            "static.pins did not run to its end",
            id="killed",
        ),
        pytest.param({"records": ()}, {}, "pins/pip was UNPROVEN", id="not measured"),
        pytest.param(
            {"records": (record(claim()),)}, {}, "pins/pip was FAIL", id="no version was found"
        ),
    ],
)
def test_a_run_that_lacked_something_or_failed_is_measured_again(
    fields: Mapping[str, Any], host: Mapping[str, Any], reason: str
) -> None:
    inputs = describe()
    evidence = replace(finished(inputs, **host), **fields)

    assert earlier_run.reason_to_measure(evidence, inputs) == reason


def reason_after_finding(finding: Finding, tier: Tier, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return why a run is measured with a single claim, of this tier, that was judged so."""
    monkeypatch.setattr(checks, "judge_of", lambda _claim: lambda *_: finding)
    open_claim = claim(tier=tier, probe=f"{tier}.pins")
    inputs = describe()
    evidence = replace(finished(inputs), claims=(open_claim,), records=(record(open_claim),))
    return earlier_run.reason_to_measure(evidence, inputs)


def test_what_files_leave_unproven_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason_after_finding(unproven("too few"), Tier.STATIC, monkeypatch) == ""


@pytest.mark.parametrize("tier", [Tier.CPU, Tier.GPU, Tier.MULTIGPU])
def test_what_programs_leave_unproven_is_run_again(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes may have held the GPU's memory, say."""
    reason = reason_after_finding(unproven("too few"), tier, monkeypatch)

    assert reason == "pins/pip was UNPROVEN"


@pytest.mark.parametrize("finding", [known_fault("of this cuDNN"), not_applicable("it has no FP8")])
def test_what_another_run_cannot_change_is_not_run_again(
    finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason_after_finding(finding, Tier.GPU, monkeypatch) == ""


def test_a_claim_that_is_known_to_be_unproven_does_not_hinder() -> None:
    inputs = describe()
    unmeasured = replace(CPU_CLAIM, unproven="no wheel is here")
    evidence = finished(inputs)
    evidence = replace(evidence, claims=(*evidence.claims, unmeasured))

    assert earlier_run.reason_to_measure(evidence, inputs) == ""


# --- files ----------------------------------------------------------------------------------------


def write(folder: Path, text: str) -> None:
    (folder / "evidence.json").write_text(text)
    (folder / "verdict.json").write_text("{}")


def test_evidence_is_read_as_it_was_written(tmp_path: Path) -> None:
    evidence = finished(describe())
    write(tmp_path, f"{evidence.dumps()}\n")

    read = earlier_run.read(tmp_path)

    assert read == evidence
    assert read.dumps() == evidence.dumps()
    assert read.sha256 == evidence.sha256


def test_reasons_have_their_words_in_the_order_of_the_run(tmp_path: Path) -> None:
    """`imported first and after torch` was read back as `imported after torch and first`."""
    measured = Measurement(subject="pip", seconds=0.1, evidence={"first": 1, "after torch": 2})
    evidence = finished(describe())
    measured_in_order = replace(evidence.records[0], measurements=(measured,))
    write(tmp_path, f"{replace(evidence, records=(measured_in_order,)).dumps()}\n")

    read = earlier_run.read(tmp_path)

    assert read is not None
    assert list(read.records[0].measurements[0].evidence) == ["first", "after torch"]


def without_digest(text: str) -> str:
    data = json.loads(text)
    del data["sha256"]
    return json.dumps(data, indent=1, sort_keys=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-200],
        lambda text: text.replace('"25.0"', '"25.1"', 1),
        lambda text: text.replace('"exit_code": null', '"exit_code":null', 1),
        lambda text: text + "{}",
        lambda _text: "[]",
        lambda _text: "null",
        lambda _text: '{"schema_version": 3}',
        lambda _text: "",
        without_digest,
    ],
    ids=[
        "cut off",
        "edited",
        "reformatted",
        "appended",
        "a list",
        "null",
        "without records",
        "empty",
        "without its digest",
    ],
)
def test_damaged_and_edited_evidence_is_not_taken(damage: Any, tmp_path: Path) -> None:
    write(tmp_path, damage(f"{finished(describe()).dumps()}\n"))

    assert earlier_run.read(tmp_path) is None


def test_a_run_without_a_verdict_was_not_finished(tmp_path: Path) -> None:
    assert earlier_run.read(tmp_path) is None
    write(tmp_path, f"{finished(describe()).dumps()}\n")
    (tmp_path / "verdict.json").unlink()

    assert earlier_run.read(tmp_path) is None


# --- age ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=1), "measured 1 second ago"),
        (timedelta(seconds=59), "measured 59 seconds ago"),
        (timedelta(minutes=14, seconds=50), "measured 14 minutes ago"),
        (timedelta(hours=3, minutes=50), "measured 3 hours ago"),
        (timedelta(hours=26), "measured 1 day ago"),
        (timedelta(hours=-2), "measured at 2026-11-30T12:00:00+00:00"),
    ],
)
def test_the_age_of_evidence_is_told_in_one_unit(age: timedelta, text: str) -> None:
    measured_at = datetime(2026, 11, 30, 12, tzinfo=UTC)
    evidence = finished({}, date=measured_at.isoformat())

    told = earlier_run.describe_age(evidence, measured_at + age)

    assert told == f"{text} on this machine"
