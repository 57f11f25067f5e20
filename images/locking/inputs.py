"""What a lock is made from: Python, platform, index and pins of an image; and what moved since. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Self

from packaging.utils import canonicalize_name

from images.config.names import Minor
from images.config.platforms import Platform
from images.planning.image import Image

TOOLS = ("uv==0.13.8",)
"""What installs the rest inside a build and is left out of the image."""
BUILD_TOOLS = ("setuptools==80.9.0", "setuptools-scm==8.3.1", "wheel==0.45.1")
"""What builds packages that are locked as source, and is left out of the image."""
BUILDERS = tuple(f"{platform.machine}-unknown-linux-musl" for platform in Platform)
"""Statically linked, the installer runs in an image of either platform, beside whatever C library that has."""
_NEWEST_GLIBC = Minor(2, 40)
"""The newest manylinux platform that uv knows by name."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One resolved distribution, with the sha256 of each of its wheels that fits the target."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What packages are resolved for, and where they are looked for."""

    python: str
    platform: str
    """uv's name of it: `x86_64-manylinux_2_36`."""
    index: str | None = None
    """An index looked at beside the default one."""
    from_source: tuple[str, ...] = ()
    """Distributions that are taken as source: an index has no wheel of them."""
    excluded: tuple[str, ...] = ()
    """Distributions that are left out though something requires them."""
    overrides: tuple[str, ...] = ()
    """Exact requirements that hold against what packages require."""


@dataclass(frozen=True, kw_only=True)
class LockInputs(Target):
    """Everything a lock is made from."""

    layers: Mapping[str, tuple[str, ...]]
    """Layer -> its pins, bottom first: each is resolved with all that its packages need."""
    alone: Mapping[str, tuple[str, ...]]
    """File -> exact wheels that are installed by themselves (toolkit parts, the installer)."""
    builders: tuple[str, ...] = ()
    """Platforms of machines that build it: the installer is locked for each, as it runs natively there. Empty: for the
    image's own alone."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layer -> what its packages from outside any index require."""
    prebuilt: Mapping[str, str] = field(default_factory=dict)
    """File name -> sha256 of the official wheels that no index has. They are no part of what is resolved."""

    def asked(self, layer: str) -> tuple[str, ...]:
        """All that a layer is resolved from."""
        return (*self.layers[layer], *self.needs.get(layer, ()))

    def shares(self, other: Self) -> tuple[str, ...]:
        """The layers, bottom first, that both images could have in common."""
        if (self.python, self.platform, self.index) != (other.python, other.platform, other.index):
            return ()
        both = zip(self.layers, other.layers, strict=False)
        return tuple(
            mine
            for mine, _ in takewhile(
                lambda two: two[0] == two[1] and self.asked(two[0]) == other.asked(two[1]), both
            )
        )


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
    glibc = min(image.base.glibc, _NEWEST_GLIBC)
    return LockInputs(
        python=str(image.python),
        platform=f"{image.name.platform.machine}-manylinux_{glibc.major}_{glibc.minor}",
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
        overrides=image.overrides,
        builders=BUILDERS if image.name.platform is not Platform.AMD64 else (),
        prebuilt={wheel.filename: wheel.sha256 for wheel in image.prebuilt},
    )


def differences(old: LockInputs, new: LockInputs) -> Iterator[str]:
    """What moved between a lock's inputs and an image's: a sentence each, nothing where they are the same."""
    if old == new and [*old.layers] == [*new.layers]:
        return
    before, after = _by_place(old), _by_place(new)
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


def _by_place(found: LockInputs) -> dict[tuple[str, str], str]:
    """Place and name -> value: settings (of no place), official wheels, and the pins of each layer."""
    settings = {
        "Python": [found.python],
        "platform": [found.platform],
        "index": [found.index or "default"],
        "packages from source": found.from_source,
        "packages left out": found.excluded,
        "overrides": found.overrides,
        "machines of the installer": found.builders,
        "requirements of compiled packages": [
            need for needs in found.needs.values() for need in needs
        ],
    }
    pins = [
        (place, pin)
        for place, pins in (*found.layers.items(), *found.alone.items())
        for pin in pins
    ]
    return {
        **{("", name): ", ".join(values) or "none" for name, values in settings.items()},
        **{("the official wheels", file): digest for file, digest in found.prebuilt.items()},
        **{(place, distribution(pin)): pin.partition("==")[2] for place, pin in pins},
    }


@cache
def distribution(requirement: str) -> str:
    """The canonical name in `name==version`."""
    return str(canonicalize_name(requirement.partition("==")[0]))
