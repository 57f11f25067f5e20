"""Rows of tests that are data: `test_NAME.yaml` beside `test_NAME.py`."""

from pathlib import Path
from typing import Any

import yaml


def cases(module: str, part: str) -> Any:
    """What stands under `part` in the file beside a module, of which this is `__file__`."""
    return yaml.load(
        Path(module).with_suffix(".yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader
    )[part]
