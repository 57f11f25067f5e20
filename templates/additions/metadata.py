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

_REQUIREMENT = re.compile(r"^Requires-Dist:\s*(?P<name>[A-Za-z0-9._-]+)\s*\(?(?P<specifier>[^;\[\])]*)\)?(?P<marker>.*)$")
"""A line of METADATA: `Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"`."""


def main(overrides: Path, folder: Path) -> None:
    versions = {}
    for line in overrides.read_text().splitlines():
        name, separator, version = line.partition("==")
        if separator:
            versions[_normalized(name)] = version
    for distribution in distributions():
        # Each is a folder NAME-VERSION.dist-info, which importlib knows by this attribute alone.
        source = getattr(distribution, "_path", None)
        metadata = distribution.read_text("METADATA")
        # Only the first on sys.path is the one that Python and pip find.
        if source is None or metadata is None or (folder / source.name).exists():
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
            line = f"Requires-Dist: {requirement['name']}=={version}{requirement['marker']}"
        lines.append(line)
    return "\n".join(lines)


def _normalized(name: str) -> str:
    """Return a package's name in its normal form (packaging.python.org, name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
