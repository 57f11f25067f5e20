"""An image, and a custom base whose Python fits it: tests change what must not fit."""

import dataclasses

from images.context.base_images import AcquiredBase, BasePython
from images.context.labels import Origin
from images.planning.image import Image
from tests.support import sources

PYTHON = BasePython(
    executable="/usr/local/bin/python3",
    prefix="/usr/local",
    version="3.11.9",
    packages={"torch": "2.7.1"},
    torch_cuda="12.6",
)


def image() -> Image:
    return sources.image("cu126-torch27")


def on(**python: object) -> AcquiredBase:
    found = dataclasses.replace(PYTHON, **python)  # type: ignore[arg-type]
    return AcquiredBase(reference="mine:1", digest="sha256:0", origin=Origin.CUSTOM, python=found)
