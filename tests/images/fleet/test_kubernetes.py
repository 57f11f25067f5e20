"""Manifests for Kubernetes, by its published schemas, and the verdict on what pods logged. No cluster is needed."""

import base64
import io
import json
import posixpath
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.building.trying import Described
from images.errors import UserError
from images.fleet import gather, planning
from images.fleet.config import Fleet, WorkerType
from images.fleet.gather import Located
from images.fleet.kubernetes import collect, logs, reach, render
from images.fleet.kubernetes.logs import ContainerLog, Unfinished
from images.fleet.kubernetes.render import Rendered
from images.fleet.ledger import Ledger
from images.fleet.planning import FleetImage, PlanInputs, State
from images.fleet.travel import Found
from images.host.hashing import sha256
from images.planning import plan
from images.validation import trial
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from tests.support.fleet_records import claim, claims, installed, job
from tests.support.sources import SOURCES
from validate import logged
from validate.claims import HOST_PROBE, Claim, ClaimSet, Tier
from validate.evidence import Measurement, Outcome, Record
from validate.judging import Status

VERSIONS = ("1.27", "1.30", "1.33", kubernetes_validate.latest_version())
H100 = WorkerType.model_validate(
    {
        "arch": "9.0",
        "gpus": 8,
        "kubernetes": {
            "node_labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerate": ["nvidia.com/gpu"],
            "pull_secret": "registry",
            "runtime_class": "nvidia",
        },
    }
)
SUITE = {path: content for path, content in trial.suite_files(claims()).items() if path != "claims.json"}
NOW = datetime.now(UTC)


def rendered(tiers: Sequence[Tier], gpus: int = 0) -> Rendered:
    (planned,) = plan.select(["cu126-torch27"], SOURCES)
    assert planned.image is not None
    context = ClaimContext(image=planned.image, facts=SOURCES.facts).on_host(render.on_gpus("9.0", gpus))
    found = image_claims(context)
    one = job(1, claims(), image="cu126-torch27", tiers=tuple(tiers), gpus=gpus, arch="9.0" if gpus else "")
    return Rendered.of(one, "/home/trainer", found, suite=SUITE)


PLAIN = rendered([Tier.STATIC, Tier.CPU])
ONE_GPU, TWO_GPUS = rendered([Tier.GPU], 1), rendered([Tier.MULTIGPU], 2)
JOBS = ((PLAIN, WorkerType()), (ONE_GPU, H100), (TWO_GPUS, H100))


def of_kind(kind: str, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == kind]


def pods(*jobs: tuple[Rendered, WorkerType]) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in of_kind("Job", list(render.manifests(jobs, SUITE)))]


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_as_kubernetes_own_schemas_have_them(version: str) -> None:
    found = render.manifests(JOBS, SUITE)
    assert [one["kind"] for one in found] == ["ConfigMap", "NetworkPolicy", *["ConfigMap", "Job"] * 3]
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_schemas_refuse_what_is_no_key() -> None:
    (found,) = of_kind("Job", list(render.manifests(JOBS[:1], SUITE)))
    found["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnly"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnly"):
        kubernetes_validate.validate(found, VERSIONS[-1], strict=True)


def test_the_same_jobs_give_the_same_bytes_and_other_claims_another_config_map() -> None:
    assert json.dumps(render.manifests(JOBS, SUITE)) == json.dumps(render.manifests(JOBS, SUITE))
    names = [{one["metadata"]["name"] for one in render.manifests([one], SUITE)} for one in JOBS]
    assert len(set.union(*names)) == 2 + 2 * len(JOBS), "suite and policy are shared, nothing else"


def test_every_claim_is_measured_in_one_container_or_is_unproven() -> None:
    for one, _ in JOBS:
        measured = [(found.id, found.subject) for plan_ in render.plans(one) for found in plan_.claims.claims]
        left = [found for found in one.claim_set.claims if (found.id, found.subject) not in measured]
        assert len(measured) == len(set(measured)) > 0
        assert all(found.unproven or found.probe == HOST_PROBE for found in left)
    assert {found.probe for found in PLAIN.claim_set.claims if "owner and mode" in found.unproven} == {
        "cpu.home",
        "cpu.additions",
    }


def test_a_pod_is_as_a_trials_containers_are() -> None:
    (pod,) = pods((PLAIN, WorkerType()))
    assert [one["name"] for one in pod["containers"]] == ["cpu", "static", "root", "any-user"]
    users = {one["name"]: one["securityContext"].get("runAsUser") for one in pod["containers"]}
    assert users == {"cpu": None, "static": None, "root": 0, "any-user": 61234}
    everything = [*pod["initContainers"], *pod["containers"]]
    assert all(one["securityContext"]["readOnlyRootFilesystem"] for one in everything)
    assert all("@sha256:" in one["image"] for one in everything), "by digest"
    written = {
        one["name"]: [mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")]
        for one in pod["containers"]
    }
    assert written["static"] == ["/tmp"] and written["root"] == ["/judge/scratch"]
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}, "Docker has one of its own"
    assert not pod["automountServiceAccountToken"] and pod["restartPolicy"] == "Never"
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}


@pytest.mark.parametrize(("waits", "hours"), [({}, 24), ({"wait_hours": 100}, 100)])
def test_a_pod_ends_after_the_minutes_that_fleet_yaml_gives_and_time_in_queues_is_not_among_them(
    waits: dict[str, int], hours: int
) -> None:
    on = WorkerType.model_validate({"kubernetes": {"minutes": 90, **waits}})
    (found,) = of_kind("Job", list(render.manifests([(PLAIN, on)], SUITE)))
    assert found["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 5400
    pods_of_job = 1 + found["spec"]["backoffLimit"]
    assert found["spec"]["activeDeadlineSeconds"] - pods_of_job * 5400 == hours * 3600


@pytest.mark.parametrize(
    ("code", "conditions", "action"),
    [(143, ["DisruptionTarget"], "Ignore"), (137, ["DisruptionTarget"], "Ignore"), (137, [], "FailJob"), (1, [], "")],
)
def test_what_the_cluster_ended_is_replaced_and_what_was_killed_is_not_tried_again(
    code: int, conditions: list[str], action: str
) -> None:
    """As Kubernetes reads the policy: the first rule that matches; without one, the pod counts as a failed try."""
    (found,) = of_kind("Job", list(render.manifests(JOBS[:1], SUITE)))
    matching = (
        rule["action"]
        for rule in found["spec"]["podFailurePolicy"]["rules"]
        if code in rule.get("onExitCodes", {"values": []})["values"]
        or any(one["status"] == "True" and one["type"] in conditions for one in rule["onPodConditions"])
    )
    assert next(matching, "") == action


def test_a_pod_without_gpus_fits_on_a_node_of_eight_cores() -> None:
    """Such a node has less than 8 to give: the kubelet keeps some."""
    (pod,) = pods((PLAIN, WorkerType()))
    asked = {one["name"]: one["resources"]["requests"] for one in pod["containers"]}
    assert asked["static"] == asked["cpu"] == {"cpu": "2", "memory": "4Gi"}
    assert asked["root"] == asked["any-user"] == {"cpu": "250m", "memory": "1Gi"}
    at_once = {one["name"]: one["command"][one["command"].index("--jobs") + 1] for one in pod["containers"]}
    assert at_once == {"static": "2", "cpu": "2", "root": "1", "any-user": "1"}


def test_a_container_that_asks_for_more_memory_than_it_may_use_is_refused() -> None:
    """Kubernetes would refuse the Job when it is applied."""
    on = WorkerType.model_validate({"kubernetes": {"memory": "16Gi"}})
    with pytest.raises(UserError, match=r"asks for 16Gi, and may use 12Gi"):
        render.manifests([(PLAIN, on)], SUITE)
    assert render.manifests([(ONE_GPU, on)], SUITE), "with GPUs it may use 24Gi"


def test_containers_without_gpus_see_none_of_their_node() -> None:
    """Where NVIDIA's runtime is the default, the image's own `all` would give them. S7 judges that variable."""
    plain, on_gpu = pods((PLAIN, H100), (ONE_GPU, H100))
    every = [*plain["initContainers"], *plain["containers"], *on_gpu["initContainers"], *on_gpu["containers"]]
    hidden = {one["name"] for one in every if {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in one["env"]}
    assert hidden == {"unpack", "cpu", "root", "any-user"}
    assert [one["env"] for one in every if one["name"] in ("static", "gpu")] == [[], []]
    assert on_gpu["runtimeClassName"] == "nvidia" and "runtimeClassName" not in plain


@pytest.mark.parametrize(("cpus", "on_one", "on_two"), [(2, "2", "1"), (6, "6", "3"), (64, "6", "3")])
def test_no_more_probes_use_gpus_at_once_than_in_a_trial(cpus: int, on_one: str, on_two: str) -> None:
    on = WorkerType.model_validate({**H100.model_dump(), "kubernetes": {"cpus": cpus}})
    commands = [pod["containers"][0]["command"] for pod in pods((ONE_GPU, on), (TWO_GPUS, on))]
    assert [one[one.index("--jobs") + 1] for one in commands] == [on_one, on_two]


def test_every_container_has_the_limits_that_a_quota_wants() -> None:
    on = WorkerType.model_validate({"kubernetes": {"cpu_limit": 4, "ephemeral_storage": "20Gi"}})
    (plain,), (limited,) = pods((PLAIN, WorkerType())), pods((PLAIN, on))
    for pod, wanted in ((plain, (None, None, None)), (limited, ("4", "20Gi", "20Gi"))):
        for one in [*pod["initContainers"], *pod["containers"]]:
            most, least = one["resources"]["limits"], one["resources"]["requests"]
            assert (most.get("cpu"), most.get("ephemeral-storage"), least.get("ephemeral-storage")) == wanted


@given(
    st.sampled_from(["", "/", "/tmp", "/tmp/", "/dev/shm"])
    | st.text(ascii_letters + digits + "._-/ ", max_size=250).map("/home/{}".format)
)
def test_whatever_home_an_image_has_its_folders_are_mounted_once(home: str) -> None:
    for one in (PLAIN, TWO_GPUS):
        *_, found = render.manifests([(Rendered.model_validate({**one.model_dump(), "home": home}), H100)], {})
        pod = found["spec"]["template"]["spec"]
        names = [volume["name"] for volume in pod["volumes"]]
        assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z0-9-]{1,63}", name) for name in names)
        for container in pod["containers"]:
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len({posixpath.normpath(path) for path in paths}) == len(paths)
            assert all(path.startswith("/") for path in paths)
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(names)


def test_the_network_policy_selects_every_pod_and_lets_nothing_through() -> None:
    found = list(render.manifests(JOBS, SUITE))
    (policy,) = of_kind("NetworkPolicy", found)
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()
    assert wanted, "an empty selector would cut off pods of others"
    assert all(wanted <= one["spec"]["template"]["metadata"]["labels"].items() for one in of_kind("Job", found))
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    assert not {"ingress", "egress"} & policy["spec"].keys(), "a rule would allow something"


def test_a_pair_that_is_due_again_has_a_job_of_another_name() -> None:
    """`kubectl apply` leaves a Job of the same name as it is: the old pods' verdict would come back."""
    names = {
        Rendered.model_validate({**PLAIN.model_dump(), **changed}).name
        for changed in ({}, {"replaces": NOW}, {"replaces": NOW + timedelta(days=1)}, {"suite": "x"})
    }
    assert len(names) == 4 and PLAIN.name == rendered([Tier.STATIC, Tier.CPU]).name


def test_a_log_of_another_digest_that_begins_alike_is_of_another_rendering() -> None:
    """A job is named by 12 digits of it."""
    digest = PLAIN.job.digest
    other = PLAIN.job.model_copy(update={"digest": digest[:-1] + ("0" if digest[-1] != "0" else "1")})
    again = Rendered.model_validate({**PLAIN.model_dump(), "job": other.model_dump()})
    assert again.job.key == PLAIN.job.key
    assert again.fingerprint != PLAIN.fingerprint and len(PLAIN.fingerprint) == 64


def test_a_gpu_job_asks_for_its_gpus_and_no_other_container_does() -> None:
    one, two = pods((ONE_GPU, H100), (TWO_GPUS, H100))
    for pod, count in ((one, "1"), (two, "2")):
        assert pod["nodeSelector"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == count
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    shared = [volume for volume in two["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory"]
    assert len(shared) == 1 and not [volume for volume in one["volumes"] if "medium" in volume.get("emptyDir", {})]
    (plain,) = pods((PLAIN, WorkerType()))
    assert "nvidia.com/gpu" not in json.dumps(plain)


@given(*[st.text(ascii_letters + digits + ".-", min_size=1, max_size=90)] * 2)
def test_a_jobs_name_is_one_that_kubernetes_takes_and_long_keys_stay_apart(one: str, other: str) -> None:
    name = render.job_name(f"image-{one}-x", "word")
    assert len(name) <= 63 and name == name.lower() and name.replace("-", "a").isalnum() and name[-1] != "-"
    assert (name == render.job_name(f"image-{other}-x", "word")) is (one == other)


def test_what_no_config_map_can_hold_is_refused() -> None:
    noise = {"validate/big.py": random.Random(0).randbytes(1 << 20)}
    with pytest.raises(UserError, match="as a ConfigMap, which may have"):
        render.manifests(JOBS[:1], noise)


# --- logs -----------------------------------------------------------------------------------------------------------

PIP = claim("pip")


def record(probe: str = "static.x", **measured: Any) -> Record:
    found = tuple(Measurement(subject=name, seconds=0.1, evidence=value) for name, value in measured.items())
    return Record(probe=probe, outcome=Outcome.COMPLETED, seconds=1, measurements=found)


def begin(one: Rendered, container: str) -> dict[str, str]:
    """What the first line says of what measures."""
    (plan_,) = [found for found in render.plans(one) if found.name == container] or [render.plans(one)[0]]
    return {"rendering": one.fingerprint, "claims": sha256(render.claims_file(plan_, one.job)), "suite": one.suite}


def log(one: Rendered, container: str, *records: Record, pod: str = "p1", later: float = 0) -> list[str]:
    """`later`: seconds after now at which the container began and ended."""
    whose = {"job": one.job.key, "container": container, "pod": pod}
    rows = [json.loads(line) for line in logged.lines(whose, begin(one, container), records)]
    for row, key in ((rows[0], "began"), (rows[-1], "ended")):
        row[key] += later
    return [json.dumps(row, sort_keys=True) for row in rows]


def of_pip(*more: Claim, replaces: datetime | None = None, number: int = 1) -> Rendered:
    """A job of the claim about pip, as it was rendered."""
    held = claims(PIP, *more)
    return Rendered.of(job(number, held), "/root", held, suite=SUITE, replaces=replaces)


def test_lines_of_many_containers_in_any_order_are_put_together() -> None:
    one = of_pip()
    lines = [*log(one, "static", record(pip=installed()), record("static.y")), *log(one, "cpu", record("cpu.z"))]
    random.Random(1).shuffle(lines)
    foreign = ["Warning: no line of ours", "error: container x is waiting to start", '{"level": "info"}']
    told = "\n".join([*foreign, *(f"[pod/p1/x] {line}" for line in lines)])
    found = {whole.name: whole for whole in read([told]) if isinstance(whole, ContainerLog)}
    assert [one.probe for one in found["static"].records] == ["static.x", "static.y"]
    assert [one.probe for one in found["cpu"].records] == ["cpu.z"]


TORN, NEXT = (log(of_pip(), "static", record(pip=installed()), record("static.y"), pod=pod) for pod in ("p1", "p2"))


@given(
    st.sampled_from(range(len(TORN))).flatmap(lambda row: st.tuples(st.just(row), st.integers(1, len(TORN[row])))),
    st.sampled_from(["", "[pod/p2/static] ", "2026-11-22T10:00:00.123456789Z "]),
)
def test_a_line_without_its_end_costs_the_next_container_nothing(torn: tuple[int, int], prefix: str) -> None:
    """kubectl writes the next log behind it."""
    row, cut = torn
    found = {one.pod: one for one in read([*TORN[:row], TORN[row][:cut] + prefix + NEXT[0], *NEXT[1:]])}
    assert isinstance(found["p2"], ContainerLog) and len(found["p2"].records) == 2
    assert not isinstance(found.get("p1"), ContainerLog)


def damaged() -> Iterator[tuple[str, list[str], str]]:
    lines = log(of_pip(), "static", record(pip=installed()), record("static.y"))
    for number in range(len(lines) - 1):
        yield f"without line {number}", lines[:number] + lines[number + 1 :], "lines are missing"
    yield "without its end", lines[:-1], "has no end"
    changed = lines[1].replace('"25.0"', '"26.0"')
    assert changed != lines[1]
    yield "changed", [lines[0], changed, *lines[2:]], "the log was changed"
    yield "cut off in a line", [*lines[:-1], lines[-1][:40]], "has no end"
    yield "an end without a sum", [*lines[:-1], lines[-1].replace("sha256", "sha1")], "lacks 'sha256'"


@pytest.mark.parametrize(("what", "lines", "cause"), [pytest.param(*one, id=one[0]) for one in damaged()])
def test_a_part_of_a_log_is_no_evidence(what: str, lines: list[str], cause: str, tmp_path: Path) -> None:
    (found,) = read(lines)
    assert isinstance(found, Unfinished) and cause in found.cause, what
    outcome, ledger = collected(tmp_path, lines)
    assert outcome.verdict is None and cause in outcome.cause
    assert list(ledger.records()) == []


def collected(folder: Path, lines: Sequence[str], *more: Claim) -> tuple[Any, Ledger]:
    """What comes of a job of one container's claims, and where it is kept."""
    ledger = Ledger(folder)
    (outcome,) = collect.collected([of_pip(*more)], read(lines), ledger, None)
    return outcome, ledger


def read(lines: Sequence[str]) -> list[ContainerLog | Unfinished]:
    return logs.read(["\n".join(lines)], datetime.now(UTC))


def test_a_whole_log_gives_the_verdict_and_a_record(tmp_path: Path) -> None:
    one = of_pip()
    outcome, ledger = collected(tmp_path, log(one, "static", record(pip=installed())))
    assert outcome.verdict.overall is Status.PASS
    (kept,) = ledger.records()
    assert (kept.worker.executor, kept.worker.node, kept.line.digest) == ("kubernetes", "p1", one.job.digest)
    broken, _ = collected(tmp_path / "other", log(one, "static", record(pip=installed("24.0"))))
    assert broken.verdict.overall is Status.FAIL


def test_a_pod_that_was_lost_does_not_spoil_the_one_after_it(tmp_path: Path) -> None:
    one = of_pip()
    lost, whole = (
        log(one, "static", record(pip=installed()), pod="p1")[:-1],
        log(one, "static", record(pip=installed()), pod="p2"),
    )
    outcome, _ = collected(tmp_path, [*lost, *whole])
    assert outcome.verdict.overall is Status.PASS and outcome.record.worker.node == "p2"


def test_a_container_without_a_log_gives_no_verdict(tmp_path: Path) -> None:
    """One that could not be pulled or was evicted: its claims are not failed, they were not measured."""
    as_root = claim("files", number="S8", probe="static.hygiene")
    lines = log(of_pip(as_root), "static", record(pip=installed()))
    outcome, ledger = collected(tmp_path, lines, as_root)
    assert outcome.verdict is None and "root: no log of this container" in outcome.cause
    assert list(ledger.records()) == []


def test_what_nobody_could_look_at_is_unproven(tmp_path: Path) -> None:
    """Labels are read from an engine's image: where there is none, that claim is not green and not failed."""
    of_host = claim("size", number="S8", probe=HOST_PROBE)
    lines = log(of_pip(of_host), "static", record(pip=installed()))
    outcome, _ = collected(tmp_path, lines, of_host)
    assert outcome.verdict.overall is Status.UNPROVEN
    assert [one.reason for one in outcome.verdict.of(Status.UNPROVEN)] == [
        "no engine here has the image, so its labels and its size were not read"
    ]


@pytest.mark.parametrize(
    ("capability", "count", "needed", "is_judged"),
    [([9, 0], 1, 1, True), ([8, 0], 1, 1, False), ([9, 0], 0, 1, False), ([9, 0], 1, 2, False), ([9, 0], 2, 2, True)],
)
def test_another_gpu_than_the_jobs_gives_no_verdict(
    capability: list[int], count: int, needed: int, is_judged: bool, tmp_path: Path
) -> None:
    one = of_gpus(needed)
    gpus = [{"name": "a GPU", "capability": capability, "memory": 1}] * count
    seen = record("gpu.device", device={"cuda": {"gpus": gpus}, "nvml": {}, "torch": {"gpus": gpus}, "libcuda": ["x"]})
    (outcome,) = collect.collected([one], read(log(one, "gpu", seen)), Ledger(tmp_path), None)
    assert (outcome.verdict is not None) is is_judged, outcome.cause
    assert is_judged or f"the job needs {needed} GPU of 9.0, the pod had {count} of" in outcome.cause
    assert is_judged or ("node_labels" if count else "runtime_class") in outcome.cause


def of_gpus(count: int) -> Rendered:
    device = Claim(id="G0", subject="device", tier=Tier.GPU, probe="gpu.device", statement="x", required=False)
    held = ClaimSet(image="cu126-torch27", claims=(device,))
    return Rendered.of(job(9, held, tiers=(Tier.GPU,), arch="9.0", gpus=count), "/root", held, suite=SUITE)


def test_a_pod_whose_driver_answers_nothing_spoils_no_other_job(tmp_path: Path) -> None:
    on_gpu, plain = of_gpus(1), of_pip()
    views = {"cuda": {"error": "cuInit gives 999"}, "nvml": {"error": "no NVML"}, "torch": {"error": "x"}}
    lines = [*log(on_gpu, "gpu", record("gpu.device", device=views)), *log(plain, "static", record(pip=installed()))]
    lost, judged = collect.collected([on_gpu, plain], read(lines), Ledger(tmp_path), None)
    assert lost.verdict is None and "had 0 of none (cuInit gives 999)" in lost.cause
    assert "`kubernetes.runtime_class`" in lost.cause, "its architecture is not what is wrong"
    assert judged.verdict is not None and judged.verdict.overall is Status.PASS


def test_each_job_of_a_pods_name_has_the_lines_of_its_own(tmp_path: Path) -> None:
    """Hostnames of two clusters can be the same."""
    one, other = of_pip(), of_pip(number=2)
    lines = [*log(one, "static", record(pip=installed())), *log(other, "static", record(pip=installed("24.0")))]
    found = collect.collected([one, other], read(lines), Ledger(tmp_path), None)
    assert [outcome.verdict and outcome.verdict.overall for outcome in found] == [Status.PASS, Status.FAIL]
    assert [[part.job for part in parts] for _, parts in logs.pods(read(lines), one.job.key)] == [[one.job.key]]


@pytest.mark.parametrize("key", ["claims", "suite", "rendering"])
def test_what_was_measured_for_other_claims_or_by_another_suite_is_no_evidence(key: str, tmp_path: Path) -> None:
    lines = log(of_pip(), "static", record(pip=installed()))
    first = {**json.loads(lines[0]), key: "other"}
    outcome, ledger = collected(tmp_path, [json.dumps(first), *lines[1:]])
    cause = {"claims": "with other claims", "suite": "with another suite", "rendering": "before its pair was due"}[key]
    assert outcome.verdict is None and f"static: rendered {cause}" in outcome.cause
    assert "`kubectl delete job truetag-cu126-torch27-" in outcome.cause
    assert list(ledger.records()) == []


def test_a_job_of_fewer_claims_is_no_evidence_for_more(tmp_path: Path) -> None:
    """It kept the claim it had, and the other one was not measured."""
    other = claim("wheel", required=False)
    outcome, _ = collected(tmp_path, log(of_pip(), "static", record(pip=installed())), other)
    assert outcome.verdict is None and "rendered with other claims" in outcome.cause


def test_of_two_whole_pods_the_one_that_began_first_counts(tmp_path: Path) -> None:
    one = of_pip()
    sound = log(one, "static", record(pip=installed()), pod="p2", later=60)
    broken = log(one, "static", record(pip=installed("24.0")), pod="p1")
    outcome, _ = collected(tmp_path / "together", [*sound, *broken])
    assert outcome.verdict.overall is Status.FAIL and outcome.record.worker.node == "p1"
    collected(tmp_path / "apart", broken)
    outcome, _ = collected(tmp_path / "apart", sound)
    assert outcome.verdict.overall is Status.FAIL, "the first record stays"


def test_a_record_that_was_there_at_the_rendering_makes_room(tmp_path: Path) -> None:
    ledger, first = Ledger(tmp_path), of_pip()
    collect.collected([first], read(log(first, "static", record(pip=installed("24.0")))), ledger, None)
    kept = ledger.record(first.job.key)
    assert kept is not None
    again = of_pip(replaces=kept.ended)
    old, new = (log(one, "static", record(pip=installed()), pod="p2", later=60) for one in (first, again))
    (outcome,) = collect.collected([again], read(old), ledger, None)
    assert outcome.verdict is None and "rendered before its pair was due again" in outcome.cause
    (outcome,) = collect.collected([again], read(new), ledger, None)
    assert outcome.verdict is not None and outcome.verdict.overall is Status.PASS
    assert len(list((ledger.pair(first.job.key) / "earlier").iterdir())) == 1


def ill_formed() -> Iterator[tuple[str, int, dict[str, Any], str]]:
    """What is changed -> the line, its keys, and the cause."""
    yield "began beyond any date", 0, {"began": 1e300}, "at no point in time"
    yield "began as a text", 0, {"began": "now"}, "at no point in time"
    yield "began after its end", 0, {"began": NOW.timestamp() + 3600}, "is the clock of the node right?"
    yield "ended in three days", -1, {"ended": NOW.timestamp() + 3 * 86400}, "is the clock of the node right?"
    yield "CPUs as a text", 0, {"cpus": "many"}, "its number of CPUs"
    yield "CPUs that are a truth", 0, {"cpus": True}, "its number of CPUs"
    yield "ten million lines", -1, {"number": 10_000_000}, "9999999 of 10000001 lines are missing"


@pytest.mark.parametrize(("what", "at", "changed", "cause"), [pytest.param(*one, id=one[0]) for one in ill_formed()])
def test_a_line_with_a_value_that_no_container_writes_is_no_evidence(
    what: str, at: int, changed: dict[str, Any], cause: str
) -> None:
    lines = log(of_pip(), "static")
    lines[at] = json.dumps({**json.loads(lines[at]), **changed})
    (found,) = read(lines)
    assert isinstance(found, Unfinished) and cause in found.cause, what


def test_a_clock_that_is_some_hours_ahead_is_taken() -> None:
    (found,) = read(log(of_pip(), "static", later=14 * 3600))
    assert isinstance(found, ContainerLog)


@pytest.mark.parametrize("row", ['{"number": true}', '{"number": -1}', '{"number": 1.5}'])
def test_a_line_whose_number_is_none_is_no_line_of_ours(row: str) -> None:
    whose = {"truetag": logged.VERSION, "job": "a", "pod": "b", "container": "c"}
    assert read([json.dumps({**whose, **json.loads(row)})]) == []


def test_lists_in_lists_without_end_are_no_line_of_ours(tmp_path: Path) -> None:
    assert read(['{"level":' + "[" * 200_000]) == []
    deep: list[Any] = []
    for _ in range(600):  # JSON's reader follows it, what writes the evidence does not
        deep = [deep]
    rows = [json.loads(line) for line in log(of_pip(), "static", record(pip=installed()))]
    rows[1]["record"]["measurements"][0]["evidence"]["more"] = deep
    rows[2]["sha256"] = logged.sha256([json.dumps(rows[1]["record"], sort_keys=True)])
    outcome, _ = collected(tmp_path, [json.dumps(row) for row in rows])
    assert outcome.verdict is None and "1 of 3 lines are missing" in outcome.cause


@pytest.mark.parametrize("found", [[1], "x", {"probe": "static.x"}, {"evidence": [1]}, {"outcome": "well"}])
def test_a_record_that_no_probe_writes_is_no_evidence(found: Any, tmp_path: Path) -> None:
    lines = log(of_pip(), "static", record(pip=installed()))
    rows = [json.loads(line) for line in lines]
    if isinstance(found, dict) and "evidence" in found:
        rows[1]["record"]["measurements"][0].update(found)
    elif isinstance(found, dict) and "outcome" in found:
        rows[1]["record"].update(found)
    else:
        rows[1]["record"] = found
    rows[-1]["sha256"] = logged.sha256([json.dumps(rows[1]["record"], sort_keys=True)])
    outcome, _ = collected(tmp_path, [json.dumps(row) for row in rows])
    assert outcome.verdict is None and "line 1 has no record as probes write it" in outcome.cause


def test_the_commands_of_a_pod_log_what_was_rendered(tmp_path: Path) -> None:
    """The suite as the ConfigMaps have it, unpacked and run here: it names its own files and claims."""
    no_probe = claim("none", number="S99", probe="static.none", required=False)
    held = claims(no_probe)
    one = Rendered.of(job(1, held), "/root", held, suite=SUITE)
    found = list(render.manifests([(one, WorkerType())], SUITE))
    for packed in (content for each in of_kind("ConfigMap", found) for content in each["binaryData"].values()):
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as archive:
            archive.extractall(tmp_path, filter="data")
    (container,) = pods((one, WorkerType()))[0]["containers"]
    command = [word.replace(render.INSIDE + "/", f"{tmp_path}/") for word in container["command"]]
    run = [sys.executable, *command[1:]]
    (whole,) = read(subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines())
    assert isinstance(whole, ContainerLog), whole
    assert {"claims": whole.claims, "suite": whole.suite, "rendering": whole.rendering} == begin(one, "static")
    (tmp_path / "validate" / "judge.py").write_text("# another suite\n")
    (whole,) = read(subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines())
    assert isinstance(whole, ContainerLog) and whole.suite != one.suite


def test_fleet_yaml_says_how_kubernetes_is_asked() -> None:
    fleet = Fleet.model_validate({"workers": {"h100": H100.model_dump()}})
    assert fleet.workers["h100"].kubernetes.gpu_resource == "nvidia.com/gpu"


# --- what is due again ----------------------------------------------------------------------------------------------

VOLUME = claim("volume", number="C8", tier=Tier.CPU, probe="cpu.home")
SIZE = claim("size", number="S8", probe=HOST_PROBE)


def due(ledger: Ledger, one: Rendered, today: ClaimSet, *, has_image: bool = False, days: int = 0) -> set[Tier]:
    """The tiers of which a Job is written so many days later."""
    image = FleetImage(name=one.job.image, digest=one.job.digest, archs=(), ptx=(), claims=today)
    local: Any = object() if has_image else None
    found = Found(digest=image.digest, described=Described(labels={}, history=()), home="/root", local=local)
    inputs = PlanInputs(
        fleet=Fleet.model_validate({"workers": {"cpu": {}}}),
        now=datetime.now(UTC) + timedelta(days=days),
        known=gather.known(ledger, ledger.records_of(ledger.job_keys()), [], [image]),
    )
    planned = planning.plan([image], inputs)
    left = reach.out_of_reach(planned, [Located(planned=image, found=found)])
    assert all(pair.state is State.DUE for pair in left)
    return {pair.pair.tier for pair in planned if pair.state is State.DUE and pair not in left}


def judged_by_a_pod(folder: Path, version: str = "25.0") -> tuple[Ledger, Rendered, ClaimSet]:
    """A job of both tiers without a GPU, of which a pod measured all that it can."""
    ledger, held = Ledger(folder), claims(PIP, VOLUME, SIZE)
    one = Rendered.of(job(1, held, tiers=(Tier.STATIC, Tier.CPU)), "/root", held, suite=SUITE)
    collect.collected([one], read(log(one, "static", record(pip=installed(version)))), ledger, None)
    return ledger, one, held


def test_a_pair_that_lacks_only_what_a_pod_cant_give_gets_no_second_job(tmp_path: Path) -> None:
    """Its record would lack the same again, and each rendering would give the Job another name."""
    ledger, one, held = judged_by_a_pod(tmp_path)
    assert due(Ledger(tmp_path / "other"), one, held) == {Tier.STATIC, Tier.CPU}
    assert due(ledger, one, held) == set()
    assert due(ledger, one, held, has_image=True) == {Tier.STATIC}, "its labels and its size can be read now"


def test_what_a_pod_can_give_is_due_again(tmp_path: Path) -> None:
    ledger, one, held = judged_by_a_pod(tmp_path)
    torch = claim("torch", number="C1", tier=Tier.CPU, probe="cpu.x")
    assert due(ledger, one, claims(*held.claims, torch)) == {Tier.CPU}
    assert due(ledger, one, held, days=15) == {Tier.STATIC, Tier.CPU}, "too old"
    ledger, one, held = judged_by_a_pod(tmp_path / "failed", version="24.0")
    assert due(ledger, one, held) == {Tier.STATIC}
