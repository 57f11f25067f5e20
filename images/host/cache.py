"""The folder of what can be made again, outside the project: clones share it (XDG Base Directory Specification)."""

from __future__ import annotations

import os
from pathlib import Path

from images.errors import Problem, UserError


def folder() -> Path:
    """Raises UserError for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "truetag"
    except RuntimeError:  # an unknown uid without HOME
        then = "set HOME or XDG_CACHE_HOME to a folder that can be written"
        raise UserError(Problem(where="HOME", cause="this user has no home folder", then=then)) from None
