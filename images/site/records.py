"""results/runs.jsonl: one line a validation run, and compressed evidence of the runs that tests replay."""

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, ValidationError

from images.config import paths
from images.engine.configuration import SUITE
from images.errors import Problem, UserError, failed, wrong
from images.validation.rows import (
    ClaimRow,
    Row,
    StepRow,
    TierCount,
    bad_line,
    claim_rows,
    first_fault,
    installed,
    read_lines,
    steps_of,
    tier_counts,
)
from validate import checks
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict, judge
from validate.judging import Status, listed

FOLDER = paths.RESOURCES / "results"
"""The checkout's: the documents and the tests are made from it."""
LINES = "runs.jsonl"
_EVIDENCE = "evidence"
_SHOWN = 5
_UNDATED = datetime.min.replace(tzinfo=UTC)
_OPEN = (Status.FAIL, Status.KNOWN, Status.UNPROVEN)


class RunLine(Row):
    """One image, validated once. The line repeats no evidence; it names the evidence by its sha256."""

    schema_version: Literal[2] = 2
    id: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")]
    """`IMAGE/WHERE`, unique: the image, and a word for the machine or the fault that was planted."""
    image: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    digest: str
    """`sha256:...` of the image that was measured."""
    date: AwareDatetime | None
    """When it was measured. Midnight UTC: only the day was recorded. Null: not recorded."""
    experiment: bool
    """An image that was broken on purpose, or that matrix.yaml does not describe. The site does not show it."""
    gpus: list[str]
    """Names of the GPUs as the driver has them, one a GPU."""
    driver: str
    tiers: dict[Tier, TierCount]
    claims: dict[Tier, dict[Status, list[str]]]
    """Tier -> verdict -> claims, each as `CHECK/SUBJECT`."""
    findings: list[ClaimRow]
    """The claims that are FAIL, KNOWN or UNPROVEN, with their reasons."""
    packages: dict[str, str]
    """Distribution -> version, as claim `pins` measured them."""
    bytes: Annotated[int, Field(ge=0)]
    """Size of the image, unpacked; 0: not recorded."""
    evidence_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
    """`sha256` of evidence.json; empty where only the verdict was recorded."""
    payload: dict[str, str] = {}
    """Its layers and settings (images/engine/configuration.py): the verdict is about every image that has these. Empty:
    not recorded."""
    steps: dict[str, StepRow] = {}
    """Subject of `step` -> the training step, of those that did not fail: baselines are made of them."""
    kept: bool
    """The evidence is in `evidence/ID.json.xz`, so that the run can be judged again."""

    def each(self) -> Iterator[tuple[Tier, Status, str, str]]:
        """Tier, verdict, check and subject of every claim."""
        for tier, verdicts in self.claims.items():
            for status, keys in verdicts.items():
                for key in keys:
                    check, _, subject = key.partition("/")
                    yield tier, status, check, subject


def read(folder: Path = FOLDER) -> tuple[RunLine, ...]:
    """Every line of FOLDER/runs.jsonl; none where there is no file. Raises UserError with all bad lines."""
    problems: list[Problem] = []
    found: dict[str, RunLine] = {}
    for where, line in read_lines(folder / LINES, RunLine.model_validate_json, "run", problems):
        if line.id in found:
            problems.append(bad_line(where, f"is no run: id: {line.id} is there twice"))
        found[line.id] = line
    if problems:
        raise UserError(problems)
    return tuple(found.values())


def gpu_runs(lines: Iterable[RunLine], image: str) -> list[RunLine]:
    """The runs of the gpu tier of images of that name, whatever their ID, the newest first.

    Without those of some of its claims (`validate --claim`): they say nothing of the tier. Each whole one has `device`.
    """
    wanted = (line for line in lines if line.image == image and not line.experiment)
    runs = [line for line in wanted if any((tier, check) == (Tier.GPU, "device") for tier, _, check, _ in line.each())]
    return sorted(runs, key=lambda line: line.date or _UNDATED, reverse=True)


def passed_on(runs: Iterable[RunLine]) -> list[str]:
    """GPUs, as drivers name them, whose newest run passed. `runs`: of the gpu tier, the newest first."""
    newest = {gpu: run.tiers[Tier.GPU].verdict for run in reversed(list(runs)) for gpu in run.gpus}
    return [gpu for gpu, verdict in newest.items() if verdict is Status.PASS]


def drift(packages: Mapping[str, str], pins: Mapping[str, str]) -> str:
    """`transformers 4.57.6 where the pin is 4.50.3 now`: measured packages that today's pins contradict."""
    moved = [name for name in sorted(pins) if packages.get(name, pins[name]) != pins[name]]
    return listed([f"{name} {packages[name]} where the pin is {pins[name]} now" for name in moved])


def drifts(runs: Iterable[RunLine], pins: Mapping[str, str]) -> dict[str, str]:
    """Id of a run -> its drift. `runs`: newest first; one without packages is taken to have those of the next newer."""
    found, last = {}, ""
    for run in runs:
        last = drift(run.packages, pins) if run.packages else last
        found[run.id] = last
    return found


def gpu_sentence(runs: Sequence[RunLine], drifts: Mapping[str, str]) -> str:
    """What the first of these runs says, for who has not built the image yet."""
    if not runs:
        return "No run of its gpu tier is recorded."
    run, image_id = runs[0], runs[0].digest.removeprefix("sha256:")[:12]
    had = f", with {drifts[run.id]}" if drifts.get(run.id) else ""
    return f"Its gpu tier: {_result(run)}{had}, image ID {image_id}; `build` says whether yours is the same)."


def of_this_build(runs: Sequence[RunLine], image_id: str, payload: Mapping[str, str]) -> tuple[str, bool]:
    """What the runs say of an image with this ID and payload, and whether one is about it."""
    if not runs:
        return "no run of its gpu tier is recorded, of any build", False
    for run in runs:
        if image_id == run.digest:
            return f"this build is, bit for bit, the image whose gpu tier got {_result(run)})", True
    for run in runs:
        if payload and payload == run.payload:
            told = (
                f"this build has, bit for bit, the layers and settings of the image whose gpu tier got {_result(run)})"
            )
            return f"{told}; its other ID comes of our suite, labels, history, or how the engine writes tars", True
    run = next((one for one in runs if one.payload), runs[0])
    differs = [name for name in {**payload, **run.payload} if payload.get(name) != run.payload.get(name)]
    unknown = ("" if payload else "this build") if run.payload else "that one"
    what = "has another ID than" if unknown else f"differs in {listed(differs)} from"
    why = f", and the layers of {unknown} are not known" if unknown else ""
    hint = "; root on the engine's machine can read whether it holds our suite alone" if differs == [SUITE] else ""
    return (
        f"this build {what} the image whose gpu tier got {_result(run)}){why}: no recorded run is about it{hint}",
        False,
    )


def _result(run: RunLine) -> str:
    """`PASS on NVIDIA H100, 2026-11-25 (30 claims`."""
    tier, where = run.tiers[Tier.GPU], ", ".join(dict.fromkeys(run.gpus))
    when = f", {run.date:%Y-%m-%d}" if run.date else ""
    return f"{tier.verdict} on {where}{when} ({tier.counts.get(tier.verdict, 0)} claims"


def evidence_file(folder: Path, run_id: str) -> Path:
    """Where a run's evidence is, if it is kept."""
    return folder / _EVIDENCE / f"{run_id}.json.xz"


def read_evidence(folder: Path, run_id: str) -> bytes:
    """The evidence.json of a run whose evidence is kept. Raises UserError where it can't be read."""
    path = evidence_file(folder, run_id)
    try:
        return lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise wrong(str(path), f"can't be read: {error}", "restore it from git") from None


def judged_again(line: RunLine, content: bytes) -> Verdict:
    """Judge the evidence of a line again, without claims that went since.

    Raises UserError: it is damaged, of another run, or contradicts the line.
    """
    where, then = f"{LINES} {line.id}", "restore the line and its evidence from git"
    try:
        evidence = Evidence.loads(content.decode())
    except (ValueError, LookupError, TypeError) as error:
        raise failed(where, str(error), then) from None
    # Nobody can judge again what no check has any more.
    asked = tuple(claim for claim in evidence.claims if checks.judge_of(claim))
    gone = {(claim.check, claim.subject) for claim in evidence.claims if claim not in asked}
    verdict = judge(replace(evidence.claim_set, claims=asked), evidence)
    if (line.image, line.digest, line.evidence_sha256) != (verdict.image, verdict.digest, evidence.sha256):
        raise failed(where, "the evidence is of another run", then)
    found = {(one.claim.tier, one.status, one.claim.check, one.claim.subject) for one in verdict.claims}
    recorded = {row for row in line.each() if row[2:] not in gone}
    differing = sorted({f"{check}/{subject}" for _, _, check, subject in found ^ recorded})
    if differing:
        raise failed(where, f"the verdict is not what the evidence says: {', '.join(differing[:_SHOWN])}", then)
    return verdict


def dumps(lines: Iterable[RunLine]) -> str:
    """runs.jsonl."""
    return "".join(json.dumps(line.model_dump(mode="json"), separators=(",", ":")) + "\n" for line in lines)


def line_of(evidence: Evidence, verdict: Verdict, where: str, *, size: int = 0, **more: Any) -> RunLine:
    """The line of a run that was judged. `more`: `date` (else the evidence's), `experiment`, `kept`.

    Raises UserError where `where` is no word for an id.
    """
    gpus = evidence.host.get("gpus") or ()
    rows = claim_rows(verdict)
    claims: dict[Tier, dict[Status, list[str]]] = {}
    for row in rows:
        claims.setdefault(row.tier, {}).setdefault(row.verdict, []).append(row.key)
    data = {
        "id": f"{verdict.image}/{where}",
        "image": verdict.image,
        "digest": verdict.digest,
        "gpus": [str(gpu.get("name", "")) for gpu in gpus],
        "driver": str(evidence.host.get("driver") or ""),
        "tiers": tier_counts(rows),
        "claims": claims,
        "findings": [row for row in rows if row.verdict in _OPEN],
        "packages": packages(verdict.claims),
        "steps": steps_of(one for one in verdict.claims if one.status is not Status.FAIL),
        "bytes": size,
        "evidence_sha256": evidence.sha256,
        "payload": dict(evidence.host.get("payload") or {}),
        "date": evidence.host.get("date"),
        "experiment": False,
        "kept": False,
        **more,
    }
    try:
        return RunLine.model_validate(data)
    except ValidationError as error:
        raise wrong(where, first_fault(error), "use small letters, digits, `.` and `-`") from None


def packages(claims: Iterable[ClaimVerdict]) -> dict[str, str]:
    """Distribution -> version, of the `pins` claims that passed."""
    measured = [one for one in claims if one.claim.check == "pins" and one.status is Status.PASS]
    return {one.claim.subject: version for one in measured if (version := installed(one.evidence))}
