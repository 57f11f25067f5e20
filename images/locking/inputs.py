"""The inputs of locks: Python, platform, index and pins of an image, and how two of them differ.

Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Self

from packaging.utils import canonicalize_name

from images.config.names import Minor
from images.config.platforms import Platform
from images.config.schema import OLDEST_GLIBC
from images.planning.image import Image

TOOLS = ("uv==0.13.8",)
"""The installer of a build. It is not in the image."""
BUILD_TOOLS = ("setuptools==80.9.0", "setuptools-scm==8.3.1", "wheel==0.45.1")
"""What builds packages that are locked as source. It is not in the image."""
BUILDERS = tuple(f"{platform.machine}-unknown-linux-musl" for platform in Platform)
"""uv's names of platforms for which the installer is locked.

It is statically linked, and so runs beside whatever C library an image has."""
_GLIBC_OF_PLATFORMS = (OLDEST_GLIBC, *(Minor(2, number) for number in range(31, 41)))
"""The glibc of each manylinux platform that uv knows by name, from the oldest that we take."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A resolved distribution, with the sha256 of each wheel that fits the target."""

    name: str
    version: str
    hashes: tuple[str, ...]
    wheel: str = ""
    """The file name of its only wheel, if a private index alone has it.

    Empty for all others: the index that a build asks may give any wheel with one of the hashes."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What packages are resolved for, and where uv looks for them."""

    python: str
    platform: str
    """uv's name for it: `x86_64-manylinux_2_36`."""
    index: str | None = None
    """An index beside the default one."""
    from_source: tuple[str, ...] = ()
    """Distributions that are installed from source, because no index has a wheel of them."""
    excluded: tuple[str, ...] = ()
    """Distributions that are left out though something requires them."""
    overrides: tuple[str, ...] = ()
    """Exact requirements that replace what packages require."""
    private: Mapping[str, str] = field(default_factory=dict)
    """Package -> name of the private index that alone has it."""
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Name of each private index of `private` -> its address, without a login."""
    reserved: tuple[str, ...] = ()
    """Packages that a private index alone has, and that no pin names. No lock may have them.

    It is not written into the lock."""


@dataclass(frozen=True, kw_only=True)
class LockInputs(Target):
    """Everything a lock is made from."""

    layers: Mapping[str, tuple[str, ...]]
    """Layer -> its pins, bottom layer first. They are resolved with all that they require."""
    alone: Mapping[str, tuple[str, ...]]
    """`toolkit`, `tools`, `build` -> exact requirements that are installed without dependencies."""
    builders: tuple[str, ...] = ()
    """Platforms of the machines that may build the image, on which the installer runs natively.

    It is locked for each of them; empty: only for the image's own platform."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layer -> requirements of its packages that no index has."""
    prebuilt: Mapping[str, str] = field(default_factory=dict)
    """File name -> sha256, of official wheels that no index has. They are not resolved."""

    def requirements(self, layer: str) -> tuple[str, ...]:
        """Return all requirements that a layer is resolved from."""
        return (*self.layers[layer], *self.needs.get(layer, ()))

    def without_sources(self) -> Self:
        """Return the inputs of a lock that has no package to be built from source."""
        alone = {name: exact for name, exact in self.alone.items() if name != "build"}
        return replace(self, from_source=(), alone=alone)

    def find_shared_layers(self, other: Self) -> tuple[str, ...]:
        """Return the names of the layers that both images could have in common, bottom first.

        `other` has the inputs of another image's lock. Shared layers have the same name and
        requirements in both, and so have all layers below them. Images for another Python or
        platform, or with another index, share none.
        """
        if (self.python, self.platform, self.index) != (other.python, other.platform, other.index):
            return ()
        shared = []
        # The first layer that differs ends the search. One image may have more layers.
        for own_layer, other_layer in zip(self.layers, other.layers, strict=False):
            if own_layer != other_layer:
                break
            if self.requirements(own_layer) != other.requirements(other_layer):
                break
            shared.append(own_layer)
        return tuple(shared)


def _list_needs(image: Image) -> dict[str, tuple[str, ...]]:
    """Return what the packages of a layer require that are compiled here: layer -> requirements.

    No index has these packages, so uv can't read their requirements: the pins list them. Layers
    without such packages are left out.
    """
    needs = {}
    for layer in image.layers:
        requirements: set[str] = set()
        for pin in image.pins:
            if pin.layer == layer:
                requirements.update(pin.needs)
        if requirements:
            needs[layer] = tuple(sorted(requirements))
    return needs


def lock_inputs(image: Image) -> LockInputs:
    """Return everything that decides which packages, versions and hashes an image's lock has.

    uv resolves what is in `layers` and `needs`, and only that. Packages that are optional or that
    we compile are in neither, because an index may not have them. If their project publishes wheels
    outside any index, `prebuilt` has the files and hashes of these.
    """
    # Layer of the image -> the exact requirements that uv resolves for it.
    layers: dict[str, list[str]] = {layer: [] for layer in image.layers}
    for pin in image.pins:
        if pin.locked:  # an index has it
            layers[pin.layer].append(pin.requirement)

    # Packages that are installed without what they require.
    alone = {"toolkit": tuple(pin.requirement for pin in image.toolkit), "tools": TOOLS}
    if image.from_source:
        alone["build"] = BUILD_TOOLS

    # Package -> the private index that it is taken from.
    private_indexes = {pin.name: pin.index for pin in image.pins if pin.index}

    # uv has no name for the platform of each glibc. Wheels for an older one run there, too.
    glibc = max(version for version in _GLIBC_OF_PLATFORMS if version <= image.base.glibc)

    # Images for linux/arm64 are also built on x86-64 machines. The installer is locked for these,
    # too, so that it runs there without emulation.
    builders: tuple[str, ...] = ()
    if image.name.platform is not Platform.AMD64:
        builders = BUILDERS

    return LockInputs(
        python=str(image.python),
        platform=f"{image.name.platform.machine}-manylinux_{glibc.major}_{glibc.minor}",
        index=image.index,
        layers={layer: tuple(requirements) for layer, requirements in layers.items()},
        needs=_list_needs(image),
        alone=alone,
        from_source=image.from_source,
        excluded=image.waived,
        overrides=image.overrides,
        builders=builders,
        prebuilt={wheel.filename: wheel.sha256 for wheel in image.prebuilt},
        private={name: index.name for name, index in private_indexes.items()},
        indexes={index.name: index.url for index in private_indexes.values()},
        reserved=image.reserved,
    )


def differences(old: LockInputs, new: LockInputs) -> Iterator[str]:
    """Yield a sentence for each difference between what two locks were made from.

    A sentence reads `torch 2.7.0 -> 2.7.1`, or `peft 0.18.1 added to profile`. Nothing is yielded
    if the locks were made from the same.
    """
    # (place, name) -> value. The place is a layer, for example.
    before, after = _values_by_place(old), _values_by_place(new)
    for place, name in sorted({*before, *after}):
        old_value = before.get((place, name))
        new_value = after.get((place, name))
        # Pins, official wheels and private packages can be added or taken out. Every lock has all
        # settings.
        if old_value is None:
            yield f"{name} {new_value} added to {place}"
        elif new_value is None:
            yield f"{name} {old_value} taken out of {place}"
        elif old_value != new_value:
            yield f"{name} {old_value} -> {new_value}"

    # The order of the layers. If a package was added or taken out, other layers follow from that.
    has_same_names = before.keys() == after.keys()
    if has_same_names and list(old.layers) != list(new.layers):
        yield f"layers {' '.join(old.layers)} -> {' '.join(new.layers)}"


def _values_by_place(inputs: LockInputs) -> dict[tuple[str, str], str]:
    """Return everything that a lock is made from, as texts that can be compared.

    The keys are (place, name), in words that `differences` can put into a sentence. Settings of the
    whole lock have an empty place:

        ("", "Python")                 -> "3.11"
        ("torch", "triton")            -> "3.3.1", the version of a pin in the layer `torch`
        ("the official wheels", FILE)  -> its sha256
        ("the private packages", NAME) -> the index that alone has it
    """
    needs = list(chain.from_iterable(inputs.needs.values()))
    settings = {
        "Python": [inputs.python],
        "platform": [inputs.platform],
        "index": [inputs.index or "default"],
        "packages from source": inputs.from_source,
        "packages left out": inputs.excluded,
        "overrides": inputs.overrides,
        "machines of the installer": inputs.builders,
        "requirements of compiled packages": needs,
        "private indexes": [f"{name} ({url})" for name, url in sorted(inputs.indexes.items())],
    }
    values = {("", name): ", ".join(texts) or "none" for name, texts in settings.items()}
    for file, digest in inputs.prebuilt.items():
        values["the official wheels", file] = digest
    for package, index in inputs.private.items():
        values["the private packages", package] = index
    # The places of pins: the layers, and `toolkit`, `tools` and `build`, which are locked alone.
    for place, pins in (*inputs.layers.items(), *inputs.alone.items()):
        for pin in pins:
            values[place, distribution(pin)] = pin.partition("==")[2]
    return values


@cache
def distribution(requirement: str) -> str:
    """Return the canonical name (PEP 503) of the package in `name==version`."""
    return str(canonicalize_name(requirement.partition("==")[0]))
