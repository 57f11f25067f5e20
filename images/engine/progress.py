"""What a person sees while images are built: one line a step, one display for all builds."""

import threading
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from images.engine.buildkit import BuildEvent, LogLine, StepFinished, StepProgress, StepStarted
from images.engine.failures import CANCELLED, step_name

LOG_TAIL = 20
"""Lines shown of a step that failed."""


class Progress:
    """Shows builds: live lines on a terminal, plain lines elsewhere. Use as a context manager; thread safe."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._jobs: dict[str, dict[str, tuple[str, float]]] = {}
        """Build -> step that runs -> its name, and since when (`time.monotonic`)."""
        self._last: dict[str, str] = {}
        """Step -> what it said at last."""
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
        """Take up a build; the answer is its `on_event`."""
        with self._lock:
            running = self._jobs[name] = {}

        def on_event(event: BuildEvent) -> None:
            with self._lock:
                match event:
                    case StepStarted():
                        running.setdefault(event.step, (event.name, time.monotonic()))
                    case LogLine() if event.step in running:
                        self._last[event.step] = event.text
                    case StepProgress() if event.step in running:
                        of = f" of {event.total / 1e6:.0f}" if event.total else ""
                        self._last[event.step] = f"{event.what} {event.current / 1e6:.0f}{of} MB"
                    case StepFinished():
                        running.pop(event.step, None)
                        self._last.pop(event.step, None)
                        if CANCELLED not in event.error:
                            self._say_finished(name, event)
                    case LogLine(step=""):
                        running.clear()
                        self.say(name, event.text, "yellow")

        return on_event

    def _say_finished(self, job: str, step: StepFinished) -> None:
        if step.error:
            self.say(job, f"{'FAILED':>9}  {step_name(step.name)}", "bold red")
            for line in step.log[-LOG_TAIL:]:
                self.say(job, f"  | {line}", "dim")
            self.say(job, f"  {step.error}", "red")
        elif not step.name.startswith(("[internal]", "copy /context")):
            took = "cached" if step.cached else f"{step.seconds:.1f} s"
            self.say(job, f"{took:>9}  {step_name(step.name)}", "dim" if step.cached else "")

    def say(self, name: str, text: str, style: str = "") -> None:
        """Print a line about a build, above what moves."""
        with self._lock:
            self.console.print(
                Text(f"{name}  ", style="cyan") + Text(text, style=style), soft_wrap=True
            )

    def finish(self, name: str, summary: str, *, ok: bool = True) -> None:
        """Close a build with its last line."""
        with self._lock:
            self._jobs.pop(name, None)
            self.say(name, summary, style="bold green" if ok else "bold red")

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 1), expand=False)
        with self._lock:
            for job, running in self._jobs.items():
                for step, (name, since) in running.items():
                    seconds = time.monotonic() - since
                    table.add_row(
                        f"[cyan]{escape(job)}[/]", f"{seconds:6.0f} s", escape(step_name(name, 60))
                    )
                    if last := self._last.get(step, ""):
                        table.add_row(
                            "", "", Text(last[:100], style="dim", no_wrap=True, overflow="ellipsis")
                        )
        return table
