"""S6: the CUDA toolkit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from validate.contracts.static import LoaderFolder, ToolkitEvidence, ToolkitExpect, ToolkitPart
from validate.judging import Finding, failed, listed, typed
from validate.judging.static.libraries import soname_major
from validate.judging.text import conclude


@typed
def judge(_subject: str, expect: ToolkitExpect, evidence: ToolkitEvidence) -> Finding:
    """S6. expect: {home, version, parts: [names]}."""
    home, version = expect["home"], expect["version"]
    if not evidence["home_exists"]:
        return failed(f"{home} does not exist")
    faults = [fault for part in expect["parts"] for fault in _part_faults(part, evidence["parts"][part], version)]
    faults += _home_faults(evidence, home)
    faults += [
        f"{one['folder']} is on the loader's path ({one['from']}): {why}"
        for one in evidence["loader_folders"]
        if (why := _bad_folder(one, evidence["real_home"]))
    ]
    faults += [f"the image brings the host driver's {one['path']} itself" for one in evidence["driver_libraries"]]
    of_torch = str(evidence["torch"]["cuda"])
    if of_torch.partition(".")[0] != version.partition(".")[0]:
        faults.append(f"the toolkit is CUDA {version}, torch is built for CUDA {of_torch}: majors must be equal")
    warning = f"; WARNING: torch is built for {of_torch}, another minor" if of_torch != version else ""
    return conclude(faults, f"CUDA {version} in {home}, {len(expect['parts'])} parts{warning}")


def _part_faults(part: str, found: ToolkitPart, version: str) -> Iterator[str]:
    if not found["files"]:
        yield f"the toolkit lacks {part}"
        return
    if found.get("absent"):
        yield f"the toolkit's {part} lack {listed(found['absent'])}"
    if "error" in found:
        yield f"{found['files'][0]} does not run: {found['error']}"
    elif "minor" in found and found["minor"] != version:
        yield f"{found['files'][0]} is of CUDA {found['minor']}, {version} is expected"
    for path, soname in found.get("sonames", {}).items():
        stem, major = soname_major(soname or "")
        if not stem:
            yield f"{path} is no shared library"
        elif stem == "libcudart" and major != version.partition(".")[0]:
            yield f"{path} is {soname}, CUDA {version} is expected"


def _home_faults(evidence: ToolkitEvidence, home: str) -> Iterator[str]:
    if evidence["variables"]["CUDA_HOME"] != home:
        yield f"CUDA_HOME is {evidence['variables']['CUDA_HOME']!r}, the toolkit is {home}"
    if evidence["variables"]["CUDA_PATH"] not in (None, home):
        yield f"CUDA_PATH is {evidence['variables']['CUDA_PATH']}, the toolkit is {home}"
    if evidence["default_link"] not in (None, evidence["real_home"]):
        yield f"the unversioned cuda link is {evidence['default_link']}, the toolkit is {home}"
    for name, path in evidence["programs_on_path"].items():
        if path and not path.startswith(f"{evidence['real_home']}/"):
            yield f"PATH finds {name} at {path}, outside of {home}"


def _bad_folder(one: LoaderFolder, real_home: str) -> str:
    for folder in (one["folder"], one["real"]):
        parts = PurePosixPath(folder).parts
        if "stubs" in parts:
            return "stubs stand in for the driver and do nothing"
        if "compat" in parts or any(part.startswith("cuda-compat") for part in parts):
            return "a forward-compatibility driver hides the host's"
        if folder == real_home or folder.startswith(f"{real_home}/"):
            return "the toolkit's libraries would shadow torch's"
    return ""
