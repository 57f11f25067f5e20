"""The plan as lines for people: columns without frames, so that `grep` finds them. Pure views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from images.commands.common import counted
from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning.plan import Planned
from validate.terminal import aligned

_PLAN = ("image", "status", "torch", "CUDA", "driver", "GPUs (sm_)")
_NAME_WIDTH = 27
"""So that the row of the most architectures has 80 characters; longer names, which have fewer, stand out."""


def plan(planned: Sequence[Planned], locks: Mapping[str, LockStatus], *, unlocked: bool = True) -> Iterator[str]:
    """One line an image, refused ones included; below them why, and what to mind, each with the names it is of.

    `unlocked`: those without a lock have lines of their own, too; else they are named below.
    """
    told: dict[str, list[str]] = {}
    rows, states = [_PLAN], Counter[str]()
    for image in planned:
        why, state = blocked(image, locks), "ok"
        if image.image and len(planned) > 1:  # so that it is said once of all
            why = why.replace(image.image.lock_name, "NAME")
        if not image.accepted:
            state = "refused"
        elif why:
            state = "stale" if locks.get(image.name) is LockStatus.STALE else "no lock"
        states[state] += 1
        if state == "no lock" and not unlocked:
            told.setdefault(why, []).append(image.name)
            continue
        archs = " ".join(str(arch).removeprefix("sm_") for arch in image.archs)
        driver = image.min_driver.partition(".")[0] if image.min_driver else "-"
        rows.append((image.name, state, image.torch or "-", str(image.image_name.cuda), driver, archs or "-"))
        notes = [f"refused: {'; '.join(image.reasons)}"] if image.reasons else []
        for note in [*notes, *filter(None, [why]), *(f"warning: {text}" for text in image.warnings)]:
            told.setdefault(note, []).append(image.name)
    yield from aligned(rows, " ", _NAME_WIDTH)
    if told:
        yield ""
    for note, names in told.items():
        yield f"{', '.join(names)}: {note}"
    yield ""
    kinds = [f"{count} {state}" for state, count in states.items()]
    yield counted(len(planned), "image") + (f": {', '.join(kinds)}" if len(kinds) > 1 else "")


def blocked(planned: Planned, locks: Mapping[str, LockStatus]) -> str:
    """Why an accepted image can't be built here; of a refused one, the reasons say it."""
    return lock_file.blocked(planned.image, locks.get(planned.name, LockStatus.MISSING)) if planned.image else ""
