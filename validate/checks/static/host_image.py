"""image: judge an image's labels, size, settings, build history and layers.

The host measures them (images/validation/host_look.py), because a container can't see its own
image. Other settings of an image of ours, and the steps that made its layers, are left to `origin`,
which compares them with the record.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypedDict

from validate.claims import ImageKind
from validate.judging import Finding, conclude, failed, listed, passed, plural, unproven
from validate.next_steps import BUILD, BUILD_ANEW, READ_LAYERS, take_out

_USER = "1001"
"""The user with whom our Dockerfiles end (templates/stages/image.j2)."""
_LABELS = "dev.truetag."
"""How the names of our labels begin."""
_ENTRYPOINT_CHARACTERS = 80
"""How much of an entrypoint that is not ours a reason quotes."""
_OUR_FOLDERS = (
    "/usr",
    "/etc",
    "/bin",
    "/lib",
    "/lib64",
    "/sbin",
    "/opt/venv",
    "/opt/truetag",
    "/var/lib/dpkg",
)


class _LabelsExpect(TypedDict):
    labels: dict[str, str]


class LabelsExpect(_LabelsExpect, total=False):
    """What the claim about labels says: their names and values."""

    silent: list[str]
    """Issues of silent faults that are known of the image's versions."""
    revision: str
    """The revision of the matrix; absent: any."""
    architecture: str
    """As Docker names it: `amd64`; absent: any."""


class SizeExpect(TypedDict):
    """What the claim about the size says."""

    bytes: int
    """The most that the image may take."""


class _SettingsExpect(TypedDict):
    capabilities: list[str]
    entrypoint: list[str]


class SettingsExpect(_SettingsExpect, total=False):
    """What the claim about settings says.

    `capabilities` are the parts of the host's driver that the container runtime must inject.
    `entrypoint` is that of our images.
    """

    image_kind: ImageKind
    """A derived image has its own user, entrypoint and health check."""
    variables: list[str]
    """Names of variables that our build sets; absent: not known."""


class LayersExpect(TypedDict, total=False):
    """What the claim about layers says."""

    image_kind: ImageKind
    """Only in an image of ours, hidden files are a fault. Absent: ours."""


class Credential(TypedDict):
    """The place and kind of a credential, never its text."""

    where: str
    kind: str


class _ImageEvidence(TypedDict):
    labels: dict[str, str]
    bytes: int
    user: str
    entrypoint: list[str]
    driver: dict[str, str]
    secrets: list[Credential]


class ImageEvidence(_ImageEvidence, total=False):
    """What the engine says of an image. The fields below are absent in old runs.

    `driver` are its NVIDIA_* variables, by name.
    """

    architecture: str
    """As Docker names it: `amd64`."""
    further: dict[str, Any]
    """Settings that none of our images has: signals, volumes, ports, a health check, steps of a
    derived build."""


class HiddenCredential(TypedDict):
    """A file of a layer that holds a credential, and the credential's kind."""

    path: str
    kind: str


class WastedFiles(TypedDict):
    """Files of lower layers that a build step makes travel for nothing."""

    step: str
    """The beginning of the step; empty if it is not known."""
    layer: int
    """The number of its layer, from 1 on."""
    how: Literal["copied", "removed"]
    """`copied`: again, with the same content; another owner or mode, for example."""
    files: int
    bytes: int
    largest: str
    """The path of the largest of them."""


class LayersEvidence(TypedDict, total=False):
    """The files in the layers of an image, or only the reason why they can't be read."""

    unread: str
    """That reason."""
    files: int
    """The number of entries in all layers."""
    hidden: list[str]
    """Files that a later layer hides. Files of a base that steps replace are left out."""
    secrets: list[HiddenCredential]
    wasted: list[WastedFiles]
    """Most bytes first. Old runs do not have it."""


def judge_labels(_subject: str, expect: LabelsExpect, evidence: ImageEvidence) -> Finding:
    """Fail where a label, or the architecture, is not what the matrix says.

    One label names silent faults: issues of the image's versions that give wrong results without an
    error. The verdict is UNPROVEN if only this label is incomplete. Whether the versions in labels
    are true is left to `pins`.
    """
    measured = evidence["labels"]
    faults = []
    for name, value in expect["labels"].items():
        if measured.get(name) != value:
            faults.append(
                f"the label {name} is {measured.get(name) or 'missing'}, and should be {value}"
            )

    architecture = evidence.get("architecture", "")
    expected_architecture = expect.get("architecture", "")
    if expected_architecture and architecture != expected_architecture:
        measured_architecture = architecture or "no architecture"
        faults.append(
            f"the image's configuration says that it is for {measured_architecture}, and it is "
            f"for {expected_architecture}"
        )

    named = measured.get(f"{_LABELS}silent-faults", "").split()
    unnamed = [issue for issue in expect.get("silent", ()) if issue not in named]
    if unnamed and not faults:
        return unproven(
            f"the image's label of silent faults does not name {listed(unnamed)}: the image was "
            "built before truetag knew these faults",
            f"build the image again, by this release of truetag: `{BUILD}`",
        )

    good = f"{len(expect['labels'])} labels say what the matrix says"
    # Another revision is no fault: any edit of the matrix changes it, even for other images.
    revision = measured.get(f"{_LABELS}matrix-revision")
    if "revision" in expect and expect["revision"] != revision:
        good += f", by revision {revision}"
    return conclude(faults, good)


def judge_size(_subject: str, expect: SizeExpect, evidence: ImageEvidence) -> Finding:
    """Fail where an image takes more bytes than it may."""
    size = evidence["bytes"] / 1e9
    most = expect["bytes"] / 1e9
    if evidence["bytes"] > expect["bytes"]:
        return failed(f"the image is {size:.2f} GB, more than the {most:.1f} GB that are allowed")
    return passed(f"{size:.2f} GB of at most {most:.1f} GB")


def judge_settings(_subject: str, expect: SettingsExpect, evidence: ImageEvidence) -> Finding:
    """Fail where an image starts in another way than expected, or keeps GPUs from containers.

    A derived image may have its own user and entrypoint. A custom base may bring an entrypoint.
    """
    image_kind = expect.get("image_kind")
    is_derived = image_kind == ImageKind.DERIVED
    entrypoint = evidence["entrypoint"]
    # If our build sets no entrypoint, that of a custom base stays.
    is_of_base = image_kind == ImageKind.ON_CUSTOM_BASE and not expect["entrypoint"]
    # An image without USER runs as root.
    user = evidence["user"] or "root"
    faults: list[str] = []
    if is_derived:
        faults += describe_harmful_settings(expect, evidence)
    else:
        # An image that we build: all of its settings are known.
        if user != _USER:
            faults.append(f"containers of the image run as {user} (USER), and {_USER} is expected")
        if entrypoint != expect["entrypoint"] and not is_of_base:
            measured = " ".join(entrypoint)[:_ENTRYPOINT_CHARACTERS] or "none"
            expected = " ".join(expect["entrypoint"]) or "none"
            faults.append(f"the image's ENTRYPOINT is {measured}, and {expected} is expected")
    # `driver` has the image's NVIDIA_* variables, which the container runtime reads.
    faults += describe_hidden_gpus(expect["capabilities"], evidence["driver"])

    injected = evidence["driver"].get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    start = f"entrypoint {' '.join(entrypoint)}" if entrypoint else "no entrypoint"
    good = f"user {user}, {start}, the driver's {listed(injected)}"
    # Settings that none of our images has, such as ports.
    further = sorted(evidence.get("further", {}))
    if further:
        good += f"; of its own: {', '.join(further)}"
    return conclude(faults, good)


def describe_harmful_settings(expect: SettingsExpect, evidence: ImageEvidence) -> Iterator[str]:
    """Yield settings of a derived image that keep its containers from what its base image has.

    These are volumes over files of the base image, and variables that restrict the host's driver.
    """
    for folder in sorted(evidence.get("further", {}).get("Volumes") or ()):
        if covers_our_files(folder):
            yield (
                f"{folder} is a volume of the image, so each container keeps its own copy of what "
                "the base image has there"
            )

    # Older claims do not say which variables our build sets (`variables`). The image's variables
    # that NVIDIA's container runtime reads are in `driver`.
    if "variables" not in expect:
        return
    for name in evidence["driver"]:
        if name.startswith("NVIDIA_REQUIRE_") and name not in expect["variables"]:
            yield (
                f"the variable {name} is set, and decides on which drivers a container starts at "
                "all"
            )


def covers_our_files(folder: str) -> bool:
    """Return whether a folder is one in which our images have files, or is above or below one."""
    path = f"{folder.rstrip('/')}/"
    for our_folder in _OUR_FOLDERS:
        if path.startswith(f"{our_folder}/") or f"{our_folder}/".startswith(path):
            return True
    return False


def describe_hidden_gpus(capabilities: list[str], driver: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong if variables keep the container runtime from attaching GPUs.

    The runtime injects parts of the host's driver into a container, as these variables ask.
    `capabilities` are the parts that it must inject (`compute`, `utility`); `driver` is name ->
    value of the image's NVIDIA_* variables.
    """
    injected_text = driver.get("NVIDIA_DRIVER_CAPABILITIES", "")
    injected = injected_text.split(",")
    lacking = [capability for capability in capabilities if capability not in injected]
    if lacking and "all" not in injected:
        yield (
            f"the variable NVIDIA_DRIVER_CAPABILITIES={injected_text} lacks {listed(lacking)}, so "
            "containers get only a part of the driver"
        )
    visible = driver.get("NVIDIA_VISIBLE_DEVICES") or "not set"
    if visible in ("not set", "void", "none"):
        yield (
            f"the variable NVIDIA_VISIBLE_DEVICES is {visible}, which hides every GPU from "
            "containers"
        )
    if driver.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        yield "the variable NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off"


def judge_layers(_subject: str, expect: LayersExpect, evidence: LayersEvidence) -> Finding:
    """Fail where a layer holds a credential or, in an image of ours, a file that is hidden.

    Each pull downloads a file that a later layer removes or replaces (`hidden`), though no
    container sees it. It downloads a file twice that a later layer copies unchanged (`wasted`).
    The verdict is UNPROVEN if the layers could not be read.
    """
    if "unread" in evidence:
        return unproven(f"{_UNREAD}: {evidence['unread']}", READ_LAYERS)
    faults = []
    for secret in evidence["secrets"]:
        faults.append(
            f"{secret['path']} in a layer holds {secret['kind']}, and everybody who pulls the "
            "image gets it"
        )
    hidden = evidence["hidden"]
    wasted = [describe_wasted(files) for files in evidence.get("wasted", ())]
    good = f"{evidence['files']} entries of layers; hidden: {listed(hidden) or 'none'}"
    # Claims of old runs have no `image_kind`. All of them are about images of ours.
    if expect.get("image_kind", ImageKind.OURS) == ImageKind.OURS:
        faults += wasted
        faults += [
            f"{path} is still in a layer, though a later step removes it, so each pull takes it"
            for path in hidden
        ]
    elif wasted:
        good += f"; {'; '.join(wasted)}"
    return conclude(faults, good)


def judge_bytes(_subject: str, _expect: object, evidence: LayersEvidence) -> Finding:
    """Fail where build steps make bytes of lower layers travel for nothing.

    The verdict is UNPROVEN if the layers could not be read.
    """
    if "unread" in evidence:
        return unproven(f"{_UNREAD}: {evidence['unread']}", READ_LAYERS)
    faults = [describe_wasted(files) for files in evidence.get("wasted", ())]
    return conclude(faults, "no build step removes or copies what a lower layer brings")


def describe_wasted(files: WastedFiles) -> str:
    """Return a sentence that names a build step, its layer and the bytes that it wastes."""
    step = f"step `{files['step']}`" if files["step"] else "a step"
    megabytes = files["bytes"] / 1e6
    number = plural(files["files"], "file")
    what = f"{number} of lower layers ({megabytes:,.1f} MB; the largest is {files['largest']})"
    does = f"removes {what}"
    if files["how"] == "copied":
        does = f"copies {what}, with the same content"
    return f"{step} (layer {files['layer']}) {does}, so each pull takes them for nothing"


def judge_history(_subject: str, _expect: object, evidence: ImageEvidence) -> Finding:
    """Fail where variables, labels or build steps of the image hold a credential."""
    faults = [f"{secret['where']} holds {secret['kind']}" for secret in evidence["secrets"]]
    return conclude(faults, "no credential in variables, labels and build steps")


_UNREAD = "the files in the image's layers can't be read here"
CLAIMS = {
    "image/labels": judge_labels,
    "image/size": judge_size,
    "image/settings": judge_settings,
    "image/history": judge_history,
    "image/layers": judge_layers,
    "image/bytes": judge_bytes,
}
_REVOKE = (
    "revoke this credential if the image was ever pushed; then give it to the step that needs it "
    "as a build secret (`RUN --mount=type=secret`), so that no layer and no variable holds it, and "
    "build again"
)
_WASTE = {
    " copies ": "give these files their owner and mode in the step of your Dockerfile that brings "
    "them (`COPY --chown=USER --chmod=MODE`, or one RUN for both), not in a later step, and build "
    "the image again",
    "": "remove these files in the step of your Dockerfile that brings them, as a later step only "
    "hides them, and build the image again",
}
"""Reason -> what to do about files that each pull takes for nothing. The image itself works."""
NEXT_STEPS = {
    "image/labels": f"build the image again from this matrix.yaml: `{BUILD}`; if its labels are "
    "still wrong, another image was given this name (`docker tag`): validate that one by its own "
    "name",
    "image/size": f"look for the largest layers by `docker history IMAGE`, take what nobody needs "
    "out of your Dockerfile or of the pins of matrix.yaml, and build the image again; if you "
    f"changed neither since the image was smaller, {BUILD_ANEW}",
    "image/settings": {
        "run as": take_out("the USER line that sets this user"),
        "ENTRYPOINT": take_out("the ENTRYPOINT line that sets this"),
        " is a volume": take_out("the VOLUME line that names this folder"),
        "": take_out("the ENV line that sets this variable"),
    },
    "image/history": _REVOKE,
    "image/layers": {" holds ": _REVOKE, **_WASTE},
    "image/bytes": _WASTE,
}
