"""Update proposals, issues, and faults in the matrix's nightly section."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from images.config import matrix
from images.errors import UserError
from images.locking import debian, lock_file
from images.nightly import proposal, results
from images.nightly.results import Change, Job, Outcome
from images.nightly.run import ImageResult
from images.nightly.sets import Locked
from images.planning import plan
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
    moved = proposal.pins(text, CONTROL.image, moves)
    old, new = text.splitlines(), moved.splitlines()
    assert sorted(line for line in new if line not in old) == ['    einops: "0.9"', "    torchao: 0.12.0"]
    (tmp_path / "matrix.yaml").write_text(moved)
    stacks = matrix.load(matrix=tmp_path / "matrix.yaml").matrix.stacks
    assert (stacks["2.7"]["torchao"], stacks["2.7"]["einops"]) == ("0.12.0", "0.9")
    assert stacks["2.8"] == SOURCES.matrix.stacks["2.8"]


MOVE = Change(name="einops", before="0.8.2", after="0.9", pinned=True)


@pytest.mark.parametrize(("name", "shares"), [("cu126-torch27", False), ("cu128-torch28", True)])
def test_a_proposal_tells_to_read_what_the_files_of_its_locks_bring(name: str, shares: bool, tmp_path: Path) -> None:
    """The patch has no locks/records.json, without which `records` is UNPROVEN: of those that share the stack, too."""
    (planned,) = plan.select([name], SOURCES)
    assert planned.image is not None
    found = ImageResult(
        image=name,
        control=job(name, Job.CONTROL, Outcome.PASS),
        canary=job(name, Job.CANARY, Outcome.PASS, changes=[MOVE]),
        proposed=Locked(image=planned.image, lock=lock_file.read(planned.image, SOURCES.workspace.locks)),
    )
    folder = Path(proposal.write(found, SOURCES, tmp_path))
    assert "locks/records.json" not in (folder / proposal.PATCH).read_text()
    before_merging = (folder / proposal.LOG).read_text().partition("Before it is merged:")[2]
    (locks,) = re.findall(r"`nox -s lock -- (.+?)`", before_merging)
    assert locks.split()[0] == name and (len(locks.split()) > 1) == shares


def test_an_issue_has_its_title_sentence_and_marker() -> None:
    claim = FAILED.model_copy(update={"reason": "a | b"})
    line = breakage(image="cu126-torch27", claims=[claim], sentence=results.sentence([TORCHAO], [claim]))
    text = results.issue(line)
    assert text.startswith("# torchao 0.14.1 breaks cu126-torch27\n")
    assert "torchao 0.11.0 -> 0.14.1 breaks symbols/resolved: a | b" in text
    assert "a \\| b |" in text
    assert "<!-- truetag: torchao-0.14.1 -->" in text


def test_what_the_nightly_section_can_not_mean_is_told_with_its_lines(tmp_path: Path) -> None:
    text = matrix.MATRIX.read_text().replace('"2.7": {torchao: "<0.12"}', '"2.7": {torchoa: "<0.12"}')
    text = text.replace("held: [torch]", "held: [tortch]").replace("track: [cu126-torch25", "track: [cu126-torch99")
    file = tmp_path / "matrix.yaml"
    file.write_text(text.replace("xfail:\n", "xfail:\n  - {select: cu199-*, claim: symbols, issue: a/b#1}\n"))
    with pytest.raises(UserError, match=r"there is no layer 'tortch'[\s\S]*nothing pins 'torchoa'") as told:
        matrix.load(matrix=file)
    causes = "\n".join(f"{problem.where.rpartition('/')[2]} {problem.cause}" for problem in told.value.problems)
    number = next(number for number, line in enumerate(text.splitlines(), 1) if "track: [" in line)
    assert f"matrix.yaml:{number} cu126-torch99 matches no image" in causes
    assert "cu199-* matches no image" in causes


def test_a_proposal_of_debian_packages_names_what_moved_and_what_the_security_team_says_of_it(tmp_path: Path) -> None:
    base, locks = CONTROL.image.base, SOURCES.workspace.locks
    now = debian.require(base, locks)
    libssl = next(path for path in now.base if "/libssl3_" in path)
    before = {**now.base, "debian/pool/main/o/openssl/libssl3_3.0.1-1_amd64.deb": "0" * 64}
    del before[libssl]
    old = replace(now, base=before, layer={**now.layer, "debian/pool/main/g/gone/gone_1_all.deb": "1" * 64})
    assert proposal.debian_packages(base, now, now, ["cu126-torch27"], tmp_path / "none") == ""
    assert not (tmp_path / "none").exists()
    folder = Path(proposal.debian_packages(base, old, now, ["cu126-torch27"], tmp_path / "some"))
    rows = [line for line in (folder / proposal.LOG).read_text().splitlines() if line.startswith("| ")]
    tracker = "<https://security-tracker.debian.org/tracker/source-package/openssl>"
    assert rows[1:] == [
        "| gone | 1 | - | no longer needed |",
        f"| libssl3 | 3.0.1-1 | {now.versions['libssl3']} | security: {tracker} |",
    ]
    place = tmp_path / "locks" / debian.place(base)
    place.parent.mkdir(parents=True)
    place.write_bytes(debian.written(old))
    subprocess.run(["git", "apply", folder / proposal.PATCH], cwd=tmp_path, check=True)
    assert debian.require(base, tmp_path / "locks") == now
