"""The command line, called in this process, which starts no Python anew, or in one of its own."""

import io
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from unittest import mock

from images import cli
from tests.support.checkout import ROOT
from tools import run as run_tool


@dataclass(frozen=True)
class Called:
    """How a verb ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def call(*arguments: str) -> Called:
    """Run `python -m images ARGUMENTS` in this process. Signal handlers are restored afterwards."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    with (
        mock.patch.object(sys, "argv", ["images", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Called(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m images ARGUMENTS` in the checkout, as a process of its own.

    It gets this process's environment variables and these.
    """
    command = [sys.executable, "-m", "images", *arguments]
    environment = {**os.environ, **environ}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def tool(name: str, *arguments: str) -> Called:
    """Run `python -m tools.NAME ARGUMENTS` here."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", [name, *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            run_tool(import_module(f"tools.{name}").main)
            code: object = 0
        except SystemExit as ended:
            code = ended.code
    return Called(
        returncode=code if isinstance(code, int) else 1,
        stdout=out.getvalue(),
        stderr=err.getvalue(),
    )
