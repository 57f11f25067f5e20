"""Shows the progress of builds on the terminal: a line for each step of each build."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from images.engine.buildkit import BuildEvent, LogLine, StepFinished, StepProgress, StepStarted
from images.engine.failures import CANCELLED, step_name
from validate import terminal

LOG_TAIL = 20
"""Lines shown of a step that failed."""


class _RunningStep(NamedTuple):
    """A build step that runs."""

    name: str
    started: float  # time.monotonic()


class Progress:
    """Shows builds: moving lines on a terminal, plain lines elsewhere.

    Use it as a context manager. It is thread safe.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Prepare the display of builds on a terminal, by default on stderr. Nothing is shown."""
        self.console = console or Console(stderr=True, highlight=False)
        self._jobs: dict[str, dict[str, _RunningStep]] = {}
        """Build -> ID of each step that runs -> the step."""
        self._last: dict[str, str] = {}
        """ID of a step -> the last line that it printed."""
        self._lock = threading.RLock()
        self._live = Live(
            console=self.console,
            get_renderable=self._render,
            refresh_per_second=5,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def job(self, name: str) -> Callable[[BuildEvent], None]:
        """Begin to show a build, and return a function to call with each event of it.

        `name` stands at the beginning of the lines about the build. The steps that run are shown
        below the log, and each that ends gets a line in it. Builds may run in several threads.
        """
        with self._lock:
            running = self._jobs[name] = {}

        def on_event(event: BuildEvent) -> None:
            """Note what an event says about the build's steps, and print each step that ends.

            It is called for each event of a build. `running` has the steps that run now, and
            `_last` the last line of each, which is shown below its name.
            """
            with self._lock:
                match event:
                    case StepStarted():
                        step = _RunningStep(event.name, time.monotonic())
                        running.setdefault(event.step, step)
                    case LogLine() if event.step in running:
                        self._last[event.step] = event.text
                    case StepProgress() if event.step in running:
                        amount = f"{event.current / 1e6:.0f}"
                        if event.total:
                            amount += f" of {event.total / 1e6:.0f}"
                        self._last[event.step] = f"{event.what} {amount} MB"
                    case StepFinished():
                        running.pop(event.step, None)
                        self._last.pop(event.step, None)
                        # Of steps that were stopped, only the one that failed is of interest.
                        if CANCELLED not in event.error:
                            self._say_finished(name, event)
                    # A line without a step: the network failed, and the build begins again.
                    case LogLine(step=""):
                        running.clear()
                        self.say(name, event.text, "yellow")

        return on_event

    def _say_finished(self, job: str, step: StepFinished) -> None:
        """Print that a build step has ended: the time it took, or its error and the end of its log.

        `job` is the name of the build, which begins each line.
        """
        name = step_name(step.name)
        if step.error:
            self.say(job, f"{'FAILED':>9}  {name}", "bold red")
            for line in step.log[-LOG_TAIL:]:
                self.say(job, f"  | {line}", "dim")
            self.say(job, f"  {step.error}", "red")
            return

        # BuildKit's own steps, which are in no Dockerfile, are printed only if they fail.
        if step.name.startswith(("[internal]", "copy /context")):
            return
        if step.cached:
            self.say(job, f"{'cached':>9}  {name}", "dim")
        else:
            took = f"{step.seconds:.1f} s"
            self.say(job, f"{took:>9}  {name}")

    def say(self, name: str, text: str, style: str = "") -> None:
        """Print a line about a build above the moving lines. `style` is one of rich.

        It is wrapped at the terminal's width, and stays whole in a pipe.
        """
        width = self.console.width if self.console.is_terminal else None
        # Wrapped before it is coloured: the codes of colours count as no characters.
        line = Text(terminal.wrapped(f"{name}  {text}", width))
        line.stylize("cyan", 0, len(name))
        line.stylize(style, len(name))
        with self._lock:
            self.console.print(line, soft_wrap=True)

    def finish(self, name: str, summary: str, *, ok: bool = True) -> None:
        """Stop showing a build, and print a summary of it; in red unless `ok`."""
        style = "bold green" if ok else "bold red"
        with self._lock:
            self._jobs.pop(name, None)
            self.say(name, summary, style=style)

    def _render(self) -> RenderableType:
        """Return what the terminal shows below the log: the build steps that run at this moment.

        Each has a line with its build, its seconds and its name, and a second line with what it
        printed last. rich calls this five times a second.
        """
        table = Table.grid(padding=(0, 1), expand=False)
        # Builds run in threads of their own, and change both dictionaries.
        with self._lock:
            for build, running_steps in self._jobs.items():
                for step_id, step in running_steps.items():
                    seconds = time.monotonic() - step.started
                    name = escape(step_name(step.name, 60))
                    table.add_row(f"[cyan]{escape(build)}[/]", f"{seconds:6.0f} s", name)
                    last_line = self._last.get(step_id, "")
                    if last_line:
                        text = Text(last_line[:100], style="dim", no_wrap=True, overflow="ellipsis")
                        table.add_row("", "", text)
        return table
