"""What a person sees of a build: events in, lines out."""

import io

from rich.console import Console

from images.engine.buildkit import LogLine, Retrying, StepFinished, StepProgress, StepStarted
from images.engine.progress import JobView, Progress

NAME = "[torch 2/5] RUN --mount=type=cache,target=/c uv pip install"


def test_a_running_step_shows_its_latest_line() -> None:
    job = JobView()
    assert job.take(StepStarted(step="s", name=NAME), 5) == []
    job.take(LogLine(step="s", name=NAME, text="Downloading torch"), 6)
    assert [(step.name, step.since, step.last) for step in job.running.values()] == [(NAME, 5, "Downloading torch")]
    job.take(StepProgress(step="s", name=NAME, what="sha256:ab", current=5_000_000, total=20_000_000), 7)
    assert job.running["s"].last == "sha256:ab 5 of 20 MB"


def test_a_finished_step_is_one_line_with_its_seconds() -> None:
    job = JobView()
    job.take(StepStarted(step="s", name=NAME), 5)
    ((line, _),) = job.take(StepFinished(step="s", name=NAME, seconds=12.34, cached=False), 18)
    assert line == "   12.3 s  [torch 2/5] RUN uv pip install"
    ((line, _),) = job.take(StepFinished(step="t", name=NAME, seconds=0, cached=True), 18)
    assert line == "   cached  [torch 2/5] RUN uv pip install"
    assert job.running == {}


def test_a_failed_step_shows_the_end_of_its_log_but_a_bystander_nothing() -> None:
    job = JobView()
    for key in "st":
        job.take(StepStarted(step=key, name=NAME), 5)
    for number in range(30):
        job.take(LogLine(step="s", name=NAME, text=f"line {number}"), 6)
    shown = [line for line, _ in job.take(StepFinished(step="s", name=NAME, seconds=1, cached=False, error="E 1"), 7)]
    assert shown[0] == "   FAILED  [torch 2/5] RUN uv pip install"
    assert shown[1:-1] == [f"  | line {number}" for number in range(10, 30)]
    assert shown[-1] == "  E 1"
    assert job.take(StepFinished(step="t", name=NAME, seconds=1, cached=False, error="context canceled"), 7) == []


def test_internal_steps_are_not_worth_a_line() -> None:
    job = JobView()
    assert job.take(StepFinished(step="s", name="[internal] load build context", seconds=1, cached=False), 7) == []


def test_a_retry_forgets_what_ran() -> None:
    job = JobView()
    job.take(StepStarted(step="s", name=NAME), 5)
    ((line, _),) = job.take(Retrying(attempt=2, of=3, delay=5, cause="dns error"), 7)
    assert line == "the network failed (dns error); attempt 2 of 3 in 5 s"
    assert job.running == {}


def test_without_a_terminal_lines_are_plain() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=40)) as progress:
        assert progress.plain
        on_event = progress.job("image-a")
        on_event(StepStarted(step="s", name=NAME))
        on_event(StepFinished(step="s", name=NAME, seconds=1, cached=False))
        progress.say("image-a", "[not markup] " + "x" * 60)
        progress.finish("image-a", "built")
    assert out.getvalue().splitlines() == [
        "image-a      1.0 s  [torch 2/5] RUN uv pip install",
        "image-a  [not markup] " + "x" * 60,
        "image-a  built",
    ]


def test_on_a_terminal_running_steps_of_all_builds_share_one_display() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=120, force_terminal=True, _environ={}))
    with progress:
        for name in ("image-a", "image-b"):
            progress.job(name)(StepStarted(step=name, name=NAME))
        progress._live.refresh()
    shown = out.getvalue()
    assert "image-a" in shown
    assert "image-b" in shown
    assert "[torch 2/5] RUN uv pip install" in shown
