"""BuildKit's reports become events, and contexts archives.

The reports are made with the public descriptors by which they are read.
"""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from images.engine import buildkit
from images.engine.archive import pack
from images.engine.buildkit import LogLine, StepFinished, StepStarted, Trace, plain_line
from images.engine.buildkit_pb2 import StatusResponse


def report(
    *,
    vertex: Mapping[str, object] | None = None,
    started: float | None = None,
    completed: float | None = None,
    log: bytes = b"",
    stream: int = 1,
    progress: tuple[str, int, int] | None = None,
) -> bytes:
    message = StatusResponse()
    if vertex is not None:
        one = message.vertexes.add(digest="d", name="[torch 2/5] RUN pip", **vertex)
        for field, value in (("started", started), ("completed", completed)):
            if value is not None:
                getattr(one, field).FromNanoseconds(int(value * 1e9))
    if log:
        message.logs.add(vertex="d", stream=stream, msg=log)
    if progress:
        message.statuses.add(ID=progress[0], vertex="d", current=progress[1], total=progress[2])
    return message.SerializeToString()


def feed(*reports: bytes) -> tuple[Trace, list[buildkit.BuildEvent]]:
    trace = Trace()
    return trace, [event for data in reports for event in trace.feed(data)]


def test_what_a_step_writes_to_its_two_outputs_stays_apart() -> None:
    """The end of a line of the one may arrive between two halves of a line of the other.

    (Seen with apt on engines 26.1 and 28.5.)
    """
    trace, events = feed(
        report(vertex={}, started=1),
        report(log=b"Reading state information...", stream=1),
        report(log=b"E: ", stream=2),
        report(log=b"\n", stream=1),
        report(log=b"Unable to locate package\n", stream=2),
        report(log=b"half", stream=1),
        report(vertex={"error": "exit code: 100"}, started=1, completed=2),
    )
    lines = ["Reading state information...", "E: Unable to locate package", "half"]
    assert [event.text for event in events if isinstance(event, LogLine)] == lines
    assert trace.failed_step() == ("[torch 2/5] RUN pip", "exit code: 100", tuple(lines))
    assert isinstance(events[-1], StepFinished) and events[-1].log == tuple(lines)


def test_a_step_that_runs_twice_counts_both_times_and_reports_each_end_once() -> None:
    trace, events = feed(
        report(vertex={}, started=1, completed=2),
        report(vertex={}, started=1, completed=2),
        report(vertex={"cached": True}, started=5, completed=6),
    )
    assert [type(event) for event in events] == [
        StepStarted,
        StepFinished,
        StepStarted,
        StepFinished,
    ]
    assert trace.steps() == (
        StepFinished(step="d", name="[torch 2/5] RUN pip", seconds=2, cached=True),
    )


def test_a_step_stopped_because_of_another_is_not_the_failed_one() -> None:
    message = StatusResponse()
    message.vertexes.add(digest="a", name="bystander", error="context canceled")
    message.vertexes.add(digest="b", name="culprit", error="exit code: 1")
    trace, _ = feed(message.SerializeToString())
    assert trace.failed_step() == ("culprit", "exit code: 1", ())
    with pytest.raises(ValueError, match="not a BuildKit report"):
        feed(b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"  1%\r 50%\r100%", "100%"),
        (b"crlf\r", "crlf"),
        (b"\xff broken", "\ufffd broken"),
    ],
)
def test_lines_read_as_a_terminal_would_leave_them(line: bytes, shown: str) -> None:
    assert plain_line(line) == shown


def unpack(chunks: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(chunks)) as archive:
        return {member.name: member for member in archive}


def test_an_archive_does_not_depend_on_order_time_or_owner(tmp_path: Path) -> None:
    file = tmp_path / "wheel"
    file.write_bytes(b"w" * 1000)
    first = b"".join(pack({"b/c": b"1", "a": file}))
    os.utime(file, (1, 1))
    assert b"".join(pack({"a": file, "b/c": b"1"})) == first
    members = unpack(first)
    assert list(members) == ["a", "b", "b/c"]
    assert {(member.mtime, member.uid, member.gid) for member in members.values()} == {(0, 0, 0)}
    assert members["b"].isdir() and members["b"].mode == 0o755
    assert (
        first[257:265] == b"ustar  \0"
    )  # GNU's magic: BuildKit takes a PAX archive for a Dockerfile


def test_an_archive_keeps_modes_and_long_names(tmp_path: Path) -> None:
    script = tmp_path / "run"
    script.write_bytes(b"x")
    script.chmod(0o700)
    name = "long/" * 60 + "name"
    members = unpack(b"".join(pack({"f/run": script, "s": b"#!/bin/sh\n", name: b"deep"})))
    assert (members["f/run"].mode, members["s"].mode, members[name].mode) == (0o755, 0o755, 0o644)


def test_what_a_step_prints_of_a_password_is_neither_shown_nor_kept() -> None:
    trace = Trace(lambda text: text.replace("secret", "***"))
    reports = (
        report(vertex={}, started=1),
        report(log=b"401 for me:secret@host\n"),
        report(vertex={"error": "exit code: 1"}),
    )
    events = [event for data in reports for event in trace.feed(data)]
    assert [event.text for event in events if isinstance(event, LogLine)] == ["401 for me:***@host"]
    assert (trace.failed_step() or ())[2:] == (("401 for me:***@host",),)
