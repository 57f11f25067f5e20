"""What every image is held to: tables of images/data, each row with its reason. What a table means stands above it."""

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement

from images.config import yamlfile

_ROWS: Mapping[str, Any] = {
    **yamlfile.table("expectations.yaml"),
    **yamlfile.table("device_code.yaml"),
}
DEBIAN_TOOLS: Sequence[str] = (*_ROWS["programs"].values(), *_ROWS["rdma"].values())


def __getattr__(name: str) -> Any:
    """A table under its own name in capitals: `expectations.START_FILES` is `start_files` of expectations.yaml."""
    try:
        return _ROWS[name.lower()]
    except KeyError:
        raise AttributeError(name) from None


def cuda_libraries(major: int) -> dict[str, str | None]:
    """CUDA's libraries by stem, each with the SONAME version of this CUDA major; None: the version says nothing of it.

    Raises KeyError for a major that is not known here.
    """
    return {**dict.fromkeys(_ROWS["any_major"]), **_ROWS["cuda_libraries"][major]}


def modules_of(distribution: str) -> Sequence[str]:
    """The modules to import of a distribution, the most telling first."""
    names: Sequence[str] = _ROWS["import_names"].get(distribution, [distribution.replace("-", "_")])
    return names


def unproven(versions: Mapping[str, str]) -> dict[str, str]:
    """Claims (`resume`, `4bit-llama/logits`) that these distributions put out of reach -> why."""
    found: dict[str, str] = {}
    for text, claims in _ROWS["unproven"].items():
        asked = Requirement(text)
        if asked.name in versions and asked.specifier.contains(
            versions[asked.name], prereleases=True
        ):
            found |= claims
    return found
