"""The only package that talks to Docker: build, run, copy, inspect, tag, import, pull."""

from images.engine.client import Engine, ignore
from images.engine.connection import NoEngine, connect, default_sockets, private_home, private_socket
from images.engine.container import KILLED, Container, Exit, Finished, Line, TimedOut
from images.engine.containers import OWNER_LABEL, RUN_LABEL
from images.engine.facts import EngineFacts
from images.engine.failures import EngineError, EngineErrorKind, NoSuchImage
from images.engine.image_store import ImagePart
from images.engine.responses import CacheRecord, ContainerInfo, HistoryEntry, ImageInfo, SavedFile
from images.engine.specs import PLATFORM, BuildSpec, ContainerSpec

__all__ = [
    "KILLED",
    "OWNER_LABEL",
    "PLATFORM",
    "RUN_LABEL",
    "BuildSpec",
    "CacheRecord",
    "Container",
    "ContainerInfo",
    "ContainerSpec",
    "Engine",
    "EngineError",
    "EngineErrorKind",
    "EngineFacts",
    "Exit",
    "Finished",
    "HistoryEntry",
    "ImageInfo",
    "ImagePart",
    "Line",
    "NoEngine",
    "NoSuchImage",
    "SavedFile",
    "TimedOut",
    "connect",
    "default_sockets",
    "ignore",
    "private_home",
    "private_socket",
]
