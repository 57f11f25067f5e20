"""results/runs.jsonl: one line a validation run. tests/ judge the kept evidence of a line again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from images.config import paths
from images.engine.configuration import SUITE
from images.errors import Problem, UserError, wrong
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
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status, listed

FOLDER = paths.RESOURCES / "results"
"""The checkout's: the documents and the tests are made from it."""
LINES = "runs.jsonl"
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

    def rows(self) -> Iterator[ClaimRow]:
        """Yield every claim. Those that are open have a reason."""
        findings = {(row.tier, row.check, row.subject): row for row in self.findings}
        for tier, verdicts in self.claims.items():
            for verdict, keys in verdicts.items():
                for key in keys:
                    check, _, subject = key.partition("/")
                    row = ClaimRow(
                        check=check,
                        subject=subject,
                        tier=tier,
                        verdict=verdict,
                        required=True,
                        reason="",
                    )
                    yield findings.get((tier, check, subject), row)


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
    """Return the runs of the gpu tier of images of that name, whatever their ID, the newest first.

    A run of some claims alone (`validate --claim`) says nothing of the tier. Each whole one has `device`.
    """
    runs = []
    for line in lines:
        if line.image != image or line.experiment:
            continue
        if any(row.tier is Tier.GPU and row.check == "device" for row in line.rows()):
            runs.append(line)
    return sorted(runs, key=lambda line: line.date or _UNDATED, reverse=True)


def passed_on(runs: Iterable[RunLine]) -> list[str]:
    """Return the GPUs, as drivers name them, whose newest run passed. `runs`: of the gpu tier, the newest first."""
    newest: dict[str, Status] = {}
    for run in runs:
        for gpu in run.gpus:
            newest.setdefault(gpu, run.tiers[Tier.GPU].verdict)
    return [gpu for gpu, verdict in newest.items() if verdict is Status.PASS]


def drift(packages: Mapping[str, str], pins: Mapping[str, str]) -> str:
    """Return `transformers 4.57.6 where the pin is 4.50.3 now`: measured packages that today's pins contradict."""
    moved = [name for name in sorted(pins) if packages.get(name, pins[name]) != pins[name]]
    return listed([f"{name} {packages[name]} where the pin is {pins[name]} now" for name in moved])


def drifts(runs: Iterable[RunLine], pins: Mapping[str, str]) -> dict[str, str]:
    """Return ID of a run -> its drift. `runs`: newest first."""
    drift_of = {}
    newer = ""
    for run in runs:
        # A run without packages is taken to have had those of the next newer one.
        if run.packages:
            newer = drift(run.packages, pins)
        drift_of[run.id] = newer
    return drift_of


def gpu_sentence(runs: Sequence[RunLine], drifts: Mapping[str, str]) -> str:
    """Return what the first of these runs says, for who has not built the image yet."""
    if not runs:
        return "No run of its gpu tier is recorded."
    run = runs[0]
    image_id = run.digest.removeprefix("sha256:")[:12]
    contradictions = drifts.get(run.id)
    packages = f", with {contradictions}" if contradictions else ""
    return f"Its gpu tier: {_result(run)}{packages}, image ID {image_id}; `build` says whether yours is the same)."


def of_this_build(
    runs: Sequence[RunLine], image_id: str, payload: Mapping[str, str]
) -> tuple[str, bool]:
    """Return what the runs say of an image with this ID and payload, and whether one is about it."""
    if not runs:
        return "no run of its gpu tier is recorded, of any build", False

    for run in runs:
        if image_id == run.digest:
            return f"this build is, bit for bit, the image whose gpu tier got {_result(run)})", True
    for run in runs:
        if payload and payload == run.payload:
            same = f"the layers and settings of the image whose gpu tier got {_result(run)})"
            other = (
                "its other ID comes of our suite, labels, history, or how the engine writes tars"
            )
            return f"this build has, bit for bit, {same}; {other}", True

    run = next((run for run in runs if run.payload), runs[0])
    if payload and run.payload:
        names = [
            name
            for name in {**payload, **run.payload}
            if payload.get(name) != run.payload.get(name)
        ]
        differs = f"this build differs in {listed(names)} from the image whose gpu tier got {_result(run)})"
        advice = ""
        if names == [SUITE]:
            advice = "; root on the engine's machine can read whether it holds our suite alone"
        return f"{differs}: no recorded run is about it{advice}", False
    unknown = "that one" if payload else "this build"
    return (
        f"this build has another ID than the image whose gpu tier got {_result(run)}), "
        f"and the layers of {unknown} are not known: no recorded run is about it",
        False,
    )


def _result(run: RunLine) -> str:
    """Return `PASS on NVIDIA H100, 2026-11-25 (30 claims`."""
    count = run.tiers[Tier.GPU]
    gpus = ", ".join(dict.fromkeys(run.gpus))
    day = f", {run.date:%Y-%m-%d}" if run.date else ""
    return f"{count.verdict} on {gpus}{day} ({count.counts.get(count.verdict, 0)} claims"


def line_of(
    evidence: Evidence,
    verdict: Verdict,
    where: str,
    *,
    size: int = 0,
    experiment: bool = False,
    kept: bool = False,
) -> RunLine:
    """Return the line of a run that was judged. `size`: of the image; 0: as the run measured it, if it did.

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
        "bytes": size or _measured_size(verdict.claims),
        "evidence_sha256": evidence.sha256,
        "payload": dict(evidence.host.get("payload") or {}),
        "date": evidence.host.get("date"),
        "experiment": experiment,
        "kept": kept,
    }
    try:
        return RunLine.model_validate(data)
    except ValidationError as error:
        raise wrong(where, first_fault(error), "use small letters, digits, `.` and `-`") from None


def _measured_size(claims: Iterable[ClaimVerdict]) -> int:
    for verdict in claims:
        if verdict.claim.key == "image/size":
            return int(verdict.evidence.get("bytes", 0))
    return 0


def packages(claims: Iterable[ClaimVerdict]) -> dict[str, str]:
    """Return distribution -> version, of the `pins` claims that passed."""
    versions = {}
    for verdict in claims:
        if verdict.claim.check == "pins" and verdict.status is Status.PASS:
            version = installed(verdict.evidence)
            if version:
                versions[verdict.claim.subject] = version
    return versions
