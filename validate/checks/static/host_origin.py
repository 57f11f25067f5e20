"""origin: every file of an image comes from its recipe, as two builds of it gave the same bytes.

The claim fails if a layer has other bytes than those that are recorded for its recipe
(locks/layers.json). Causes are a mirror that sends another package, a base that moved, a build that
was interrupted, and a step that is not reproducible.

The engine's host measures it (images/validation/origin.py): a container can't see its own layers.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict

from validate.installation import command
from validate.judging import Finding, failed, listed, passed, unproven
from validate.next_steps import BUILD, BUILD_ANEW, READ_LAYERS, REPORT, VALIDATE_AGAIN

BUILDS_NEEDED = 2
"""One build does not show that the next one gives the same bytes."""
SETTINGS_ROW = "settings"
"""The name under which the image's settings stand among the layers."""
SUITE = "suite"
"""The name of the layer with the copy of this suite. No build of it is recorded: instead, its paths
are compared with those of the suite."""
_UNREAD = "the engine's store is not on this machine, or only root can read it"
"""For evidence of before 2026-11-29, which does not say why layers were unread."""
OUR_TOOLS = (
    "/opt/truetag",
    "/usr/local/bin/validate",
    "/usr/local/bin/doctor",
    "/usr/local/bin/entrypoint",
    "/etc/profile.d/truetag_additions.sh",
)
"""What an image needs for `pip install`, `validate`, `doctor` and its start
(templates/scripts/suite.sh, templates/stages/image.j2). No package lists these files."""
_DIGEST_CHARACTERS = 12
_STEP_CHARACTERS = 80
"""How much of a step (`RUN pip install ...`) a reason quotes."""


class ExpectedLayer(TypedDict):
    """A layer of the recipe, as the record has it."""

    layer: str
    """Its name; `settings` stands for the image's configuration."""
    recipe: str
    """The digest of its recipe."""
    diff_id: str
    """The digest of its files in canonical form; empty: no build of this recipe is recorded."""
    written_as: list[str]
    """Other digests of the same files: diff IDs that engines gave them, and the digest of what the
    layer changes. The host need not read a layer that has one of these diff IDs."""
    builds: list[str]
    """The engines or recorded runs that gave it, one a build."""


class OriginExpectation(TypedDict):
    """What the claim expects."""

    recipe: str
    """The digest of the whole image's recipe."""
    layers: list[ExpectedLayer]
    """The lowest first; `settings` is the last."""
    arguments: str
    """Arguments for the commands that reasons name: the image, its base if it is a custom one, and
    --wheelhouse if it was built with that."""
    is_derived: bool
    """Whether the image was built on an image of the recipe. Its settings and the layers on top are
    then its own."""


class MeasuredLayer(TypedDict):
    """A layer of the image, or its settings, by the name of the layer in the recipe."""

    layer: str
    diff_id: str


class StepChange(TypedDict):
    """What one step of a derived image did to the files below."""

    step: str
    replaced: dict[str, str]
    """Path -> what is different: `content`, `mode`."""
    removed: list[str]
    count: int
    """How many paths were replaced or removed. The lists are cut."""


class _OriginEvidence(TypedDict):
    recipe: str
    """The recipe that the image's label names; empty: it has no such label."""
    layers: list[MeasuredLayer]
    """The lowest first, those of the base as one, and last its settings; empty: they can't be told
    apart."""
    canonical: bool
    """Whether the layers were read in the engine's store. If not, a layer that differs may hold the
    same files in another form."""
    beside_suite: list[str]
    """Paths in the suite's layer that are not the suite's."""
    changes: list[StepChange]
    """What the steps of a derived image did."""


class OriginEvidence(_OriginEvidence, total=False):
    """What the host measured."""

    unread: str
    """Why the layers were not read, and where they can be; absent: they were."""


class LayerComparison(NamedTuple):
    """The layers of an image beside those that are recorded for its recipe."""

    expected: list[ExpectedLayer]
    """The recorded ones. Settings of a derived image are left out: they are its own."""
    measured: dict[str, str]
    """Name of a layer -> its diff ID in the image."""
    differing: list[ExpectedLayer]
    """Recorded layers that the image has with other bytes or lacks."""
    strange: list[str]
    """Layers that no step of the recipe makes. They are looked for only if none is differing."""
    unproven: list[str]
    """Layers that are not recorded for two builds."""

    def describe_difference(self) -> str:
        """Return a sentence that names the layers that are not as recorded; empty: all are."""
        # One of the two lists is empty.
        names = [layer["layer"] for layer in self.differing] or self.strange
        if not names:
            return ""
        return f"locks/layers.json has other digests, or none, for these layers: {listed(names)}"


def compare_layers(expect: OriginExpectation, evidence: OriginEvidence) -> LayerComparison:
    """Compare the layers of an image with those of recorded builds of the same steps.

    Layers are compared by the digest of their files (`diff_id`). The image's settings, such as its
    variables, are compared like a layer (SETTINGS_ROW). Those of an image that a user built on ours
    are not compared: they are the user's own.
    """
    measured = {layer["layer"]: layer["diff_id"] for layer in evidence["layers"]}
    expected = []
    for layer in expect["layers"]:
        if layer["layer"] != SETTINGS_ROW or not expect["is_derived"]:
            expected.append(layer)

    differing = []
    unproven_layers = []
    for layer in expected:
        name = layer["layer"]
        # If no build of the layer is recorded, its diff ID is empty, and `builds` is, too.
        is_recorded = bool(layer["diff_id"])
        if is_recorded and measured.get(name) != layer["diff_id"]:
            differing.append(layer)
        elif len(layer["builds"]) < BUILDS_NEEDED:
            unproven_layers.append(name)

    # Look for layers that no recipe makes. A derived image may have layers of its own. And if a
    # layer differs, that explains more than a layer too many would.
    strange = []
    if not differing and not expect["is_derived"]:
        # The suite's own layer is in no recipe (see SUITE).
        known = {SUITE, SETTINGS_ROW, *(layer["layer"] for layer in expected)}
        strange = [name for name in measured if name not in known]
    return LayerComparison(expected, measured, differing, strange, unproven_layers)


def judge(_subject: str, expect: OriginExpectation, evidence: OriginEvidence) -> Finding:
    """Pass if each layer of an image has the bytes that two recorded builds of the same steps gave.

    FAIL means that the same steps gave other bytes, that foreign files are in the layer of our own
    checks, or that a user who built on the image changed these checks (OUR_TOOLS). UNPROVEN means
    that no two builds are recorded, or that layers can't be compared.
    """
    tool_faults = list(describe_changed_tools(evidence["changes"]))
    if tool_faults:
        return failed("; ".join(tool_faults))
    layers = compare_layers(expect, evidence)
    recording = command("reproduce", expect["arguments"], "--record")
    next_step = (
        "nothing needs to be done for the image to work; to have its layers compared, record them "
        f"(`{recording}` builds the image twice), then validate it again: {VALIDATE_AGAIN}"
    )
    # First: are there layers on both sides that could be compared?
    if not layers.expected:
        return unproven("no layers of this image are recorded, to compare them with", next_step)
    if not layers.measured:
        return unproven(
            "the image's history names more or fewer steps that made a layer than the image has "
            "layers, so truetag can't tell which step made which layer",
            "build the image again by BuildKit (Docker 23 or newer), on a base image that was "
            "built so, too: `docker commit`, `docker import` and --squash make such a history",
        )

    # Then: does something differ, and does it prove a fault?
    excuse = excuse_difference(layers, expect, evidence)
    if excuse:
        return excuse
    faults = find_faults(layers, expect, evidence)
    if faults:
        return failed("; ".join(faults))

    # Nothing differs. Last: was everything compared, with enough builds?
    if layers.unproven:
        names = listed(layers.unproven, limit=5)
        return unproven(
            "it takes two recorded builds to compare layers with, and of these layers there are "
            f"fewer: {names}",
            next_step,
        )
    # If layers can't be read (`canonical`), nobody has looked for foreign files in the layer of our
    # own checks.
    if not evidence["canonical"] and SUITE in layers.measured:
        return unproven(
            "the layer with truetag's own checks can't be read here, so nobody looked for other "
            f"files in it: {evidence.get('unread', _UNREAD)}",
            READ_LAYERS,
        )
    return passed(describe_success(layers, expect, evidence))


def describe_changed_tools(changes: Sequence[StepChange]) -> Iterator[str]:
    """Yield a sentence for each step of a derived image that changed or removed files of OUR_TOOLS.

    A Dockerfile that empties /opt, for example, removes what keeps `pip install` from moving torch.
    """
    for change in changes:
        paths = [*change["removed"], *change["replaced"]]
        tools = [path for path in paths if concerns_our_tools(path)]
        if tools:
            step = change["step"][:_STEP_CHARACTERS]
            yield (
                f"`{step}` changes {listed(tools)}, which `pip install`, `validate`, `doctor` or "
                "the entrypoint of this image need"
            )


def concerns_our_tools(path: str) -> bool:
    """Return whether a path is one of OUR_TOOLS, lies in one, or is a folder above one."""
    for tool in OUR_TOOLS:
        if path == tool or path.startswith(f"{tool}/") or tool.startswith(f"{path}/"):
            return True
    return False


def excuse_difference(
    layers: LayerComparison, expect: OriginExpectation, evidence: OriginEvidence
) -> Finding | None:
    """Return UNPROVEN if layers differ from recorded ones, but the image may be right all the same.

    That is so if it was built by other steps (`recipe`) than this checkout has, or if its layers
    could not be read to compare the files. None if a difference proves a fault, or if there is
    none.
    """
    difference = layers.describe_difference()
    if not difference:
        return None

    # An older checkout, an edited template or another lock gives other bytes rightly.
    if evidence["recipe"] != expect["recipe"]:
        if evidence["recipe"]:
            made_by = "from another lock or other build steps than this checkout has"
        else:
            made_by = "by a release of truetag that did not note down the build steps"
        return unproven(
            f"{difference}. This proves no fault: the image was built {made_by}",
            f"build the image again with this checkout: `{BUILD}`",
        )
    # Only digests that were made by reading the layers (`canonical`) are the same on all engines.
    # Layers too many (`strange`) are a fault in any case.
    if layers.differing and not evidence["canonical"]:
        return unproven(
            f"{difference}. This proves no fault, as a layer with the same files can be stored in "
            "another form, and the files in them could not be compared: "
            f"{evidence.get('unread', _UNREAD)}",
            READ_LAYERS,
        )
    return None


def find_faults(
    layers: LayerComparison, expect: OriginExpectation, evidence: OriginEvidence
) -> list[str]:
    """Return what is wrong with the layers: foreign files, other bytes, and unknown layers.

    If layers have other bytes, the last entry is the command that names the files.
    """
    faults = []
    for path in evidence["beside_suite"]:
        faults.append(
            f"{path} is in the layer of truetag's own checks, and belongs to none of them"
        )
    for layer in layers.differing:
        faults.append(describe_difference(layer, layers.measured.get(layer["layer"], "")))
    for name in layers.strange:
        faults.append(f"the image has a layer {name}, which none of its build steps makes")
    if layers.differing:
        comparing = command("reproduce", expect["arguments"], "--beside IMAGE")
        faults.append(f"`{comparing}` names the files that differ")
    return faults


def describe_difference(layer: ExpectedLayer, diff_id: str) -> str:
    """Return how a layer of the image, with this diff ID, differs from the recorded one.

    The sentence has the beginnings of both digests, and the builds that gave the recorded one.
    `diff_id` is empty if the image lacks the layer.
    """
    recorded = layer["diff_id"].removeprefix("sha256:")[:_DIGEST_CHARACTERS]
    measured = diff_id.removeprefix("sha256:")[:_DIGEST_CHARACTERS]
    subject = f"the layer {layer['layer']}"
    if layer["layer"] == SETTINGS_ROW:
        subject = "the record of the image's settings (variables, user, labels)"
    has = f"has the digest {measured}" if measured else "is missing"
    builds = listed(layer["builds"])
    return f"{subject} {has}, and the same build steps gave {recorded} before ({builds})"


def describe_success(
    layers: LayerComparison, expect: OriginExpectation, evidence: OriginEvidence
) -> str:
    """Return which builds gave the same bytes, and what a derived image changes on top.

    To be called if all layers are as recorded. A derived image is one that a user built on ours.
    """
    builds = set()
    layer_count = 0
    for layer in layers.expected:
        builds.update(layer["builds"])
        # The settings are compared like a layer, but are not one.
        if layer["layer"] != SETTINGS_ROW:
            layer_count += 1

    success = f"{layer_count} layers are, bit for bit, what {listed(sorted(builds))} gave"
    if expect["is_derived"]:
        success += f"; {describe_changes(evidence['changes'])}"
    return success


def describe_changes(changes: Sequence[StepChange]) -> str:
    """Return what the steps of a derived image replaced and removed of the files below."""
    if not changes:
        return "its own steps replace and remove nothing of them"
    descriptions = []
    for change in changes:
        examples = listed([*change["removed"], *change["replaced"]])
        step = change["step"][:_STEP_CHARACTERS]
        descriptions.append(f"`{step}` changes {change['count']} paths ({examples})")
    return f"of their files, {'; '.join(descriptions)}"


CLAIMS = {"origin/layers": judge}
NEXT_STEPS = {
    "origin/layers": {
        " changes ": "take this step out of your Dockerfile, and build the image again",
        " gave ": f"build the image again (`{command('build', 'NAME', '--no-cache')}`): if it "
        "passes then, a mirror, a cache or an interrupted build had spoilt the layer; if it fails "
        "again, give the command at the end of the reason, which lists the files that differ",
        "": f"{BUILD_ANEW}; if it fails in the same way again, {REPORT}",
    }
}
