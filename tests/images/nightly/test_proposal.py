"""Update proposals, issues, and faults in the matrix's nightly section."""

from dataclasses import replace
from pathlib import Path

import pytest

from images.comparison.differences import ImageRecord, compare
from images.config import matrix
from images.errors import UserError
from images.nightly import proposal, results
from images.nightly.results import Job, Outcome
from images.nightly.run import ImageResult
from images.validation.rows import Change
from tests.support.nightly_samples import CONTROL, SOURCES
from tests.support.site_samples import FAILED, breakage, job
from tests.support.site_samples import MOVE as TORCHAO

TORCHAO_OF_STACK = Change(name="torchao", before="0.11.0", after="0.12.0", pinned=True)
EINOPS_OF_ALL_STACKS = Change(name="einops", before="0.8.2", after="0.9", pinned=True)
NUMPY_NOT_PINNED = Change(name="numpy", before="2.0", after="2.1", pinned=False)


def test_a_proposal_moves_only_pins_and_only_in_the_stack_of_its_image(tmp_path: Path) -> None:
    old_text = matrix.MATRIX.read_text()

    new_text = proposal.move_pins(
        old_text, CONTROL.image, [TORCHAO_OF_STACK, EINOPS_OF_ALL_STACKS, NUMPY_NOT_PINNED]
    )

    new_lines = sorted(set(new_text.splitlines()) - set(old_text.splitlines()))
    # A version with one dot would be a number without its quotes.
    assert new_lines == ['    einops: "0.9"', "    torchao: 0.12.0"]
    (tmp_path / "matrix.yaml").write_text(new_text)
    stacks = matrix.load(matrix=tmp_path / "matrix.yaml").matrix.stacks
    assert stacks["2.7"]["torchao"] == "0.12.0"
    assert stacks["2.7"]["einops"] == "0.9"
    assert stacks["2.8"] == SOURCES.matrix.stacks["2.8"]


@pytest.mark.parametrize(
    ("has_wheelhouse", "further"), [(True, " --wheelhouse FOLDER"), (False, "")]
)
def test_a_proposal_is_a_patch_and_says_what_to_do_before_it_is_merged(
    tmp_path: Path, *, has_wheelhouse: bool, further: str
) -> None:
    name = CONTROL.image.lock_name
    control = ImageRecord(
        label="control",
        name=name,
        source="lock 1",
        digest="sha256:1",
        packages={"einops": "0.8.2"},
        pins=["einops"],
        all_packages=True,
    )
    canary = replace(control, label="canary", digest="sha256:2", packages={"einops": "0.9"})
    result = ImageResult(
        image=name,
        control=job(name, Job.CONTROL, Outcome.PASS),
        canary=job(name, Job.CANARY, Outcome.PASS, changes=[EINOPS_OF_ALL_STACKS]),
        proposed=CONTROL,
        comparison=compare(control, canary),
    )

    folder = Path(proposal.write(result, SOURCES, tmp_path, has_wheelhouse=has_wheelhouse))

    patch = (folder / proposal.PATCH).read_text()
    log = (folder / proposal.LOG).read_text()
    assert "+++ b/matrix.yaml" in patch
    # Its tables are those of `compare`.
    assert "| package | control | canary |        |\n" in log
    assert "| einops  | 0.8.2   | 0.9    | pinned |\n" in log
    # The patch lacks the RECORDs of new wheels, without which `records` is UNPROVEN: `lock` reads
    # them.
    assert "locks/records.json" not in patch
    before_the_tables = log.partition("### ")[0]
    assert f"`nox -s lock -- {name}`" in before_the_tables.partition("Before it is merged:")[2]
    assert f"`nox -s reproduce -- {name}{further} --record`" in before_the_tables


def test_an_issue_has_its_title_sentence_and_marker() -> None:
    claim = FAILED.model_copy(update={"reason": "a | b"})
    line = breakage(
        image="cu126-torch27",
        claims=[claim],
        sentence=results.describe_breakage([TORCHAO], [claim]),
    )

    issue = results.write_issue(line)

    assert issue.startswith("# torchao 0.14.1 breaks cu126-torch27\n")
    assert "torchao 0.11.0 -> 0.14.1 breaks symbols/resolved: a | b" in issue
    assert "a \\| b |" in issue, "a reason does not end its cell of the table"
    assert "<!-- truetag: torchao-0.14.1 -->" in issue


def test_faults_of_the_nightly_section_are_named_with_their_lines(tmp_path: Path) -> None:
    text = matrix.MATRIX.read_text()
    for right, wrong in {
        '"2.7": {torchao: "<0.12"}': '"2.7": {torchoa: "<0.12"}',
        "held: [torch]": "held: [tortch]",
        "track: [cu126-torch25": "track: [cu126-torch99",
    }.items():
        assert right in text
        text = text.replace(right, wrong)
    file = tmp_path / "matrix.yaml"
    file.write_text(text)

    with pytest.raises(UserError) as error:
        matrix.load(matrix=file)

    faults = [f"{Path(problem.where).name} {problem.cause}" for problem in error.value.problems]
    faults_text = "\n".join(faults)
    line_of_track = text[: text.index("track: [")].count("\n") + 1
    assert f"matrix.yaml:{line_of_track} cu126-torch99 matches no image" in faults_text
    assert "there is no layer 'tortch'" in faults_text
    assert "nothing pins 'torchoa'" in faults_text
