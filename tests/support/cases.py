"""Rows of tests that are data: `test_NAME.yaml` beside `test_NAME.py`."""

from pathlib import Path
from typing import Any

import yaml


def cases(module: str, part: str) -> Any:
    """Return what stands under the key `part` in the YAML file beside a test module.

    `module`: the module's `__file__`.
    """
    text = Path(module).with_suffix(".yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.CSafeLoader)[part]
