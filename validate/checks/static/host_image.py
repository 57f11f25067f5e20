"""image: labels, size, settings and history, as the engine's host sees them: users read labels, and pay for bytes.

The host measures it (images/validation/host_look.py): a container can't see its own image. What else the configuration
of an image of ours sets, and which steps made its layers, is `origin`'s to compare with the record.
"""

from collections.abc import Iterator
from typing import Any, TypedDict

from validate.claims import ImageKind
from validate.judging import Finding, conclude, failed, listed, passed, unproven

_USER = "1001"
"""Whom our Dockerfiles end with (templates/stages/image.j2)."""
_LABELS = "dev.truetag."
_PARENTS_FOLDERS = (
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
    """Labels that say what the image is."""

    silent: list[str]
    """Faults that are known of these versions."""
    revision: str
    """Of the matrix."""
    architecture: str
    """In Docker's words; absent: any."""


class SizeExpect(TypedDict):
    """The most that an image may take."""

    bytes: int


class _SettingsExpect(TypedDict):
    capabilities: list[str]
    entrypoint: list[str]


class SettingsExpect(_SettingsExpect, total=False):
    """What of the driver the container runtime must inject (`capabilities`), and how the image starts."""

    image_kind: ImageKind
    """A derived image's user, start and health check are its own."""
    variables: list[str]
    """Names that our build sets; absent: not known."""


class LayersExpect(TypedDict, total=False):
    """Whose layers they are: what somebody's base or steps hide is theirs. Absent: ours."""

    image_kind: ImageKind


class Credential(TypedDict):
    """Where a credential stands, and of which kind it is. Never what it is."""

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
    """What the engine says of an image. `driver`: its NVIDIA_* variables. Runs long ago lack the rest."""

    architecture: str
    """In Docker's words."""
    further: dict[str, Any]
    """Settings that none of our images has: signals, volumes, ports, steps of a health check or of a derived build."""


class HiddenCredential(TypedDict):
    """A file of a layer that holds a credential."""

    path: str
    kind: str


class LayersEvidence(TypedDict, total=False):
    """What travels with an image in its layers, or why they can't be read (`unread`)."""

    unread: str
    files: int
    """Of all layers."""
    hidden: list[str]
    """Files that a later layer hides, but for a base's that steps replace."""
    secrets: list[HiddenCredential]


def judge_labels(_subject: str, expect: LabelsExpect, evidence: ImageEvidence) -> Finding:
    """Compare labels with the matrix. That the image holds what they say is `pins`'s to check."""
    measured = evidence["labels"]
    faults = []
    for name, value in expect["labels"].items():
        if measured.get(name) != value:
            faults.append(f"the label {name} is {measured.get(name)!r}, {value!r} is true")

    architecture = evidence.get("architecture", "")
    expected_architecture = expect.get("architecture", "")
    if expected_architecture and architecture != expected_architecture:
        measured_architecture = architecture or "no architecture"
        faults.append(
            f"its configuration says that it is for {measured_architecture}, {expected_architecture} is true"
        )

    named = measured.get(f"{_LABELS}silent-faults", "").split()
    unnamed = [issue for issue in expect.get("silent", ()) if issue not in named]
    if unnamed and not faults:
        return unproven(
            f"its label of silent faults does not name {listed(unnamed)}, as if built before they were known"
        )

    good = f"{len(expect['labels'])} labels say what the matrix says"
    revision = measured.get(f"{_LABELS}matrix-revision")
    # Any edit of the matrix moves it: images that this leaves as they are stay good.
    if expect.get("revision", revision) != revision:
        good += f", by revision {revision}"
    return conclude(faults, good)


def judge_size(_subject: str, expect: SizeExpect, evidence: ImageEvidence) -> Finding:
    """Fail where an image takes more bytes than it may."""
    size, most = evidence["bytes"] / 1e9, expect["bytes"] / 1e9
    if evidence["bytes"] > expect["bytes"]:
        return failed(f"the image is {size:.2f} GB, at most {most:.1f} GB is expected")
    return passed(f"{size:.2f} GB of at most {most:.1f} GB")


def judge_settings(_subject: str, expect: SettingsExpect, evidence: ImageEvidence) -> Finding:
    """Judge how an image starts, as whom, and with which of the driver's libraries."""
    is_derived = expect.get("image_kind") == ImageKind.DERIVED
    entrypoint = evidence["entrypoint"]
    faults: list[str] = []
    if is_derived:
        faults += find_changes_of_start(expect, evidence)
    else:
        if evidence["user"] != _USER:
            faults.append(f"it runs as {evidence['user'] or 'root'}")
        if entrypoint != expect["entrypoint"]:
            measured = " ".join(entrypoint)[:80] or "none"
            expected = " ".join(expect["entrypoint"]) or "none"
            faults.append(
                f"an entrypoint comes before what users run: {measured}, {expected} is expected"
            )
    faults += find_hidden_gpus(expect["capabilities"], evidence["driver"])

    injected = evidence["driver"].get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    start = f"entrypoint {' '.join(entrypoint)}" if entrypoint else "no entrypoint"
    good = f"user {evidence['user'] or 'root'}, {start}, the driver's {listed(injected)}"
    of_its_own = sorted(evidence.get("further", {}))
    if of_its_own:
        good += f"; of its own: {', '.join(of_its_own)}"
    return conclude(faults, good)


def find_changes_of_start(expect: SettingsExpect, evidence: ImageEvidence) -> Iterator[str]:
    """Yield settings of a derived image with which its containers do not have what its base image has."""
    for folder in sorted(evidence.get("further", {}).get("Volumes") or ()):
        if covers_parents_files(folder):
            yield f"{folder} is a volume: a container keeps its own copy of what the parent has there"

    driver = evidence["driver"]
    known = expect.get("variables", driver)
    for name in driver:
        if name.startswith("NVIDIA_REQUIRE_") and name not in known:
            yield f"{name} is set, and decides on which drivers a container starts at all"


def covers_parents_files(folder: str) -> bool:
    """Return whether a folder is one of our images' own, above one, or below one."""
    path = f"{folder.rstrip('/')}/"
    return any(path.startswith(f"{own}/") or f"{own}/".startswith(path) for own in _PARENTS_FOLDERS)


def find_hidden_gpus(capabilities: list[str], driver: dict[str, str]) -> Iterator[str]:
    """Yield variables that keep the container runtime from attaching GPUs, or libraries of the driver."""
    injected = driver.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    lacking = [capability for capability in capabilities if capability not in injected]
    if lacking and "all" not in injected:
        yield f"NVIDIA_DRIVER_CAPABILITIES={','.join(injected)} lacks {listed(lacking)}"
    if driver.get("NVIDIA_VISIBLE_DEVICES") in (None, "", "void", "none"):
        yield f"NVIDIA_VISIBLE_DEVICES={driver.get('NVIDIA_VISIBLE_DEVICES')} hides every GPU"
    if driver.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        yield "NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off"


def judge_layers(_subject: str, expect: LayersExpect, evidence: LayersEvidence) -> Finding:
    """Name files that no container has and that travel with the image, and credentials among the layers."""
    if "unread" in evidence:
        return unproven(evidence["unread"])
    faults = []
    for secret in evidence["secrets"]:
        faults.append(f"{secret['path']} of a layer holds {secret['kind']}, and travels with it")
    hidden = evidence["hidden"]
    if expect.get("image_kind", ImageKind.OURS) == ImageKind.OURS:
        faults += [f"{path} is in a layer and in no container" for path in hidden]
    return conclude(
        faults,
        f"{evidence['files']} entries of layers; hidden: {listed(hidden) if hidden else 'none'}",
    )


def judge_history(_subject: str, _expect: object, evidence: ImageEvidence) -> Finding:
    """Name each credential in what the engine says of an image."""
    faults = [f"{secret['where']} holds {secret['kind']}" for secret in evidence["secrets"]]
    return conclude(faults, "no credential in variables, labels and build steps")


CLAIMS = {
    "image/labels": judge_labels,
    "image/size": judge_size,
    "image/settings": judge_settings,
    "image/history": judge_history,
    "image/layers": judge_layers,
}
