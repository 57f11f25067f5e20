"""An image, and facts about a custom base that fit it: tests change what must not fit."""

import dataclasses

from images.config.names import Minor
from images.planning.custom_base import BaseFacts
from images.planning.image import Base, Image
from tests.support import sources

BASE = Base(
    key="mine",
    reference="registry.example/mine:1",
    suite=None,
    python=Minor(3, 11),
    glibc=Minor(2, 34),
    custom=True,
)
FACTS = BaseFacts(
    system="Debian GNU/Linux 12 (bookworm)",
    glibc=Minor(2, 36),
    has_apt=True,
    python="/opt/python/bin/python3.11",
    python_version="3.11.7",
    missing=(),
)


def image() -> Image:
    return sources.image("cu126-torch27")


def facts(**differences: object) -> BaseFacts:
    return dataclasses.replace(FACTS, **differences)  # type: ignore[arg-type]
