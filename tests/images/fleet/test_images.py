"""Where a plan finds images, and what it learns of the fleet's records: their evidence by today's claims."""

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from images.commands import fleet
from images.config.platforms import Platform
from images.context import labels as image_labels
from images.context.labels import BaseContext
from images.engine import Engine
from images.fleet import images, planning
from images.fleet.config import Fleet
from images.fleet.folder import JobFolder
from images.fleet.images import Found
from images.fleet.model import Job, MatrixCell
from images.fleet.planning import FleetImage, Known, State
from images.planning import plan
from images.registry.reference import Reference, Repository
from tests.support.fleet_records import NAME, claim, claims, installed, job, result
from tests.support.sources import SOURCES
from validate.claims import ClaimSet, Tier

PIP = claims(claim("pip"))
STAGING = Repository.parse("a.test/b")


def known(folder: JobFolder, image: FleetImage) -> dict[MatrixCell, Known]:
    return images.known(folder, folder.records(), [image], SOURCES)


def planned(folder: JobFolder, one: Job, today: ClaimSet) -> tuple[State, str]:
    image = FleetImage(name=NAME, digest=one.digest, archs=(), ptx=(), claims=today)
    fleet = Fleet.model_validate({"workers": {"cpu": {}}})
    (found,) = planning.plan([image], fleet, datetime.now(UTC), known=known(folder, image))
    return found.state, found.reason


def test_a_record_is_fresh_by_the_claims_of_today(tmp_path: Path) -> None:
    folder, one = JobFolder(tmp_path), job(1, PIP)
    folder.note(one)
    folder.keep(result(one, PIP, pip=installed()))
    assert planned(folder, one, PIP)[0] is State.FRESH
    assert "lacks S1 pip" in planned(folder, one, claims(claim("pip", "26.0")))[1], "it was measured for another one"
    more = claims(claim("pip"), claim("torch", probe="static.y"))
    assert "lacks S1 torch" in planned(folder, one, more)[1]


def test_what_a_worker_did_not_require_is_required_here(tmp_path: Path) -> None:
    folder, one = JobFolder(tmp_path), job(1, claims(claim("pip"), claim("torch")))
    folder.note(one)
    easy = claims(claim("pip"), claim("torch", required=False))
    folder.keep(result(one, easy, pip=installed(), torch={"installed": [], "python": "3.11", "glibc": "2.36"}))
    assert planned(folder, one, one.claim_set)[1].startswith("was FAIL")
    (row,) = fleet.status_rows(folder, [one.key])
    assert (row["state"], row["verdict"]) == ("judged", "static FAIL")


def test_a_record_with_damaged_evidence_is_due_and_says_why(tmp_path: Path) -> None:
    folder, one = JobFolder(tmp_path), job(1, PIP)
    folder.note(one)
    folder.keep(result(one, PIP, pip=installed()))
    (folder.job_path(one.key) / "evidence.json").write_text("{}")
    state, reason = planned(folder, one, PIP)
    assert state is State.DUE and "can't be used" in reason
    (row,) = fleet.status_rows(folder, [one.key])
    assert row["state"] == "unusable" and row["told"]


@pytest.mark.parametrize("gpu", ["NVIDIA H100 80GB HBM3", "Novel 9000"])
def test_a_record_counts_for_the_architecture_that_its_job_was_for(tmp_path: Path, gpu: str) -> None:
    folder, on_gpu = JobFolder(tmp_path), claims(claim("pip", tier=Tier.GPU))
    one = job(1, on_gpu, tiers=(Tier.GPU,), arch="12.1", gpus=1)
    folder.note(one)
    folder.keep(result(one, on_gpu, gpus=(gpu,), pip=installed()))
    image = FleetImage(name=NAME, digest=one.digest, archs=(), ptx=(), claims=on_gpu)
    assert list(known(folder, image)) == [MatrixCell(image=NAME, digest=one.digest, tier=Tier.GPU, arch="12.1")]


@pytest.mark.parametrize(
    ("engine", "registry", "found"),
    [
        ({NAME, f"{NAME}-candidate"}, {NAME, "context"}, f"engine {NAME}"),
        ({f"{NAME}-candidate"}, {NAME, "context"}, f"engine {NAME}-candidate"),
        (set(), {NAME, "context"}, "registry context"),
        (set(), {NAME}, f"registry {NAME}"),
        (set(), {f"old {NAME}"}, ""),
        (set(), set(), ""),
    ],
)
def test_what_is_here_comes_before_what_was_pushed_and_what_is_nowhere_can_be_built(
    monkeypatch: pytest.MonkeyPatch, engine: set[str], registry: set[str], found: str
) -> None:
    """A registry's image under the name counts where its labels are those of today's."""
    (row,) = plan.select([NAME], SOURCES)
    assert row.image
    context = images.context_digest(row.image, SOURCES)
    labels = image_labels.labels(row.image, BaseContext(reference="", origin=""), {})

    def in_engine(_engine: object, name: str, _of: str) -> Found | None:
        return Found(digest=f"engine {name}", labels={}, history=()) if name in engine else None

    def in_registry(reference: Reference, _platform: Platform) -> Found | None:
        tag = "context" if reference.identifier == images.context_tag(context) else reference.identifier
        if f"old {tag}" in registry:
            return Found(digest="old", labels={**labels, "dev.truetag.torch": "1"}, history=())
        return Found(digest=f"registry {tag}", labels=labels, history=()) if tag in registry else None

    monkeypatch.setattr(images, "in_engine", in_engine)
    monkeypatch.setattr(images, "in_registry", in_registry)
    located = images.locate(row.image, "", cast(Engine, object()), STAGING, SOURCES)
    expected = (found, "", "") if found else (context, str(STAGING), "")
    assert (located.digest, located.staging, located.why_not) == expected
    if not found:
        nowhere = images.locate(row.image, "", None, None, SOURCES)
        assert "--staging REPOSITORY" in nowhere.why_not and not nowhere.staging
    if found == "registry context":
        begun = images.locate(row.image, "", None, STAGING, SOURCES, begun={context})
        assert (begun.digest, begun.staging) == (context, str(STAGING)), "the job that pushed it has no verdict yet"


def test_a_build_goes_on_until_it_has_a_verdict(tmp_path: Path) -> None:
    folder, one = JobFolder(tmp_path), Job(image=NAME, tiers=(Tier.STATIC,), context="c" * 64, staging="a.test/b")
    folder.note(job(1, PIP))
    folder.note(one)
    assert images.begun(folder) == {"c" * 64}
    folder.note(one.model_copy(update={"digest": "sha256:1"}))
    assert not images.begun(folder)


def test_the_context_digest_follows_the_lock_and_is_the_same_each_time() -> None:
    (first,), (second,) = (plan.select([name], SOURCES) for name in (NAME, "cu126-torch25"))
    assert first.image and second.image
    assert images.context_digest(first.image, SOURCES) == images.context_digest(first.image, SOURCES)
    assert images.context_digest(first.image, SOURCES) != images.context_digest(second.image, SOURCES)
