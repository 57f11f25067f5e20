"""The verdict on what pods logged: evidence of whole pods alone, judged here, kept in the fleet's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.engine import Engine
from images.errors import Problem, UserError
from images.fleet.judging import judged
from images.fleet.kubernetes import logs, render
from images.fleet.kubernetes.logs import ContainerLog, Unfinished
from images.fleet.kubernetes.render import Rendered
from images.fleet.ledger import Ledger
from images.fleet.model import ON_GPUS, FleetRecord, Job, Judged, WorkerInfo
from images.fleet.run import Outcome
from images.host.hashing import sha256
from images.site import records
from images.validation import inspection, limits, trial
from validate.claims import ClaimSet
from validate.evidence import Evidence, Record
from validate.judge import judge

EXECUTOR = "kubernetes"
_CORRECT = "correct `arch`, or `kubernetes.node_labels`, of these machines in fleet.yaml"
_NO_DRIVER = (
    "see that pods on these nodes are given a driver where the image finds it: the device plugin, and"
    " `kubernetes.runtime_class` in fleet.yaml (docs/kubernetes.md)"
)
_OTHER = {
    "claims": "rendered with other claims",
    "suite": "rendered with another suite",
    "rendering": "rendered before its pair was due again",
}


@dataclass(frozen=True, kw_only=True)
class Collected(Outcome):
    """What came of a Job."""

    name: str
    """The Job's."""
    may_run: bool = False
    """Without a verdict, and the logs have no line or no end of one of its pods."""


def collected(
    rendered: Sequence[Rendered],
    found: Sequence[ContainerLog | Unfinished],
    ledger: Ledger,
    engine: Engine | None,
) -> list[Collected]:
    """An outcome for each job. A pod with every container's whole log gives a record; a part of one gives none.
    Of several such pods the one that began first counts.

    `engine`: what host probes are read from, where it has the image.
    """
    ledger.note(one.job for one in rendered)
    return [_outcome(one, found, ledger, engine) for one in rendered]


def _outcome(
    one: Rendered, found: Sequence[ContainerLog | Unfinished], ledger: Ledger, engine: Engine | None
) -> Collected:
    pods = dict(logs.pods(found, one.job.key))
    causes = {pod: _other(one, parts) or _missing(one, parts) for pod, parts in pods.items()}
    whole = {pod: _logs(parts) for pod, parts in pods.items() if not causes[pod]}
    for pod in sorted(whole, key=lambda pod: min(part.began for part in whole[pod])):
        try:
            return _kept(one, _judged(one, pod, whole[pod], engine), ledger)
        except UserError as error:
            causes[pod] = str(error.problems[0])
    told = "; ".join(f"pod {pod}: {cause}" for pod, cause in causes.items())
    own = [parts for parts in pods.values() if not _other(one, parts)]
    may_run = not own or any(_may_run(one, parts) for parts in own)
    return Collected(job=one.job, name=one.name, cause=told or "the logs have no line of it", may_run=may_run)


def _logs(parts: Sequence[ContainerLog | Unfinished]) -> list[ContainerLog]:
    return [part for part in parts if isinstance(part, ContainerLog)]


def _may_run(one: Rendered, parts: Sequence[ContainerLog | Unfinished]) -> bool:
    """Whether a container of a pod has logged no end yet."""
    ended = {part.name for part in parts if isinstance(part, ContainerLog) or part.ended}
    return any(plan.name not in ended for plan in render.plans(one))


def _other(one: Rendered, parts: Sequence[ContainerLog | Unfinished]) -> str:
    """What a pod was rendered with that is not the rendering's; empty: nothing. It may have given a verdict before."""
    claims = {plan.name: sha256(render.claims_file(plan, one.job)) for plan in render.plans(one)}
    for part in parts:
        if not isinstance(part, ContainerLog):
            continue
        asked = {"claims": claims.get(part.name, part.claims), "suite": one.suite, "rendering": one.fingerprint}
        other = [what for what, wanted in asked.items() if getattr(part, what) != wanted]
        if other:
            delete = f"kubectl delete job {render.job_name(one.job.key, part.rendering)}"
            return f"{part.name}: {_OTHER[other[0]]}: delete the Job (`{delete}`), and apply it again (`--server-side`)"
    return ""


def _missing(one: Rendered, parts: Sequence[ContainerLog | Unfinished]) -> str:
    """What of a pod's logs is missing; empty: nothing."""
    whole = {part.name for part in parts if isinstance(part, ContainerLog)}
    unfinished = {part.name: part.cause for part in parts if isinstance(part, Unfinished)}
    wanted = [plan.name for plan in render.plans(one)]
    return "; ".join(
        f"{name}: {unfinished.get(name, 'no log of this container')}" for name in wanted if name not in whole
    )


def _judged(one: Rendered, pod: str, parts: Sequence[ContainerLog], engine: Engine | None) -> Judged:
    job, asked = one.job, one.claim_set
    own, size = _host_records(job, asked, engine)
    found = trial.merged([*own, *(record for part in parts for record in part.records)])
    reasons = limits.of_kubernetes(asked, has_image=bool(own))
    claims = limits.limited(asked, reasons)
    began, ended = min(part.began for part in parts), max(part.ended for part in parts)
    host = {
        "date": began.isoformat(timespec="seconds"),
        "cpus": parts[0].cpus,
        **limits.as_host(reasons),
        **_gpus(job, found),
    }
    evidence = Evidence(image=job.image, digest=job.digest, records=found, host=host, claims=claims.claims)
    where = f"fleet-{ended:%Y%m%d.%H%M%S}-{job.digest.removeprefix('sha256:')[:12]}"
    line = records.line_of(evidence, judge(claims, evidence, job.tiers), where, size=size)
    worker = WorkerInfo(executor=EXECUTOR, node=pod, id=one.name)
    record = FleetRecord(key=job.key, run=EXECUTOR, worker=worker, started=began, ended=ended, line=line)
    return Judged(record=record, evidence=evidence.dumps())


def _host_records(job: Job, asked: ClaimSet, engine: Engine | None) -> tuple[list[Record], int]:
    info = engine.find(job.digest) if engine else None
    if engine is None or info is None:
        return [], 0
    return list(inspection.records(engine, info, asked)), info.size


def _gpus(job: Job, found: Sequence[Record]) -> dict[str, Any]:
    """The GPUs that the pod had, by its own driver (G0). Raises UserError where they are not those of the job."""
    if not set(job.tiers) & set(ON_GPUS):
        return {}
    devices = [one for record in found if record.probe == "gpu.device" for one in record.measurements]
    seen, driver, error = _views(devices[0].evidence) if devices else ([], "", "")
    there = sorted({".".join(map(str, one["capability"])) for one in seen})
    if there != [job.arch] or len(seen) < job.gpus:
        cause = f"the job needs {job.gpus} GPU of {job.arch}, the pod had {len(seen)} of {', '.join(there) or 'none'}"
        cause += f" ({error})" if error else ""
        then = _CORRECT if seen else _NO_DRIVER
        raise UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    return {"driver": driver, "gpus": seen}


def _views(evidence: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str, str]:
    """G0's GPUs, the driver's version, and why one of them is missing: a view that failed has `error` alone."""
    cuda, nvml = (found if isinstance(found := evidence.get(key), Mapping) else {} for key in ("cuda", "nvml"))
    gpus = cuda.get("gpus") if isinstance(cuda.get("gpus"), list) else []
    named = [one for one in gpus or [] if isinstance(one, Mapping) and isinstance(one.get("capability"), list)]
    return named, str(nvml.get("driver", "")), str(cuda.get("error") or nvml.get("error") or "")


def _kept(one: Rendered, found: Judged, ledger: Ledger) -> Collected:
    """The record that the ledger has: this one, or the first of this rendering."""
    job = one.job
    before = ledger.record(job.key)
    if before and before.ended == one.replaces:  # any other came since, and is the first that counts
        ledger.put_aside(job.key)
    with ledger.judging(job.key):
        ledger.commit(found)
    record = ledger.record(job.key) or found.record
    verdict = judged(ledger, record, job, job.claim_set)
    return Collected(job=job, name=one.name, record=record, verdict=verdict)
