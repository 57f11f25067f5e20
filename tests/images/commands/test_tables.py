"""What a person sees first: the plan and verdicts, at any width and in a pipe."""

import itertools
import os
import pty
import re
import subprocess
import sys

import pytest

from images.commands import common
from images.commands.plan import describe_statuses, table
from images.config.matrix import load
from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning import plan
from images.planning.candidate import Topic
from images.site.recorded import RecordedRuns
from images.site.status import ImageStatus, TierRun
from tests.support.checkout import ROOT
from tests.support.commands import call, run
from validate import report
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import Verdict, judge
from validate.judging import Status
from validate.terminal import wrapped

PLAN = plan.plan(load())
WITHOUT_LOCK = "cu121-torch25"
"""An image whose torch only PyTorch's own index has."""


def plan_at(width: int) -> list[str]:
    """Return the lines of the whole plan on a terminal of this width."""
    lines: list[str] = []
    for line in table(PLAN, {}, width):
        lines += wrapped(line, width).splitlines() or [""]
    return lines


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "title"),
    [
        ("", "cu126-torch25  sha256:0123456789ab  UNPROVEN"),
        ("cu126-torch25", "cu126-torch25  sha256:0123456789ab  UNPROVEN"),
        ("me/mine:1", "me/mine:1, by the claims of cu126-torch25  sha256:0123456789ab  UNPROVEN"),
    ],
    ids=["no reference", "the image's own name", "another image"],
)
def test_the_first_line_names_the_image_that_was_judged(reference: str, title: str) -> None:
    verdict = Verdict(image="cu126-torch25", digest="sha256:0123456789abcdef", claims=())

    assert report.lines(verdict, reference=reference)[0] == title


def test_the_first_line_names_a_base_that_is_not_the_matrix_s() -> None:
    """Also in verdict.json, `--json` and report.md: the name says nothing of this base."""
    evidence = Evidence(
        image="cu126-torch25",
        digest="sha256:0123456789abcdef",
        records=(),
        claims=(),
        host={"other_base": "org/base:7"},
    )
    verdict = judge(evidence.claim_set, evidence)

    title = report.lines(verdict)[0]

    assert title == "cu126-torch25 on org/base:7  sha256:0123456789ab  UNPROVEN"
    assert report.json_data(verdict)["other_base"] == "org/base:7"
    assert report.markdown(verdict).startswith("# cu126-torch25 on org/base:7: UNPROVEN\n")


# --- the table of the plan ------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_line_is_not_wider_than_the_terminal(width: int) -> None:
    for line in plan_at(width):
        is_single_word = " " not in line.strip()
        assert len(line) <= width or is_single_word, line


@pytest.mark.parametrize("width", [1, 20, 80])
def test_every_word_of_the_plan_is_whole_at_any_width(width: int) -> None:
    words = " ".join(table(PLAN, {})).split()

    assert " ".join(plan_at(width)).split() == words


@pytest.mark.parametrize("width", [80, 100, None])
def test_columns_stand_below_each_other_whatever_the_names(width: int | None) -> None:
    lines = list(table(PLAN, {}, width))

    header = next(line for line in lines if line.startswith("image "))
    rows = [line for line in lines if re.search(r" (ok|no lock|refused) +\d", line)]
    start = header.index("status")
    assert len(rows) == len(PLAN)
    assert all(re.match("(ok|no lock|refused) ", row[start:]) for row in rows)
    assert width is None or all(len(row) <= width for row in rows)


def test_images_without_a_lock_share_one_note() -> None:
    (note,) = (line for line in table(PLAN, {}) if "makes it where" in line)

    assert "`nox -s lock -- NAME`" in note
    assert re.match(r"\d\d images: no lock: ", note)


def test_the_table_of_the_whole_matrix_comes_last_and_below_at_most_a_screen_of_notes() -> None:
    lines = plan_at(80)

    header = next(number for number, line in enumerate(lines) if line.startswith("image "))
    # A long name has a line of its own. A blank line follows, then the number of images.
    long_names = [image.name for image in PLAN if len(image.name) > 27]
    assert header + 1 + len(PLAN) + len(long_names) + 2 == len(lines)
    assert header <= 20


def test_warnings_on_several_images_are_named_by_topic_and_those_on_one_in_full() -> None:
    first, second = PLAN[:2]
    (warning, *_) = first.warnings

    on_one = list(table([first], {}))
    on_two = list(table([first, second], {}))

    assert f"{first.name}: warning: {warning}" in on_one
    assert not any(warning in line for line in on_two)
    assert any("`nox -s plan -- NAME` prints those of an image in full" in line for line in on_two)
    for finding in first.findings:
        shown = [line for line in on_two if line.endswith(f": {finding.topic}")]
        assert any(line.startswith(f"  {first.name}") for line in shown)


@pytest.mark.parametrize("newer", [0, 6])
def test_the_status_of_an_image_says_how_to_measure_claims_that_were_added(
    monkeypatch: pytest.MonkeyPatch, newer: int
) -> None:
    run = TierRun(
        tier=Tier.STATIC,
        verdict=Status.PASS,
        counts={Status.PASS: 9},
        newer=newer,
        gpus="",
        date=None,
        digest="",
        current=True,
        source="",
    )
    monkeypatch.setattr(RecordedRuns, "status", lambda *_: ImageStatus("", (run,)))
    image = next(planned.image for planned in PLAN if planned.image)

    (line,) = describe_statuses([image], load())

    assert (f"`nox -s validate -- {image.name}` measures all claims" in line) == bool(newer)


def test_notes_on_many_images_count_them_and_leave_the_screen_to_the_table() -> None:
    notes = list(itertools.takewhile(bool, table(PLAN, {})))

    # Of the worst, all are named.
    (worst,) = (line for line in notes if line.endswith(f": {Topic.SILENT}"))
    notes.remove(worst)
    assert worst.count("cu1") > 4
    assert max(line.count("cu1") for line in notes) <= 4
    assert any(re.match(r"  \d+ images: silently wrong results at rare", line) for line in notes)


@pytest.mark.parametrize(
    ("selectors", "status"),
    [
        ([], 0),
        (["cu126-torch25"], 0),
        (["cu118-torch25"], 2),
        (["cu126-torch25", "cu118-torch25"], 2),
        (["cu118-*"], 2),
        # Beside accepted images, a refused one that only a condition or glob matches is none that
        # was asked for.
        (["*-torch25"], 0),
        (["torch=2.5"], 0),
        (["torch=2.5", "cuda=11.8"], 2),
    ],
)
@pytest.mark.parametrize("output", [(), ("--json",), ("--names",)])
def test_a_refused_image_that_was_asked_for_ends_plan_with_status_2(
    selectors: list[str], status: int, output: tuple[str, ...]
) -> None:
    """As `build` ends, which refuses the same images."""
    finished = call("plan", *selectors, *output)

    assert finished.returncode == status
    assert finished.stdout


def test_an_image_with_a_stale_lock_is_stale() -> None:
    first = PLAN[0]

    lines = list(table([first], {first.name: LockStatus.STALE}))

    assert ["cu126-torch25", "stale"] in [line.split()[:2] for line in lines]
    assert lines[-1] == "1 image: 1 stale"


def test_an_image_without_a_lock_has_a_row_and_a_note_and_is_counted() -> None:
    locks = {image.name: LockStatus.PRESENT for image in PLAN if image.name != WITHOUT_LOCK}

    lines = list(table(PLAN, locks))

    note, row = (line for line in lines if line.startswith(WITHOUT_LOCK))
    assert row.split()[1:3] == ["no", "lock"]
    assert note == (
        f"{WITHOUT_LOCK}: no lock: can't be built here; `nox -s lock -- NAME` makes it "
        "where download.pytorch.org answers"
    )
    refused = sum(not image.image for image in PLAN)
    accepted = len(PLAN) - 1 - refused
    assert lines[-1] == f"{len(PLAN)} images: {accepted} ok, 1 no lock, {refused} refused"


def test_the_torch_of_each_locked_image_is_tracked_or_kept_until_a_day_that_is_shown() -> None:
    sources = load()
    tracked = plan.select(sources.matrix.nightly.track, sources)
    tracked_torch = {image.image_name.torch for image in tracked}
    images = [image.image for image in PLAN if image.image]
    locks = lock_file.states(images, sources.workspace.locks)

    for image in PLAN:
        if locks.get(image.name) is not LockStatus.PRESENT:
            continue
        lines = table([image], {})
        notes = [line for line in lines if ": kept as it is until 202" in line]
        assert bool(notes) is bool(image.kept_reason), image.name
        assert notes or image.image_name.torch in tracked_torch, image.name


def test_the_readme_has_the_output_of_plan() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.partition("$ nox -s plan -- cu118-torch215\n")[2].partition("```")[0]

    assert example == run("plan", "cu118-torch215", COLUMNS="120").stdout


# --- terminals and pipes --------------------------------------------------------------------------


def on_terminal(columns: int, **environ: str) -> str:
    """Return what `plan cu118-torch215` prints on a terminal of this width."""
    our_end, terminal = pty.openpty()
    subprocess.run(["stty", "cols", str(columns)], stdin=terminal, check=True)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")
    }
    environment |= {"TERM": "xterm", **environ}
    subprocess.run(
        [sys.executable, "-m", "images", "plan", "cu118-torch215"],
        cwd=ROOT,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        check=False,
    )
    os.close(terminal)
    output = os.read(our_end, 100_000).decode()
    os.close(our_end)
    return output


COLOUR_CODES = r"\x1b\[[\d;]*m"
RED = "31m"


def test_lines_on_a_terminal_are_wrapped_at_its_width() -> None:
    lines = re.sub(COLOUR_CODES, "", on_terminal(60)).splitlines()

    assert max(map(len, lines)) <= 60


def test_a_state_on_a_terminal_has_its_colour() -> None:
    assert f"\x1b[1;{RED}refused" in on_terminal(60)


def test_no_color_switches_colours_off_if_it_is_not_empty() -> None:
    """As https://no-color.org has it."""
    any_colour = r"\x1b\[[\d;]*3\d"

    assert not re.search(any_colour, on_terminal(60, NO_COLOR="1"))
    assert f"{RED}refused" in on_terminal(60, NO_COLOR="")


@pytest.mark.parametrize("indent", ["    ", "      "])
def test_a_command_that_fits_in_a_line_is_not_broken(indent: str) -> None:
    command = "`nox -s lock -- cu126-torch25`"
    for filler in range(80):
        line = f"{'x' * filler} no lock: {command} makes it"

        assert command in wrapped(line, 60, indent)
        assert max(map(len, wrapped(line, 60, indent).splitlines())) <= max(60, filler)


def test_a_command_that_is_longer_than_a_line_is_broken_at_its_spaces() -> None:
    command = f"`{' '.join(['word'] * 20)}`"

    lines = wrapped(f"next: {command}", 40).splitlines()

    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == f"next: {command}"


def test_errors_are_wrapped_at_the_width_of_the_terminal() -> None:
    on_80 = run("build", "cu118-torch215", COLUMNS="80").stderr
    in_pipe = run("build", "cu118-torch215", COLUMNS="").stderr

    assert on_80.startswith("error cu118-torch215: is refused: ")
    assert max(map(len, on_80.splitlines())) <= 80
    assert on_80.split() == in_pipe.split()
    assert len(in_pipe.splitlines()) == 2


def test_a_pipe_gets_whole_lines_without_colours() -> None:
    output = run("plan", "cu118-torch215", COLUMNS="").stdout

    assert "\x1b" not in output
    (line,) = (line for line in output.splitlines() if "has no wheel for CUDA 11" in line)
    assert line.startswith("cu118-torch215: refused: ")
    assert "nearest images of the matrix" in line


def test_a_message_beside_results_is_wrapped_and_its_brackets_are_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    common.say("cu118-torch25 is refused: a package[extra] has no wheel for it")

    assert capfd.readouterr().err == (
        "cu118-torch25 is refused: a\n    package[extra] has no wheel for it\n"
    )
