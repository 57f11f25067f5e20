"""The only package that talks to Docker: build, run, copy, inspect, tag, import, pull."""

from images.engine.answers import CacheRecord, ContainerInfo, HistoryEntry, ImageInfo, NoSuchImage, SavedFile
from images.engine.client import OWNER_LABEL, PLATFORM, RUN_LABEL, Engine, EngineFacts, ignore
from images.engine.connection import NoEngine, connect, default_sockets, private_home, private_socket
from images.engine.container import Container, Exit, Finished, Line, TimedOut

__all__ = [
    "OWNER_LABEL",
    "PLATFORM",
    "RUN_LABEL",
    "CacheRecord",
    "Container",
    "ContainerInfo",
    "Engine",
    "EngineFacts",
    "Exit",
    "Finished",
    "HistoryEntry",
    "ImageInfo",
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
