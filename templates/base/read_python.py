"""Runs inside a base image, under whatever Python 3 it has: prints the fields of `base_images.BasePython` as JSON."""

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Dict, Optional  # noqa: UP035  # a base may bring a Python older than ours


def torch_cuda() -> Optional[str]:  # noqa: UP045
    """Read from the text of torch/version.py: importing torch may fail or need a GPU."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        version = Path(folder, "version.py")
        if version.exists():
            match = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", version.read_text(), re.MULTILINE)
            return match.group(1) if match else None
    return None


packages: Dict[str, str] = {}  # noqa: UP006
for found in importlib.metadata.distributions():
    if found.metadata["Name"]:
        packages.setdefault(found.metadata["Name"], found.version)  # the first on the path is the one imported
json.dump(
    {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "version": ".".join(map(str, sys.version_info[:3])),
        "packages": packages,
        "torch_cuda": torch_cuda(),
    },
    sys.stdout,
)
