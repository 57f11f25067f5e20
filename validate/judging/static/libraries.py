"""S3: shared libraries find what they need, of one CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from validate.contracts.static import Held, LibrariesEvidence, LibrariesExpect, Linked, LinkException, SecondOwner
from validate.judging import Finding, failed, listed, typed
from validate.judging.text import conclude, matches

TOOLKIT = "toolkit"


class _Troubled(Linked):
    troubles: list[str]


@typed
def judge(_subject: str, expect: LibrariesExpect, evidence: LibrariesEvidence) -> Finding:
    """S3. expect: {of, cuda_libraries, host, other_platforms, exceptions}; validation/claims says what each is."""
    if not evidence["files"]:
        return failed(f"there is no shared library in the {expect['of']}")
    faults = [f"{one['path']} can't be loaded: {one['error']}" for one in evidence["unreadable"]]
    # What `import torch` misses, all that needs torch misses too: the root comes first.
    torch_misses = [one for one in evidence.get("torch_misses", ()) if not matches(one["name"], expect["host"])]
    faults += [f"`import torch` misses {one['name']}, needed by {one['path']}" for one in torch_misses]
    linked = [_with_troubles(expect, one) for one in evidence["linked"]]
    troubled = [one for one in linked if one["troubles"] and not _excused(expect, one, linked)]
    faults += [_trouble(one) for one in sorted(troubled, key=lambda one: (not one["needs_cuda"], one["path"]))]
    if expect["of"] == TOOLKIT:
        return conclude(faults, f"all {evidence['files']} libraries and programs find what they need")
    faults += _unowned(evidence["torch_holds"])
    faults += _other_majors(expect, evidence["provided"])
    faults += [_second_owner(one) for one in evidence["second_owners"]]
    good = f"all {evidence['files']} libraries and programs find what they need, one CUDA"
    assumed = sorted({PurePosixPath(one["path"]).name for one in linked if one["assumed"]})
    return conclude(faults, f"{good} (taking {listed(assumed)} to be loaded after their siblings)" if assumed else good)


def _with_troubles(expect: LibrariesExpect, one: Linked) -> _Troubled:
    """`troubles`: what it needs and does not find, and what of another CUDA it needs, found or not.

    The driver's libraries come from the host.
    """
    missing = [name for name in one["missing"] if not matches(name, expect["host"])]
    foreign = [name for name in one["needs_cuda"] if _is_other_major(expect, name)]
    return {**one, "missing": missing, "troubles": sorted({*missing, *foreign})}


def _trouble(one: _Troubled) -> str:
    what = f"{one['path']} of {listed(one['owners']) or 'no distribution'} needs"
    if one["missing"]:
        return f"{what} {listed(one['missing'])}, which the loader does not find"
    return f"{what} {listed(one['troubles'])} of another CUDA major than torch's"


def _excused(expect: LibrariesExpect, one: _Troubled, linked: Sequence[_Troubled]) -> bool:
    """A named exception, or an alternative: made for another platform, where a sibling serves this image's CUDA."""
    if any(_covers(exception, one["path"], one["troubles"]) for exception in expect["exceptions"]):
        return True
    foreign = expect["other_platforms"]
    elsewhere = all(matches(name, foreign) or _is_other_major(expect, name) for name in one["troubles"])
    siblings = (other for other in linked if _family(other["path"]) == _family(one["path"]))
    return elsewhere and any(_serves(expect, other) for other in siblings)


def _covers(exception: LinkException, path: str, names: Iterable[str]) -> bool:
    return matches(path, [f"*/{exception['path']}"]) and all(matches(name, exception["names"]) for name in names)


def _family(path: str) -> str:
    """What alternatives share: `.../bitsandbytes/libbitsandbytes_` of `libbitsandbytes_cuda126.so`."""
    folder, _, name = path.rpartition("/")
    head, underscore, _ = name.partition(".so")[0].rpartition("_")
    return f"{folder}/{head}{underscore}" if head else path


def _serves(expect: LibrariesExpect, one: _Troubled) -> bool:
    """Whether a library finds all it needs and is linked against this image's CUDA."""
    return not one["troubles"] and any(_is_own_major(expect, name) for name in one["needs_cuda"])


def soname_major(name: str) -> tuple[str, str]:
    """`("libcudart", "11")` of `libcudart.so.11.0`."""
    stem, _, version = name.partition(".so.")
    return stem, version.partition(".")[0]


def _is_own_major(expect: LibrariesExpect, name: str) -> bool:
    stem, major = soname_major(name)
    return bool(major) and expect["cuda_libraries"].get(stem) == major


def _is_other_major(expect: LibrariesExpect, name: str) -> bool:
    stem, major = soname_major(name)
    own = expect["cuda_libraries"].get(stem)
    return own is not None and bool(major) and own != major


def _unowned(torch_holds: Mapping[str, Held]) -> Iterator[str]:
    """Where wheels bring CUDA, torch must get all of it from wheels."""
    if any(held["owners"] for held in torch_holds.values()):
        for name, held in torch_holds.items():
            if not held["owners"]:
                yield f"torch gets {name} from {held['path']}, which no distribution owns"


def _other_majors(expect: LibrariesExpect, provided: Sequence[tuple[str, str, Sequence[str]]]) -> Iterator[str]:
    for soname, path, owners in provided:
        excused = any(_covers(exception, path, [soname]) for exception in expect["exceptions"])
        if _is_other_major(expect, soname) and not excused:
            yield f"{path} of {listed(list(owners)) or 'no distribution'} is {soname}: another CUDA major than torch's"


def _second_owner(one: SecondOwner) -> str:
    return f"{one['name']} of {listed(one['owners'])} has a rival on the loader's path: {one['other']}"
