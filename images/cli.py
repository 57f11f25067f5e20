"""The command line: its verbs, and how every way to end is told. Results: stdout; talk: stderr.

A verb's module is imported when the verb is called, and not before: `plan` needs no Docker client and no signing.
"""

import os
import re
import signal
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from images import errors
from images.commands import VERBS
from images.config import paths
from images.errors import Problem, UserError, command, problem_of

_talk = Console(stderr=True, highlight=False)
_INTERRUPTED = 130
"""Exit status after SIGINT: 128 + 2, as shells have it."""
_SETTINGS: Mapping[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_ClickException: type[Any] = typer.BadParameter.__mro__[2]
"""click's own; since typer 0.26 that of its copy of click. Only subclasses of it have a public name in both."""


class LazyGroup(TyperGroup):
    """The verbs as a group of commands, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        single = typer.Typer(**_SETTINGS)
        verb = getattr(import_module(f"images.commands.{cmd_name}"), cmd_name)
        single.command(cmd_name, context_settings=_HELP)(verb)
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*VERBS.items()])


app = typer.Typer(cls=LazyGroup, invoke_without_command=True, context_settings=_HELP, **_SETTINGS)


@app.callback()
def _verbs(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version, and the commit.")
    ] = False,
) -> None:
    """Build and validate CUDA images for training, from matrix.yaml."""
    if version and errors.IS_CHECKOUT:
        from images.host import checkout  # no verb needs it

        project = tomllib.loads((paths.RESOURCES / "pyproject.toml").read_text(encoding="utf-8"))[
            "project"
        ]
        commit = checkout.git(paths.RESOURCES, "describe", "--always", "--dirty", "--exclude=*")
        typer.echo(
            f"{project['name']} {project['version']}" + (f", commit {commit}" if commit else "")
        )
    elif version:
        typer.echo(f"truetag {metadata.version('truetag')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    if version:
        raise typer.Exit


def main() -> NoReturn:
    """Run a verb. Ends the process: 0 well, 1 a step or a verdict failed, 2 wrong input, 130 interrupted."""
    try:
        code = _run()
    except UserError as error:
        for problem in error.problems:
            _print_problem(problem)
        sys.exit(error.code)
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_INTERRUPTED)
    except OSError as error:
        _print_problem(problem_of(error))
        sys.exit(1)
    except (typer.Abort, KeyboardInterrupt):
        _stopped()
    except _ClickException as error:
        help_of_all = "python -m images --help" if errors.IS_CHECKOUT else "truetag --help"
        then = command(sys.argv[1], "--help") if sys.argv[1] in VERBS else help_of_all
        _print_problem(
            Problem(where=" ".join(sys.argv[1:]), cause=error.format_message(), then=f"`{then}`")
        )
        sys.exit(2)
    if code == _INTERRUPTED:  # what Typer makes of an interrupt, without a word
        _stopped()
    sys.exit(code if isinstance(code, int) else 0)


def _run() -> object:
    """Whatever a signal's interrupt comes out as, it is told as KeyboardInterrupt."""
    got: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        got.append(number)
        if number == signal.SIGTERM:
            # Schedulers send it to each process of a job, and more than once: the second must not end the tidying up.
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` has it ignored
            signal.signal(number, interrupt)
    try:
        return app(standalone_mode=False)
    except Exception:
        if got:  # within a lock's own code it becomes "RuntimeError: release unlocked lock"
            raise KeyboardInterrupt from None
        raise


def _stopped() -> NoReturn:
    _talk.print("[red]stopped[/]: nothing is left running, and no unfinished image was tagged")
    sys.exit(_INTERRUPTED)


def _print_problem(problem: Problem) -> None:
    where = f"[bold]{escape(problem.where)}[/]: " if problem.where else ""
    _talk.print(f"[red]error[/] {where}{escape(problem.cause)}", soft_wrap=True)
    if problem.then:
        _talk.print(f"      next: {escape(problem.then)}", soft_wrap=True)
    if re.search("`docker (?!login|context)", problem.then) and not os.environ.get("DOCKER_HOST"):
        from images.engine.client import private_home  # not before: it imports Docker's client

        if (socket := private_home() / "docker.sock").exists() and not os.access(
            "/var/run/docker.sock", os.R_OK
        ):
            _talk.print(
                f"      for the private engine: `export DOCKER_HOST=unix://{socket}`",
                soft_wrap=True,
            )
