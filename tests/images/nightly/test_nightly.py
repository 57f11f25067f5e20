"""A night without an engine: the judge and the resolver are stand-ins, all that decides is real."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from images.config import matrix
from images.config.matrix import ExpectedFailure, Nightly, Sources
from images.errors import Problem, UserError
from images.locking import lock_file, uv
from images.nightly import canary, proposal, results, xfail
from images.nightly import report as nightly_report
from images.nightly import run as nightly
from images.nightly.canary import Locked
from images.nightly.results import BreakageLine, Change, ClaimRow, LegLine, Outcome
from images.nightly.run import Night, Order
from images.nightly.state import State, Trial
from images.planning import plan
from validate.claims import Tier
from validate.judging import Status

SOURCES = matrix.load()
(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
CONTROL = Locked(image=PLANNED.image, lock=lock_file.read(PLANNED.image))
MOVES = {"torchao": "0.12.0", "transformers": "5.0.0", "peft": "0.21.2", "liger-kernel": "0.8.5", "numpy": "9.9.9"}
CLAIMS = (("S3", "environment", Tier.STATIC), ("C1", "transformers", Tier.CPU), ("C10", "lora-step", Tier.CPU))


def at(versions: dict[str, str]) -> Locked:
    """The control at other versions."""
    layers = {
        name: tuple(replace(one, version=versions.get(one.name, one.version)) for one in packages)
        if name in CONTROL.lock.inputs.layers
        else packages
        for name, packages in CONTROL.lock.layers.items()
    }
    files = {f"{name}.txt": lock_file.print_requirements(packages) for name, packages in layers.items()}
    pins = tuple(replace(pin, version=versions.get(pin.name, pin.version)) for pin in CONTROL.image.pins)
    return Locked(image=replace(CONTROL.image, pins=pins), lock=replace(CONTROL.lock, files=files, layers=layers))


class Judge:
    """Fails claims where the versions hold what breaks them; remembers what it was asked."""

    def __init__(self, breaking: dict[str, set[str]], *, unbuildable: set[str] | None = None, most: int = 1000) -> None:
        self.breaking, self.unbuildable, self.most = breaking, unbuildable or {"nothing"}, most
        self.sooner: dict[str, tuple[set[str], str]] = {}
        self.asked: list[tuple[frozenset[str], tuple[Tier, ...]]] = []

    def __call__(self, locked: Locked, tiers: Sequence[Tier], label: str) -> Trial:
        if len(self.asked) >= self.most:
            raise KeyboardInterrupt
        moved = {name for name, version in MOVES.items() if locked.versions.get(name) == version}
        self.asked.append((frozenset(moved), tuple(tiers)))
        if self.unbuildable <= moved:
            return Trial(claims=(), cause="a step failed")
        rows = tuple(self._row(*claim, moved) for claim in CLAIMS if not tiers or claim[2] in tiers)
        return Trial(claims=rows, overall={row.tier: row.verdict for row in rows}, digest="sha256:0", bytes=1)

    def _row(self, id_: str, subject: str, tier: Tier, moved: set[str]) -> ClaimRow:
        broken = any(culprits <= moved for claim, culprits in self.breaking.items() if claim == id_)
        status, reason = (Status.FAIL, f"undefined symbol of {id_}") if broken else (Status.PASS, "fine")
        if id_ in self.sooner and self.sooner[id_][0] <= moved:
            status, reason = Status.FAIL, self.sooner[id_][1]
        return ClaimRow(id=id_, subject=subject, tier=tier, verdict=status, required=True, reason=reason)


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Night]:
    monkeypatch.setattr(canary, "newest", lambda *_: at(MOVES))
    monkeypatch.setattr(canary, "relocked", lambda _control, chosen, _run: at(dict(chosen)))

    def run(judge: Judge, *, resume: bool = False, rows: Sequence[ExpectedFailure] = (), **other: object) -> Night:
        sources = replace(SOURCES, matrix=SOURCES.matrix.model_copy(update={"xfail": list(rows)}))
        order = Order(
            sources=sources,
            judge=judge,
            state=State(tmp_path / "state.jsonl", resume=resume),
            now=lambda: datetime(2026, 11, 21, tzinfo=UTC),
            results=tmp_path / "results",
        )
        assert PLANNED.image is not None
        return nightly.night(PLANNED, PLANNED.image, replace(order, **other))  # type: ignore[arg-type]

    return run


def lines(tmp_path: Path) -> list[LegLine | BreakageLine]:
    return list(results.read(tmp_path / "results"))


def test_a_canary_as_good_as_the_control_is_offered(night: Callable[..., Night], tmp_path: Path) -> None:
    found = night(Judge({}))
    assert (found.control.outcome, found.canary.outcome) == (Outcome.PASS, Outcome.PASS)
    assert found.offered is not None
    assert not found.broken
    assert {one.name for one in found.canary.changes} == set(MOVES)
    assert lines(tmp_path) == [found.control, found.canary]


def test_what_was_judged_in_part_is_not_offered(night: Callable[..., Night]) -> None:
    assert night(Judge({}), tiers=[Tier.STATIC]).offered is None


def test_a_culprit_is_named_with_both_versions_and_all_that_it_breaks(night: Callable[..., Night]) -> None:
    judge = Judge({"S3": {"torchao"}, "C1": {"torchao"}})
    found = night(judge)
    (breakage,) = found.breakages
    assert found.broken and found.offered is None
    assert breakage.sentence == "torchao 0.11.0 -> 0.12.0 breaks S3 and C1 transformers: undefined symbol of S3"
    assert [claim.id for claim in breakage.claims] == ["S3", "C1"]
    assert breakage.builds == len({key for key in judge.asked if key[0] and key[0] != set(MOVES)})


def test_static_claims_are_bisected_in_the_static_tier_alone(night: Callable[..., Night]) -> None:
    judge = Judge({"S3": {"transformers"}})
    night(judge)
    searched = [tiers for moved, tiers in judge.asked if moved != set(MOVES) and moved]
    assert searched and set(searched) == {(Tier.STATIC,)}


def test_two_culprits_of_different_claims_are_told_apart(night: Callable[..., Night]) -> None:
    found = night(Judge({"S3": {"torchao"}, "C10": {"transformers", "peft"}}))
    assert [one.sentence.partition(":")[0] for one in found.breakages] == [
        "torchao 0.11.0 -> 0.12.0 breaks S3",
        "transformers 4.57.6 -> 5.0.0 with peft 0.18.1 -> 0.21.2 together break C10 lora-step",
    ]


def test_a_claim_that_fails_for_another_reason_is_another_breakage(night: Callable[..., Night]) -> None:
    """A torchao that complains wherever it is imported, and a liger-kernel that can't be imported at all."""
    judge = Judge({"S3": {"torchao"}, "C1": {"torchao"}})
    judge.sooner = {"C1": ({"liger-kernel"}, "no driver")}
    assert [one.sentence for one in night(judge).breakages] == [
        "torchao 0.11.0 -> 0.12.0 breaks S3: undefined symbol of S3",
        "liger-kernel 0.6.4 -> 0.8.5 breaks C1 transformers: no driver",
    ]


def test_a_package_that_came_along_is_found_behind_the_pins(night: Callable[..., Night]) -> None:
    (breakage,) = night(Judge({"C1": {"numpy"}})).breakages
    assert [(one.name, one.pinned) for one in breakage.culprits] == [("numpy", False)]


def test_what_can_not_be_built_is_bisected_too(night: Callable[..., Night]) -> None:
    found = night(Judge({}, unbuildable={"liger-kernel"}))
    assert found.canary.outcome is Outcome.NOT_BUILT
    assert found.breakages[0].sentence == "liger-kernel 0.6.4 -> 0.8.5 breaks build: a step failed"


def test_what_fails_in_the_control_is_no_news_of_the_canary(night: Callable[..., Night]) -> None:
    found = night(Judge({"S3": set()}))
    assert (found.control.outcome, found.canary.outcome) == (Outcome.FAIL, Outcome.FAIL)
    assert found.breakages == ()
    assert found.broken


@pytest.mark.parametrize("after", range(8))
def test_an_interrupted_night_goes_on_and_judges_nothing_twice(
    night: Callable[..., Night], tmp_path: Path, after: int
) -> None:
    breaking = {"S3": {"torchao"}, "C10": {"transformers", "peft"}}
    first, second = Judge(breaking, most=after), Judge(breaking)
    with pytest.raises(KeyboardInterrupt):
        night(first)
    found = night(second, resume=True)
    assert not set(first.asked) & set(second.asked)
    assert len(found.breakages) == 2
    assert len(lines(tmp_path)) == 4
    whole = Judge(breaking)
    assert night(whole).breakages == found.breakages
    assert len(whole.asked) == len(first.asked) + len(second.asked)


def test_nothing_newer_builds_nothing(night: Callable[..., Night], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "newest", lambda *_: CONTROL)
    judge = Judge({})
    assert night(judge).canary.outcome is Outcome.UNCHANGED
    assert len(judge.asked) == 1


def test_newest_versions_that_do_not_fit_together_are_told(
    night: Callable[..., Night], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> Locked:
        raise uv.NoSolution(Problem(where="x", cause="no set of versions fits"))

    monkeypatch.setattr(canary, "newest", none)
    found = night(Judge({}))
    assert (found.canary.outcome, found.canary.cause) == (Outcome.UNRESOLVED, "no set of versions fits")
    assert found.broken


def row(**other: str) -> ExpectedFailure:
    return ExpectedFailure.model_validate(
        {"select": "cu126-*", "claim": "S3", "issue": "pytorch/ao#1", "when": "torchao>=0.12", **other}
    )


def test_an_expected_failure_is_shown_never_green_and_not_bisected(night: Callable[..., Night]) -> None:
    found = night(Judge({"S3": {"torchao"}}), rows=[row()])
    assert (found.control.outcome, found.canary.outcome) == (Outcome.PASS, Outcome.XFAIL)
    assert [(one.id, one.issue) for one in found.canary.expected] == [("S3", "pytorch/ao#1")]
    assert found.breakages == ()
    assert found.offered is None
    assert not found.broken
    assert "fails as expected (pytorch/ao#1)" in nightly_report.leg(found.canary)


def test_an_expected_failure_does_not_cover_another(night: Callable[..., Night]) -> None:
    found = night(Judge({"S3": {"torchao"}, "C1": {"peft"}}), rows=[row()])
    assert found.canary.outcome is Outcome.FAIL
    assert [one.claims[0].id for one in found.breakages] == ["C1"]


def test_an_expected_failure_that_passes_again_is_told(night: Callable[..., Night]) -> None:
    found = night(Judge({}), rows=[row()])
    assert [one.issue for one in found.canary.passing_again] == ["pytorch/ao#1"]
    assert found.control.passing_again == []
    assert "PASSES AGAIN" in nightly_report.leg(found.canary)


@pytest.mark.parametrize(
    ("other", "applies"),
    [
        ({}, True),
        ({"when": "torchao"}, True),
        ({"when": "torchao>=0.13"}, False),
        ({"when": "vllm>=0.1"}, False),
        ({"select": "cu128-*"}, False),
        ({"select": "torch>=2.7"}, True),
    ],
)
def test_rows_speak_of_images_and_versions(other: dict[str, str], applies: bool) -> None:
    assert bool(xfail.rows_for(PLANNED, {"torchao": "0.12.0"}, [row(**other)])) is applies


def test_a_row_of_several_claims_passes_again_only_when_all_do() -> None:
    good = ClaimRow(id="S3", subject="a", tier=Tier.STATIC, verdict=Status.PASS, required=True, reason="")
    bad = good.model_copy(update={"subject": "b", "verdict": Status.FAIL})
    assert xfail.passing_again([good, bad], [row()]) == []
    assert [one.subject for one in xfail.expected([good, bad], [row()])] == ["b"]
    assert len(xfail.passing_again([good, good.model_copy(update={"subject": "b"})], [row()])) == 2


@pytest.mark.parametrize("wrong", [{"claim": "symbols"}, {"issue": "soon"}, {"when": ">=1"}, {"select": "a b"}])
def test_a_row_that_says_nothing_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        row(**wrong)


# --- versions -------------------------------------------------------------------------------------------------------


def test_held_layers_are_exact_and_pins_move_upward_within_ranges_and_facts() -> None:
    wanted = Nightly(stacks={"2.7": {"torchao": "<0.13"}})
    found = canary.requirements(CONTROL, wanted, {"xformers": ("0.0.32.post2",)}, {"peft": "<1"})
    assert "torch==2.7.1" in found and "triton==3.3.1" in found
    assert "torchao>=0.11.0,<0.13" in found
    assert "xformers>=0.0.31.post1,!=0.0.32.post2" in found
    assert "peft<1" in found
    assert not [line for line in found if line.startswith("flash-attn")]


def test_what_the_facts_speak_against_is_left_out_and_what_they_do_not_know_is_not() -> None:
    found = canary.refused_by_facts(CONTROL.image, SOURCES)
    assert "0.18.0" in found["torchao"]
    assert "0.12.0" not in found["torchao"]
    assert "bitsandbytes" not in found


def test_changes_come_pins_first() -> None:
    names = [one.name for one in canary.changes(CONTROL, at(MOVES))]
    assert names == ["torchao", "transformers", "peft", "liger-kernel", "numpy"]
    assert canary.changes(CONTROL, CONTROL) == ()
    assert at(MOVES).hash != CONTROL.hash == at({}).hash


def test_a_mixture_without_the_wanted_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def others(_control: Locked, chosen: dict[str, str], _run: object) -> Locked:
        return at({**chosen, "numpy": "1.0"})

    monkeypatch.setattr(canary, "relocked", others)
    assert canary.mixed(CONTROL, at(MOVES), frozenset({"numpy"})) is None
    assert canary.mixed(CONTROL, at(MOVES), frozenset({"peft"})) is not None


def test_a_network_that_does_not_answer_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Locked:
        raise UserError(Problem(where="index", cause="can't be reached"), code=1)

    monkeypatch.setattr(canary, "relocked", away)
    with pytest.raises(UserError):
        canary.mixed(CONTROL, at(MOVES), frozenset({"peft"}))


# --- what is said ---------------------------------------------------------------------------------------------------


def test_an_offer_moves_the_pins_of_its_stack_alone() -> None:
    text = matrix.MATRIX.read_text()
    moves = [
        Change(name="torchao", before="0.11.0", after="0.12.0", pinned=True),
        Change(name="einops", before="0.8.2", after="0.9", pinned=True),
        Change(name="numpy", before="2.0", after="2.1", pinned=False),
    ]
    moved = proposal.pins(text, SOURCES.matrix_file, CONTROL.image, moves)
    old, new = text.splitlines(), moved.splitlines()
    assert sorted(line for line in new if line not in old) == ['    einops: "0.9"', "    torchao: 0.12.0"]
    assert sources_of(moved).matrix.stacks["2.7"]["torchao"] == "0.12.0"
    assert sources_of(moved).matrix.stacks["2.7"]["einops"] == "0.9"
    assert sources_of(moved).matrix.stacks["2.8"] == SOURCES.matrix.stacks["2.8"]


def sources_of(text: str) -> Sources:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "matrix.yaml")
        file.write_text(text)
        return matrix.load(matrix=file)


def test_an_issue_has_its_title_sentence_and_mark() -> None:
    claim = ClaimRow(id="S3", subject="x", tier=Tier.STATIC, verdict=Status.FAIL, required=True, reason="a | b")
    culprit = Change(name="torchao", before="0.11.0", after="0.14.1", pinned=True)
    line = BreakageLine(
        date=datetime(2026, 11, 21, tzinfo=UTC),
        image="cu126-torch27",
        versions="0",
        revision="0",
        claims=[claim],
        culprits=[culprit],
        sentence=nightly_report.sentence([culprit], [claim]),
        key=nightly_report.key([culprit]),
        candidates=9,
        builds=4,
        unresolved=0,
        seconds=1,
        ranges={},
    )
    other = line.model_copy(update={"image": "cu128-torch28"})
    ((name, text),) = nightly_report.issues([line, other]).items()
    assert name == "torchao-0.14.1.md"
    assert text.startswith("# torchao 0.14.1 breaks cu126-torch27, cu128-torch28\n")
    assert "torchao 0.11.0 -> 0.14.1 breaks S3 x: a | b" in text
    assert "a \\| b |" in text
    assert "<!-- truetag: torchao-0.14.1 -->" in text


def test_a_state_that_was_cut_off_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "state.jsonl"
    state = State(file, resume=False)
    state.keep("one", {"a": 1})
    state.keep("two", {"b": 2})
    file.write_text(file.read_text()[:-4])
    again = State(file, resume=True)
    assert (again.find("one"), again.find("two")) == ({"a": 1}, None)
    again.keep("two", 3)
    assert State(file, resume=True).find("two") == 3
    assert State(file, resume=False).find("one") is None


def test_matrix_ranges_for_what_nothing_pins_are_told(tmp_path: Path) -> None:
    text = matrix.MATRIX.read_text().replace('"2.7": {torchao: "<0.12"}', '"2.7": {torchoa: "<0.12"}')
    file = tmp_path / "matrix.yaml"
    file.write_text(text.replace("held: [torch]", "held: [tortch]"))
    told = "\n".join(problem.cause for problem in matrix.load(matrix=file).problems)
    assert "nothing pins 'torchoa'" in told
    assert "there is no layer 'tortch'" in told


def test_selectors_of_nights_that_match_nothing_are_told_with_their_lines(tmp_path: Path) -> None:
    text = matrix.MATRIX.read_text().replace("track: [cu126-torch25", "track: [cu126-torch99")
    file = tmp_path / "matrix.yaml"
    expected = "xfail:\n  - {select: cu199-*, claim: S4, issue: a/b#1}\n"
    file.write_text(text.replace("xfail: []\n", expected))
    with pytest.raises(UserError) as told:
        plan.check(matrix.load(matrix=file))
    causes = "\n".join(f"{problem.where.rpartition('/')[2]} {problem.cause}" for problem in told.value.problems)
    number = next(number for number, line in enumerate(text.splitlines(), 1) if "track: [" in line)
    assert f"matrix.yaml:{number} cu126-torch99 matches no image" in causes
    assert "cu199-* matches no image" in causes
