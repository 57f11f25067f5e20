"""What BuildKit says about a running build, as plain events.

Pure: the engine's messages in, events out.

The engine wraps each report, a protobuf `moby.buildkit.v1.StatusResponse`, into the JSON stream of
its classic build endpoint. `buildkit_pb2.py` reads it; after a change of `buildkit.proto` it is
made anew, by a protoc before 26 (later ones write code for their own series of the library alone),
in the root of the checkout:

    python3 -m venv /tmp/pb && /tmp/pb/bin/pip install grpcio-tools==1.62.3 "setuptools<81"
    /tmp/pb/bin/python -m grpc_tools.protoc -I. --python_out=. images/engine/buildkit.proto
"""

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from images.engine import buildkit_pb2
from images.engine.failures import CANCELLED, BuildFailed
from images.errors import failed

LOG_TAIL = 200
"""Lines of each step's log that are kept: enough to hold the first error of a failed compile."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    """A step began to run (or to be looked up in the cache)."""

    step: str
    """Its key: the same for all events of a step."""
    name: str


@dataclass(frozen=True, kw_only=True)
class StepFinished:
    """A step ended. `error` and the end of its `log` are empty unless it failed."""

    step: str
    name: str
    seconds: float
    cached: bool
    error: str = ""
    log: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """How far a download, an extraction or an export is; both numbers in bytes, `total` 0 where
    it is unknown.
    """

    step: str
    name: str
    what: str
    current: int
    total: int


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line that a step printed, without colours and without what a progress bar overwrote.

    Without a step: all steps ended, as the network failed, and the build begins again.
    """

    step: str
    name: str
    text: str


BuildEvent = StepStarted | StepFinished | StepProgress | LogLine


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A finished build. `seconds` is the wall time, attempts included."""

    image_id: str
    steps: tuple[StepFinished, ...]
    seconds: float


@dataclass(kw_only=True)
class _Vertex:
    name: str = ""
    running_since: float | None = None
    intervals: dict[float, float] = field(default_factory=dict)
    """Start to end: BuildKit can run one vertex several times (lookup, then transfer)."""
    cached: bool = False
    error: str = ""
    partial: dict[int, bytes] = field(default_factory=dict)
    """The begun line of each stream: what a step writes to its two outputs reaches us
    interleaved."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_TAIL))

    def finished(self, digest: str, error: str = "") -> StepFinished:
        seconds = sum(end - start for start, end in self.intervals.items())
        log = tuple(self.log) if error else ()
        return StepFinished(
            step=digest, name=self.name, seconds=seconds, cached=self.cached, error=error, log=log
        )


class Trace:
    """Decodes the reports of one build; remembers its steps and the ends of their logs, less
    what `redact` hides.
    """

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._vertices: dict[str, _Vertex] = {}
        self._redact = redact

    def image_id(
        self, messages: Iterable[dict[str, Any]], on_event: Callable[[BuildEvent], None]
    ) -> str:
        """The image's ID at the end of the engine's messages.

        Raises BuildFailed, or UserError when they break off.
        """
        found = ""
        for message in messages:
            if "errorDetail" in message or "error" in message:
                error = str(message.get("errorDetail", {}).get("message") or message.get("error"))
                step, cause, log = self.failed() or ("build", error, ())
                raise BuildFailed(step=step, error=f"{error}\n{cause}", log=log)
            if message.get("id") == "moby.buildkit.trace":
                for event in self.feed(base64.b64decode(message["aux"])):
                    on_event(event)
            elif message.get("id") == "moby.image.id":
                found = message["aux"]["ID"]
        if not found:
            then = "is the engine still running (`docker info`)? its log tells more"
            raise failed(
                "build", "the engine ended the build without an image and without an error", then
            )
        return found

    def feed(self, report: bytes) -> Iterator[BuildEvent]:
        """The events of one report. Raises ValueError when the bytes are not such a report."""
        try:
            status: Any = buildkit_pb2.StatusResponse.FromString(report)
        except (
            Exception
        ) as error:  # protobuf raises DecodeError, of a class that differs between its backends
            raise ValueError(f"not a BuildKit report: {error}") from error
        for message in status.vertexes:
            vertex = self._vertices.setdefault(message.digest, _Vertex())
            vertex.name = " ".join(message.name.split()) or vertex.name
            start = message.started.ToNanoseconds() / 1e9
            if message.HasField("started") and start not in (
                *vertex.intervals,
                vertex.running_since,
            ):
                vertex.running_since = start
                yield StepStarted(step=message.digest, name=vertex.name)
        for log in status.logs:
            yield from self._logged(log.vertex, log.stream, log.msg)
        for item in status.statuses:
            known = self._vertices.get(item.vertex)
            if known and item.current:
                yield StepProgress(
                    step=item.vertex,
                    name=known.name,
                    what=item.ID,
                    current=item.current,
                    total=item.total,
                )
        for message in status.vertexes:
            yield from self._finished(message)

    def steps(self) -> tuple[StepFinished, ...]:
        """Finished steps in the order they first ran."""
        done = [(digest, vertex) for digest, vertex in self._vertices.items() if vertex.intervals]
        done.sort(key=lambda one: min(one[1].intervals))
        return tuple(vertex.finished(digest) for digest, vertex in done)

    def failed(self) -> tuple[str, str, tuple[str, ...]] | None:
        """Name, error and last log lines of the step that failed; not of those that were
        cancelled because of it.
        """
        failures = [vertex for vertex in self._vertices.values() if vertex.error]
        failures.sort(key=lambda vertex: CANCELLED in vertex.error)
        return (failures[0].name, failures[0].error, tuple(failures[0].log)) if failures else None

    def _finished(self, message: Any) -> Iterator[BuildEvent]:
        vertex = self._vertices[message.digest]
        vertex.cached = vertex.cached or message.cached
        vertex.error = message.error or vertex.error
        if not message.HasField("completed") or vertex.running_since is None:
            return
        vertex.intervals[vertex.running_since] = message.completed.ToNanoseconds() / 1e9
        vertex.running_since = None
        for stream in [stream for stream, begun in vertex.partial.items() if begun]:
            yield from self._logged(message.digest, stream, b"\n")
        yield vertex.finished(message.digest, message.error)

    def _logged(self, digest: str, stream: int, data: bytes) -> Iterator[LogLine]:
        vertex = self._vertices.setdefault(digest, _Vertex())
        *lines, vertex.partial[stream] = (vertex.partial.get(stream, b"") + data).split(b"\n")
        for line in lines:
            text = self._redact(plain_line(line))
            vertex.log.append(text)
            yield LogLine(step=digest, name=vertex.name, text=text)


def plain_line(line: bytes) -> str:
    """What a terminal would show of a line in the end: no colours, only the last state of a
    progress bar.
    """
    text = _ANSI.sub("", line.decode(errors="replace")).rstrip()
    return text.rsplit("\r", 1)[-1]
