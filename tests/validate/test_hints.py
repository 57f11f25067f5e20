"""Each known error is found by its own row, what only resembles it by another, and nothing healthy by any."""

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, Field

from images.config import yamlfile
from images.config.facts import Row, Sentence
from images.validation.containers import suite_files
from tests.support import suite_folder
from tests.support.checkout import ROOT
from tests.support.commands import call
from validate import hints
from validate.claims import Claim, ClaimSet, Tier
from validate.judge import ClaimVerdict, Verdict, explain
from validate.judging import Status


def compiled(pattern: str) -> str:
    """A pattern that is a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


class HintRow(Row):
    """A row of hints.yaml, whole."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    pattern: Annotated[str, BeforeValidator(compiled)]
    examples: list[Sentence] = Field(min_length=1)
    near_miss: Sentence
    cause: Sentence
    fix: Sentence
    source: Annotated[
        str, Field(pattern=r"\w/[\w.-]+#\d|https?://|seed:\w|\.(py|pth)\b|\bseen (in|on|with) ")
    ]
    """`OWNER/REPOSITORY#NUMBER`, a page, `seed:PAGE`, the file that raises it, or where we saw it."""


class Table(Row):
    hints: list[HintRow] = Field(min_length=1)


def table() -> tuple[HintRow, ...]:
    """Every row, checked: a fault is told with its line."""
    file = yamlfile.parse(hints.TABLE.name, hints.TABLE.read_text(encoding="utf-8"))
    return tuple(yamlfile.validated(Table, file, "docs/hints.md").hints)


ROWS = table()
KNOWN = {hint.id: hint for hint in hints.known()}
EXAMPLES = [(row.id, example) for row in ROWS for example in row.examples]
SEEDS = {
    "axolotl-cuda-gpu": 5,
    "axolotl-multi-gpu": 5,
    "colossalai-cuda": 6,
    "transformers-cuda": 4,
}
"""The rows of "Common Errors" of the reference pages, by page."""

THREADS = """
marin#7344 cutlass#3259 pytorch#134929 pytorch#119932 pytorch#80637 flash-attention#1832 flash-attention#975
flash-attention#1708 flash-attention#1638 flash-attention#2168 xformers#1329 axolotl#2525 nvidia-docker#1256
pytorch#116696 pytorch#140765 DeepSpeed#1886
"""


def only(lines: str) -> list[str]:
    return [hint.id for hint in hints.find([lines])]


def test_each_row_has_a_name_of_its_own() -> None:
    assert len(KNOWN) == len(ROWS)


@pytest.mark.parametrize(
    ("row", "example"), EXAMPLES, ids=[f"{row}-{n}" for n, (row, _) in enumerate(EXAMPLES)]
)
def test_each_example_finds_its_own_row_first(row: str, example: str) -> None:
    assert only(example) == [row]
    assert only(example.upper()) == [row], "whatever the case"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_row_matches_what_only_resembles_its_error(row: HintRow) -> None:
    """The same error of another package, version or cause: it has to be like an example, and must not match."""
    assert not KNOWN[row.id].matches(row.near_miss)
    likeness = [
        difflib.SequenceMatcher(None, row.near_miss, one, autojunk=False).ratio()
        for one in row.examples
    ]
    assert max(likeness) >= 0.5, "it misses by far"


@pytest.mark.parametrize("page", SEEDS)
def test_every_common_error_of_the_reference_pages_has_a_row(page: str) -> None:
    named = [row.id for row in ROWS if f"seed:{page}" in row.source.split(", ")]
    # `CUDA extension build fails` and the like share a row with no other page; out of memory is on two pages.
    assert len(named) == SEEDS[page], named


def test_every_thread_of_the_catalogue_has_a_row() -> None:
    sources = " ".join(row.source for row in ROWS)
    for thread in THREADS.split():
        assert thread in sources


def test_a_healthy_image_is_given_no_hint() -> None:
    evidence = json.loads((ROOT / "tests" / "support" / "recorded_cpu.json").read_text())
    denied = "foreign-folder"  # what `users` tries there is a folder that nobody may write to
    for record in evidence["records"]:
        record["measurements"] = [one for one in record["measurements"] if one["subject"] != denied]
    found = hints.find(hints.texts(evidence))
    assert [hint.id for hint in found] == []


def test_lines_that_people_reported_find_their_row() -> None:
    lines = (ROOT / "tests/validate/hint_lines.tsv").read_text(encoding="utf-8").splitlines()[1:]
    wanted = [tuple(line.split("\t")) for line in lines]
    assert [(hints.find([line])[0].id, line) for _, line in wanted] == wanted


def test_healthy_logs_are_given_no_hint() -> None:
    """Of pip, training, NCCL's INFO, builds, the driver's start; and registries' errors, which are in no row."""
    assert [
        *hints.explain_lines([(ROOT / "tests/validate/healthy.log").read_text(encoding="utf-8")])
    ] == []


def test_one_hint_a_line_in_the_order_of_the_lines() -> None:
    lines = [
        "CUDA out of memory",
        "nothing",
        "Bus error",
        "CUDA out of memory, again",
        "libcuda.so.1: cannot open",
    ]
    assert only("\n".join([*lines, "GLIBC_2.3 not found"])) == [
        "cuda-out-of-memory",
        "shared-memory",
        "no-libcuda",
    ], "three at most"


@pytest.mark.parametrize("status", Status)
def test_only_what_is_not_well_is_explained(status: Status) -> None:
    claim = Claim(check="attention", subject="x", tier=Tier.GPU, probe="gpu.x", statement="-")
    evidence = {
        "error": "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    }
    one = ClaimVerdict(
        claim=claim, status=status, reason="it does not run", seconds=1.0, evidence=evidence
    )
    (found,) = explain(Verdict(image="i", digest="d", claims=(one,))).claims
    assert bool(found.hints) is (status in (Status.FAIL, Status.UNPROVEN))


def test_the_verb_reads_a_pipe_a_file_and_arguments(tmp_path: Path) -> None:
    """On the host, and in an image by `doctor hint`."""
    doctor = [str(suite_folder.lay_out(tmp_path / "image")), "doctor", "hint"]
    (tmp_path / "log").write_text(
        "step 1\n\x1b[31mRuntimeError: No CUDA GPUs\x1b[0m are available\n"
    )
    for given, piped in (
        ([str(tmp_path / "log")], ""),
        (["No CUDA GPUs are available"], ""),
        ([], "No CUDA GPUs are available"),
    ):
        how: Any = {"input": piped, "capture_output": True, "text": True, "check": True}
        how["env"] = {**os.environ, "COLUMNS": "80"}
        for verb in (["-m", "images", "hint"], ["-I", "-S", *doctor]):
            done = subprocess.run([sys.executable, *verb, *given], cwd=ROOT, **how)
            assert (
                "  cause: The container has no GPU" in done.stdout
                and "  source: seed:" in done.stdout
            )
            assert max(map(len, done.stdout.splitlines())) <= 80
    assert [
        row["id"]
        for row in json.loads(call("hint", "--json", "--", "-lcuda: Bus error").stdout)["hints"]
    ] == ["shared-memory"]
    none = call("hint", "all is well")
    assert (none.returncode, none.stdout) == (
        1,
        "",
    ) and "no known error in 1 line\n      next: " in none.stderr
    (tmp_path / "empty").touch()
    assert (
        "no known error in 0 lines\n      next: give the error"
        in call("hint", str(tmp_path / "empty")).stderr
    )
    (tmp_path / "a folder").mkdir()
    for name in (
        "/tmp/missing.log",
        "train.log",
        "nohup.out",
        str(tmp_path),
        str(tmp_path / "a folder"),
    ):
        lost = call("hint", name)
        assert (
            (lost.returncode, lost.stdout) == (2, "")
            and f"{name} is " in lost.stderr
            and "next: " in lost.stderr
        )
    assert '`nox -s plan -- "torch>=2.5"`' in call("hint", "PyTorch version is too old").stdout


def test_patterns_do_not_run_away() -> None:
    """A line of 20,000 characters, as a compiler's command line can be, is read in no time."""
    line = "gcc -I" + "/include" * 2500
    assert only(line) == []


def test_containers_have_the_same_rows_as_json() -> None:
    """Their Python has no YAML. The same table gives the same bytes, so the suite's layer never varies."""
    files = suite_files(ClaimSet(image="", claims=()))
    assert "validate/hints.yaml" not in files
    assert files["validate/hints.json"] == hints.as_json()
    rows = json.loads(files["validate/hints.json"])
    assert [hints.Hint(**row) for row in rows] == list(hints.known())
