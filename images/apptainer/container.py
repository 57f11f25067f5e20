"""One container as a process of `apptainer exec`: files in, start, lines out, how it ended."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from images.apptainer.command import host_variables
from images.engine import Exit, Line, TimedOut
from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import plain_line
from images.errors import Problem, UserError

_GUARD = """
exec 3<&0
"$@" 3<&- </dev/null &
child=$!
{ read -r _ <&3; kill -9 $child; } >/dev/null 2>&1 &
exec 3<&- 2>/dev/null
wait $child
status=$?
kill -9 $!
exit $status
"""
"""Runs a command until its standard input ends, as it does when whoever holds the other end is killed. The kernel's
signal for that (`setpriv --pdeathsig`) is lost where Apptainer makes its user namespace."""


class ApptainerContainer:
    """Made by `Apptainer.container`, which also ends it. Killing `apptainer` ends all that runs in the container."""

    def __init__(self, name: str, command: list[str], folders: Mapping[str, Path]) -> None:
        """`folders`: path in the container -> folder of this machine."""
        self._name, self._folders = name, folders
        self._command = ["sh", "-c", _GUARD, "guard", *command]
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._readers: tuple[threading.Thread, ...] = ()
        self._ended = threading.Event()

    def put(self, files: Files, to: str) -> None:
        """Copy files into the folder `to`, one of the spec's volumes, before the start. Raises UserError."""
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", ChunkReader(pack(files))), mode="r|") as archive:
                archive.extractall(self._folders[to], filter="data")
        except OSError as error:
            then = "has the disk of TMPDIR room?"
            raise UserError(Problem(where=self._name, cause=f"can't be prepared: {error}", then=then), code=1) from None

    def start(self) -> None:
        """Start it."""
        if self._ended.is_set():
            return
        pipe = subprocess.PIPE
        variables = host_variables(os.environ)
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=variables)
        streams = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._readers = tuple(threading.Thread(target=self._read, args=one, daemon=True) for one in streams.items())
        for reader in self._readers:
            reader.start()

    def lines(self, timeout: float | None = None) -> Iterator[Line]:
        """What it prints, line by line, until it ends. Kills it and raises TimedOut after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        left = len(self._readers)
        while left:
            try:
                line = self._printed.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise TimedOut(self._name, timeout or 0) from None
            if line is None:
                left -= 1
            else:
                yield line

    def wait(self, timeout: float | None = None) -> Exit:
        """Wait for its end. Kills it and raises TimedOut after `timeout` seconds. A kill has the status of a shell."""
        if self._process is None:
            return Exit(code=128 + signal.SIGKILL, oom=False, error="it was cancelled before its start")
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimedOut(self._name, timeout or 0) from None
        return Exit(code=code if code >= 0 else 128 - code, oom=False, error="")

    def kill(self) -> None:
        """End it at once. One that has ended is no error."""
        self._ended.set()
        if self._process is not None and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()

    def _read(self, stream: str, source: IO[bytes]) -> None:
        with source:
            for line in source:
                self._printed.put(Line(stream=stream, text=plain_line(line.rstrip(b"\n"))))
        self._printed.put(None)
