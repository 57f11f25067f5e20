"""Whether probes run emulated, which the suite tells them: an emulator answers as the machine that it stands for."""

from __future__ import annotations

import os

MARK = {"VALIDATE_EMULATED": "1"}


def is_emulated() -> bool:
    """Then imports take many seconds each: what is the same in each fork is done once, before it."""
    return all(os.environ.get(name) == text for name, text in MARK.items())
