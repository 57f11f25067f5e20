"""Runs inside an image, under whatever Python 3 it has: prints the packages that `sbom.py` lists, as JSON."""

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Dict, List  # noqa: UP035  # a base may bring a Python older than ours


def python_packages() -> List[Dict[str, str]]:  # noqa: UP006
    """The first of a name on the path is the one that is imported."""
    found: Dict[str, Dict[str, str]] = {}  # noqa: UP006
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name:
            row = {
                "name": name,
                "version": one.version,
                "licence": (one.metadata.get_all("License-Expression") or [""])[0],
            }
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), row)
    return list(found.values())


def toolkit_packages() -> List[Dict[str, str]]:  # noqa: UP006
    """Wheels laid out under /usr/local/cuda-X.Y: each left its licence there, named NAME-VERSION."""
    names = [path.stem.rpartition("-") for path in sorted(Path("/usr/local").glob("cuda-*/licenses/*-*.txt"))]
    return [{"name": name, "version": version, "licence": ""} for name, _, version in names]


def debian_packages() -> List[Dict[str, str]]:  # noqa: UP006
    """deb822 stanzas; a package that was removed but left its configuration is not installed (dpkg-query(1))."""
    status = Path("/var/lib/dpkg/status")
    rows = []
    for stanza in status.read_text(errors="replace").split("\n\n") if status.exists() else ():
        pairs = [line.partition(":") for line in stanza.splitlines() if not line.startswith((" ", "\t"))]
        fields = {key: value.strip() for key, _, value in pairs}
        if fields.get("Status", "").endswith(" installed"):
            source = fields.get("Source", "")
            row = {"name": fields["Package"], "version": fields["Version"], "architecture": fields["Architecture"]}
            rows.append({**row, "source": source.split()[0] if source else ""})
    return rows


def os_release() -> Dict[str, str]:  # noqa: UP006
    file = Path("/etc/os-release")
    lines = file.read_text().splitlines() if file.exists() else []
    return {key: value.strip("'\"") for key, _, value in (line.partition("=") for line in lines) if key}


json.dump(
    {
        "python": python_packages(),
        "toolkit": toolkit_packages(),
        "debian": debian_packages(),
        "os": {key: os_release().get(key, "") for key in ("ID", "VERSION_ID", "VERSION_CODENAME")},
    },
    sys.stdout,
)
