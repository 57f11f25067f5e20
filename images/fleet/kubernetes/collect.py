"""The verdict on what pods logged: evidence of whole pods alone, judged here, kept in the fleet's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from validate.claims import HOST_PROBE, ClaimSet
from validate.evidence import Evidence, Record
from validate.judge import judge

EXECUTOR = "kubernetes"
_UNSEEN = "no engine here has the image, so its labels and its size were not read"

_OTHER = {
    "claims": "rendered with other claims",
    "suite": "rendered with another suite",
    "rendering": "rendered before its pair was due again",
}


def collected(
    rendered: Sequence[Rendered],
    found: Sequence[ContainerLog | Unfinished],
    ledger: Ledger,
    engine: Engine | None,
) -> list[Outcome]:
    """An outcome for each job. A pod with every container's whole log gives a record; a part of one gives none.
    Of several such pods the one that began first counts.

    `engine`: what host probes are read from, where it has the image.
    """
    ledger.note(one.job for one in rendered)
    return [_outcome(one, found, ledger, engine) for one in rendered]


def _outcome(
    one: Rendered, found: Sequence[ContainerLog | Unfinished], ledger: Ledger, engine: Engine | None
) -> Outcome:
    job = one.job
    causes, whole = [], []
    for pod, parts in logs.pods(found, job.key):
        missing = _other(one, parts) or _missing(one, parts)
        if missing:
            causes.append(f"pod {pod}: {missing}")
        else:
            whole.append((pod, [part for part in parts if isinstance(part, ContainerLog)]))
    for pod, logged in sorted(whole, key=lambda given: min(part.began for part in given[1])):
        try:
            return _kept(one, _judged(one, pod, logged, engine), ledger)
        except UserError as error:
            causes.append(f"pod {pod}: {error.problems[0]}")
    return Outcome(job=job, cause="; ".join(causes) or "the logs have no line of it")


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
    reasons = {**limits.of_kubernetes(asked), **({} if own else limits.unseen(asked, HOST_PROBE, _UNSEEN))}
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
        then = "correct `arch`, or `kubernetes.node_labels`, of these machines in fleet.yaml"
        raise UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    return {"driver": driver, "gpus": seen}


def _views(evidence: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str, str]:
    """G0's GPUs, the driver's version, and why one of them is missing: a view that failed has `error` alone."""
    cuda, nvml = (found if isinstance(found := evidence.get(key), Mapping) else {} for key in ("cuda", "nvml"))
    gpus = cuda.get("gpus") if isinstance(cuda.get("gpus"), list) else []
    named = [one for one in gpus or [] if isinstance(one, Mapping) and isinstance(one.get("capability"), list)]
    return named, str(nvml.get("driver", "")), str(cuda.get("error") or nvml.get("error") or "")


def _kept(one: Rendered, found: Judged, ledger: Ledger) -> Outcome:
    """The record that the ledger has: this one, or the first of this rendering."""
    job = one.job
    before = ledger.record(job.key)
    if before and before.ended == one.replaces:  # any other came since, and is the first that counts
        ledger.put_aside(job.key)
    with ledger.judging(job.key):
        ledger.commit(found)
    record = ledger.record(job.key) or found.record
    return Outcome(job=job, record=record, verdict=judged(ledger, record, job, job.claim_set))
