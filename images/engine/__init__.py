"""The only package that talks to Docker: build, run, copy, inspect, tag, import, pull."""

from images.engine.client import Engine, NoEngine, connect, ignore, private_home, private_socket
from images.engine.containers import OWNER_LABEL, RUN_LABEL, Container, Finished
from images.engine.failures import EngineError, EngineErrorKind, NoSuchImage
from images.engine.runtime import (
    KILLED,
    PLATFORM,
    ContainerSpec,
    EngineFacts,
    Exit,
    HistoryEntry,
    ImageInfo,
    Line,
    TimedOut,
)

__all__ = [
    "KILLED",
    "OWNER_LABEL",
    "PLATFORM",
    "RUN_LABEL",
    "Container",
    "ContainerSpec",
    "Engine",
    "EngineError",
    "EngineErrorKind",
    "EngineFacts",
    "Exit",
    "Finished",
    "HistoryEntry",
    "ImageInfo",
    "Line",
    "NoEngine",
    "NoSuchImage",
    "TimedOut",
    "connect",
    "ignore",
    "private_home",
    "private_socket",
]
