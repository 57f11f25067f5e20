"""S3: shared libraries find what they need, of one CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, failed, listed
from validate.judging.text import conclude, matches

Evidence = Mapping[str, Any]


TOOLKIT = "toolkit"


def judge(claim: Claim, evidence: Evidence) -> Finding:
    """S3. expect: {of, cuda_libraries, host, other_platforms, exceptions}; validation/claims says what each is."""
    if not evidence["files"]:
        return failed(f"there is no shared library in the {claim.expect['of']}")
    faults = [f"{one['path']} can't be loaded: {one['error']}" for one in evidence["unreadable"]]
    # What `import torch` misses, all that needs torch misses too: the root comes first.
    torch_misses = [one for one in evidence.get("torch_misses", ()) if not matches(one["name"], claim.expect["host"])]
    faults += [f"`import torch` misses {one['name']}, needed by {one['path']}" for one in torch_misses]
    linked = [_with_troubles(claim, one) for one in evidence["linked"]]
    troubled = [one for one in linked if one["troubles"] and not _excused(claim, one, linked)]
    faults += [_trouble(one) for one in sorted(troubled, key=lambda one: (not one["needs_cuda"], one["path"]))]
    if claim.expect["of"] == TOOLKIT:
        return conclude(faults, f"all {evidence['files']} libraries and programs find what they need")
    faults += _unowned(evidence["torch_holds"])
    faults += _other_majors(claim, evidence["provided"])
    faults += [_second_owner(one) for one in evidence["second_owners"]]
    good = f"all {evidence['files']} libraries and programs find what they need, one CUDA"
    assumed = sorted({PurePosixPath(one["path"]).name for one in linked if one["assumed"]})
    return conclude(faults, f"{good} (taking {listed(assumed)} to be loaded after their siblings)" if assumed else good)


def _with_troubles(claim: Claim, one: Mapping[str, Any]) -> dict[str, Any]:
    """`troubles`: what it needs and does not find, and what of another CUDA it needs, found or not.

    The driver's libraries come from the host.
    """
    missing = [name for name in one["missing"] if not matches(name, claim.expect["host"])]
    foreign = [name for name in one["needs_cuda"] if _is_other_major(claim, name)]
    return {**one, "missing": missing, "troubles": sorted({*missing, *foreign})}


def _trouble(one: Mapping[str, Any]) -> str:
    what = f"{one['path']} of {listed(one['owners']) or 'no distribution'} needs"
    if one["missing"]:
        return f"{what} {listed(one['missing'])}, which the loader does not find"
    return f"{what} {listed(one['troubles'])} of another CUDA major than torch's"


def _excused(claim: Claim, one: Mapping[str, Any], linked: Sequence[Mapping[str, Any]]) -> bool:
    """A named exception, or an alternative: made for another platform, where a sibling serves this image's CUDA."""
    if any(_covers(exception, one["path"], one["troubles"]) for exception in claim.expect["exceptions"]):
        return True
    foreign = claim.expect["other_platforms"]
    elsewhere = all(matches(name, foreign) or _is_other_major(claim, name) for name in one["troubles"])
    siblings = (other for other in linked if _family(other["path"]) == _family(one["path"]))
    return elsewhere and any(_serves(claim, other) for other in siblings)


def _covers(exception: Mapping[str, Any], path: str, names: Iterable[str]) -> bool:
    return matches(path, [f"*/{exception['path']}"]) and all(matches(name, exception["names"]) for name in names)


def _family(path: str) -> str:
    """What alternatives share: `.../bitsandbytes/libbitsandbytes_` of `libbitsandbytes_cuda126.so`."""
    folder, _, name = path.rpartition("/")
    head, underscore, _ = name.partition(".so")[0].rpartition("_")
    return f"{folder}/{head}{underscore}" if head else path


def _serves(claim: Claim, one: Mapping[str, Any]) -> bool:
    """Whether a library finds all it needs and is linked against this image's CUDA."""
    return not one["troubles"] and any(_is_own_major(claim, name) for name in one["needs_cuda"])


def soname_major(name: str) -> tuple[str, str]:
    """`("libcudart", "11")` of `libcudart.so.11.0`."""
    stem, _, version = name.partition(".so.")
    return stem, version.partition(".")[0]


def _is_own_major(claim: Claim, name: str) -> bool:
    stem, major = soname_major(name)
    return bool(major) and claim.expect["cuda_libraries"].get(stem) == major


def _is_other_major(claim: Claim, name: str) -> bool:
    stem, major = soname_major(name)
    own = claim.expect["cuda_libraries"].get(stem)
    return own is not None and bool(major) and own != major


def _unowned(torch_holds: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Where wheels bring CUDA, torch must get all of it from wheels."""
    if any(held["owners"] for held in torch_holds.values()):
        for name, held in torch_holds.items():
            if not held["owners"]:
                yield f"torch gets {name} from {held['path']}, which no distribution owns"


def _other_majors(claim: Claim, provided: Sequence[Sequence[Any]]) -> Iterator[str]:
    for soname, path, owners in provided:
        excused = any(_covers(exception, path, [soname]) for exception in claim.expect["exceptions"])
        if _is_other_major(claim, soname) and not excused:
            yield f"{path} of {listed(owners) or 'no distribution'} is {soname}: another CUDA major than torch's"


def _second_owner(one: Mapping[str, Any]) -> str:
    return f"{one['name']} of {listed(one['owners'])} has a rival on the loader's path: {one['other']}"
