"""The only package that talks to Docker: build, run, copy, inspect, tag, import, pull."""

from images.engine.client import Engine, NoEngine, connect, ignore
from images.engine.containers import OWNER_LABEL, RUN_LABEL
from images.engine.failures import EngineError, EngineErrorKind, NoSuchImage
from images.engine.runtime import ContainerSpec, Exit, ImageInfo, Stopped

__all__ = [
    "OWNER_LABEL",
    "RUN_LABEL",
    "ContainerSpec",
    "Engine",
    "EngineError",
    "EngineErrorKind",
    "Exit",
    "ImageInfo",
    "NoEngine",
    "NoSuchImage",
    "Stopped",
    "connect",
    "ignore",
]
