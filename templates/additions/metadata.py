"""metadata.py OVERRIDES FOLDER: write into FOLDER the metadata of packages whose requirements the image overrides.

Some of these images have another cuDNN than torch's wheel requires: `torch 2.11.0 requires nvidia-cudnn-cu13==9.19.0.56`, and the image
has 9.26.0.51 on purpose. pip counts what installed packages require. Without this file it refuses every package that needs torch, or
searches for hours. pip finds FOLDER first (PYTHONPATH), and so reads a requirement on the version that is installed.

OVERRIDES holds lines `NAME==VERSION`. Nothing is written for an installed package that requires none of them, or only these versions.
"""

import re
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path

_REQUIREMENT = re.compile(
    r"^Requires-Dist:\s*(?P<name>[A-Za-z0-9._-]+)\s*(?P<extras>\[[^\]]*\])?[^;@]*(?P<marker>;.*)?$"
)
"""A line of METADATA: `Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"`."""


def main(overrides: Path, folder: Path) -> None:
    """Copy the dist-info of each installed package whose requirements are overridden, with these rewritten."""
    versions = {}
    for line in overrides.read_text().splitlines():
        name, separator, version = line.partition("==")
        if separator:
            versions[_normalized(name)] = version
    seen = set()
    for distribution in distributions():
        # Python and pip find only the first of a name on sys.path; later ones are hidden by it.
        name = _normalized(distribution.metadata["Name"] or "")
        if name in seen:
            continue
        seen.add(name)
        # The dist-info folder, which importlib.metadata gives under this name only.
        source = getattr(distribution, "_path", None)
        metadata = distribution.read_text("METADATA")
        if source is None or metadata is None:
            continue
        changed = _override(metadata, versions)
        if changed != metadata:
            shutil.copytree(source, folder / source.name)
            (folder / source.name / "METADATA").write_text(changed)


def _override(metadata: str, versions: "dict[str, str]") -> str:
    """Return the text of a METADATA file, in which it requires these versions of these packages."""
    lines = []
    for line in metadata.split("\n"):
        requirement = _REQUIREMENT.match(line)
        version = versions.get(_normalized(requirement["name"])) if requirement else None
        if requirement and version:
            extras, marker = requirement["extras"] or "", requirement["marker"] or ""
            line = f"Requires-Dist: {requirement['name']}{extras}=={version}{marker}"
        lines.append(line)
    return "\n".join(lines)


def _normalized(name: str) -> str:
    """Return a package's name in its normal form (packaging.python.org, name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
