"""A job of the fleet as manifests: a ConfigMap with the suite, one with claims, and a Job. Pure: the same input gives
the same bytes.

The image itself is the pod's container, by digest: one for each container that a trial has (images/validation/
containers.py). An init container unpacks suite and claims into a folder that the others can't write.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from pydantic import AwareDatetime

from images.config.names import Arch
from images.engine.gpus import NO_GPU, Attachment, GpuMode
from images.errors import Problem, UserError
from images.fleet.config import PLATFORM_LABELS, KubernetesRequest, WorkerType, memory_bytes
from images.fleet.model import Job
from images.hardware.inventory import Gpu, Inventory
from images.host.hashing import sha256
from images.nightly.results import Row
from images.validation import containers, limits
from images.validation.containers import INSIDE, ContainerPlan
from images.validation.trial import Bounds, at_once_on_gpus
from validate import logged
from validate.claims import ClaimSet

Manifest = dict[str, Any]
LABEL = "app.kubernetes.io/managed-by"
OWNER = "truetag"
KEY = "dev.truetag/job"
_MOST = 1 << 20
"""Bytes that a ConfigMap may have (Kubernetes' API reference, ConfigMap: 1 MiB)."""
_NAME = 63
"""Characters of a label, and so of a Job's name (RFC 1123; pods get the name as a label)."""
_RETRIES = 2
"""Pods after one that failed by itself. What the suite finds never ends a pod with an error."""
_KILLED = 137
"""What a container exits with that was out of memory, or out of time: another try would end the same way."""
_KEPT_SECONDS = 7 * 24 * 3600
"""How long an ended Job and its logs stay."""
_SMALL = ("root", "any-user")
"""Containers of a claim or a few. They ask for little, so that a pod fits on a node of 8 cores."""
_CONFIG = "/judge-config"
_SCRATCH = f"{INSIDE}/scratch"
WITHOUT_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Images say `all`: where NVIDIA's runtime is a node's default, it would give every GPU, past the device plugin."""
_UNPACK = (
    "import os, sys, tarfile\n"
    "for file in sys.argv[2:]:\n"
    "    tarfile.open(file).extractall(sys.argv[1])\n"
    "os.mkdir(os.path.join(sys.argv[1], 'scratch'))\n"
)


class Rendered(Row):
    """A job for a pod. It is kept in the fleet's folder: `collect` judges by it."""

    schema_version: Literal[3] = 3
    job: Job
    home: str
    """HOME of the image's user."""
    claims: dict[str, Any]
    """The claim set of all its tiers, as a pod can answer it."""
    suite: str
    """sha256 of the suite and its examples (validate/logged.py)."""
    replaces: AwareDatetime | None = None
    """When the record ended that was there at the rendering, and is too old or not good enough; None: none was."""

    @classmethod
    def of(
        cls, job: Job, home: str, claims: ClaimSet, *, suite: Mapping[str, bytes], replaces: datetime | None = None
    ) -> Rendered:
        """With the claims that the matrix writes for the image on such GPUs."""
        return cls(
            job=job,
            home=home,
            claims=json.loads(_held_to(claims.of(job.tiers)).dumps()),
            suite=logged.sha256_of_suite(suite),
            replaces=replaces,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Names the rendering among all: the same image, claims, suite and earlier record give the same.

        Logs name the job by a part of the digest alone, so the whole digest is in here.
        """
        earlier = self.replaces.isoformat() if self.replaces else ""
        named = [self.job.digest, self.home, self.claims, self.suite, earlier]
        return sha256(json.dumps(named, sort_keys=True).encode())

    @property
    def name(self) -> str:
        """The Job's."""
        return job_name(self.job.key, self.fingerprint)

    @cached_property
    def claim_set(self) -> ClaimSet:
        return ClaimSet.loads(json.dumps(self.claims))


def on_gpus(arch: str, count: int) -> Attachment:
    """The GPUs that Kubernetes gives, as far as fleet.yaml knows them: their architecture, and how many."""
    if not count:
        return NO_GPU
    gpu = Gpu(name="", capability=Arch.parse(arch).pair, memory=0)
    found = Inventory(driver="", gpus=(gpu,) * count, source="fleet.yaml")
    return Attachment(mode=GpuMode.NVIDIA, reason="Kubernetes' device plugin", inventory=found)


def _held_to(claims: ClaimSet) -> ClaimSet:
    """Claims as a pod can answer them: of the GPUs it takes the driver's word, what volumes can't give is unproven."""
    free = tuple(
        replace(one, expect={**one.expect, "inventory": None}) if one.probe == "gpu.device" else one
        for one in claims.claims
    )
    return limits.limited(ClaimSet(image=claims.image, claims=free), limits.of_kubernetes(claims))


def manifests(jobs: Sequence[tuple[Rendered, WorkerType]], suite: Mapping[str, bytes]) -> tuple[Manifest, ...]:
    """Everything to apply, what others name first. Raises UserError: the suite is too large for a ConfigMap."""
    packed = _packed(suite)
    shared = _config_map(f"truetag-suite-{sha256(packed)[:12]}", {"suite.tar.gz": packed})
    own = [one for given in jobs for one in _of_job(*given, suite=shared["metadata"]["name"])]
    return (shared, _without_network(), *own)


def _of_job(one: Rendered, on: WorkerType, suite: str) -> Iterator[Manifest]:
    found, job = plans(one), one.job
    packed = _packed({f"claims/{plan.name}.json": claims_file(plan, job) for plan in found})
    claims = _config_map(f"truetag-claims-{sha256(packed)[:12]}", {"claims.tar.gz": packed})
    yield claims
    yield _job(one, on, _pod(one, found, on, (suite, claims["metadata"]["name"])))


def plans(one: Rendered) -> list[ContainerPlan]:
    """The containers of a trial, but for those whose claims are unproven already."""
    asked = one.claim_set.inside()
    measured = ClaimSet(image=one.job.image, claims=tuple(claim for claim in asked.claims if not claim.unproven))
    found = containers.planned(one.home, measured, on_gpus(one.job.arch, one.job.gpus))
    return [plan for plan in found if plan.claims.claims]


def claims_file(plan: ContainerPlan, job: Job) -> bytes:
    """What a container measures, as its file has it."""
    return ClaimSet(image=job.image, claims=plan.claims.claims).dumps().encode()


def job_name(key: str, fingerprint: str) -> str:
    """A name for a Job: the same rendering has the same everywhere, so a cluster takes it once. A pair that is due
    again has another: an ended Job of that name would be left as it is, with the pods that gave the old verdict.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", f"truetag-{key.lower()}")
    return f"{name[: _NAME - 13]}-{sha256(f'{key} {fingerprint}'.encode())[:12]}"


def _job(one: Rendered, on: WorkerType, pod: Manifest) -> Manifest:
    job, name, asked = one.job, one.name, on.kubernetes
    labels = {LABEL: OWNER, KEY: name}
    told = {"dev.truetag/key": job.key, "dev.truetag/image": job.image, "dev.truetag/digest": job.digest}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": told},
        "spec": {
            "backoffLimit": _RETRIES,
            "podFailurePolicy": _failures(),
            "activeDeadlineSeconds": asked.wait_hours * 3600 + (1 + _RETRIES) * asked.minutes * 60,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _failures() -> Manifest:
    """Pods that the cluster ended (a drain, a preemption, an eviction) are replaced, and not counted. A killed one
    ends the Job: kubelets from 1.28 on kill all of a container that is out of memory (cgroups v2).
    """
    moved = {"type": "DisruptionTarget", "status": "True"}
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [moved]},
            # The schema of 1.27 wants the empty list.
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [_KILLED]}, "onPodConditions": []},
        ]
    }


def _pod(one: Rendered, plans: Sequence[ContainerPlan], on: WorkerType, maps: Sequence[str]) -> Manifest:
    job, asked = one.job, on.kubernetes
    pod: Manifest = {
        "restartPolicy": "Never",
        # A Job's limit counts its time in queues, and deletes the pod with its logs.
        "activeDeadlineSeconds": asked.minutes * 60,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {**_platform(job), **asked.node_labels},
        "initContainers": [_unpacking(job, asked)],
        "containers": [_container(one, plan, on) for plan in plans],
        "volumes": [
            {"name": "judge", "emptyDir": {}},
            {"name": "config", "projected": {"sources": [{"configMap": {"name": name}} for name in maps]}},
            *(volume for plan in plans for volume in _volumes(plan)),
        ],
    }
    if asked.tolerate:
        pod["tolerations"] = [{"key": key, "operator": "Exists"} for key in asked.tolerate]
    if asked.pull_secret:
        pod["imagePullSecrets"] = [{"name": asked.pull_secret}]
    if asked.runtime_class and job.gpus:
        pod["runtimeClassName"] = asked.runtime_class
    return pod


def _platform(job: Job) -> Mapping[str, str]:
    os_name, _, architecture = str(job.platform).partition("/")
    return dict(zip(PLATFORM_LABELS, (os_name, architecture), strict=True))


def _unpacking(job: Job, asked: KubernetesRequest) -> Manifest:
    files = [f"{_CONFIG}/{name}.tar.gz" for name in ("suite", "claims")]
    return {
        "name": "unpack",
        "image": job.reference,
        "command": ["python3", "-I", "-S", "-c", _UNPACK, INSIDE, *files],
        "env": _variables(WITHOUT_GPUS),
        "securityContext": _security(None),
        "resources": _resources({"memory": "512Mi"}, {"cpu": "100m", "memory": "128Mi"}, asked),
        "volumeMounts": [
            {"name": "judge", "mountPath": INSIDE},
            {"name": "config", "mountPath": _CONFIG, "readOnly": True},
        ],
    }


def _container(one: Rendered, plan: ContainerPlan, on: WorkerType) -> Manifest:
    job = one.job
    asked, bounds, gpus = on.kubernetes, Bounds(), plan.gpus.attached
    most = bounds.gpu_memory if gpus else bounds.memory
    limits_of = {"memory": f"{most >> 30}Gi", **({asked.gpu_resource: str(job.gpus)} if gpus else {})}
    command = ["python3", "-I", "-S", f"{INSIDE}/validate", "logged", "--job", job.key]
    command += ["--rendering", one.fingerprint, "--container", plan.name]
    command += ["--claims", f"{INSIDE}/claims/{plan.name}.json", "--jobs", str(_at_once(plan, asked, job.gpus))]
    return {
        "name": plan.name,
        "image": job.reference,
        "command": command,
        "env": _variables(_environment(plan)),
        "securityContext": _security(plan.user),
        "resources": _resources(limits_of, _requests(plan, asked, most), asked),
        "volumeMounts": [
            {"name": "judge", "mountPath": INSIDE, "readOnly": True},
            *({"name": name, "mountPath": path} for name, path in _paths(plan).items()),
        ],
    }


def _at_once(plan: ContainerPlan, asked: KubernetesRequest, gpus: int) -> int:
    """Probes at once: no more on GPUs than a trial runs, whose memory nobody knows yet."""
    if plan.name in _SMALL:
        return 1
    return at_once_on_gpus(asked.cpus, gpus if plan.ranks else 1) if plan.gpus.attached else asked.cpus


def _resources(most: Manifest, least: Manifest, asked: KubernetesRequest) -> Manifest:
    """With what a quota or a LimitRange wants of every container, the first one too."""
    cpus = {"cpu": str(asked.cpu_limit)} if asked.cpu_limit else {}
    storage = {"ephemeral-storage": asked.ephemeral_storage} if asked.ephemeral_storage else {}
    return {"limits": {**most, **cpus, **storage}, "requests": {**least, **storage}}


def _requests(plan: ContainerPlan, asked: KubernetesRequest, most: int) -> Manifest:
    """`most`: bytes that the container may use. Raises UserError: it asks for more, which Kubernetes refuses."""
    if plan.name in _SMALL:
        return {"cpu": "250m", "memory": "1Gi"}
    if memory_bytes(asked.memory) > most:
        cause = f"a container asks for {asked.memory}, and may use {most >> 30}Gi as in a trial"
        then = f"say {most >> 30}Gi or less there, and render again"
        raise UserError(Problem(where="fleet.yaml, kubernetes.memory", cause=cause, then=then), code=1)
    return {"cpu": str(asked.cpus), "memory": asked.memory}


def _environment(plan: ContainerPlan) -> Mapping[str, str]:
    """S7 judges the image's own variables by those of `static`, which gets none of ours."""
    hidden = {} if plan.gpus.attached or plan.name == "static" else WITHOUT_GPUS
    scratch = {"TMPDIR": _SCRATCH} if "TMPDIR" in plan.environment else {}
    return {**hidden, **plan.environment, **scratch}


def _variables(given: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in given.items()]


def _security(user: str | None) -> Manifest:
    uid, _, gid = (user or "").partition(":")
    who = {**({"runAsUser": int(uid)} if uid else {}), **({"runAsGroup": int(gid)} if gid else {})}
    return {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, **who}


def _paths(plan: ContainerPlan) -> dict[str, str]:
    """Volume -> folder, of those that the container alone may write. A folder has one volume, whatever names it."""
    scratch = [_SCRATCH] if "TMPDIR" in plan.environment else []
    found = dict.fromkeys([*plan.writable, *scratch, *(["/dev/shm"] if plan.ranks else [])])
    return {f"{plan.name}-{number}": path for number, path in enumerate(found)}


def _volumes(plan: ContainerPlan) -> Iterator[Manifest]:
    bounds = Bounds()
    for name, path in _paths(plan).items():
        shared = {"medium": "Memory", "sizeLimit": f"{bounds.shared_memory >> 30}Gi"}
        own = {"sizeLimit": f"{bounds.scratch >> 30}Gi"}
        yield {"name": name, "emptyDir": shared if path == "/dev/shm" else own}


def _without_network() -> Manifest:
    """As in a trial. It needs a network plugin that enforces policies."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "truetag-no-network", "labels": {LABEL: OWNER}},
        "spec": {"podSelector": {"matchLabels": {LABEL: OWNER}}, "policyTypes": ["Ingress", "Egress"]},
    }


def _config_map(name: str, files: Mapping[str, bytes]) -> Manifest:
    encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
    size = len(json.dumps(encoded))
    if size > _MOST:
        cause = f"is {size / 1e6:.2f} MB as a ConfigMap, which may have 1.05 MB"
        raise UserError(Problem(where=name, cause=cause, then="judge fewer claims (`--claim`, `--tier`)"), code=1)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {LABEL: OWNER}},
        "immutable": True,
        "binaryData": encoded,
    }


def _packed(files: Mapping[str, bytes]) -> bytes:
    """A .tar.gz without times and owners."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
