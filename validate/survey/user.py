"""Prints how a user's process starts in this image, as environment/user_environment.py reads it back.

    python3 -I -S FOLDER/validate user CLAIMS.json

A validation run on a machine of another processor asks this of the image's own Python, emulated, and then reads the
image's files with a Python of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from validate.claims import ClaimSet
from validate.environment import user_environment


def main(arguments: Sequence[str]) -> int:
    """Print one JSON document. Raises user_environment.StartError where the image's Python does not start."""
    claims = ClaimSet.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    modules = sorted(
        {module for claim in claims.only(["static.pins"]).claims for module in claim.expect.get("modules", ())}
    )
    given = user_environment.of_this_process()
    start = user_environment.start(given, modules)
    print(json.dumps(asdict(replace(given, start=asdict(start)))), flush=True)  # noqa: T201  what it is for
    return 0
