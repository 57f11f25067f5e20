"""image: labels, size, settings and history, as the engine's host sees them: users read labels, and pay for bytes.

The host measures it (images/validation/host_look.py): a container can't see its own image. Evidence: {labels, bytes,
user, entrypoint, driver: NVIDIA_* variables, secrets: [{where, kind}]}, and not of runs long ago {architecture: in
Docker's words, command, directory, further: settings that none of our images has (signals, volumes, steps of a health
check or of a child's build), variables: names alone, as values may be secrets, layers: names of the steps that made
them}.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from validate.claims import ImageKind
from validate.judging import Finding, conclude, failed, listed, passed, unproven

_COMMAND, _DIRECTORY, _USER = ["bash"], "/workspace", "1001"
"""How our Dockerfiles end (templates/stages/image.j2)."""


_ENDING = ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGRTMIN+3", "SIGWINCH")
"""Signals that a program can answer, by writing a checkpoint, say."""
_LABELS = "dev.truetag."
_PARENTS_FOLDERS = ("/usr", "/etc", "/bin", "/lib", "/lib64", "/sbin", "/opt/venv", "/opt/truetag", "/var/lib/dpkg")
_GROUP_OF_SYSTEM = re.compile(r".*:0*[1-9]\d?\d?")  # Debian policy, 9.2.2


def judge_labels(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: {labels: {name: value}, revision: the matrix's, silent: faults that are known of these versions,
    architecture}. That the image holds what the values say is `pins`'s to check."""
    found, expected = evidence["labels"], expect["labels"]
    faults = [
        f"the label {name} is {found.get(name)!r}, {value!r} is true"
        for name, value in expected.items()
        if found.get(name) != value
    ]
    architecture, wanted = evidence.get("architecture", ""), expect.get("architecture", "")
    if wanted and architecture != wanted:
        faults.append(f"its configuration says that it is for {architecture or 'no architecture'}, {wanted} is true")
    unsaid = [
        issue for issue in expect.get("silent", ()) if issue not in found.get(f"{_LABELS}silent-faults", "").split()
    ]
    if unsaid and not faults:
        return unproven(
            f"its label of silent faults does not name {listed(unsaid)}, as if built before they were known"
        )
    good, revision = f"{len(expected)} labels say what the matrix says", found.get(f"{_LABELS}matrix-revision")
    # Any edit of the matrix moves it: images that this leaves as they are stay good.
    return conclude(faults, good if expect.get("revision", revision) == revision else f"{good}, by revision {revision}")


def judge_size(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: {bytes: the most}."""
    size, most = evidence["bytes"] / 1e9, expect["bytes"] / 1e9
    if evidence["bytes"] > expect["bytes"]:
        return failed(f"the image is {size:.2f} GB, at most {most:.1f} GB is expected")
    return passed(f"{size:.2f} GB of at most {most:.1f} GB")


def judge_settings(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: {capabilities: what the container runtime must inject of the driver, entrypoint, variables: names of all
    that the image sets, absent: others may be set, too, layers: names of steps that make one, image_kind: a derived
    image's user, start and health check are its own}.
    """
    faults, expected = list[str](), expect["entrypoint"]
    is_derived = expect.get("image_kind") == ImageKind.DERIVED
    driver = evidence["driver"]
    if evidence["user"] != _USER and not is_derived:
        faults.append(f"it runs as {evidence['user'] or 'root'}")
    if evidence["entrypoint"] != expected and not is_derived:
        found = " ".join(evidence["entrypoint"])[:80] or "none"
        faults.append(f"an entrypoint comes before what users run: {found}, {' '.join(expected) or 'none'} is expected")
    if is_derived:
        expected = evidence["entrypoint"]
        faults += _of_a_child(evidence.get("further", {}))
        known = expect.get("variables", driver)
        required = [name for name in driver if name.startswith("NVIDIA_REQUIRE_") and name not in known]
        faults += [f"{name} is set, and decides on which drivers a container starts at all" for name in required]
    elif "variables" in expect:
        faults += _of_nobody(expect, evidence)
    injected = driver.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    lacking = [] if "all" in injected else [one for one in expect["capabilities"] if one not in injected]
    if lacking:
        faults.append(f"NVIDIA_DRIVER_CAPABILITIES={','.join(injected)} lacks {listed(lacking)}")
    if driver.get("NVIDIA_VISIBLE_DEVICES") in (None, "", "void", "none"):
        faults.append(f"NVIDIA_VISIBLE_DEVICES={driver.get('NVIDIA_VISIBLE_DEVICES')} hides every GPU")
    if driver.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        faults.append("NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off")
    start = f"entrypoint {' '.join(expected)}" if expected else "no entrypoint"
    good = f"user {evidence['user'] or 'root'}, {start}, the driver's {listed(injected)}"
    told = sorted(evidence.get("further", {}))
    told += ["a group of the system's, whose files it reads"] if _GROUP_OF_SYSTEM.fullmatch(evidence["user"]) else []
    return conclude(faults, f"{good}; of its own: {', '.join(told)}" if told else good)


def _of_a_child(further: Mapping[str, Any]) -> Iterator[str]:
    signal = str(further.get("StopSignal", "SIGTERM"))
    if signal not in _ENDING and signal not in ("1", "2", "3", "10", "12", "15"):
        yield f"it is stopped by {signal}, which no program can answer: what runs ends without a checkpoint"
    for folder in sorted(further.get("Volumes") or ()):
        path = f"{folder.rstrip('/')}/"
        if any(path.startswith(f"{one}/") or f"{one}/".startswith(path) for one in _PARENTS_FOLDERS):
            yield f"{folder} is a volume: a container keeps its own copy of what the parent has there"
    if further.get("OnBuild"):
        yield f"ONBUILD changes what is built on it: {listed([str(one)[:80] for one in further['OnBuild']])}"


def _of_nobody(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    """What the configuration sets and our Dockerfiles do not: it can change what runs, how fast, or how it ends."""
    layers = evidence.get("layers", expect.get("layers")) or ["of no history"]
    yield from (f"no step of ours makes the layer {one}" for one in layers if one not in expect.get("layers", layers))
    for name in evidence.get("variables", ()):
        if name not in expect["variables"]:
            yield f"it sets the variable {name}, which no part of the matrix sets"
    for name, value in evidence.get("further", {}).items():
        yield f"its configuration sets {name} to {str(value)[:80]}, and that of no image of ours does"
    if (command := evidence.get("command", _COMMAND)) != _COMMAND:
        yield f"it starts {' '.join(command)[:80] or 'nothing'}, {_COMMAND[0]} is expected"
    if (directory := evidence.get("directory", _DIRECTORY)) != _DIRECTORY:
        yield f"it starts in {directory or '/'}, {_DIRECTORY} is expected"


def judge_layers(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: {image_kind: what somebody's base or steps hide is theirs}. evidence: {unread: why}, or {files: of all
    layers, hidden: those that a later one hides, but for a base's that steps replace, secrets: [{path,
    kind}] in any of these}."""
    if "unread" in evidence:
        return unproven(evidence["unread"])
    hidden = evidence["hidden"]
    faults = [f"{one['path']} of a layer holds {one['kind']}, and travels with it" for one in evidence["secrets"]]
    if expect.get("image_kind", ImageKind.OURS) == ImageKind.OURS:
        faults += [f"{path} is in a layer and in no container" for path in hidden]
    return conclude(faults, f"{evidence['files']} entries of layers; hidden: {listed(hidden) if hidden else 'none'}")


def judge_history(_subject: str, _expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    faults = [f"{one['where']} holds {one['kind']}" for one in evidence["secrets"]]
    return conclude(faults, "no credential in variables, labels and build steps")


CLAIMS = {
    "image/labels": judge_labels,
    "image/size": judge_size,
    "image/settings": judge_settings,
    "image/history": judge_history,
    "image/layers": judge_layers,
}
