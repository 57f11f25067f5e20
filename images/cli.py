"""The command line: its verbs, and how every way to end is told. Results: stdout; talk: stderr."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import typer
from rich.markup import escape

from images.commands import bake, building, ci, common, nightly, preparing, publishing, reproduce, site
from images.commands import bench as benching
from images.errors import Problem, UserError, problem_of

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
_INTERRUPTED = 130
"""Exit status after SIGINT: 128 + 2, as shells have it."""
_VERBS: dict[str, Callable[..., None]] = {
    "plan": preparing.plan_verb,
    "lock": preparing.lock_verb,
    "render": preparing.render_verb,
    "bake": bake.bake_verb,
    "adopt": bake.adopt_verb,
    "build": building.build_verb,
    "wheels": building.wheels_verb,
    "reproduce": reproduce.reproduce_verb,
    "validate": building.validate_verb,
    "judge": building.judge_verb,
    "publish": publishing.publish_verb,
    "promote": publishing.promote_verb,
    "verify": publishing.verify_verb,
    "choose": publishing.choose_verb,
    "site": site.site_verb,
    "nightly": nightly.nightly_verb,
    "pin": preparing.pin_verb,
    "engine": building.engine_verb,
    "facts": preparing.facts_verb,
    "releases": ci.releases_verb,
    "guard": ci.guard_verb,
    "issues": ci.issues_verb,
    "generate": preparing.generate_verb,
    "bench": benching.bench_verb,
}
for _name, _verb in _VERBS.items():
    app.command(_name)(_verb)


def main() -> NoReturn:
    """Run a verb. Ends the process: 0 well, 1 a step or a verdict failed, 2 wrong input, 130 interrupted."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    gc.set_threshold(100_000)  # what a plan is made of stays: looking for garbage in it takes a third of its time
    try:
        code = app(standalone_mode=False)
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
    except typer.TyperException as error:
        message = getattr(error, "format_message", error.__str__)()
        words = ["python -m images", *(word for word in sys.argv[1:2] if word in _VERBS), "--help"]
        _print_problem(Problem(where=" ".join(sys.argv[1:]), cause=message, then=f"`{' '.join(words)}`"))
        sys.exit(2)
    if code == _INTERRUPTED:  # what Typer makes of an interrupt, without a word
        _stopped()
    sys.exit(code if isinstance(code, int) else 0)


def _stopped() -> NoReturn:
    common.talk.print("[red]stopped[/]: nothing is left running, and nothing got a name")
    sys.exit(_INTERRUPTED)


def _print_problem(problem: Problem) -> None:
    where = f"[bold]{escape(problem.where)}[/]: " if problem.where else ""
    common.talk.print(f"[red]error[/] {where}{escape(problem.cause)}", soft_wrap=True)
    if problem.then:
        common.talk.print(f"      next: {escape(problem.then)}", soft_wrap=True)
