"""Reads what BuildKit reports of a running build, and returns it as events. Pure.

The engine sends a stream of JSON messages. Those of BuildKit hold a protobuf message each, a
`moby.buildkit.v1.StatusResponse`, which buildkit_pb2.py decodes. After a change of buildkit.proto,
make that file anew in the root of the checkout, with a protoc before 26 (later ones write code that
needs their own series of the library):

    python3 -m venv /tmp/pb && /tmp/pb/bin/pip install grpcio-tools==1.62.3 "setuptools<81"
    /tmp/pb/bin/python -m grpc_tools.protoc -I. --python_out=. images/engine/buildkit.proto
"""

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from images.engine import buildkit_pb2
from images.engine.failures import CANCELLED, BuildFailed
from images.errors import failed

LOG_TAIL = 200
"""Lines of each step's log that are kept: enough to hold the first error of a failed compile."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")
"""A terminal's escape sequence: colours, movements of the cursor, titles."""


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    """A step began to run, or to be looked up in the build cache."""

    step: str
    """The step's key, which all events of a step have in common."""
    name: str


@dataclass(frozen=True, kw_only=True)
class StepFinished:
    """A step ended. `error` and `log`, the end of what it printed, are empty unless it failed."""

    step: str
    name: str
    seconds: float
    cached: bool
    error: str = ""
    log: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """How far a download, an extraction or an export is."""

    step: str
    name: str
    what: str
    current: int
    """Bytes."""
    total: int
    """Bytes; 0 if unknown."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line that a step printed, without colours and without what a progress bar overwrote.

    If `step` is empty, the build broke off because of the network, all its steps have ended, and it
    begins again.
    """

    step: str
    name: str
    text: str


BuildEvent = StepStarted | StepFinished | StepProgress | LogLine


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A finished build."""

    image_id: str
    steps: tuple[StepFinished, ...]
    seconds: float
    """How long the build took, with all its attempts."""


class FailedStep(NamedTuple):
    """The step that made a build fail: its name, its error, and the end of its log."""

    name: str
    error: str
    log: tuple[str, ...]


@dataclass(kw_only=True)
class _Vertex:
    """What is known so far of a step. BuildKit calls the steps of a build vertexes."""

    name: str = ""
    running_since: float | None = None
    intervals: dict[float, float] = field(default_factory=dict)
    """Start -> end. BuildKit can run a step several times: first a lookup, then a transfer."""
    cached: bool = False
    error: str = ""
    unfinished_lines: dict[int, bytes] = field(default_factory=dict)
    """Output (1 or 2) -> the line that it has begun; parts of both outputs arrive interleaved."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_TAIL))

    def finished(self, digest: str, error: str = "") -> StepFinished:
        """Return the event that this step ended. `error` is empty if it succeeded."""
        seconds = sum(end - start for start, end in self.intervals.items())
        log = tuple(self.log) if error else ()
        return StepFinished(
            step=digest, name=self.name, seconds=seconds, cached=self.cached, error=error, log=log
        )


class Trace:
    """Decodes the messages of one build, and remembers its steps and the ends of their logs.

    Each printed line goes through `redact` before it is kept or passed on.
    """

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._vertices: dict[str, _Vertex] = {}
        self._redact = redact

    def read_image_id(
        self, messages: Iterable[dict[str, Any]], on_event: Callable[[BuildEvent], None]
    ) -> str:
        """Read the engine's answer to a build to its end, and return the ID of the built image.

        `messages` are its decoded JSON objects. `on_event` is called with each event of the build,
        such as a step's start or a line of its log, as it is read. Raises BuildFailed if a step
        failed, and UserError if the messages end with neither an image nor an error.
        """
        image_id = ""
        for message in messages:
            if "errorDetail" in message or "error" in message:
                raise self._explain_failure(message)
            # BuildKit's own reports come inside the engine's messages, in base64.
            if message.get("id") == "moby.buildkit.trace":
                for event in self.feed(base64.b64decode(message["aux"])):
                    on_event(event)
            elif message.get("id") == "moby.image.id":
                image_id = message["aux"]["ID"]
        if not image_id:
            cause = "the engine ended the build without an image and without an error"
            then = (
                "see whether the engine still runs (`docker info`) and what its log says "
                "(`journalctl -u docker`); then build again"
            )
            raise failed("build", cause, then)
        return image_id

    def _explain_failure(self, message: dict[str, Any]) -> BuildFailed:
        """Return the exception for a build that failed: the step, its error, the end of its log.

        `message` is what the engine sent last: it has an error, but does not say of which step.
        """
        error = str(message.get("errorDetail", {}).get("message") or message.get("error"))
        step = self.failed_step()
        # No step has failed if, for example, the Dockerfile itself could not be read.
        if step is None:
            return BuildFailed(step="build", error=f"{error}\n{error}", log=())
        return BuildFailed(step=step.name, error=f"{error}\n{step.error}", log=step.log)

    def feed(self, report: bytes) -> Iterator[BuildEvent]:
        """Decode a report of BuildKit, and yield what has happened in the build since the last one.

        `report` is a protobuf message (StatusResponse). The events are steps that start, print
        lines, download or upload bytes, and end. Raises ValueError if it can't be decoded.
        """
        try:
            status: Any = buildkit_pb2.StatusResponse.FromString(report)
        # DecodeError, whose class differs between the implementations of protobuf.
        except Exception as error:
            raise ValueError(f"not a BuildKit report: {error}") from error

        # One message may tell of a step's start, its output and its end: in this order.
        for message in status.vertexes:
            yield from self._started(message)
        for log in status.logs:
            yield from self._logged(log.vertex, log.stream, log.msg)
        for item in status.statuses:
            vertex = self._vertices.get(item.vertex)
            # Without a byte so far, there is nothing to tell.
            if vertex and item.current:
                yield StepProgress(
                    step=item.vertex,
                    name=vertex.name,
                    what=item.ID,
                    current=item.current,
                    total=item.total,
                )
        for message in status.vertexes:
            yield from self._finished(message)

    def steps(self) -> tuple[StepFinished, ...]:
        """Return the finished steps, in the order in which they first ran."""
        first_starts = {}
        for digest, vertex in self._vertices.items():
            if vertex.intervals:
                first_starts[digest] = min(vertex.intervals)
        in_order = sorted(first_starts, key=first_starts.__getitem__)
        return tuple(self._vertices[digest].finished(digest) for digest in in_order)

    def failed_step(self) -> FailedStep | None:
        """Return the step that failed; None if none did.

        Steps that were cancelled because another one failed have an error, too: they come last.
        """
        failures = [vertex for vertex in self._vertices.values() if vertex.error]
        if not failures:
            return None
        failures.sort(key=lambda vertex: CANCELLED in vertex.error)
        cause = failures[0]
        return FailedStep(cause.name, cause.error, tuple(cause.log))

    def _started(self, message: Any) -> Iterator[StepStarted]:
        """Note that a step has started, if the message says so and it is news."""
        vertex = self._vertices.setdefault(message.digest, _Vertex())
        vertex.name = " ".join(message.name.split()) or vertex.name
        if not message.HasField("started"):
            return
        start = message.started.ToNanoseconds() / 1e9
        # BuildKit repeats the start of a step in later messages.
        if start not in vertex.intervals and start != vertex.running_since:
            vertex.running_since = start
            yield StepStarted(step=message.digest, name=vertex.name)

    def _finished(self, message: Any) -> Iterator[BuildEvent]:
        """Note that a build step has ended, if BuildKit's message about it says so.

        Yields the last line of its output, if that had no line end yet, and then the event that the
        step ended. Yields nothing if the step goes on, or was not running.

        `message` is a protobuf Vertex, BuildKit's word for a step. `_started` gets each first.
        """
        vertex = self._vertices[message.digest]
        vertex.cached = vertex.cached or message.cached
        vertex.error = message.error or vertex.error
        if not message.HasField("completed") or vertex.running_since is None:
            return
        # Start -> end of each time that the step ran, in seconds.
        vertex.intervals[vertex.running_since] = message.completed.ToNanoseconds() / 1e9
        vertex.running_since = None
        # The last line of an output (1: stdout, 2: stderr) may have no end: give it one. `_logged`
        # changes the dictionary, so go through a copy.
        for stream, unfinished in list(vertex.unfinished_lines.items()):
            if unfinished:
                yield from self._logged(message.digest, stream, b"\n")
        yield vertex.finished(message.digest, message.error)

    def _logged(self, digest: str, stream: int, data: bytes) -> Iterator[LogLine]:
        """Yield the lines of a step's output that are complete now that `data` follows.

        What comes after the last line end is kept for the next call. `digest` is the key of the
        step, and `stream` its output (1: stdout, 2: stderr).
        """
        vertex = self._vertices.setdefault(digest, _Vertex())
        output = vertex.unfinished_lines.get(stream, b"") + data
        # What follows the last line end is the beginning of a line, or empty.
        *lines, unfinished = output.split(b"\n")
        vertex.unfinished_lines[stream] = unfinished
        for line in lines:
            text = self._redact(plain_line(line))
            vertex.log.append(text)
            yield LogLine(step=digest, name=vertex.name, text=text)


def plain_line(line: bytes) -> str:
    """Return what a terminal shows of a line in the end.

    That is without colours, and of a progress bar only its last state.
    """
    text = _ANSI.sub("", line.decode(errors="replace")).rstrip()
    return text.rsplit("\r", 1)[-1]
