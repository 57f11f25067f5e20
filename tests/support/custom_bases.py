"""An image, and a custom base whose Python fits it: tests change what must not fit."""

import dataclasses

from images.context.labels import BaseContext
from images.planning.image import Image
from tests.support import sources

BASE = BaseContext(
    reference="mine:1",
    origin="custom",
    digest="sha256:0",
    executable="/usr/local/bin/python3",
    environment="/usr/local",
    python="3.11.9",
    installed={"torch": "2.7.1"},
    torch_cuda="12.6",
)


def image() -> Image:
    return sources.image("cu126-torch27")


def on(**python: object) -> BaseContext:
    return dataclasses.replace(BASE, **python)  # type: ignore[arg-type]
