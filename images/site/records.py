"""Read and write lines of results/runs.jsonl, one for each validation run, and say what they show.

Where the evidence of a run is kept, the tests judge it again.
"""

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
    collect_steps,
    first_fault,
    installed_version,
    read_lines,
    tier_counts,
)
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status, listed

FOLDER = paths.RESOURCES / "results"
"""results/ of the checkout, from which the documents and the tests are made."""
LINES = "runs.jsonl"
_UNDATED = datetime.min.replace(tzinfo=UTC)
_NEEDS_REASON = (Status.FAIL, Status.KNOWN, Status.UNPROVEN)
"""The verdicts whose claims a line records with their reasons, as findings."""


class RunLine(Row):
    """One image, validated once.

    The line repeats no evidence; it names the evidence by its sha256.
    """

    schema_version: Literal[2] = 2
    id: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")]
    """`IMAGE/WHERE`, unique: the image, and a word for the machine or the fault that was
    planted."""
    image: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    digest: str
    """`sha256:...` of the image that was measured."""
    date: AwareDatetime | None
    """When it was measured. Midnight UTC: only the day was recorded. Null: not recorded."""
    experiment: bool
    """An image that was broken on purpose, or that matrix.yaml does not describe.

    The site does not show it.
    """
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
    """Its layers and settings (images/engine/configuration.py): the verdict is about every image
    that has these. Empty: not recorded."""
    steps: dict[str, StepRow] = {}
    """Subject of `step` -> the training step, of those that did not fail: baselines are made of
    them."""
    kept: bool
    """The evidence is in `evidence/ID.json.xz`, so that the run can be judged again."""

    def rows(self) -> Iterator[ClaimRow]:
        """Yield every claim (check) of the run, with its verdict.

        Claims that are FAIL, KNOWN or UNPROVEN have a reason. Of the others, a line records only
        name, tier and verdict: they are returned as required ones.
        """
        findings = {(row.tier, row.key): row for row in self.findings}
        for tier, keys_by_verdict in self.claims.items():
            for verdict, keys in keys_by_verdict.items():
                for key in keys:
                    finding = findings.get((tier, key))
                    yield finding or _row_without_reason(key, tier, verdict)


def _row_without_reason(key: str, tier: Tier, verdict: Status) -> ClaimRow:
    """Return the row of a claim of which a line records only the key (`CHECK/SUBJECT`)."""
    check, _, subject = key.partition("/")
    return ClaimRow(
        check=check, subject=subject, tier=tier, verdict=verdict, required=True, reason=""
    )


def read(folder: Path = FOLDER) -> tuple[RunLine, ...]:
    """Return the lines of FOLDER/runs.jsonl; none where there is no such file.

    Raises UserError that names all lines that can't be read, and every ID that is there twice.
    """
    problems: list[Problem] = []
    lines: dict[str, RunLine] = {}
    for where, line in read_lines(folder / LINES, RunLine.model_validate_json, "run", problems):
        if line.id in lines:
            problems.append(bad_line(where, f"is no run: id: {line.id} is there twice"))
        lines[line.id] = line
    if problems:
        raise UserError(problems)
    return tuple(lines.values())


def gpu_runs(lines: Iterable[RunLine], image: str) -> list[RunLine]:
    """Return the runs of an image's gpu tier, newest first. Experiments are left out.

    The gpu tier is the group of claims that need one GPU. `image`: the image's name; the runs may
    be of any build of it. Experiments are images that were broken on purpose or are not ours.
    """
    runs = []
    for line in lines:
        if line.image != image or line.experiment:
            continue
        # Every run of the whole tier judges `device`. A run of single claims (`validate --claim`)
        # says nothing about the tier.
        if any(claim.tier is Tier.GPU and claim.check == "device" for claim in line.rows()):
            runs.append(line)
    return sorted(runs, key=lambda run: run.date or _UNDATED, reverse=True)


def passed_on(runs: Iterable[RunLine]) -> list[str]:
    """Return the GPUs whose newest run passed, by the names that drivers give them.

    `runs`: of the gpu tier, newest first.
    """
    newest: dict[str, Status] = {}
    for run in runs:
        for gpu in run.gpus:
            newest.setdefault(gpu, run.tiers[Tier.GPU].verdict)
    return [gpu for gpu, verdict in newest.items() if verdict is Status.PASS]


def describe_drift(packages: Mapping[str, str], pins: Mapping[str, str]) -> str:
    """Return which measured versions differ from today's pins; empty if none does.

    It reads `transformers 4.57.6 where the pin is 4.50.3 now`. `packages`, `pins`: name -> version.
    A pinned package that was not measured is no difference.
    """
    differences = []
    for name, pinned_version in sorted(pins.items()):
        version = packages.get(name)
        if version is not None and version != pinned_version:
            differences.append(f"{name} {version} where the pin is {pinned_version} now")
    return listed(differences)


def drift_by_run(runs: Iterable[RunLine], pins: Mapping[str, str]) -> dict[str, str]:
    """Return how each run's packages differ from today's pins: ID of the run -> a phrase.

    It reads `transformers 4.57.6 where the pin is 4.50.3 now`, and is empty where nothing differs.
    `runs`: of one image, newest first. `pins`: package -> version.
    """
    drifts = {}
    newest_drift = ""
    for run in runs:
        # A run that recorded no packages is taken to have had those of the next newer one.
        if run.packages:
            newest_drift = describe_drift(run.packages, pins)
        drifts[run.id] = newest_drift
    return drifts


def gpu_sentence(runs: Sequence[RunLine], drifts: Mapping[str, str]) -> str:
    """Return a sentence about the newest of these runs, for a user who has not built the image yet.

    `runs`: of the image's gpu tier (the claims that need a GPU), newest first. `drifts`: ID of a
    run -> how its packages differ from today's pins; empty or missing: they do not.
    """
    if not runs:
        return "No run of its gpu tier is recorded."
    run = runs[0]
    # The sentence reads `Its gpu tier: PASS on NVIDIA H100, 2026-11-25 (30 claims, with
    # transformers 4.57.6 where the pin is 4.50.3 now, image ID 0123...; ...).`
    drift = drifts.get(run.id)
    with_drift = f", with {drift}" if drift else ""
    image_id = run.digest.removeprefix("sha256:")[:12]
    details = f"{with_drift}, image ID {image_id}; `build` says whether yours is the same"
    return f"Its gpu tier: {_result(run, details)}."


def compare_build(
    runs: Sequence[RunLine], image_id: str, payload: Mapping[str, str]
) -> tuple[str, bool]:
    """Say whether a new build of an image is the same as one that was validated on a GPU.

    Returns a sentence, and whether a recorded run is about this build: it measured an image of the
    same ID, or one with the same layers and settings. `runs` are the recorded runs of the image on
    GPUs, newest first. `payload` has the layers and settings of the build; empty: not known.
    """
    if not runs:
        return "no run of its gpu tier is recorded, of any build", False

    # An equal ID says more than equal layers, so look for it in every run first.
    for run in runs:
        if image_id == run.digest:
            return f"this build is, bit for bit, the image whose gpu tier got {_result(run)}", True

    # An empty payload is not known, so it equals no other, not even an empty one.
    for run in runs:
        if payload and payload == run.payload:
            same = f"the layers and settings of the image whose gpu tier got {_result(run)}"
            other = (
                "its other ID comes of our suite, labels, history, or how the engine writes tars"
            )
            return f"this build has, bit for bit, {same}; {other}", True
    return _difference_from_runs(runs, payload), False


def _difference_from_runs(runs: Sequence[RunLine], payload: Mapping[str, str]) -> str:
    """Return a sentence on how a build differs from the newest run whose payload is recorded.

    A payload is what an image has: name -> digest, of its layers and settings. Where that of the
    build or of every run is not known, the sentence says so. `payload`: of the build; empty: not
    known. `runs`: recorded runs of the image on GPUs, at least one, newest first. Raises IndexError
    if there is none.
    """
    runs_with_payload = [run for run in runs if run.payload]
    run = runs_with_payload[0] if runs_with_payload else runs[0]
    if not payload or not run.payload:
        which = "that one" if payload else "this build"
        return (
            f"this build has another ID than the image whose gpu tier got {_result(run)}, "
            f"and the layers of {which} are not known: no recorded run is about it"
        )

    differing = []
    for name in {**payload, **run.payload}:
        if payload.get(name) != run.payload.get(name):
            differing.append(name)
    advice = ""
    if differing == [SUITE]:
        # A payload has the suite's layer only where nobody could read whether anything else is in
        # it. Reading the layers of some engines takes root.
        advice = "; root on the engine's machine can read whether it holds our suite alone"
    return (
        f"this build differs in {listed(differing)} from the image whose gpu tier got "
        f"{_result(run)}: no recorded run is about it{advice}"
    )


def _result(run: RunLine, details: str = "") -> str:
    """Return the result of a run's gpu tier: `PASS on NVIDIA H100, 2026-11-25 (30 claims)`.

    `details`: put behind the number of claims, in the same brackets.
    """
    count = run.tiers[Tier.GPU]
    claims = count.counts.get(count.verdict, 0)
    gpus = ", ".join(dict.fromkeys(run.gpus))
    day = f", {run.date:%Y-%m-%d}" if run.date else ""
    return f"{count.verdict} on {gpus}{day} ({claims} claims{details})"


def make_run_line(
    evidence: Evidence,
    verdict: Verdict,
    where: str,
    *,
    size: int = 0,
    experiment: bool = False,
    kept: bool = False,
) -> RunLine:
    """Return the line of runs.jsonl for a run that was judged.

    `evidence` is what was measured, `verdict` the result for each claim. The line's ID is
    `IMAGE/WHERE`: `where` is a word for the machine (`h200`) or for the fault that was planted.
    `size` is the image's, in bytes; 0: as the run measured it, if it did. `experiment`: the image
    was broken on purpose, or is none of the matrix. `kept`: the evidence is stored beside the line.
    Raises UserError for a `where` with characters that an ID may not have.
    """
    gpus = evidence.host.get("gpus") or ()
    rows = claim_rows(verdict)
    # Tier -> verdict -> names of claims (`CHECK/SUBJECT`).
    keys: dict[Tier, dict[Status, list[str]]] = {}
    for row in rows:
        keys.setdefault(row.tier, {}).setdefault(row.verdict, []).append(row.key)
    # A training step that failed is no baseline for others.
    not_failed = [claim for claim in verdict.claims if claim.status is not Status.FAIL]
    data = {
        "id": f"{verdict.image}/{where}",
        "image": verdict.image,
        "digest": verdict.digest,
        "gpus": [str(gpu.get("name", "")) for gpu in gpus],
        "driver": str(evidence.host.get("driver") or ""),
        "tiers": tier_counts(rows),
        "claims": keys,
        "findings": [row for row in rows if row.verdict in _NEEDS_REASON],
        "packages": _measured_packages(verdict.claims),
        "steps": collect_steps(not_failed),
        "bytes": size or _measured_size(verdict.claims),
        "evidence_sha256": evidence.sha256,
        "payload": dict(evidence.host.get("payload") or {}),
        "date": evidence.host.get("date"),
        "experiment": experiment,
        "kept": kept,
    }
    # Only `where` is refused here: everything else was validated when the evidence was read.
    try:
        return RunLine.model_validate(data)
    except ValidationError as error:
        raise wrong(
            where, first_fault(error), "name it with small letters, digits, `.` and `-`"
        ) from None


def _measured_size(claims: Iterable[ClaimVerdict]) -> int:
    """Return the image's size in bytes, as the claim image/size measured it; 0: not measured."""
    for verdict in claims:
        if verdict.claim.key == "image/size":
            return int(verdict.evidence.get("bytes", 0))
    return 0


def _measured_packages(claims: Iterable[ClaimVerdict]) -> dict[str, str]:
    """Return package -> version, from the evidence of the `pins` claims that passed."""
    versions = {}
    for verdict in claims:
        if verdict.claim.check == "pins" and verdict.status is Status.PASS:
            version = installed_version(verdict.evidence)
            if version:
                versions[verdict.claim.subject] = version
    return versions
