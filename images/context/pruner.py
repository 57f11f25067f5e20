"""The pruner as a build step runs it: the files of its folder, and what its result depends on. Pure."""

import json

from images.config.paths import SUITE, TEMPLATES
from images.host.hashing import sha256
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.planning import expectations
from images.planning.image import Pruning
from validate.binaries import fatbin

MODULES = (
    "__init__.py",
    "binaries/__init__.py",
    "binaries/elf.py",
    "binaries/fatbin.py",
    "compute_capability.py",
    "binaries/kernel_states.py",
)
"""What of the suite the pruner reads device code with."""
_AROUND = ("pruner/__main__.py", "pruner/normalise_timestamps.py")
"""Which files are pruned, and their times: their bytes don't depend on it."""


def files(wanted: Pruning) -> dict[str, bytes]:
    """A program that runs in the step that installs: with the reader of fat binaries that the suite has."""
    options = {
        "arch": int(f"{wanted.arch.major}{wanted.arch.minor}"),
        "nvidia": wanted.nvidia,
        "alternatives": [
            {"files": files, "keep": keep} for files, keep in wanted.alternatives.items()
        ],
        "by_design": expectations.KERNELS_BY_DESIGN,
    }
    return {
        "pruner/options.json": json.dumps(options, indent=1).encode(),
        "pruner/normalise_timestamps.py": (
            TEMPLATES / "scripts" / "normalise_timestamps.py"
        ).read_bytes(),
        **{
            f"pruner/{name}": (TEMPLATES / "pruner" / name).read_bytes()
            for name in ("__main__.py", "pruning.py")
        },
        **{f"pruner/validate/{name}": (SUITE / name).read_bytes() for name in MODULES},
    }


def key(wanted: Pruning) -> str:
    """Tells what this pruner makes of a wheel from what another one does: its options, and its code to the letter."""
    parts = [
        b"%s\0%s" % (path.encode(), content)
        for path, content in files(wanted).items()
        if path not in _AROUND
    ]
    return sha256(b"\0".join(parts))[:16]


def unmeasured(wanted: Pruning | None, lock: Lock) -> list[tuple[Package, str]]:
    """Locked wheels, by their sha256, that this pruner reads, and of which it is not known what it leaves."""
    if wanted is None:
        return []
    today, found = key(wanted), []
    for package in lock.packages():
        for digest in package.hashes if reads(wanted, package.name) else ():
            known = lock.records.get(digest)
            if known and known.native and today not in known.pruned:
                found.append((package, digest))
    return found


def reads(wanted: Pruning | None, distribution: str) -> bool:
    """Whether it looks at the libraries of a distribution (canonical name) at all."""
    return wanted is not None and (wanted.nvidia or not fatbin.is_nvidias(distribution, ""))
