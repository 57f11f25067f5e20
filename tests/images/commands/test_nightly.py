"""What an update proposal tells to do before it is merged."""

import re
from pathlib import Path

import pytest

from images.commands import nightly
from images.commands.nightly import OutputArguments
from images.config.paths import CHECKOUT
from images.locking import lock_file
from images.nightly import proposal
from images.nightly.canary import Locked
from images.nightly.results import Change, Job, Outcome
from images.nightly.run import ImageResult
from images.planning import plan
from tests.support.site_samples import job
from tests.support.sources import SOURCES

MOVE = Change(name="einops", before="0.8.2", after="0.9", pinned=True)


@pytest.mark.parametrize(("name", "shares"), [("cu126-torch27", False), ("cu128-torch28", True)])
def test_a_proposal_tells_to_read_what_the_files_of_its_locks_bring(name: str, shares: bool, tmp_path: Path) -> None:
    """The patch has no locks/wheels, without which S10 is UNPROVEN: of those that share the stack, too."""
    (planned,) = plan.select([name], SOURCES)
    assert planned.image is not None
    found = ImageResult(
        image=name,
        control=job(name, Job.CONTROL, Outcome.PASS),
        canary=job(name, Job.CANARY, Outcome.PASS, changes=[MOVE]),
        proposed=Locked(image=planned.image, lock=lock_file.read(planned.image, CHECKOUT.locks)),
    )
    folder = Path(nightly._proposal(found, SOURCES, OutputArguments(out=tmp_path)))
    assert "locks/wheels" not in (folder / proposal.PATCH).read_text()
    before_merging = (folder / proposal.LOG).read_text().partition("Before it is merged:")[2]
    (locks,) = re.findall(r"`nox -s lock -- (.+?)`", before_merging)
    assert locks.split()[0] == name and (len(locks.split()) > 1) == shares
