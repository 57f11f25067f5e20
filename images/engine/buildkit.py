"""What BuildKit says about a running build, as plain events. Pure: bytes in, events out.

The engine wraps each report, a protobuf `moby.buildkit.v1.StatusResponse`, into the JSON stream of its classic build
endpoint. Fields as in moby/buildkit `api/services/control/control.proto`; only those read here are declared.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from images.engine.failures import is_cancelled

LOG_TAIL = 200
"""Lines of each step's log that are kept: enough to hold the first error of a failed compile."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")
_STAGE = re.compile(r"\[(?P<stage>[^\s\]]+)(?: +\d+/\d+)?\]")


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    """A step began to run (or to be looked up in the cache)."""

    step: str
    """Its key: the same for all events of a step."""
    name: str


@dataclass(frozen=True, kw_only=True)
class StepFinished:
    """A step ended. `error` is empty unless it failed."""

    step: str
    name: str
    seconds: float
    cached: bool
    error: str = ""

    @property
    def cancelled(self) -> bool:
        """It was stopped because another step failed."""
        return is_cancelled(self.error)


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """How far a download, an extraction or an export is; both numbers in bytes, `total` 0 where it is unknown."""

    step: str
    name: str
    what: str
    current: int
    total: int


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line that a step printed, without colours and without what a progress bar overwrote."""

    step: str
    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class LayerPulled:
    """A layer came from a registry: the engine had not got it. `layer`: how its digest begins, as the engine says."""

    step: str
    layer: str


@dataclass(frozen=True, kw_only=True)
class Retrying:
    """The network failed: after `delay` seconds the build is retried, and finished steps come from the cache."""

    attempt: int
    of: int
    delay: float
    cause: str


BuildEvent = StepStarted | StepFinished | StepProgress | LogLine | LayerPulled | Retrying


@dataclass(frozen=True, kw_only=True)
class Step:
    """One finished step of a build."""

    name: str
    seconds: float
    cached: bool

    @property
    def stage(self) -> str:
        """The Dockerfile stage it belongs to: `torch` of `[torch 2/5] RUN ...`; empty for other steps."""
        return stage_of(self.name)


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A finished build. `seconds` is the wall time, attempts included."""

    image_id: str
    steps: tuple[Step, ...]
    seconds: float


def stage_of(name: str) -> str:
    """The stage in a step's name, empty where there is none (`[internal]` and `exporting to image`)."""
    match = _STAGE.match(name)
    return match["stage"] if match and match["stage"] != "internal" else ""


@dataclass(kw_only=True)
class _Vertex:
    name: str = ""
    running_since: float | None = None
    intervals: dict[float, float] = field(default_factory=dict)
    """Start to end: BuildKit can run one vertex several times (lookup, then transfer)."""
    cached: bool = False
    error: str = ""
    partial: dict[int, bytes] = field(default_factory=dict)
    """The begun line of each stream: what a step writes to its two outputs reaches us interleaved."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_TAIL))

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end in self.intervals.items())


class Trace:
    """Decodes the reports of one build; remembers its steps and the ends of their logs, less what `redact` hides."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._vertices: dict[str, _Vertex] = {}
        self._redact = redact

    def feed(self, report: bytes) -> Iterator[BuildEvent]:
        """The events of one report. Raises ValueError when the bytes are not such a report."""
        try:
            status: Any = _STATUS_RESPONSE.FromString(report)
        except Exception as error:  # protobuf raises DecodeError, of a class that differs between its backends
            raise ValueError(f"not a BuildKit report: {error}") from error
        for vertex in status.vertexes:
            if event := self._started(vertex):
                yield event
        for log in status.logs:
            yield from self._logged(log.vertex, log.stream, log.msg)
        for item in status.statuses:
            known = self._vertices.get(item.vertex)
            if known and item.current:
                yield StepProgress(
                    step=item.vertex, name=known.name, what=item.ID, current=item.current, total=item.total
                )
        for vertex in status.vertexes:
            yield from self._finished(vertex)

    def steps(self) -> tuple[Step, ...]:
        """Finished steps in the order they first ran."""
        done = [vertex for vertex in self._vertices.values() if vertex.intervals]
        done.sort(key=lambda vertex: min(vertex.intervals))
        return tuple(Step(name=vertex.name, seconds=vertex.seconds, cached=vertex.cached) for vertex in done)

    def failed(self) -> tuple[str, str, tuple[str, ...]] | None:
        """Name, error and last log lines of the step that failed; not of those that were cancelled because of it."""
        failures = [vertex for vertex in self._vertices.values() if vertex.error]
        failures.sort(key=lambda vertex: is_cancelled(vertex.error))
        return (failures[0].name, failures[0].error, tuple(failures[0].log)) if failures else None

    def _started(self, message: Any) -> StepStarted | None:
        vertex = self._vertices.setdefault(message.digest, _Vertex())
        vertex.name = " ".join(message.name.split()) or vertex.name
        if not message.HasField("started"):
            return None
        start = _seconds(message.started)
        if start in vertex.intervals or start == vertex.running_since:
            return None
        vertex.running_since = start
        return StepStarted(step=message.digest, name=vertex.name)

    def _finished(self, message: Any) -> Iterator[BuildEvent]:
        vertex = self._vertices[message.digest]
        vertex.cached = vertex.cached or message.cached
        vertex.error = message.error or vertex.error
        if not message.HasField("completed") or vertex.running_since is None:
            return
        vertex.intervals[vertex.running_since] = _seconds(message.completed)
        vertex.running_since = None
        for stream in [stream for stream, begun in vertex.partial.items() if begun]:
            yield from self._logged(message.digest, stream, b"\n")
        yield StepFinished(
            step=message.digest, name=vertex.name, seconds=vertex.seconds, cached=vertex.cached, error=message.error
        )

    def _logged(self, digest: str, stream: int, data: bytes) -> Iterator[LogLine]:
        vertex = self._vertices.setdefault(digest, _Vertex())
        *lines, vertex.partial[stream] = (vertex.partial.get(stream, b"") + data).split(b"\n")
        for line in lines:
            text = self._redact(plain_line(line))
            vertex.log.append(text)
            yield LogLine(step=digest, name=vertex.name, text=text)


def plain_line(line: bytes) -> str:
    """What a terminal would show of a line in the end: no colours, only the last state of a progress bar."""
    text = _ANSI.sub("", line.decode(errors="replace")).rstrip()
    return text.rsplit("\r", 1)[-1]


def _seconds(stamp: timestamp_pb2.Timestamp) -> float:
    return stamp.seconds + stamp.nanos / 1e9


def _declare() -> Any:
    """The message class of StatusResponse, made from descriptors so that no protoc run is needed."""
    proto = descriptor_pb2.FieldDescriptorProto
    time = ".google.protobuf.Timestamp"
    messages: dict[str, list[tuple[str, int, Any]]] = {
        "Vertex": [
            ("digest", 1, proto.TYPE_STRING),
            ("name", 3, proto.TYPE_STRING),
            ("cached", 4, proto.TYPE_BOOL),
            ("started", 5, time),
            ("completed", 6, time),
            ("error", 7, proto.TYPE_STRING),
        ],
        "VertexStatus": [
            ("ID", 1, proto.TYPE_STRING),
            ("vertex", 2, proto.TYPE_STRING),
            ("current", 4, proto.TYPE_INT64),
            ("total", 5, proto.TYPE_INT64),
        ],
        "VertexLog": [
            ("vertex", 1, proto.TYPE_STRING),
            ("stream", 3, proto.TYPE_INT64),
            ("msg", 4, proto.TYPE_BYTES),
        ],
    }
    file = descriptor_pb2.FileDescriptorProto(
        name="truetag/buildkit.proto",
        package="moby.buildkit.v1",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for label, number, kind in fields:
            one = message.field.add(name=label, number=number, label=proto.LABEL_OPTIONAL)
            if isinstance(kind, str):
                one.type, one.type_name = proto.TYPE_MESSAGE, kind
            else:
                one.type = kind
    response = file.message_type.add(name="StatusResponse")
    for number, (label, kind) in enumerate(
        (("vertexes", "Vertex"), ("statuses", "VertexStatus"), ("logs", "VertexLog"))
    ):
        response.field.add(
            name=label,
            number=number + 1,
            label=proto.LABEL_REPEATED,
            type=proto.TYPE_MESSAGE,
            type_name=f".{file.package}.{kind}",
        )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.StatusResponse"))


_STATUS_RESPONSE = _declare()
