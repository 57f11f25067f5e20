"""What every image is held to: the tables of expectations.yaml and device_code.yaml, with reasons.

What a table means stands above it in its file (images/data).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement

from images.config import yamlfile

_TABLES: Mapping[str, Any] = {
    **yamlfile.table("expectations.yaml"),
    **yamlfile.table("device_code.yaml"),
}
DEBIAN_TOOLS: Sequence[str] = (*_TABLES["programs"].values(), *_TABLES["rdma"].values())


def __getattr__(name: str) -> Any:
    """Return a table by its name in capitals: `expectations.START_FILES` is `start_files`.

    Python calls this for names that the module does not define (PEP 562).
    """
    try:
        return _TABLES[name.lower()]
    except KeyError:
        raise AttributeError(name) from None


def cuda_libraries(major: int) -> dict[str, str | None]:
    """Return CUDA's libraries for a CUDA major: stem -> SONAME version.

    None as a version: it does not depend on the major. Raises KeyError for a major without a table.
    """
    libraries: dict[str, str | None] = dict.fromkeys(_TABLES["any_major"])
    libraries.update(_TABLES["cuda_libraries"][major])
    return libraries


def modules_of(distribution: str) -> Sequence[str]:
    """Return the modules to import of a distribution, the most telling one first."""
    default = [distribution.replace("-", "_")]
    modules: Sequence[str] = _TABLES["import_names"].get(distribution, default)
    return modules


def find_unproven_claims(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the claims that can't be proved in an image with these packages: claim -> reason.

    A claim is something that validation tests of an image. It is named by its check (`resume`,
    which means all claims of that check) or whole (`4bit-llama/logits`). `versions`: package ->
    version.
    """
    reasons: dict[str, str] = {}
    # The table reads: requirement (`unsloth`) -> claim -> reason.
    for text, claims in _TABLES["unproven"].items():
        requirement = Requirement(text)
        version = versions.get(requirement.name)
        if version and requirement.specifier.contains(version, prereleases=True):
            reasons |= claims
    return reasons
