"""Types of stored verdicts and evidence, and functions that read them.

These are the rows of results/ and of a fleet's records, and the files of a validation run as they
are published, verdict.json and evidence.json. tools/schemas.py makes their JSON Schemas of them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from images.errors import Problem, command, wrong
from validate.claims import Claim, Tier
from validate.compressed import decompressing
from validate.evidence import SCHEMA_VERSION, Evidence, Record
from validate.harness import timing
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

STEP = "step"
"""The check that trains a small model and measures its training steps."""
Line = TypeVar("Line")
_MOST_REASON = 600
"""Characters of a reason that a row stores at most."""
Seconds = Annotated[float, Field(ge=0)]
Digest = Annotated[
    str, Field(description="`sha256:...` of the image; empty where the image judged itself")
]


class Row(BaseModel):
    """A row of a file: unknown keys are errors."""

    # JSON Schemas have the docstrings of the fields.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ClaimRow(Row):
    """One claim, judged."""

    check: str
    """Its name: `pins`, `4bit-llama`, `attention`; `build` where there is no image to judge."""
    subject: str
    tier: Tier
    verdict: Status
    required: bool
    """A required claim that is not PASS is never green."""
    reason: str

    @property
    def key(self) -> str:
        """Return the claim's name: `pins/torch`, or `build`."""
        return f"{self.check}/{self.subject}" if self.subject else self.check


class TierCount(Row):
    """One tier's claims, counted by verdict."""

    verdict: Status
    """FAIL: a required claim failed. PASS: there are required claims, all passed. Else UNPROVEN."""
    counts: dict[Status, int]


class StepRow(Row):
    """A training step (`step`), measured once."""

    seconds: float
    """Median."""
    spread: float
    """Relative to it (validate/harness/timing.py)."""
    peak: int
    """Bytes of GPU memory."""
    loss: float
    """After the last step."""


class Change(Row):
    """One package that differs between two images."""

    name: str
    before: str
    """Version in the first image, that of the committed lock; empty: it was not there."""
    after: str
    """Version in the second image, such as the canary; empty: it is gone."""
    pinned: bool
    """matrix.yaml pins it; else it is a dependency."""

    def __str__(self) -> str:
        return f"{self.name} {self.before or '(none)'} -> {self.after or '(none)'}"


def collect_steps(claims: Iterable[ClaimVerdict]) -> dict[str, StepRow]:
    """Return time, memory and loss of the training steps that a validation run measured.

    Only claims of the check `step`, which trains variants of a small model, have them: variant ->
    figures. Variants whose times were disturbed, for example by another process on the GPU, and
    those that were not measured are left out.
    """
    steps = {}
    for judged in claims:
        trained = judged.evidence.get("trained")
        if judged.claim.check != STEP or not trained:
            continue
        # The median of the repeated times and their spread.
        times = trained["time"]
        disturbances = list(timing.disturbances(judged.evidence["conditions"], times))
        if not disturbances:
            # The keys of `trained` are declared in validate/checks/gpu/step.py (Trained).
            steps[judged.claim.subject] = StepRow(
                seconds=times["seconds"],
                spread=times["spread"],
                peak=trained["peak"],
                loss=trained["losses"][-1],
            )
    return steps


def claim_rows(verdict: Verdict) -> tuple[ClaimRow, ...]:
    """Return the judged claims of a verdict as rows, the form in which they are stored as JSON.

    They stay in their order. A long reason is cut.
    """
    rows = []
    for judged in verdict.claims:
        row = ClaimRow(
            check=judged.claim.check,
            subject=judged.claim.subject,
            tier=judged.claim.tier,
            verdict=judged.status,
            required=judged.claim.required,
            reason=judged.reason[:_MOST_REASON],
        )
        rows.append(row)
    return tuple(rows)


def tier_counts(rows: Sequence[ClaimRow]) -> dict[Tier, TierCount]:
    """Return verdict and counts of each tier that has claims."""
    counts = {}
    for tier in Tier:
        rows_of_tier = [row for row in rows if row.tier is tier]
        if rows_of_tier:
            counts[tier] = tier_count(rows_of_tier)
    return counts


def tier_count(rows: Sequence[ClaimRow]) -> TierCount:
    """Return the verdict on the claims of one tier, and how many claims have which verdict.

    A tier is a group of claims that need the same hardware. `rows`: its claims. Only required ones
    decide: FAIL if one failed, PASS if there are some and all passed, else UNPROVEN. All claims are
    counted; a verdict that none has gets no count.
    """
    required = {row.verdict for row in rows if row.required}
    if Status.FAIL in required:
        verdict = Status.FAIL
    elif required == {Status.PASS}:
        verdict = Status.PASS
    else:
        verdict = Status.UNPROVEN

    counts = {}
    verdicts = [row.verdict for row in rows]
    for status in Status:
        if status in verdicts:
            counts[status] = verdicts.count(status)
    return TierCount(verdict=verdict, counts=counts)


def schema(model: Any, title: str) -> bytes:
    """Return the JSON Schema of a model as a file's content."""
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **TypeAdapter(model).json_schema(),
        "title": title,
    }
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def first_fault(error: ValidationError) -> str:
    """Return the first thing that pydantic refused: `PATH: MESSAGE`, or the message alone."""
    first = error.errors()[0]
    path = ".".join(map(str, first["loc"]))
    message = str(first["msg"])
    # pydantic's own sentence names no field.
    if first["type"] == "missing":
        return f"the field {path} is missing"
    if first["type"] == "union_tag_not_found":
        message = f"the field {first['ctx']['discriminator']} is missing"
    return f"{path}: {message}" if path else message


def read_lines(
    path: Path, parse: Callable[[str], Line], what: str, problems: list[Problem]
) -> Iterator[tuple[str, Line]]:
    """Yield a pair for each line of a file: its place (`runs.jsonl:3`), and what `parse` returns.

    A missing file has no lines. A line that `parse` refuses with pydantic's ValidationError is left
    out, and a problem for the user is appended to the caller's list `problems`. `what`: what a line
    is, as messages name it. Raises OSError or UnicodeDecodeError if the file can't be read.
    """
    if not path.is_file():
        return
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{path.name}:{number}"
        try:
            yield place, parse(text)
        except ValidationError as error:
            problems.append(bad_line(place, f"is no {what}: {first_fault(error)}"))


def bad_line(where: str, cause: str) -> Problem:
    """Return the problem of a line in a committed file."""
    then = "correct this line (those beside it show its form), or restore the file from git"
    return Problem(where=where, cause=cause, then=then)


def installed_version(evidence: Mapping[str, Any]) -> str:
    """Return the version of a package that evidence of a claim `pins` has; empty if it has none."""
    distributions = evidence.get("installed")
    if not isinstance(distributions, list) or not distributions:
        return ""
    if not isinstance(distributions[0], dict):
        return ""
    return str(distributions[0].get("version", ""))


class HintRow(Row):
    """A known error that the claim's reason or evidence speaks of."""

    id: str
    cause: str
    fix: str
    source: str
    """A page, `OWNER/REPOSITORY#NUMBER`, or `seed:PAGE`."""


class ClaimVerdictRow(ClaimRow):
    """One claim, judged."""

    seconds: Seconds
    """What the measurement took."""
    hints: Annotated[list[HintRow], Field(min_length=1)] = Field(default=[], validate_default=False)
    """Only where something is not well and a known error explains it."""
    next_step: str = ""
    """What to do about a claim that does not hold."""


class VerdictFile(Row):
    """verdict.json: an image, judged. It repeats no evidence, but names it."""

    schema_version: Literal[3]
    image: str
    other_base: str = ""
    """The base that it stands on in place of the matrix's (--base); empty: the matrix's own."""
    digest: Digest
    evidence_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The `sha256` of the evidence.json that was judged."""
    overall: Status
    """FAIL: a required claim failed. PASS: there are required claims, all passed. Else UNPROVEN."""
    claims: list[ClaimVerdictRow]


class MeasuredOnRow(BaseModel):
    """Facts of the machine and the image: those that are read without a judge. There may be others
    (MeasuredOn in validate/evidence.py)."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    date: AwareDatetime | None = None
    """When it was measured, UTC."""
    driver: str = ""
    gpus: list[dict[str, Any]] = []
    steps_above: int = 0
    """How many build steps stand above those of our Dockerfile."""
    other_base: str = ""
    """The base that the image stands on in place of the matrix's (--base)."""
    payload: dict[str, str] = {}
    """The image's layers and settings -> digest."""
    layer_bytes: dict[str, int] = {}
    """Layer -> its size, unpacked."""
    faults: list[str] = []
    """What is wrong with the machine."""
    not_compared: dict[str, str] = {}
    """Failed claims that no other image could run -> the reason."""


class EvidenceFile(Row):
    """evidence.json: everything measured in one image, and the claims it was measured for."""

    schema_version: Literal[3]
    image: str
    digest: Digest
    records: list[Record]
    host: MeasuredOnRow
    """When it was measured (`date`, UTC), engine, cores, driver and GPUs as the host saw them."""
    claims: Annotated[list[Claim], Field(min_length=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of the rest, as JSON with sorted keys, no spaces: shows that a file was edited or damaged."""


class OlderSchemaError(ValueError):
    """Evidence of a schema in which claims had numbers (`S5 bitsandbytes`)."""


def parse_evidence(text: str) -> Evidence:
    """Return the evidence (all that was measured in an image) from the text of an evidence.json.

    Raises ValueError, which all of these are: JSONDecodeError if the text is no JSON, pydantic's
    ValidationError if it is other JSON, OlderSchemaError, or what Evidence.loads raises if the text
    was changed.
    """
    try:
        return _parse_evidence(text)
    except RecursionError:
        raise ValueError("is not as truetag wrote it: it is nested too deeply") from None


def _parse_evidence(text: str) -> Evidence:
    """Return what `parse_evidence` does. Raises RecursionError, too."""
    data = json.loads(text)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version < SCHEMA_VERSION:
        raise OlderSchemaError(
            f"the evidence is of schema version {version}, in which claims had numbers, and this "
            f"truetag reads version {SCHEMA_VERSION}, in which they have names"
        )
    EvidenceFile.model_validate(data)
    return Evidence.loads(text)


def read_evidence(path: Path) -> Evidence:
    """Return the evidence (all that was measured in an image) from a file evidence.json.

    Raises UserError, with advice: the file can't be read, is compressed, holds no evidence or no
    claims, is of an older version, or was changed since it was written.
    """
    try:
        content = path.read_bytes()
        decompress = decompressing(path, content)
        if decompress:
            then = f"decompress it first (`{decompress} > evidence.json`), and name evidence.json"
            raise wrong(str(path), "this file is compressed", then)
        return parse_evidence(content.decode())
    except OSError as error:
        then = "name an evidence.json that is there and that you may read (out/NAME/evidence.json)"
        raise wrong(str(path), f"can't be read: {error.strerror}", then) from None
    # The next four are kinds of ValueError, from the most special to any.
    except ValidationError as error:
        cause = f"is not as truetag wrote it: {first_fault(error)}"
    except (JSONDecodeError, UnicodeDecodeError) as error:
        cause = f"is not JSON: {error}"
    except OlderSchemaError as error:
        then = (
            f"validate the image again (`{command('validate', 'NAME')}`), or use an older truetag"
        )
        raise wrong(str(path), str(error), then) from None
    except ValueError as error:
        cause = str(error)
    writers = f"`{command('validate', 'NAME')}` or `{command('build', 'NAME')}`"
    then = (
        "this file was changed or cut off after truetag wrote it, or something else wrote it: "
        f"{writers} writes it anew (NAME: the image's name); or name another evidence.json"
    )
    raise wrong(str(path), cause, then)
