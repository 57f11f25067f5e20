"""A control image of the nightly tests, as locked, and the same with other versions."""

from collections.abc import Mapping
from dataclasses import replace

from images.config.paths import CHECKOUT
from images.locking import lock_file
from images.nightly.sets import Locked
from images.planning import plan
from tests.support.sources import SOURCES

(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
CONTROL = Locked(image=PLANNED.image, lock=lock_file.read(PLANNED.image, CHECKOUT.locks))
MOVES = {
    "torchao": "0.12.0",
    "transformers": "5.0.0",
    "peft": "0.21.2",
    "liger-kernel": "0.8.5",
    "numpy": "9.9.9",
}
"""The packages that the canary has in another version than the control. numpy is not pinned."""


def locked_at(versions: Mapping[str, str]) -> Locked:
    """The control with some packages at other versions."""
    layers = dict(CONTROL.lock.layers)
    for layer in CONTROL.lock.inputs.layers:
        packages = []
        for package in layers[layer]:
            version = versions.get(package.name, package.version)
            packages.append(replace(package, version=version))
        layers[layer] = tuple(packages)
    files = {
        f"{layer}.txt": lock_file.print_requirements(packages) for layer, packages in layers.items()
    }
    pins = tuple(
        replace(pin, version=versions.get(pin.name, pin.version)) for pin in CONTROL.image.pins
    )
    return Locked(
        image=replace(CONTROL.image, pins=pins),
        lock=replace(CONTROL.lock, files=files, layers=layers),
    )
