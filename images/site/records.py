"""Read and write lines of results/runs.jsonl, one for each validation run, and say what they show.

Where the evidence of a run is kept, the tests judge it again.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from images.config import paths
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
from validate.judging import Status

FOLDER = paths.RESOURCES / "results"
"""results/ of the checkout, from which the documents and the tests are made."""
LINES = "runs.jsonl"
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
    locked: dict[str, str] = {}
    """Every distribution that was installed from the lock -> version, as claim `records/locked`
    measured them. Empty: not recorded."""
    bytes: Annotated[int, Field(ge=0)]
    """Size of the image, unpacked; 0: not recorded."""
    layer_bytes: dict[str, int] = {}
    """Name of a layer -> its size, unpacked. Empty: not recorded."""
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


def newest_size(lines: Iterable[RunLine], image: str) -> int:
    """Return an image's unpacked size in bytes, by its newest run that has one; 0: none has."""
    newest_time, size = 0.0, 0
    for line in lines:
        time = line.date.timestamp() if line.date else 0.0
        is_of_image = line.image == image and not line.experiment
        if is_of_image and line.bytes and time >= newest_time:
            newest_time, size = time, line.bytes
    return size


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
    packages = _measured_packages(verdict.claims)
    data = {
        "id": f"{verdict.image}/{where}",
        "image": verdict.image,
        "digest": verdict.digest,
        "gpus": [str(gpu.get("name", "")) for gpu in gpus],
        "driver": str(evidence.host.get("driver") or ""),
        "tiers": tier_counts(rows),
        "claims": keys,
        "findings": [row for row in rows if row.verdict in _NEEDS_REASON],
        "packages": packages,
        "locked": _locked_packages(verdict.claims, packages),
        "steps": collect_steps(not_failed),
        "bytes": size or _measured_size(verdict.claims),
        "layer_bytes": dict(evidence.host.get("layer_bytes") or {}),
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


def _locked_packages(claims: Iterable[ClaimVerdict], pins: Mapping[str, str]) -> dict[str, str]:
    """Return package -> version of all that was installed from the lock, by `records/locked`.

    `pins`: package -> version of pinned packages, as the claims `pins` measured them. Packages of
    which no RECORD could be compared, such as those that are built from source, have their version
    from there. Empty if the run did not measure the version of every package.
    """
    for verdict in claims:
        measured = verdict.evidence.get("records")
        if verdict.claim.key != "records/locked" or not measured:
            continue
        versions = {}
        # A package may be installed in several places. Python imports the first.
        for name, installed in measured.items():
            versions[name] = str(installed[0]["version"])
        for name in (*verdict.claim.expect["built"], *verdict.claim.expect["unknown"]):
            if name not in pins:
                return {}
            versions[name] = pins[name]
        return versions
    return {}
