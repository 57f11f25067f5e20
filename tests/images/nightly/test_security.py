"""Rebuilds for Debian's security updates: what looks and builds is a fake, all that decides is real."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from images.errors import Problem, UserError
from images.nightly import results, security
from images.nightly.options import NightlyOptions
from images.nightly.results import ClaimRow, Job, Outcome
from images.nightly.security import Security, SecurityUpdate
from images.nightly.state import State, Trial
from images.planning.image import Image
from images.vulnerabilities.inventory import Installed, Inventory
from images.vulnerabilities.updates import PackageChange, Rebuilt
from tests.support.nightly_samples import PLANNED, SOURCES
from validate.claims import Tier
from validate.judging import Status

IMAGE = Inventory(
    image=PLANNED.name,
    digest="sha256:1",
    packages=(Installed(kind="deb", name="less", version="1", distro="debian-12"),),
)
PENDING = (PackageChange(name="less", before="1", after="2", ids=("CVE-1",)),)
MOVED = (PackageChange(name="less", before="1", after="2", ids=("CVE-1",)),)


def trial(status: Status) -> Trial:
    row = ClaimRow(id="S10", subject="owners", tier=Tier.STATIC, verdict=status, required=True, reason="why")
    return Trial(claims=(row,), overall={Tier.STATIC: status}, digest="sha256:2", bytes=1, seconds=3.0)


class Archive:
    """What is pending, and what a rebuild comes to; counts what it was asked."""

    def __init__(self, pending: Sequence[PackageChange] = PENDING, made: Trial | None = None) -> None:
        self.answer, self.made = tuple(pending), made or trial(Status.PASS)
        self.asked = self.builds = 0
        self.left: Sequence[PackageChange] = ()

    def security(self, image: Inventory | None = IMAGE) -> Security:
        return Security(inventory=lambda _: image, pending=self.pending, rebuild=self.rebuild)

    def pending(self, before: Inventory) -> tuple[PackageChange, ...]:
        assert before == IMAGE
        self.asked += 1
        return self.answer

    def rebuild(self, _image: Image, before: Inventory, found: Sequence[PackageChange]) -> tuple[Trial, Rebuilt | None]:
        assert (before, tuple(found)) == (IMAGE, self.answer)
        self.builds += 1
        if self.made.cause:
            return self.made, None
        return self.made, Rebuilt(digest="sha256:2", sentence="validated, 1 claims PASS", changes=MOVED, left=self.left)


Run = Callable[..., SecurityUpdate | None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def once(archive: Archive, image: Inventory | None = IMAGE, *, resume: bool = False) -> SecurityUpdate | None:
        options = NightlyOptions(
            sources=SOURCES,
            judge=lambda *_: pytest.fail("a rebuild has a builder of its own"),
            state=State(tmp_path / "state.jsonl", resume=resume),
            now=lambda: datetime(2026, 11, 22, tzinfo=UTC),
            results=tmp_path / "results",
        )
        assert PLANNED.image is not None
        return security.run(PLANNED, PLANNED.image, archive.security(image), options)

    return once


def made(found: SecurityUpdate | None) -> SecurityUpdate:
    assert found is not None
    return found


def test_a_rebuild_that_passes_is_proposed_with_what_moved(run: Run, tmp_path: Path) -> None:
    found = made(run(Archive()))
    assert (found.line.job, found.line.outcome, found.broken) == (Job.REBUILD, Outcome.PASS, False)
    assert [str(one) for one in found.line.changes] == ["less 1 -> 2"]
    assert (found.line.digest, found.line.seconds) == ("sha256:2", 3.0)
    assert "| less | 1 | 2 | CVE-1 |" in found.log and f"`nox -s updates -- {PLANNED.name} --rebuild`" in found.log
    assert results.read(tmp_path / "results") == (found.line,)


def test_a_rebuild_that_lacks_updates_itself_is_no_success(run: Run) -> None:
    archive = Archive()
    archive.left = PENDING
    found = made(run(archive))
    assert (found.line.outcome, found.left, found.broken) == (Outcome.PASS, 1, True)
    assert "It still has 1 of them" in found.log and "`nox -s pin`" in found.log and "publishes it" not in found.log
    assert made(run(archive, resume=True)).broken


def test_a_rebuild_that_fails_is_broken_and_not_proposed(run: Run) -> None:
    found = made(run(Archive(made=trial(Status.FAIL))))
    assert (found.line.outcome, found.broken) == (Outcome.FAIL, True)
    assert [one.key for one in found.line.failing] == ["S10 owners"]
    assert "the rebuild is FAIL" in found.log and "nox -s updates" not in found.log


def test_what_can_not_be_built_says_why(run: Run) -> None:
    found = made(run(Archive(made=Trial(claims=(), cause="apt-get: a step failed"))))
    assert (found.line.outcome, found.line.cause, found.broken) == (Outcome.NOT_BUILT, "apt-get: a step failed", True)
    assert "the rebuild is NOT_BUILT: apt-get: a step failed" in found.log and "| less | 1 | 2 |" in found.log


def test_without_updates_nothing_is_built(run: Run, tmp_path: Path) -> None:
    archive = Archive(pending=())
    found = made(run(archive))
    assert (archive.builds, found.line.outcome, found.log, found.broken) == (0, Outcome.UNCHANGED, "", False)
    assert results.read(tmp_path / "results") == (found.line,)


def test_without_an_image_nothing_is_asked(run: Run, tmp_path: Path) -> None:
    archive = Archive()
    assert run(archive, None) is None
    assert archive.asked == archive.builds == 0 and not (tmp_path / "results").exists()


def test_a_resumed_run_rebuilds_nothing_twice(run: Run, tmp_path: Path) -> None:
    archive = Archive()
    first, second = made(run(archive)), made(run(archive, resume=True))
    assert (archive.asked, archive.builds, second.line, second.log) == (1, 1, first.line, "")
    assert results.read(tmp_path / "results") == (first.line,)


def test_an_archive_that_does_not_answer_leaves_no_line(run: Run, tmp_path: Path) -> None:
    archive = Archive()

    def silent(_before: Inventory) -> tuple[PackageChange, ...]:
        raise UserError(Problem(where="apt-get update", cause="no network", then="mend it"))

    archive.pending = silent  # type: ignore[method-assign]
    with pytest.raises(UserError, match="no network"):
        run(archive)
    assert not (tmp_path / "results").exists()
