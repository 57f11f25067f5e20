"""What the device code of an image means: GPUs by library, and drivers. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from images.audit.model import LibraryCode, Runs
from images.config.facts import Facts, nearest
from images.config.names import Minor
from validate.binaries import fatbin
from validate.compute_capability import target_runs_on

ARCHS = ("50", "60", "70", "75", "80", "86", "89", "90", "100", "120")
"""What the tables show: GPUs of servers and workstations, by compute capability."""
_LEAST_BYTES = 64 << 10
"""cuFFT's libraries hold a kernel of 320 bytes that nobody calls, and keep the others elsewhere."""
_FOR_CUDA = re.compile(r"_cuda(\d\d)(\d)\.so")


def library_code(survey: Mapping[str, Any]) -> tuple[LibraryCode, ...]:
    """Each library with device code, and the distribution whose folder it lies in."""
    found = []
    for row in survey["device_code"]:
        path = str(row["path"])
        # The name to show: of the first folder below site-packages, or of an nvidia- package of two; or of a toolkit.
        parts = path.partition("-packages/")[2].split("/")
        owner = "-".join(parts[: 2 if parts[0] == "nvidia" and len(parts) > 2 else 1]).partition(".")[0]
        if "-packages/" not in path:
            homes = (one for one in survey["toolkits"] if path.startswith(f"{one['home']}/"))
            owner = next((f"toolkit {one['version']}".strip() for one in homes), "")
        nvidia, error = fatbin.is_nvidias(owner, path), str(row.get("error", ""))
        found.append(LibraryCode(path=path, owner=owner, nvidia=nvidia, archs=row.get("archs", {}), error=error))
    return tuple(found)


def runs(code: Sequence[LibraryCode], cuda: str, archs: Sequence[str] = ARCHS) -> tuple[Runs, ...]:
    """How each package runs on each GPU architecture beside a torch of this CUDA, by the best served of its libraries.

    Left out: NVIDIA's libraries inside other packages, and alternatives for another CUDA, as bitsandbytes has them.
    """
    grouped: defaultdict[str, list[LibraryCode]] = defaultdict(list)
    for one in code:
        aside = one.nvidia and not one.owner.startswith(("nvidia", "toolkit"))
        if sum(one.archs.values()) >= _LEAST_BYTES and not aside:
            grouped[one.owner or one.path].append(one)
    found = []
    for package, every in sorted(grouped.items()):
        # Without alternatives for other CUDA versions: of each row of them one stays, by bitsandbytes' rule.
        numbers = ((one.path, _FOR_CUDA.search(one.path)) for one in every)
        alternatives = {path: Minor(int(found[1]), int(found[2])) for path, found in numbers if found}
        known = alternatives and re.fullmatch(r"\d+\.\d+", cuda)
        loaded = nearest(alternatives.values(), Minor.parse(cuda)) if known else None
        own = [one for one in every if not known or alternatives.get(one.path, loaded) == loaded]
        on = {}
        for arch in archs:
            gpu = divmod(int(arch), 10)
            fitting = [target for one in own for target in one.archs if target_runs_on(target, gpu)]
            has_code = any(target.startswith("sm_") for target in fitting)
            on[arch] = "machine code" if has_code else "PTX" if fitting else "no"
        found.append(Runs(package=package, libraries=len(own), on=on))
    return tuple(found)


def drivers(environments: Sequence[Mapping[str, Any]], facts: Facts) -> tuple[str, ...]:
    """`CUDA 12.8: driver 525.60.13 or newer (570.26 for PTX)` of each CUDA that a torch or a CUDA runtime is of."""
    found = {str(one["torch"].get("cuda", "")) for one in environments}
    for one in (row for environment in environments for row in environment["distributions"]):
        if str(one["name"]).startswith("nvidia-cuda-runtime"):
            found.add(".".join(str(one["version"]).split(".")[:2]))
    least = {cuda: facts.minimum_drivers.get(cuda.partition(".")[0]) for cuda in sorted(found - {""})}
    exact = {cuda: f" ({row.driver} for PTX)" for cuda, row in facts.cuda.items()}
    return tuple(
        f"CUDA {cuda}: driver {row.driver if row else 'not known'} or newer{exact.get(cuda, '')}"
        for cuda, row in least.items()
    )
