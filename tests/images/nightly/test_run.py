"""A nightly run without an engine: only builds, verdicts and the resolver are fakes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from images.config.schema import Nightly
from images.errors import Problem
from images.locking import uv
from images.nightly import results, sets
from images.nightly import run as nightly
from images.nightly.results import Outcome
from images.nightly.run import ImageResult
from images.nightly.sets import Locked, NightlyOptions, SetResult
from images.validation.rows import ClaimRow
from tests.support.nightly_samples import MOVES, PLANNED, SOURCES, locked_at
from validate.claims import Tier
from validate.judging import Status

TODAY = datetime(2026, 11, 21, tzinfo=UTC)


class FakeClaim(NamedTuple):
    """A claim that a faked validation run judges."""

    check: str
    subject: str
    tier: Tier


LIBRARIES = FakeClaim("libraries", "environment", Tier.STATIC)
IMPORTS = FakeClaim("imports", "transformers", Tier.CPU)
LLAMA = FakeClaim("4bit-llama", "lora-step", Tier.CPU)
ATTENTION = FakeClaim("attention", "xformers", Tier.GPU)
CLAIMS = (LIBRARIES, IMPORTS, LLAMA, ATTENTION)


@dataclass(frozen=True)
class Fault:
    """What breaks a claim: these packages, if all of them are moved to the canary's versions."""

    claim: FakeClaim
    culprits: set[str]
    reason: str = ""

    @property
    def message(self) -> str:
        return self.reason or f"undefined symbol of {self.claim.check}"


@dataclass
class FakeValidation:
    """Builds and validates sets of versions, as far as a nightly run can see."""

    faults: Sequence[Fault] = ()
    """Of two faults of a claim, the first one is reported."""
    unbuildable: str = ""
    """A package that cannot be built at the canary's version."""
    calls: list[tuple[frozenset[str], tuple[Tier, ...]]] = field(default_factory=list)
    """The packages that were moved, and the tiers that were judged, of each call."""

    def __call__(self, locked: Locked, tiers: Sequence[Tier], label: str) -> SetResult:
        moved = {name for name, version in MOVES.items() if locked.versions.get(name) == version}
        self.calls.append((frozenset(moved), tuple(tiers)))
        if self.unbuildable in moved:
            return SetResult(claims=(), cause="a step failed")

        rows = []
        for claim in CLAIMS:
            if not tiers or claim.tier in tiers:
                rows.append(self._judge(claim, moved))
        return SetResult(claims=tuple(rows), digest="sha256:0", bytes=1)

    def _judge(self, claim: FakeClaim, moved: set[str]) -> ClaimRow:
        status, reason = Status.PASS, "fine"
        for fault in reversed(self.faults):
            if fault.claim == claim and fault.culprits <= moved:
                status, reason = Status.FAIL, fault.message
        return ClaimRow(
            check=claim.check,
            subject=claim.subject,
            tier=claim.tier,
            verdict=status,
            required=True,
            reason=reason,
        )


NightlyRun = Callable[..., ImageResult]


@pytest.fixture
def nightly_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NightlyRun:
    """A function that runs both jobs of an image; `MOVES` are the newest versions."""
    monkeypatch.setattr(uv, "resolve_versions", lambda *_, **__: MOVES)
    monkeypatch.setattr(sets, "relock", lambda _control, versions, _run: locked_at(versions))

    def run(
        validation: FakeValidation,
        *,
        pins_stay_until: str = "2026-11-21",
        tiers: Sequence[Tier] = (),
    ) -> ImageResult:
        settings = Nightly.model_validate(
            {"kept": {"2.7": {"until": pins_stay_until, "reason": "it was judged"}}}
        )
        matrix = SOURCES.matrix.model_copy(update={"nightly": settings})
        options = NightlyOptions(
            sources=replace(SOURCES, matrix=matrix),
            validate=validation,
            now=lambda: TODAY,
            results=tmp_path / "results",
            tiers=tiers,
        )
        assert PLANNED.image is not None
        return nightly.run(PLANNED, PLANNED.image, options)

    return run


def sentences_of(result: ImageResult) -> list[str]:
    return [breakage.sentence for breakage in result.breakages]


# --- a canary as good as the control --------------------------------------------------------------


def test_a_canary_as_good_as_the_control_is_proposed(
    nightly_run: NightlyRun, tmp_path: Path
) -> None:
    result = nightly_run(FakeValidation())

    assert result.control.outcome is Outcome.PASS
    assert result.canary.outcome is Outcome.PASS
    assert not result.broken
    assert result.proposed is not None
    assert {change.name for change in result.canary.changes} == set(MOVES)
    assert result.comparison is not None
    assert list(result.comparison.packages) == result.canary.changes
    assert result.comparison.before.source == f"lock {result.control.versions}"
    lines = list(results.read(tmp_path / "results"))
    assert lines == [result.control, result.canary]


def test_a_canary_that_was_judged_in_one_tier_is_not_proposed(nightly_run: NightlyRun) -> None:
    assert nightly_run(FakeValidation(), tiers=[Tier.STATIC]).proposed is None


# --- what breaks a canary -------------------------------------------------------------------------


def test_a_culprit_is_named_with_both_versions_and_all_that_it_breaks(
    nightly_run: NightlyRun,
) -> None:
    validation = FakeValidation([Fault(LIBRARIES, {"torchao"}), Fault(IMPORTS, {"torchao"})])

    result = nightly_run(validation)

    assert result.broken
    assert result.proposed is None
    assert sentences_of(result) == [
        "torchao 0.11.0 -> 0.12.0 breaks libraries/environment and imports/transformers: "
        "undefined symbol of libraries"
    ]
    checks = [claim.check for claim in result.breakages[0].claims]
    assert checks == ["libraries", "imports"]


def test_no_set_of_versions_is_built_twice(nightly_run: NightlyRun) -> None:
    validation = FakeValidation([Fault(LIBRARIES, {"torchao"}), Fault(IMPORTS, {"torchao"})])

    nightly_run(validation)

    assert len(validation.calls) == len(set(validation.calls))


def test_a_static_claim_is_bisected_only_in_the_static_tier(nightly_run: NightlyRun) -> None:
    validation = FakeValidation([Fault(LIBRARIES, {"transformers"})])

    nightly_run(validation)

    control, canary = frozenset[str](), frozenset(MOVES)
    tiers_of_mixtures = {
        tiers for moved, tiers in validation.calls if moved not in (control, canary)
    }
    assert tiers_of_mixtures == {(Tier.STATIC,)}


def test_each_claim_gets_its_own_culprits(nightly_run: NightlyRun) -> None:
    validation = FakeValidation(
        [Fault(LIBRARIES, {"torchao"}), Fault(LLAMA, {"transformers", "peft"})]
    )

    result = nightly_run(validation)

    assert [sentence.partition(":")[0] for sentence in sentences_of(result)] == [
        "torchao 0.11.0 -> 0.12.0 breaks libraries/environment",
        "transformers 4.57.6 -> 5.0.0 with peft 0.18.1 -> 0.21.2 together break "
        "4bit-llama/lora-step",
    ]


def test_a_claim_that_fails_for_another_reason_is_another_breakage(
    nightly_run: NightlyRun,
) -> None:
    """torchao fails wherever it is imported, but liger-kernel can't be imported at all."""
    validation = FakeValidation(
        [
            Fault(LIBRARIES, {"torchao"}),
            Fault(IMPORTS, {"liger-kernel"}, reason="no driver"),
            Fault(IMPORTS, {"torchao"}),
        ]
    )

    assert sentences_of(nightly_run(validation)) == [
        "torchao 0.11.0 -> 0.12.0 breaks libraries/environment: undefined symbol of libraries",
        "liger-kernel 0.6.4 -> 0.8.5 breaks imports/transformers: no driver",
    ]


def test_what_cannot_be_built_is_bisected_too(nightly_run: NightlyRun) -> None:
    result = nightly_run(FakeValidation(unbuildable="liger-kernel"))

    assert result.canary.outcome is Outcome.NOT_BUILT
    assert sentences_of(result) == ["liger-kernel 0.6.4 -> 0.8.5 breaks build: a step failed"]


def test_what_fails_in_the_control_too_is_no_breakage(nightly_run: NightlyRun) -> None:
    fails_always = Fault(LIBRARIES, culprits=set())

    result = nightly_run(FakeValidation([fails_always]))

    assert result.control.outcome is Outcome.FAIL
    assert result.canary.outcome is Outcome.FAIL
    assert result.breakages == ()
    assert result.broken


# --- no canary ------------------------------------------------------------------------------------


def test_without_newer_versions_only_the_control_is_built(
    nightly_run: NightlyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_moves: Mapping[str, str] = {}
    monkeypatch.setattr(uv, "resolve_versions", lambda *_, **__: no_moves)
    validation = FakeValidation()

    result = nightly_run(validation)

    assert result.canary.outcome is Outcome.UNCHANGED
    assert len(validation.calls) == 1


def test_as_long_as_the_pins_of_a_stack_stay_only_the_control_is_built(
    nightly_run: NightlyRun,
) -> None:
    validation = FakeValidation()

    result = nightly_run(validation, pins_stay_until="2026-11-22")

    assert results.summarize(result.canary) == (
        "canary UNCHANGED; kept as it is until 2026-11-22: it was judged"
    )
    assert len(validation.calls) == 1
    assert result.proposed is None
    assert not result.broken


def test_newest_versions_that_do_not_fit_together_are_reported(
    nightly_run: NightlyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_solution(*_: object, **__: object) -> dict[str, str]:
        raise uv.NoSolution(Problem(where="x", cause="no set of versions fits"))

    monkeypatch.setattr(uv, "resolve_versions", find_no_solution)

    result = nightly_run(FakeValidation())

    assert result.canary.outcome is Outcome.UNRESOLVED
    assert result.canary.cause == "no set of versions fits"
    assert result.broken
