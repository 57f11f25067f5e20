"""origin: every file of an image comes from its recipe, because two builds of that recipe gave the same bytes.

A mirror that sends another package, a base that moved, a build that was interrupted, a step that is not reproducible:
each gives other bytes than those that are recorded for the recipe (locks/layers.json), and the claim fails. In place of
it, owners of every file were looked for until 2026-11: 26,000 AST nodes that could still not judge a custom base.

The engine's host measures it (images/validation/origin.py): a container can't see its own layers.
"""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from validate.judging import Finding, failed, listed, passed, unproven

BUILDS_NEEDED = 2
"""One build proves nothing of the next."""
SETTINGS_ROW, SUITE = "settings", "suite"
_CHARACTERS = 12


class ExpectedLayer(TypedDict):
    """A layer of the recipe, as the record has it."""

    layer: str
    recipe: str
    diff_id: str
    """In canonical form; empty: no build of this recipe is recorded."""
    written_as: list[str]
    """Other forms of the same files, which the host need not read."""
    builds: list[str]
    """What gave it: engine or recorded run, one a build."""


class OriginExpectation(TypedDict):
    """What the claim expects."""

    recipe: str
    """Of the whole image."""
    layers: list[ExpectedLayer]
    """The lowest first; the last row is that of the settings."""
    arguments: str
    """What the commands of a reason take: the image's name, and its base where that is a custom one."""
    is_derived: bool
    """The image was built on the one of the recipe: what its own steps add is theirs, and so are its settings."""


class MeasuredLayer(TypedDict):
    """A layer of the image, or its settings."""

    layer: str
    diff_id: str


class StepChange(TypedDict):
    """What one step of a derived image did to the files below."""

    step: str
    replaced: dict[str, str]
    """Path -> what of it is another."""
    removed: list[str]
    count: int
    """Of both: the lists are cut."""


class OriginEvidence(TypedDict):
    """What the host measured."""

    recipe: str
    """The recipe that the image's label names; empty: it has no such label."""
    layers: list[MeasuredLayer]
    """The lowest first, those of the base as one, and last its settings; none where they can't be told apart."""
    canonical: bool
    """The layers were read in the engine's store. Else one that differs may hold the same files in another form."""
    beside_suite: list[str]
    """Paths in the suite's layer that are not the suite's."""
    changes: list[StepChange]
    """Of a derived image."""


def judge(_subject: str, expect: OriginExpectation, evidence: OriginEvidence) -> Finding:
    """Compare the layers of an image with those that are recorded for its recipe."""
    record = (
        f"`python -m tools.reproduce {expect['arguments']} --record` builds it twice and records it"
    )
    measured = {row["layer"]: row["diff_id"] for row in evidence["layers"]}
    expected = [
        row for row in expect["layers"] if row["layer"] != SETTINGS_ROW or not expect["is_derived"]
    ]
    if not expected:
        return unproven(f"its recipe has no layers: {record}")
    if not measured:
        return unproven(
            "its history has another number of steps than it has layers, so they can't be told apart"
        )

    faults = [
        f"{path} is in the suite's layer, and is not the suite's"
        for path in evidence["beside_suite"]
    ]
    differing = [
        row for row in expected if row["diff_id"] and measured.get(row["layer"]) != row["diff_id"]
    ]
    strange = [] if differing or expect["is_derived"] else list(strange_layers(measured, expected))
    unknown = [
        row["layer"]
        for row in expected
        if len(row["builds"]) < BUILDS_NEEDED and row not in differing
    ]

    # An image of another recipe has other bytes by right: an older checkout, an edited template or lock.
    if (differing or strange) and evidence["recipe"] != expect["recipe"]:
        names = listed([row["layer"] for row in differing] or strange)
        made_by = (
            "by another recipe than this checkout's"
            if evidence["recipe"]
            else "before images named their recipe"
        )
        return unproven(
            f"{names} differ from the record, but it was built {made_by}: build it again with this one"
        )
    if differing and not evidence["canonical"]:
        names = listed([row["layer"] for row in differing])
        return unproven(
            f"{names} differ from the record, but this engine's layers can't be read here, and it may write the same "
            f"files in another way: validate it as root on the engine's own machine, with a Docker Engine"
        )
    faults += [describe_difference(row, measured.get(row["layer"], "")) for row in differing]
    faults += [f"no step of the recipe makes its layer {name}" for name in strange]
    if differing:
        faults.append(
            f"`python -m tools.reproduce {expect['arguments']} --beside IMAGE` names the files that differ"
        )
    if faults:
        return failed("; ".join(faults))
    if unknown:
        return unproven(
            f"no two builds of {listed(unknown, limit=5)} are recorded for this recipe: {record}"
        )
    if not evidence["canonical"] and SUITE in measured:
        return unproven(
            "its suite's layer can't be read here: validate it as root on the engine's own machine"
        )

    builds = sorted({build for row in expected for build in row["builds"]})
    layers = [row for row in expected if row["layer"] != SETTINGS_ROW]
    good = f"{len(layers)} layers are, bit for bit, what {listed(builds)} gave"
    return passed(
        f"{good}; {describe_changes(evidence['changes'])}" if expect["is_derived"] else good
    )


def strange_layers(measured: dict[str, str], expected: Sequence[ExpectedLayer]) -> Iterator[str]:
    """Yield the layers that no step of the recipe makes."""
    known = {SUITE, SETTINGS_ROW, *(row["layer"] for row in expected)}
    yield from (layer for layer in measured if layer not in known)


def describe_difference(row: ExpectedLayer, diff_id: str) -> str:
    """Say how a layer of the image differs from the recorded one."""
    recorded = row["diff_id"].removeprefix("sha256:")[:_CHARACTERS]
    found = diff_id.removeprefix("sha256:")[:_CHARACTERS]
    what = "its settings are" if row["layer"] == SETTINGS_ROW else f"the layer {row['layer']} is"
    return f"{what} {found or 'missing'}; {listed(row['builds'])} gave {recorded}"


def describe_changes(changes: Sequence[StepChange]) -> str:
    """Say what the steps of a derived image replaced and removed of the files below."""
    if not changes:
        return "its own steps replace and remove nothing of them"
    rows = []
    for change in changes:
        examples = [*change["removed"], *change["replaced"]]
        rows.append(f"`{change['step'][:80]}` changes {change['count']} paths ({listed(examples)})")
    return f"of their files, {'; '.join(rows)}"


CLAIMS = {"origin/layers": judge}
