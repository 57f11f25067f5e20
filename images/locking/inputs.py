"""What a lock is made from: Python, platform, index and pins of an image; and what moved since. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.config.names import Minor
from images.config.platforms import Platform
from images.locking.uv import Target
from images.planning.image import Image

TOOLS = ("uv==0.13.8",)
"""What installs the rest inside a build and is left out of the image."""
BUILD_TOOLS = ("setuptools==80.9.0", "setuptools-scm==8.3.1", "wheel==0.45.1")
"""What builds packages that are locked as source, and is left out of the image."""
BUILDERS = tuple(f"{platform.machine}-unknown-linux-musl" for platform in Platform)
"""Statically linked, the installer runs in an image of either platform, beside whatever C library that has."""
INSTALLER = "tools"
_NEWEST_GLIBC = Minor(2, 40)
"""The newest manylinux platform that uv knows by name."""


@dataclass(frozen=True, kw_only=True)
class LockInputs:
    """Everything a lock is made from."""

    python: str
    platform: str
    index: str | None
    layers: Mapping[str, tuple[str, ...]]
    """Layer -> its pins, bottom first: each is resolved with all that its packages need."""
    alone: Mapping[str, tuple[str, ...]]
    """File -> exact wheels that are installed by themselves (toolkit parts, the installer)."""
    from_source: tuple[str, ...] = ()
    """Distributions locked as source."""
    excluded: tuple[str, ...] = ()
    """Distributions left out though something requires them."""
    builders: tuple[str, ...] = ()
    """Platforms of machines that build it: the installer is locked for each, as it runs natively there. Empty: for the
    image's own alone."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layer -> what its packages from outside any index require."""
    prebuilt: Mapping[str, str] = field(default_factory=dict)
    """File name -> sha256 of the official wheels that no index has. They are no part of what is resolved."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> LockInputs:
        """As a lock's record has it. Raises KeyError, TypeError, AttributeError for what is none."""
        return cls(
            python=str(data["python"]),
            platform=str(data["platform"]),
            index=data["index"],
            layers=_lists(data["layers"]),
            alone=_lists(data["alone"]),
            from_source=tuple(map(str, data.get("from_source", ()))),
            excluded=tuple(map(str, data.get("excluded", ()))),
            builders=tuple(map(str, data.get("builders", ()))),
            needs=_lists(data.get("needs", {})),
            prebuilt={file: str(digest) for file, digest in data.get("prebuilt", {}).items()},
        )

    def asked(self, layer: str) -> tuple[str, ...]:
        """All that a layer is resolved from."""
        return (*self.layers[layer], *self.needs.get(layer, ()))

    @property
    def target(self) -> Target:
        return Target(
            python=self.python,
            platform=self.platform,
            index=self.index,
            from_source=self.from_source,
            excluded=self.excluded,
        )

    @property
    def place(self) -> tuple[str, str, str | None]:
        """What a layer must have in common to be shared, besides its pins."""
        return self.python, self.platform, self.index

    def shares(self, other: LockInputs) -> tuple[str, ...]:
        """The layers, bottom first, that both images could have in common."""
        shared = []
        if self.place == other.place:
            for mine, theirs in zip(self.layers, other.layers, strict=False):
                if mine != theirs or self.asked(mine) != other.asked(theirs):
                    break
                shared.append(mine)
        return tuple(shared)


def lock_inputs(image: Image) -> LockInputs:
    """What the image's lock is made from. Optional and compiled pins are not resolved: no index need have them. Where
    they have an official wheel, the lock records the file and its hash."""
    layers: dict[str, list[str]] = {layer: [] for layer in image.layers}
    needs: dict[str, set[str]] = {}
    for pin in image.pins:
        if pin.locked:
            layers[pin.layer].append(pin.requirement)
        if pin.needs:
            needs.setdefault(pin.layer, set()).update(pin.needs)
    return LockInputs(
        python=str(image.python),
        platform=_platform(image.platform, image.base.glibc),
        index=image.index,
        layers={layer: tuple(requirements) for layer, requirements in layers.items()},
        needs={layer: tuple(sorted(needs[layer])) for layer in layers if layer in needs},
        alone={
            "toolkit": tuple(pin.requirement for pin in image.toolkit),
            "tools": TOOLS,
            **({"build": BUILD_TOOLS} if image.from_source else {}),
        },
        from_source=image.from_source,
        excluded=image.waived,
        builders=BUILDERS if image.platform is not Platform.AMD64 else (),
        prebuilt={wheel.filename: wheel.sha256 for wheel in image.prebuilt},
    )


def _lists(found: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(map(str, texts)) for name, texts in found.items()}


@cache
def _platform(platform: Platform, glibc: Minor) -> str:
    """uv's name of it."""
    return f"{platform.machine}-manylinux_{str(min(glibc, _NEWEST_GLIBC)).replace('.', '_')}"


# --- what moved ------------------------------------------------------------------------------------------------------


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
