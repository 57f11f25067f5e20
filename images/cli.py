"""The command line: its verbs, and how errors and interrupts are shown.

Results go to stdout, all else to stderr. The module of a verb is imported when the verb is called,
and not before: `plan` needs no Docker client and no signing.
"""

import os
import re
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module, metadata
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup, TyperOption

from images.commands import SELECTOR, VERBS
from images.config import paths
from images.errors import Problem, UserError, command, problem_of, wrong
from validate import installation, terminal
from validate.installation import by_installation

_messages = Console(stderr=True, highlight=False)
_STDERR = 2
"""The file descriptor of the standard error output."""
_STOPPING = b"\nstopping: builds and containers are ended first\n"
_LONGEST = 400
"""Characters of a place and of a word that an error shows in full."""
_SHOWN = 60
"""Characters that it shows of a longer one."""
_LONG_WORD = re.compile(rf"\S{{{_LONGEST + 1},}}")
_INTERRUPTED = 130
"""Exit status after an interrupt: 128 + SIGINT, as shells have it."""
_SETTINGS: Mapping[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_ClickException: type[Any] = typer.BadParameter.__mro__[2]
"""click's own class; since typer 0.26 that of its copy of click. Only its subclasses have a public
name in both."""


class VerbCommand(TyperCommand):
    """A verb that refuses an empty value, and a second one for an option that has one value.

    Click takes an empty path for the current folder. Of two values, it takes the last one and drops
    the other: `choose --gpu V100 --gpu B200` answered for the B200 alone.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options among `args` into `ctx` as click does, and return the other arguments.

        Raises UserError for an option with an empty value, and for one that is given twice but has
        one value.
        """
        try:
            # Click empties the list.
            arguments_left = super().parse_args(ctx, list(args))
        except _ClickException as error:
            self._refuse_option_for_selector(getattr(error, "option_name", "").removeprefix("--"))
            raise
        empty_value = _find_empty_value(args)
        if empty_value:
            then = "leave it out, or write a value (a variable of the shell may be empty)"
            raise wrong(empty_value, "the value is empty", then)
        options = [param for param in self.params if isinstance(param, TyperOption)]
        repeated = _find_repeated_option(options, args)
        if repeated:
            cause = "this option has one value, and was given twice"
            raise wrong(repeated, cause, "give it once")
        return arguments_left

    def _refuse_option_for_selector(self, key: str) -> None:
        """Raise UserError if an unknown option names what the verb's selectors choose images by.

        `render --profile axolotl` is not unlikely after `choose --profile axolotl`.
        """
        # Imported only here: most verbs start sooner without.
        from images.config import selectors

        takes_selectors = any(param.metavar == SELECTOR for param in self.params)
        if takes_selectors and key in selectors.KEYS:
            then = f"choose images by a selector, which has no hyphens: `{key}=VALUE`"
            raise wrong(f"--{key}", "this verb has no such option", then)


def _find_empty_value(arguments: Sequence[str]) -> str:
    """Return the first empty value with its option: `--out=` or `--out ''`; empty if there is none.

    An empty value without an option is `''`. Other words are left out: one may hold a password.
    """
    option = ""
    for argument in arguments:
        if not argument:
            return f"{option} ''".lstrip()
        name, equals_sign, value = argument.partition("=")
        is_option = name.startswith("--")
        if is_option and equals_sign and not value:
            return argument
        # Of `--image=ADDRESS ''`, the empty word is not the option's.
        option = name if is_option and not equals_sign else ""
    return ""


def _find_repeated_option(options: Sequence[Any], arguments: Sequence[str]) -> str:
    """Return the name of an option that is given twice and may be given once; empty if none is.

    `--out` for `--out A --out B`. Options without a value are not looked at. `options` are click's
    objects, and `arguments` are those of the command line behind the verb.
    """
    # Each spelling of an option with a value (`--out`, `-o`) -> the option.
    with_value = {}
    for option in options:
        if not option.is_flag:
            with_value.update(dict.fromkeys(option.opts, option))
    seen = set()
    remaining = iter(arguments)
    for argument in remaining:
        # All that follows are arguments, not options.
        if argument == "--":
            break
        name, equals_sign, _ = argument.partition("=")
        option = with_value.get(name)
        if option is None:
            continue
        # The next word is the value, even if it looks like an option.
        if not equals_sign:
            next(remaining, None)
        if not option.multiple and option.name in seen:
            return name
        seen.add(option.name)
    return ""


class LazyGroup(TyperGroup):
    """The verbs as a group of commands. Each is imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        module = import_module(f"images.commands.{cmd_name}")
        function = getattr(module, cmd_name)
        return typer.main.get_command(app_of(function, cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def app_of(function: Callable[..., Any], name: str) -> typer.Typer:
    """Return a function, whose parameters describe options and arguments, as a program."""
    program = typer.Typer(**_SETTINGS)
    program.command(name, cls=VerbCommand, context_settings=_HELP)(function)
    return program


app = typer.Typer(cls=LazyGroup, invoke_without_command=True, context_settings=_HELP, **_SETTINGS)


@app.callback()
def _without_verb(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version (of a checkout also the commit).")
    ] = False,
) -> None:
    """Build and validate CUDA images for training, from matrix.yaml."""
    if version:
        typer.echo(_version_text())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _version_text() -> str:
    """Return name and version of this program; of a checkout also the commit."""
    if not installation.IS_CHECKOUT:
        return f"truetag {metadata.version('truetag')}"
    # Imported here, because no verb needs it.
    from images.host import checkout

    pyproject = tomllib.loads((paths.RESOURCES / "pyproject.toml").read_text(encoding="utf-8"))
    text = f"{pyproject['project']['name']} {pyproject['project']['version']}"
    commit = checkout.git(paths.RESOURCES, "describe", "--always", "--dirty", "--exclude=*")
    return f"{text}, commit {commit}" if commit else text


def main() -> NoReturn:
    """Run the verb of the command line, and end the process."""
    run_and_exit(app, _help_on_usage)


def run_and_exit(program: typer.Typer, help_on_usage: Callable[[], str]) -> NoReturn:
    """Run a program with the arguments of the command line, print its errors, and end the process.

    `help_on_usage` is called for an option or argument that click refuses: it returns what to do.
    Exit status: 0 all is well, 1 a step or a verdict failed, 2 wrong input, 130 interrupted.
    """
    try:
        code = _run(program)
    except UserError as error:
        for problem in error.problems:
            _print_problem(problem)
        sys.exit(error.code)
    # This is a kind of OSError, so it must stand before that.
    except BrokenPipeError:
        # Whoever read the output has stopped, which counts as an interrupt. Python would complain
        # when it flushes stdout, so that leads to /dev/null from here on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_INTERRUPTED)
    except OSError as error:
        _print_problem(problem_of(error))
        sys.exit(1)
    except (typer.Abort, KeyboardInterrupt):
        _exit_interrupted()
    except _ClickException as error:
        # What is too long is cut in the place of a problem: click quotes all that it refuses. Other
        # words of the command line are left out: one may hold a password.
        cause = _cut(error.format_message().replace("Value error, ", ""))
        _print_problem(Problem(where="".join(sys.argv[1:2]), cause=cause, then=help_on_usage()))
        sys.exit(2)

    # Typer returns this status for an interrupt, and prints nothing.
    if code == _INTERRUPTED:
        _exit_interrupted()
    sys.exit(code if isinstance(code, int) else 0)


def _run(program: typer.Typer) -> object:
    """Run a program, and raise KeyboardInterrupt if a signal ends it. Returns Typer's status.

    SIGINT, SIGTERM and SIGHUP are treated alike.
    """
    received: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        if not received:
            # By the system's own call: Python's streams may be in the middle of a line. What runs
            # in containers is stopped first, which takes some seconds.
            with suppress(OSError):
                os.write(_STDERR, _STOPPING)
        received.append(number)
        if number == signal.SIGTERM:
            # Schedulers send it to each process of a job, and more than once. A second one must not
            # end the cleaning up.
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Do not interrupt for a signal that the caller ignores: `nohup` ignores SIGHUP.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        return program(standalone_mode=False)
    except Exception:
        # Code that is interrupted may raise another error: within a lock of `threading`,
        # "RuntimeError: release unlocked lock".
        if received:
            raise KeyboardInterrupt from None
        raise


def _help_on_usage() -> str:
    """Return what to do about arguments that click refuses, such as an unknown option or verb.

    A verb is the first argument, such as `build`. The text is a command that prints help. After an
    unknown verb, `did you mean ...` with the most similar verb comes before it.
    """
    # People who know it from an image look for it here.
    if sys.argv[1] == "doctor":
        return "it is in each image: `docker run --rm --gpus all IMAGE doctor`"
    if sys.argv[1] in VERBS:
        help_command = command(sys.argv[1], "--help")
    else:
        help_command = by_installation(
            checkout="python -m images --help", installed="truetag --help"
        )
    then = f"`{help_command}`"
    # `biuld NAME` -> `build NAME`.
    similar_verbs = get_close_matches(sys.argv[1], VERBS, n=1)
    if sys.argv[1] not in VERBS and similar_verbs:
        arguments_after = [shlex.quote(argument) for argument in sys.argv[2:]]
        then = f"did you mean `{command(similar_verbs[0], *arguments_after)}`? All verbs: {then}"
    return then


def _exit_interrupted() -> NoReturn:
    """Say that the verb was interrupted, and end the process."""
    text = Text(_wrapped("stopped: nothing is left running, and no unfinished image was tagged"))
    text.stylize("red", 0, len("stopped"))
    _messages.print(text, soft_wrap=True)
    sys.exit(_INTERRUPTED)


def _print_problem(problem: Problem) -> None:
    """Print a problem, and what to do next, to stderr, wrapped at the terminal's width.

    It looks like `error matrix.yaml:12: there is no layer 'x'`, and then `next: ...` in a new line.
    If the next step has a command of `docker`, a line says how docker reaches the user's private
    engine, if that is the only one here.
    """
    where = f"{_cut(problem.where)}: " if problem.where else ""
    # Wrap first and colour then, so that the codes of colours do not count as characters.
    text = Text(_wrapped(f"error {where}{problem.cause}"))
    text.stylize("red", 0, len("error"))
    text.stylize("bold", len("error "), len("error ") + len(where.removesuffix(": ")))
    _messages.print(text, soft_wrap=True)
    if problem.then:
        _messages.print(Text(_wrapped(f"      next: {problem.then}")), soft_wrap=True)

    # `docker login` and `docker context` need no engine.
    advises_docker = re.search("`docker (?!login|context)", problem.then)
    if advises_docker and not os.environ.get("DOCKER_HOST"):
        _print_private_engine()


def _print_private_engine() -> None:
    """Print how `docker` reaches this user's private engine, if that is the only engine here.

    Without that, an advised `docker` command would look for an engine of the system.
    """
    # Imported only here: it imports Docker's client.
    from images.engine.client import private_home

    private_socket = private_home() / "docker.sock"
    has_system_engine = os.access("/var/run/docker.sock", os.R_OK)
    if private_socket.exists() and not has_system_engine:
        advice = f"`export DOCKER_HOST=unix://{private_socket}`"
        _messages.print(Text(_wrapped(f"      for the private engine: {advice}")), soft_wrap=True)


def _wrapped(line: str) -> str:
    """Return a line of an error, wrapped at the terminal's width, with very long words cut.

    A person's input may be a word of thousands of characters, and no path needs so many.
    """
    shortened = _LONG_WORD.sub(lambda word: _cut(word[0]), line)
    return terminal.wrapped(shortened, terminal.width_of(sys.stderr), indent="      ")


def _cut(text: str) -> str:
    """Return a text, or its beginning if it is very long."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_SHOWN]}... ({len(text):,} characters)"
