"""A nightly run without an engine: the judge and the resolver are fakes, all that decides is real."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from images.config.schema import Nightly
from images.errors import Problem
from images.locking import uv
from images.nightly import results, sets
from images.nightly import run as nightly
from images.nightly.results import BreakageLine, JobLine, Outcome
from images.nightly.run import ImageResult
from images.nightly.sets import Locked, NightlyOptions, SetResult
from images.validation.rows import ClaimRow
from tests.support.nightly_samples import MOVES, PLANNED, SOURCES, at
from validate.claims import Tier
from validate.judging import Status

CLAIMS = (
    ("libraries", "environment", Tier.STATIC),
    ("imports", "transformers", Tier.CPU),
    ("4bit-llama", "lora-step", Tier.CPU),
    ("attention", "xformers", Tier.GPU),
)


class Judge:
    """Fails claims where the versions hold what breaks them; remembers what it was asked."""

    def __init__(
        self, breaking: dict[str, set[str]], *, unbuildable: set[str] | None = None
    ) -> None:
        self.breaking, self.unbuildable = breaking, unbuildable or {"nothing"}
        self.sooner: dict[str, tuple[set[str], str]] = {}
        self.asked: list[tuple[frozenset[str], tuple[Tier, ...]]] = []

    def __call__(self, locked: Locked, tiers: Sequence[Tier], label: str) -> SetResult:
        moved = {name for name, version in MOVES.items() if locked.versions.get(name) == version}
        self.asked.append((frozenset(moved), tuple(tiers)))
        if self.unbuildable <= moved:
            return SetResult(claims=(), cause="a step failed")
        rows = tuple(self._row(*claim, moved) for claim in CLAIMS if not tiers or claim[2] in tiers)
        return SetResult(claims=rows, digest="sha256:0", bytes=1)

    def _row(self, id_: str, subject: str, tier: Tier, moved: set[str]) -> ClaimRow:
        broken = any(culprits <= moved for claim, culprits in self.breaking.items() if claim == id_)
        status, reason = (
            (Status.FAIL, f"undefined symbol of {id_}") if broken else (Status.PASS, "fine")
        )
        if id_ in self.sooner and self.sooner[id_][0] <= moved:
            status, reason = Status.FAIL, self.sooner[id_][1]
        return ClaimRow(
            check=id_, subject=subject, tier=tier, verdict=status, required=True, reason=reason
        )


Run = Callable[..., ImageResult]


@pytest.fixture
def nightly_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(uv, "resolve_versions", lambda *_, **__: MOVES)
    monkeypatch.setattr(sets, "relock", lambda _control, chosen, _run: at(dict(chosen)))

    def run(
        judge: Judge,
        *,
        kept: str = "2026-11-21",
        **other: object,
    ) -> ImageResult:
        stays = Nightly.model_validate(
            {"kept": {"2.7": {"until": kept, "reason": "it was judged"}}}
        )
        matrix = SOURCES.matrix.model_copy(update={"nightly": stays})
        sources = replace(SOURCES, matrix=matrix)
        options = NightlyOptions(
            sources=sources,
            validate=judge,
            now=lambda: datetime(2026, 11, 21, tzinfo=UTC),
            results=tmp_path / "results",
        )
        assert PLANNED.image is not None
        return nightly.run(PLANNED, PLANNED.image, replace(options, **other))  # type: ignore[arg-type]

    return run


def lines(tmp_path: Path) -> list[JobLine | BreakageLine]:
    return list(results.read(tmp_path / "results"))


def test_a_canary_as_good_as_the_control_is_proposed(nightly_run: Run, tmp_path: Path) -> None:
    found = nightly_run(Judge({}))
    assert (found.control.outcome, found.canary.outcome) == (Outcome.PASS, Outcome.PASS)
    assert found.proposed is not None
    assert not found.broken
    assert {one.name for one in found.canary.changes} == set(MOVES)
    assert lines(tmp_path) == [found.control, found.canary]


def test_what_was_judged_in_part_is_not_proposed(nightly_run: Run) -> None:
    assert nightly_run(Judge({}), tiers=[Tier.STATIC]).proposed is None


def test_a_culprit_is_named_with_both_versions_and_all_that_it_breaks(nightly_run: Run) -> None:
    judge = Judge({"libraries": {"torchao"}, "imports": {"torchao"}})
    found = nightly_run(judge)
    (breakage,) = found.breakages
    assert found.broken and found.proposed is None
    both = "libraries/environment and imports/transformers"
    assert (
        breakage.sentence
        == f"torchao 0.11.0 -> 0.12.0 breaks {both}: undefined symbol of libraries"
    )
    assert [claim.check for claim in breakage.claims] == ["libraries", "imports"]
    assert len(judge.asked) == len(set(judge.asked)), "no set is built twice"


def test_static_claims_are_bisected_in_the_static_tier_alone(nightly_run: Run) -> None:
    judge = Judge({"libraries": {"transformers"}})
    nightly_run(judge)
    searched = [tiers for moved, tiers in judge.asked if moved != set(MOVES) and moved]
    assert searched and set(searched) == {(Tier.STATIC,)}


def test_two_culprits_of_different_claims_are_told_apart(nightly_run: Run) -> None:
    found = nightly_run(Judge({"libraries": {"torchao"}, "4bit-llama": {"transformers", "peft"}}))
    assert [one.sentence.partition(":")[0] for one in found.breakages] == [
        "torchao 0.11.0 -> 0.12.0 breaks libraries/environment",
        "transformers 4.57.6 -> 5.0.0 with peft 0.18.1 -> 0.21.2 together break 4bit-llama/lora-step",
    ]


def test_a_claim_that_fails_for_another_reason_is_another_breakage(nightly_run: Run) -> None:
    """A torchao that complains wherever it is imported, and a liger-kernel that can't be imported at all."""
    judge = Judge({"libraries": {"torchao"}, "imports": {"torchao"}})
    judge.sooner = {"imports": ({"liger-kernel"}, "no driver")}
    assert [one.sentence for one in nightly_run(judge).breakages] == [
        "torchao 0.11.0 -> 0.12.0 breaks libraries/environment: undefined symbol of libraries",
        "liger-kernel 0.6.4 -> 0.8.5 breaks imports/transformers: no driver",
    ]


def test_what_can_not_be_built_is_bisected_too(nightly_run: Run) -> None:
    found = nightly_run(Judge({}, unbuildable={"liger-kernel"}))
    assert found.canary.outcome is Outcome.NOT_BUILT
    assert found.breakages[0].sentence == "liger-kernel 0.6.4 -> 0.8.5 breaks build: a step failed"


def test_what_fails_in_the_control_is_no_regression(nightly_run: Run) -> None:
    found = nightly_run(Judge({"libraries": set()}))
    assert (found.control.outcome, found.canary.outcome) == (Outcome.FAIL, Outcome.FAIL)
    assert found.breakages == ()
    assert found.broken


def test_nothing_newer_builds_nothing(nightly_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv, "resolve_versions", lambda *_, **__: {})
    judge = Judge({})
    assert nightly_run(judge).canary.outcome is Outcome.UNCHANGED
    assert len(judge.asked) == 1


def test_a_stack_that_is_kept_is_built_as_it_is_locked_alone_until_that_day(
    nightly_run: Run,
) -> None:
    judge = Judge({})
    found = nightly_run(judge, kept="2026-11-22")
    assert (
        results.summarize(found.canary)
        == "canary UNCHANGED; kept as it is until 2026-11-22: it was judged"
    )
    assert len(judge.asked) == 1 and found.proposed is None and not found.broken


def test_newest_versions_that_do_not_fit_together_are_told(
    nightly_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> dict[str, str]:
        raise uv.NoSolution(Problem(where="x", cause="no set of versions fits"))

    monkeypatch.setattr(uv, "resolve_versions", none)
    found = nightly_run(Judge({}))
    assert (found.canary.outcome, found.canary.cause) == (
        Outcome.UNRESOLVED,
        "no set of versions fits",
    )
    assert found.broken
