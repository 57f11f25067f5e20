"""What moved between a lock and the image it is for, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.locking.inputs import LockInputs


def differences(old: LockInputs, new: LockInputs) -> Iterator[str]:
    """What moved between a lock's inputs and an image's: a sentence each, nothing where they are the same."""
    if old == new and [*old.layers] == [*new.layers]:
        return
    for what, left, right in (
        ("Python", old.python, new.python),
        ("platform", old.platform, new.platform),
        ("index", old.index or "default", new.index or "default"),
        ("packages from source", _joined(old.from_source), _joined(new.from_source)),
        ("packages left out", _joined(old.excluded), _joined(new.excluded)),
        ("machines of the installer", _joined(old.builders), _joined(new.builders)),
        ("requirements of compiled packages", _needs(old), _needs(new)),
    ):
        if left != right:
            yield f"{what} {left} -> {right}"
    yield from _official(old.prebuilt, new.prebuilt)
    before, after = _pins(old), _pins(new)
    for place, name in sorted({*before, *after}):
        was, now = before.get((place, name)), after.get((place, name))
        if was is None:
            yield f"{name} {now} added to {place}"
        elif now is None:
            yield f"{name} {was} taken out of {place}"
        elif was != now:
            yield f"{name} {was} -> {now}"
    if not {*before} ^ {*after} and [*old.layers] != [*new.layers]:
        yield f"layers {' '.join(old.layers)} -> {' '.join(new.layers)}"


def _official(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for file in sorted({*old, *new}):
        if file not in new:
            yield f"official wheel {file} taken out"
        elif file not in old:
            yield f"official wheel {file} added"
        elif old[file] != new[file]:
            yield f"sha256 of the official wheel {file} {old[file]} -> {new[file]}"


def _needs(found: LockInputs) -> str:
    return _joined([need for needs in found.needs.values() for need in needs])


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _pins(found: LockInputs) -> dict[tuple[str, str], str]:
    return {
        (place, distribution(pin)): pin.partition("==")[2]
        for place, pins in (*found.layers.items(), *found.alone.items())
        for pin in pins
    }


def lacking(recorded: LockInputs, layers: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Recorded pins that the lock's files do not hold: somebody edited them, or a merge went wrong.

    `layers`: file -> distribution -> version.
    """
    for place, pins in (*recorded.layers.items(), *recorded.alone.items()):
        held = layers[place]
        doubtful = [(name, pinned) for name, pinned in map(_split, pins) if held.get(name) != pinned]
        for name, pinned in sorted(doubtful):
            if name not in held:
                yield f"{place}.txt lacks {name} {pinned}"
            elif not _fulfils(held[name], pinned):
                yield f"{place}.txt holds {name} {held[name]}, not {pinned}"


def _fulfils(held: str, pinned: str) -> bool:
    """As `==` does: a pin without a local version takes any local version."""
    try:
        found, wanted = Version(held), Version(pinned)
    except InvalidVersion:
        return False
    return found == wanted if wanted.local else Version(found.public) == wanted


@cache
def _split(pin: str) -> tuple[str, str]:
    """Canonical name and version of `name==version`."""
    return distribution(pin), pin.partition("==")[2]


@cache
def distribution(requirement: str) -> str:
    """The canonical name in `name==version`."""
    return str(canonicalize_name(requirement.partition("==")[0]))
