"""S8: labels, size, settings and history, as the engine's host sees them: users read labels, and pay for bytes.

The host measures it (images/validation/run.py): a container can't see its own image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.judging import Finding, conclude, failed, listed, passed


class _Architecture(TypedDict, total=False):
    architecture: str
    """In Docker's words."""


class _Configuration(TypedDict, total=False):
    command: list[str]
    directory: str
    further: dict[str, Any]
    """Settings that none of our images has: signals, volumes, steps of a health check or of a child's build."""
    variables: list[str]
    """Names alone: values may be secrets."""


class HostImageEvidence(_Architecture, _Configuration):
    """What the engine's host measures of an image."""

    labels: dict[str, str]
    bytes: int
    user: str
    entrypoint: list[str]
    driver: dict[str, str]
    """NVIDIA_* variables."""
    secrets: list[Mapping[str, str]]
    """`where`, and its `kind`."""


_COMMAND, _DIRECTORY = ["bash"], "/workspace"
"""How our Dockerfiles end (templates/stages/image.j2)."""


def judge_labels(_subject: str, expect: Mapping[str, Any], evidence: HostImageEvidence) -> Finding:
    """expect: {labels: {name: value}, architecture}. That the image holds what these values say is S1's to check."""
    found, expected = evidence["labels"], expect["labels"]
    faults = [
        f"the label {name} is {found.get(name)!r}, {value!r} is true"
        for name, value in expected.items()
        if found.get(name) != value
    ]
    architecture, wanted = evidence.get("architecture", ""), expect.get("architecture", "")
    if wanted and architecture != wanted:
        faults.append(f"its configuration says that it is for {architecture or 'no architecture'}, {wanted} is true")
    return conclude(faults, f"{len(expected)} labels say what the matrix says")


def judge_size(_subject: str, expect: Mapping[str, Any], evidence: HostImageEvidence) -> Finding:
    """expect: {bytes: the most}."""
    size, most = evidence["bytes"] / 1e9, expect["bytes"] / 1e9
    if evidence["bytes"] > expect["bytes"]:
        return failed(f"the image is {size:.2f} GB, at most {most:.1f} GB is expected")
    return passed(f"{size:.2f} GB of at most {most:.1f} GB")


def judge_settings(_subject: str, expect: Mapping[str, Any], evidence: HostImageEvidence) -> Finding:
    """expect: {capabilities: what the container runtime must inject of the driver, entrypoint, variables: names of all
    that the image sets; absent: others may be set, too}."""
    faults = [f"it runs as {evidence['user'] or 'root'}"] if evidence["user"] in ("", "0", "root") else []
    expected = expect["entrypoint"]
    if evidence["entrypoint"] != expected:
        found = " ".join(evidence["entrypoint"])[:80] or "none"
        faults.append(f"an entrypoint comes before what users run: {found}, {' '.join(expected) or 'none'} is expected")
    if "variables" in expect:
        faults += _of_nobody(expect["variables"], evidence)
    driver = evidence["driver"]
    injected = driver.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    lacking = [] if "all" in injected else [one for one in expect["capabilities"] if one not in injected]
    if lacking:
        faults.append(f"NVIDIA_DRIVER_CAPABILITIES={','.join(injected)} lacks {listed(lacking)}")
    if driver.get("NVIDIA_VISIBLE_DEVICES") in (None, "", "void", "none"):
        faults.append(f"NVIDIA_VISIBLE_DEVICES={driver.get('NVIDIA_VISIBLE_DEVICES')} hides every GPU")
    if driver.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        faults.append("NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off")
    start = f"entrypoint {' '.join(expected)}" if expected else "no entrypoint"
    return conclude(faults, f"user {evidence['user']}, {start}, the driver's {listed(injected)}")


def _of_nobody(variables: Sequence[str], evidence: HostImageEvidence) -> Iterator[str]:
    """What the configuration sets and our Dockerfiles do not: it can change what runs, how fast, or how it ends."""
    for name in evidence.get("variables", ()):
        if name not in variables:
            yield f"it sets the variable {name}, which no part of the matrix sets"
    for name, value in evidence.get("further", {}).items():
        yield f"its configuration sets {name} to {str(value)[:80]}, and that of no image of ours does"
    if (command := evidence.get("command", _COMMAND)) != _COMMAND:
        yield f"it starts {' '.join(command)[:80] or 'nothing'}, {_COMMAND[0]} is expected"
    if (directory := evidence.get("directory", _DIRECTORY)) != _DIRECTORY:
        yield f"it starts in {directory or '/'}, {_DIRECTORY} is expected"


def judge_history(_subject: str, _expect: Mapping[str, Any], evidence: HostImageEvidence) -> Finding:
    faults = [f"{one['where']} holds {one['kind']}" for one in evidence["secrets"]]
    return conclude(faults, "no credential in variables, labels and build steps")


CLAIMS = {
    "S8 labels": judge_labels,
    "S8 size": judge_size,
    "S8 settings": judge_settings,
    "S8 history": judge_history,
}
