"""How an image's layers stand to those of a known build: by diff ID, so whatever its name and its history say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def relation(name: str, known: Sequence[str], found: Sequence[str]) -> str:
    """One sentence: what an image is beside NAME. Diff IDs, bottom first."""
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(known, found, strict=False))))
    if not known:
        return f"the layers of {name} are not known here"
    if list(found) == list(known):
        return f"its {len(found)} layers are those of {name}"
    if shared == len(known):
        return f"this image is {name} plus {_unknown(found[shared:])}"
    if shared == len(found):
        return f"it has the first {shared} of {len(known)} layers of {name}"
    if shared:
        rest = _unknown(found[shared:])
        return f"it shares the first {shared} of {len(known)} layers with {name}, and has {rest} above them"
    return f"it shares no layer with {name}"


def _unknown(layers: Sequence[str]) -> str:
    count = "one unknown layer" if len(layers) == 1 else f"{len(layers)} unknown layers"
    return f"{count} ({', '.join(layer.removeprefix('sha256:')[:12] for layer in layers)})"
