"""What a person sees while images are built: one line a step, one display for all builds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from images.engine.buildkit import BuildEvent, LogLine, Retrying, StepFinished, StepProgress, StepStarted
from images.engine.failures import step_name

LOG_TAIL = 20
"""Lines shown of a step that failed."""


@dataclass(kw_only=True)
class StepView:
    """One step as it stands now."""

    name: str
    since: float
    last: str = ""
    """Its latest log line, or how far a download is."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_TAIL))


@dataclass(frozen=True, kw_only=True)
class Message:
    """A line that is printed once and stays."""

    text: str
    style: str = ""


class JobView:
    """The state of one build, made from its events. Holds no clock: times come in with the events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running: dict[str, StepView] = {}

    def take(self, event: BuildEvent, now: float) -> tuple[Message, ...]:
        """Note an event; `now` in seconds of any steady clock. Returns what is to be printed for good."""
        match event:
            case StepStarted():
                self.running.setdefault(event.step, StepView(name=event.name, since=now))
            case LogLine():
                if view := self.running.get(event.step):
                    view.log.append(event.text)
                    view.last = event.text
            case StepProgress():
                if view := self.running.get(event.step):
                    view.last = f"{event.what} {_share(event.current, event.total)}"
            case StepFinished():
                return self._finish(event)
            case Retrying():
                self.running.clear()
                text = f"the network failed ({event.cause}); attempt {event.attempt} of {event.of} in {event.delay:g} s"
                return (Message(text=text, style="yellow"),)
        return ()

    def _finish(self, event: StepFinished) -> tuple[Message, ...]:
        view = self.running.pop(event.step, None)
        if event.error:
            if event.cancelled:
                return ()
            tail = (Message(text=f"  | {line}", style="dim") for line in (view.log if view else ()))
            head = Message(text=f"{'FAILED':>9}  {step_name(event.name)}", style="bold red")
            return (head, *tail, Message(text=f"  {event.error}", style="red"))
        if event.name.startswith("[internal]") or event.name.startswith("copy /context"):
            return ()
        took = "cached" if event.cached else f"{event.seconds:.1f} s"
        return (Message(text=f"{took:>9}  {step_name(event.name)}", style="dim" if event.cached else ""),)


def _share(current: int, total: int) -> str:
    return f"{current / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{current / 1e6:.0f} MB"


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.plain:
            self._live.stop()

    def job(self, name: str) -> Callable[[BuildEvent], None]:
        """Take up a build; the answer is its `on_event`."""
        view = JobView(name)
        with self._lock:
            self._jobs[name] = view

        def on_event(event: BuildEvent) -> None:
            with self._lock:
                for message in view.take(event, time.monotonic()):
                    self.say(name, message.text, style=message.style)

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
        with self._lock:
            rows = [(job.name, step) for job in self._jobs.values() for step in job.running.values()]
            table = Table.grid(padding=(0, 1), expand=False)
            for job, step in rows:
                seconds = time.monotonic() - step.since
                table.add_row(f"[cyan]{escape(job)}[/]", f"{seconds:6.0f} s", escape(step_name(step.name, 60)))
                if step.last:
                    table.add_row("", "", Text(step.last[:100], style="dim", no_wrap=True, overflow="ellipsis"))
        return table
