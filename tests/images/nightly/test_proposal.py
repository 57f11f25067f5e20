"""Update proposals, issues, and faults in the matrix's nightly section."""

from pathlib import Path

import pytest

from images.config import matrix
from images.errors import UserError
from images.nightly import proposal, results
from images.nightly.results import Change, Job, Outcome
from images.nightly.run import ImageResult
from tests.support.nightly_samples import CONTROL, SOURCES
from tests.support.site_samples import FAILED, breakage, job
from tests.support.site_samples import MOVE as TORCHAO


def test_a_proposal_moves_the_pins_of_its_stack_alone(tmp_path: Path) -> None:
    text = matrix.MATRIX.read_text()
    moves = [
        Change(name="torchao", before="0.11.0", after="0.12.0", pinned=True),
        Change(name="einops", before="0.8.2", after="0.9", pinned=True),
        Change(name="numpy", before="2.0", after="2.1", pinned=False),
    ]
    moved = proposal.move_pins(text, CONTROL.image, moves)
    old, new = text.splitlines(), moved.splitlines()
    assert sorted(line for line in new if line not in old) == [
        '    einops: "0.9"',
        "    torchao: 0.12.0",
    ]
    (tmp_path / "matrix.yaml").write_text(moved)
    stacks = matrix.load(matrix=tmp_path / "matrix.yaml").matrix.stacks
    assert (stacks["2.7"]["torchao"], stacks["2.7"]["einops"]) == ("0.12.0", "0.9")
    assert stacks["2.8"] == SOURCES.matrix.stacks["2.8"]


MOVE = Change(name="einops", before="0.8.2", after="0.9", pinned=True)


def test_a_proposal_is_a_patch_and_tells_to_read_what_the_files_of_its_lock_bring(
    tmp_path: Path,
) -> None:
    """The patch has no locks/records.json, without which `records` is UNPROVEN."""
    name = CONTROL.image.lock_name
    found = ImageResult(
        image=name,
        control=job(name, Job.CONTROL, Outcome.PASS),
        canary=job(name, Job.CANARY, Outcome.PASS, changes=[MOVE]),
        proposed=CONTROL,
    )
    folder = Path(proposal.write(found, SOURCES, tmp_path))
    patch, log = (folder / proposal.PATCH).read_text(), (folder / proposal.LOG).read_text()
    assert "+++ b/matrix.yaml" in patch and "locks/records.json" not in patch
    assert "| einops | 0.8.2 | 0.9 | pinned |\n" in log
    assert f"`nox -s lock -- {name}`" in log.partition("Before it is merged:")[2]


def test_an_issue_has_its_title_sentence_and_marker() -> None:
    claim = FAILED.model_copy(update={"reason": "a | b"})
    line = breakage(
        image="cu126-torch27",
        claims=[claim],
        sentence=results.describe_breakage([TORCHAO], [claim]),
    )
    text = results.write_issue(line)
    assert text.startswith("# torchao 0.14.1 breaks cu126-torch27\n")
    assert "torchao 0.11.0 -> 0.14.1 breaks symbols/resolved: a | b" in text
    assert "a \\| b |" in text
    assert "<!-- truetag: torchao-0.14.1 -->" in text


def test_what_the_nightly_section_can_not_mean_is_told_with_its_lines(tmp_path: Path) -> None:
    text = matrix.MATRIX.read_text().replace(
        '"2.7": {torchao: "<0.12"}', '"2.7": {torchoa: "<0.12"}'
    )
    text = text.replace("held: [torch]", "held: [tortch]").replace(
        "track: [cu126-torch25", "track: [cu126-torch99"
    )
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as told:
        matrix.load(matrix=file)
    causes = "\n".join(
        f"{problem.where.rpartition('/')[2]} {problem.cause}" for problem in told.value.problems
    )
    number = next(number for number, line in enumerate(text.splitlines(), 1) if "track: [" in line)
    assert f"matrix.yaml:{number} cu126-torch99 matches no image" in causes
    assert "there is no layer 'tortch'" in causes and "nothing pins 'torchoa'" in causes
