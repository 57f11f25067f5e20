"""One process that has imported torch, and a fork of it for each probe that begins with importing torch.

For emulated runs alone. There that import takes many seconds of processor time, and a fork keeps what the emulator has
translated. A probe gets what it would have in a process of its own: a session, a log and variables of its own, and an
end that takes nobody with it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from validate.claims import ClaimSet
from validate.measure import measure

COMMAND = "fork-server"
_STOP_SECONDS = 30


class ForkServerError(RuntimeError):
    """It does not serve: torch could not be imported there, or it was killed."""


class ForkServer:
    """The suite's end. Probes may be asked for by several threads at once."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        """Start it: `command` is a Python as a user's process would have it, with the suite."""
        replies, told = os.pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, COMMAND, "--replies", str(told)],
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(told,),
                start_new_session=True,
            )
        os.close(told)
        self._changed = threading.Condition()
        self._ready = self._over = False
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._reader = threading.Thread(target=self._read, args=(replies,), daemon=True)
        self._reader.start()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; a probe that still runs is killed."""
        for pid in self._pids.values():
            _kill(pid)
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(self._process.pid)
            self._process.wait()
        self._reader.join(_STOP_SECONDS)

    def call(self, request: Mapping[str, Any], limit: float) -> int | None:
        """Run the probe `request["probe"]` in a fork; its exit status, None: it ran past `limit` seconds.

        Raises ForkServerError: nothing was measured.
        """
        name = request["probe"]
        self._wait_for(lambda: self._ready, limit)
        with self._changed:
            try:
                self._stdin.write(json.dumps(request).encode() + b"\n")
                self._stdin.flush()
            except OSError as error:
                raise ForkServerError(f"the fork server is gone: {error}") from None
        try:
            self._wait_for(lambda: name in self._codes, limit)
        except TimeoutError:
            return None
        finally:
            if name in self._pids:
                _kill(self._pids[name])
        return self._codes[name]

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _wait_for(self, holds: Callable[[], bool], limit: float) -> None:
        """Raises TimeoutError, or ForkServerError when there is nothing to wait for any more."""
        with self._changed:
            if not self._changed.wait_for(lambda: holds() or self._over, limit):
                if self._ready:
                    raise TimeoutError
                raise ForkServerError(f"torch was not imported within {limit:.0f} s")
            if not holds():
                raise ForkServerError("the fork server ended")

    def _read(self, replies: int) -> None:
        with open(replies, encoding="utf-8") as lines:
            for line in lines:
                told = json.loads(line)
                with self._changed:
                    self._ready = True
                    if "pid" in told:
                        self._pids[told["probe"]] = told["pid"]
                    if "code" in told:
                        self._codes[told["probe"]] = told["code"]
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


def main(arguments: Sequence[str]) -> int:
    """The server's end: import torch, then fork for each line of stdin until it is closed."""
    parser = argparse.ArgumentParser(prog=f"validate {COMMAND}")
    parser.add_argument("--replies", type=int, required=True)
    replies = parser.parse_args(arguments).replies
    requests = os.fdopen(os.dup(0), encoding="utf-8")  # read ahead: nothing of it may be left in a probe's stdin
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    importlib.import_module("torch")
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for probes
    _tell(replies, {"ready": True})
    while line := requests.readline():
        if os.fork() == 0:
            request = json.loads(line)
            # Fork once more, and tell how that one ends.
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                pid = os.fork()
                if pid == 0:
                    os.close(replies)
                    _be_the_probe(request)
                _tell(replies, {"probe": request["probe"], "pid": pid})
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(replies, {"probe": request["probe"], "code": code})
            finally:
                os._exit(0)
    return 0


def _be_the_probe(request: Mapping[str, Any]) -> NoReturn:
    """Measure as a process of its own would."""
    code = 1
    try:
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(request["environ"])
        claims = ClaimSet.loads(Path(request["claims"]).read_text(encoding="utf-8"))
        measure(request["probe"], claims, Path(request["out"]))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _tell(replies: int, message: Mapping[str, Any]) -> None:
    """One line, in one write: others write there, too."""
    os.write(replies, json.dumps(message).encode() + b"\n")


def _kill(pid: int) -> None:
    """A process and all of its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
