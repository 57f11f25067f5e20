"""S1: what is installed under each pinned name, and the file that a user's `import` would load.

The evidence of the claim about the lock (subject `lock`) lists everything installed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from validate.claims import Claim
from validate.contracts.static import LockEvidence, Module, PinEvidence, PinExpect, TorchVersion
from validate.environment import installed, interpreter, user_environment
from validate.environment.installed import Distribution

LOCK = "lock"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, LockEvidence | PinEvidence]]:
    wanted = sorted({module for claim in claims for module in _modules(claim)})
    given = user_environment.recorded()
    start = interpreter.start(given, wanted)
    folders = [entry or given.directory for entry in start.path]
    everything = installed.distributions(folders)
    owners = installed.owners(everything)
    for claim in claims:
        if claim.subject == LOCK:
            yield LOCK, _everything(everything)
        else:
            yield claim.subject, {**_pin(claim, everything, owners, start), "machine": given.machine}


def _modules(claim: Claim) -> Sequence[str]:
    """The top-level modules that a claim asks for; the claim about the lock asks for none."""
    return cast(PinExpect, claim.expect).get("modules", ())


def _everything(everything: Sequence[Distribution]) -> LockEvidence:
    versions: dict[str, list[str]] = {}
    for distribution in everything:
        versions.setdefault(distribution.name, []).append(distribution.version)
    return {"installed": versions}


def _pin(
    claim: Claim,
    everything: Sequence[Distribution],
    owners: Mapping[str, Sequence[Distribution]],
    start: interpreter.Start,
) -> PinEvidence:
    of_this_name = [distribution for distribution in everything if distribution.name == claim.subject]
    evidence: PinEvidence = {
        "python": start.version,
        "glibc": start.glibc or _glibc(),
        "installed": [
            {
                "version": distribution.version,
                "location": distribution.location,
                "tags": list(distribution.tags),
                "has_record": distribution.entries is not None,
            }
            for distribution in of_this_name
        ],
        "modules": {module: _module(module, claim.subject, everything, owners, start) for module in _modules(claim)},
    }
    if claim.subject == "torch":
        evidence["torch"] = torch_version(of_this_name)
    return evidence


def _module(
    module: str,
    subject: str,
    everything: Sequence[Distribution],
    owners: Mapping[str, Sequence[Distribution]],
    start: interpreter.Start,
) -> Module:
    found = start.found.get(module)
    providers = sorted({other.name for other in everything if module in other.modules()})
    if found is None or "error" in found:
        return {"file": None, "error": (found or {}).get("error", ""), "owners": [], "providers": providers}
    origin = found["origin"]
    if origin in (None, "namespace"):
        return {"file": None, "namespace": found["locations"], "owners": [], "providers": providers}
    file = os.path.join(os.path.realpath(os.path.dirname(origin)), os.path.basename(origin))  # noqa: PTH118 PTH119 PTH120
    return {
        "file": file,
        "through": _path_entry(origin, start.path),
        "owners": sorted({owner.name for owner in owners.get(file, ())}),
        "providers": providers,
    }


def _path_entry(origin: str, path: Sequence[str]) -> str:
    """The entry of sys.path that supplied a file: the longest that it lies under."""
    under = [entry for entry in path if entry and origin.startswith(entry.rstrip("/") + "/")]
    return max(under, key=len, default="the working directory")


def _glibc() -> str:
    version = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return version.removeprefix("glibc ")


def torch_version(of_torch: Sequence[Distribution]) -> TorchVersion:
    """`__version__` and `cuda` as torch/version.py states them, read as text: torch is not imported."""
    for distribution in of_torch:
        file = Path(distribution.location, "torch", "version.py")
        if file.is_file():
            values = _constants(file.read_text(encoding="utf-8", errors="replace"))
            return {"file": str(file), "__version__": values["__version__"], "cuda": values["cuda"]}
    return {"file": None, "__version__": None, "cuda": None}


def _constants(source: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {"__version__": None, "cuda": None}
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        return values
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and target.id in values and isinstance(value, ast.Constant):
                values[target.id] = None if value.value is None else str(value.value)
    return values
