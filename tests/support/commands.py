"""The command line, called in this process: what a subprocess would do, without starting Python anew."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from unittest import mock

from images import cli
from tools import run


@dataclass(frozen=True)
class Called:
    """How a verb ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def call(*arguments: str) -> Called:
    """Run `python -m images ARGUMENTS` here. Signal handlers are afterwards as before."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with mock.patch.object(sys, "argv", ["images", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Called(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def tool(name: str, *arguments: str) -> Called:
    """Run `python -m tools.NAME ARGUMENTS` here."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", [name, *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            run(import_module(f"tools.{name}").main)
            code: object = 0
        except SystemExit as ended:
            code = ended.code
    return Called(returncode=code if isinstance(code, int) else 1, stdout=out.getvalue(), stderr=err.getvalue())
