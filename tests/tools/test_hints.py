"""Each known error is found by its own row, and nothing healthy is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from images.errors import UserError
from tests.support.checkout import ROOT
from tests.support.commands import call
from tools import hints as source
from validate import hints
from validate.claims import Claim, Tier
from validate.judge import ClaimVerdict, Verdict, explain
from validate.judging import Status

ROWS = source.load()
EXAMPLES = [(row.id, example) for row in ROWS for example in row.examples]
SEEDS = {"axolotl-cuda-gpu": 5, "axolotl-multi-gpu": 5, "colossalai-cuda": 6, "transformers-cuda": 4}
"""The rows of "Common Errors" of the reference pages, by page."""

THREADS = """
marin#7344 cutlass#3259 pytorch#134929 pytorch#119932 pytorch#80637 flash-attention#1832 flash-attention#975
flash-attention#1708 flash-attention#1638 flash-attention#2168 xformers#1329 axolotl#2525 nvidia-docker#1256
pytorch#116696 pytorch#140765 DeepSpeed#1886
"""


def only(lines: str) -> list[str]:
    return [hint.id for hint in hints.find([lines])]


@pytest.mark.parametrize(("row", "example"), EXAMPLES, ids=[f"{row}-{n}" for n, (row, _) in enumerate(EXAMPLES)])
def test_each_example_finds_its_own_row_first(row: str, example: str) -> None:
    assert only(example) == [row]
    assert only(example.upper()) == [row], "whatever the case"


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
    denied = "foreign folder"  # what C8 tries there is a folder that nobody may write to
    for record in evidence["records"]:
        record["measurements"] = [one for one in record["measurements"] if one["subject"] != denied]
    found = hints.find(hints.texts(evidence))
    assert [hint.id for hint in found] == []


def test_lines_that_people_reported_find_their_row() -> None:
    lines = (ROOT / "tests/tools/hint_lines.tsv").read_text(encoding="utf-8").splitlines()[1:]
    wanted = [tuple(line.split("\t")) for line in lines]
    assert [(hints.find([line])[0].id, line) for _, line in wanted] == wanted


def test_healthy_logs_are_given_no_hint() -> None:
    """Of pip, training, NCCL's INFO, builds, the driver's start; and registries' errors, which are in no row."""
    assert [*hints.explained([(ROOT / "tests/tools/healthy.log").read_text(encoding="utf-8")])] == []


def test_a_name_that_a_row_knows_is_told_of_first() -> None:
    """By which release of which package; one that it does not know gets the row's own answer."""
    (known,) = hints.find(["ImportError: cannot import name 'shard_checkpoint' from 'transformers.modeling_utils'"])
    assert known.fix.startswith("It is in transformers<4.47. ")
    (other,) = hints.find(["ImportError: cannot import name 'LlamaFlashAttention3' from 'trl'"])
    assert other == next(row for row in hints.known() if row.id == "trl-other")


def test_one_hint_a_line_in_the_order_of_the_lines() -> None:
    lines = ["CUDA out of memory", "nothing", "Bus error", "CUDA out of memory, again", "libcuda.so.1: cannot open"]
    assert only("\n".join([*lines, "GLIBC_2.3 not found"])) == ["cuda-out-of-memory", "shared-memory", "no-libcuda"], (
        "three at most"
    )


@pytest.mark.parametrize("status", Status)
def test_only_what_is_not_well_is_explained(status: Status) -> None:
    claim = Claim(id="G3", subject="x", tier=Tier.GPU, probe="gpu.x", statement="-")
    evidence = {"error": "RuntimeError: CUDA error: no kernel image is available for execution on the device"}
    one = ClaimVerdict(claim=claim, status=status, reason="it does not run", seconds=1.0, evidence=evidence)
    (found,) = explain(Verdict(image="i", digest="d", claims=(one,))).claims
    assert bool(found.hints) is (status in (Status.FAIL, Status.UNPROVEN))


def test_the_verb_reads_a_pipe_a_file_and_arguments(tmp_path: Path) -> None:
    """On the host, and in an image by `doctor hint`."""
    (tmp_path / "log").write_text("step 1\n\x1b[31mRuntimeError: No CUDA GPUs\x1b[0m are available\n")
    for given, piped in (
        ([str(tmp_path / "log")], ""),
        (["No CUDA GPUs are available"], ""),
        ([], "No CUDA GPUs are available"),
    ):
        for verb in (["-m", "images", "hint"], ["-I", "-S", "validate", "doctor", "hint"]):
            command, wide = [sys.executable, *verb, *given], {**os.environ, "COLUMNS": "80"}
            done = subprocess.run(command, cwd=ROOT, input=piped, capture_output=True, text=True, env=wide, check=True)
            assert "  cause: The container has no GPU" in done.stdout and "  source: seed:" in done.stdout
            assert max(map(len, done.stdout.splitlines())) <= 80
    assert [row["id"] for row in json.loads(call("hint", "--json", "--", "-lcuda: Bus error").stdout)["hints"]] == [
        "shared-memory"
    ]
    none = call("hint", "all is well")
    assert (none.returncode, none.stdout) == (1, "") and "no known error in 1 line\n      next: " in none.stderr
    (tmp_path / "empty").touch()
    assert "no known error in 0 lines\n      next: give the error" in call("hint", str(tmp_path / "empty")).stderr
    (tmp_path / "a folder").mkdir()
    for name in ("/tmp/missing.log", "train.log", "nohup.out", str(tmp_path), str(tmp_path / "a folder")):
        lost = call("hint", name)
        assert (lost.returncode, lost.stdout) == (2, "") and f"{name} is " in lost.stderr and "next: " in lost.stderr
    assert '`nox -s plan -- "torch>=2.5"`' in call("hint", "PyTorch version is too old").stdout


@pytest.mark.parametrize(
    ("lock", "told"),
    [
        ("transformers==4.38.2\n", "Locked is transformers 4.38.2, which has it"),
        (
            '[[packages]]\nname = "transformers"\nversion = "4.57.6"\n',
            '4.57.6, which is too new: update what asks for it, or `pip install "transformers<4.39"`.',
        ),
        ("six==1.17.0\n", "It is in transformers<4.39. `pip install`"),
    ],
)
def test_a_lock_says_which_of_the_two_is_old(tmp_path: Path, lock: str, told: str) -> None:
    (tmp_path / "lock").write_text(lock)
    line = "ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers'"
    assert told in " ".join(call("hint", "--lock", str(tmp_path / "lock"), line).stdout.split())


def test_patterns_do_not_run_away() -> None:
    """A line of 20,000 characters, as a compiler's command line can be, is read in no time."""
    line = "gcc -I" + "/include" * 2500
    assert only(line) == []


def test_rows_are_checked_with_their_lines() -> None:
    text = "hints:\n- id: a\n  pattern: '('\n  examples: [x]\n  cause: c\n  fix: f\n  surce: s\n- id: B B\n"
    with pytest.raises(UserError) as caught:
        source.load(text)
    shown = [f"{problem.where} {problem.cause}" for problem in caught.value.problems]
    assert any(re.search(r"hints\.yaml:3 .*no regular expression", line) for line in shown), shown
    assert any("hints.yaml:7" in line and "surce" in line for line in shown), shown
    assert any("hints.yaml:8" in line and "id" in line for line in shown), shown
