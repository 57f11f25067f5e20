"""What a person sees while images are built: one line a step, one display for all builds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from images.engine.buildkit import BuildEvent, LogLine, Retrying, StepFinished, StepProgress, StepStarted
from images.engine.failures import is_cancelled, step_name

LOG_TAIL = 20
"""Lines shown of a step that failed."""


@dataclass(kw_only=True)
class _StepView:
    """One step as it stands now."""

    name: str
    since: float
    last: str = ""
    """Its latest log line, or how far a download is."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_TAIL))


class JobView:
    """The state of one build, made from its events. Holds no clock: times come in with the events."""

    def __init__(self) -> None:
        self.running: dict[str, _StepView] = {}

    def take(self, event: BuildEvent, now: float) -> list[tuple[str, str]]:
        """Note an event; `now` in seconds of any steady clock. Returns lines to print for good, each with its style."""
        match event:
            case StepStarted():
                self.running.setdefault(event.step, _StepView(name=event.name, since=now))
            case LogLine():
                if view := self.running.get(event.step):
                    view.log.append(event.text)
                    view.last = event.text
            case StepProgress():
                if view := self.running.get(event.step):
                    of = f" of {event.total / 1e6:.0f}" if event.total else ""
                    view.last = f"{event.what} {event.current / 1e6:.0f}{of} MB"
            case StepFinished():
                return self._finish(event)
            case Retrying():
                self.running.clear()
                text = f"the network failed ({event.cause}); attempt {event.attempt} of {event.of} in {event.delay:g} s"
                return [(text, "yellow")]
        return []

    def _finish(self, event: StepFinished) -> list[tuple[str, str]]:
        view = self.running.pop(event.step, None)
        if is_cancelled(event.error):
            return []
        if event.error:
            tail = [(f"  | {line}", "dim") for line in (view.log if view else ())]
            return [(f"{'FAILED':>9}  {step_name(event.name)}", "bold red"), *tail, (f"  {event.error}", "red")]
        if event.name.startswith(("[internal]", "copy /context")):
            return []
        took = "cached" if event.cached else f"{event.seconds:.1f} s"
        return [(f"{took:>9}  {step_name(event.name)}", "dim" if event.cached else "")]


class Progress:
    """Shows builds: live lines on a terminal, plain lines elsewhere. Use as a context manager; thread safe."""

    def __init__(self, console: Console | None = None, *, plain: bool | None = None) -> None:
        """`plain`: None lets the terminal decide (rich also knows the usual CI variables)."""
        self.console = console or Console(stderr=True, highlight=False)
        self.plain = (not self.console.is_terminal) if plain is None else plain
        self._jobs: dict[str, JobView] = {}
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
        if not self.plain:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.plain:
            self._live.stop()

    def job(self, name: str) -> Callable[[BuildEvent], None]:
        """Take up a build; the answer is its `on_event`."""
        view = JobView()
        with self._lock:
            self._jobs[name] = view

        def on_event(event: BuildEvent) -> None:
            with self._lock:
                for text, style in view.take(event, time.monotonic()):
                    self.say(name, text, style=style)

        return on_event

    def say(self, name: str, text: str, style: str = "") -> None:
        """Print a line about a build, above what moves."""
        with self._lock:
            self.console.print(Text(f"{name}  ", style="cyan") + Text(text, style=style), soft_wrap=True)

    def finish(self, name: str, summary: str, *, ok: bool = True) -> None:
        """Close a build with its last line."""
        with self._lock:
            self._jobs.pop(name, None)
            self.say(name, summary, style="bold green" if ok else "bold red")

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 1), expand=False)
        with self._lock:
            for job, view in self._jobs.items():
                for step in view.running.values():
                    seconds = time.monotonic() - step.since
                    table.add_row(f"[cyan]{escape(job)}[/]", f"{seconds:6.0f} s", escape(step_name(step.name, 60)))
                    if step.last:
                        table.add_row("", "", Text(step.last[:100], style="dim", no_wrap=True, overflow="ellipsis"))
        return table
