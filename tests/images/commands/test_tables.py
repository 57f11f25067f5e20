"""What a person sees first: the plan and verdicts, at any width and in a pipe."""

import os
import pty
import re
import subprocess
import sys

import pytest

from images.commands import common
from images.commands.plan import table
from images.config.matrix import load
from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning import plan
from tests.support.checkout import ROOT
from tests.support.commands import run
from validate import report
from validate.judge import Verdict
from validate.terminal import wrapped

PLAN = plan.plan(load())


def shown(width: int) -> list[str]:
    """The whole plan at a width."""
    return [part for line in table(PLAN, {}) for part in wrapped(line, width).splitlines() or [""]]


@pytest.mark.parametrize(
    ("reference", "title"),
    [
        ("", "cu126-torch25  sha256:0123456789ab  UNPROVEN"),
        ("cu126-torch25", "cu126-torch25  sha256:0123456789ab  UNPROVEN"),
        ("me/mine:1", "me/mine:1, by the claims of cu126-torch25  sha256:0123456789ab  UNPROVEN"),
    ],
)
def test_the_first_line_names_the_image_that_was_judged(reference: str, title: str) -> None:
    judged = Verdict(image="cu126-torch25", digest="sha256:0123456789abcdef", claims=())
    assert report.lines(judged, reference=reference)[0] == title


@pytest.mark.parametrize("width", [80, 120, 200])
def test_an_image_of_the_plan_is_one_line_that_fits(width: int) -> None:
    rows = [line for line in table(PLAN, {}) if line.split(" ")[0] in {one.name for one in PLAN}]
    assert len(rows) == len(PLAN)
    assert max(map(len, rows)) <= 80
    assert [line for line in shown(width) if len(line) > width and " " in line.strip()] == []


@pytest.mark.parametrize("width", [1, 20, 80])
def test_every_word_of_a_reason_is_shown_whole_at_any_width(width: int) -> None:
    whole = " ".join(" ".join(table(PLAN, {})).split())
    assert " ".join(" ".join(shown(width)).split()) == whole


def test_an_image_without_a_lock_is_said_once_of_all() -> None:
    missing = [line for line in table(PLAN, {}) if "makes it where" in line]
    assert (
        len(missing) == 1
        and "`nox -s lock -- NAME`" in missing[0]
        and "cu121-torch25" in missing[0]
    )
    stale = list(table(PLAN[:1], {PLAN[0].name: LockStatus.STALE}))
    assert stale[1].split()[:2] == ["cu126-torch25", "stale"]


def test_the_default_view_keeps_what_has_no_lock_apart_and_counts_it() -> None:
    states = {one.name: LockStatus.PRESENT for one in PLAN if one.name != "cu121-torch25"}
    lines = list(table(PLAN, states, unlocked=False))
    assert [line for line in lines if "cu121-torch25" in line] == [
        "cu121-torch25: no lock: can't be built here; `nox -s lock -- NAME` makes it where download.pytorch.org answers"
    ]
    refused = sum(not one.image for one in PLAN)
    assert (
        lines[-1]
        == f"{len(PLAN)} images: {len(PLAN) - 1 - refused} ok, 1 no lock, {refused} refused"
    )


def test_each_stack_that_has_a_lock_is_tracked_or_says_until_when_it_is_kept() -> None:
    sources, lines = load(), list(table(PLAN, {}))
    tracked = {one.image_name.torch for one in plan.select(sources.matrix.nightly.track, sources)}
    states = lock_file.states((one.image for one in PLAN if one.image), sources.workspace.locks)
    for one in (one for one in PLAN if states.get(one.name) is LockStatus.PRESENT):
        told = [line for line in lines if one.name in line and ": kept as it is until 202" in line]
        assert bool(told) is bool(one.kept_reason) and (told or one.image_name.torch in tracked), (
            one.name
        )


def test_readme_prints_the_plan_as_it_is() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = text.partition("$ nox -s plan -- cu118-torch215\n")[2].partition("```")[0]
    assert printed == run("plan", "cu118-torch215", COLUMNS="120").stdout


def on_terminal(columns: int, **environ: str) -> str:
    """`plan cu118-torch215` on a terminal of this width."""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", str(columns)], stdin=theirs, check=True)
    environment = {
        name: text for name, text in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")
    }
    environment |= {"TERM": "xterm", **environ}
    command = [sys.executable, "-m", "images", "plan", "cu118-torch215"]
    subprocess.run(
        command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, check=True
    )
    os.close(theirs)
    seen = os.read(ours, 100_000).decode()
    os.close(ours)
    return seen


def test_a_terminal_gets_its_own_width_and_colours_unless_no_color_is_set() -> None:
    seen = on_terminal(60)
    assert "\x1b[1;31mrefused" in seen
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in seen.splitlines()) <= 60
    assert not re.search(r"\x1b\[[\d;]*3\d", on_terminal(60, NO_COLOR="1"))
    assert "31mrefused" in on_terminal(60, NO_COLOR=""), (
        "https://no-color.org: present and not an empty string"
    )


def test_what_is_said_beside_results_is_wrapped_and_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    common.say("cu118-torch25 is refused: a package[extra] has no wheel for it")
    assert (
        capfd.readouterr().err
        == "cu118-torch25 is refused: a\n    package[extra] has no wheel for it\n"
    )


def test_a_pipe_gets_whole_lines_without_colours() -> None:
    piped = run("plan", "cu118-torch215", COLUMNS="").stdout
    assert "\x1b" not in piped
    (why,) = (line for line in piped.splitlines() if "has no wheel for CUDA 11" in line)
    assert why.startswith("cu118-torch215: refused: ") and "nearest images of the matrix" in why
