"""Medians, spreads, growth, and whose turn it is."""

import pytest

from images.bench import stats


def test_a_median_needs_values_and_a_spread_is_a_part_of_it() -> None:
    assert stats.middle([9.0, 1.0, 2.0]) == 2.0
    assert stats.spread([8.0, 10.0, 12.0]) == pytest.approx(0.4)
    assert stats.spread([3.0]) == 0
    with pytest.raises(ValueError, match="nothing was measured"):
        stats.middle([])


@pytest.mark.parametrize(
    ("costs", "linear"),
    [
        ((0.7, 1.1, 1.6), True),
        ((0.7, 1.1, 2.4), False),
        ((5.0, 50.0, 450.0), False),
        ((0.7, 0.72, 2.4), None),
        ((0.7, 1.1, 1.12), None),
    ],
)
def test_growth_is_judged_by_steps_that_are_larger_than_what_runs_differ_by(
    costs: tuple[float, ...], linear: bool | None
) -> None:
    runs = [(cost, cost + 0.05, cost + 0.02) for cost in costs]
    assert stats.grows_linearly((1_000, 5_000, 10_000), runs) is linear


def test_growth_is_that_of_the_least_each_count_took() -> None:
    runs = [(0.7, 0.8), (1.1, 1.3), (1.6, 2.0)]
    assert stats.steps((1_000, 5_000, 10_000), runs) == pytest.approx([0.0001, 0.0001])
    assert stats.grows_linearly((1_000, 5_000, 10_000), runs) is True


def test_one_run_says_nothing_of_growth() -> None:
    assert stats.grows_linearly((1_000, 5_000, 10_000), [(0.7,), (1.1,), (1.6,)]) is None


def test_two_points_say_nothing_of_growth() -> None:
    with pytest.raises(ValueError, match="always straight"):
        stats.grows_linearly((1, 2), [(1.0, 1.0), (2.0, 2.0)])


def test_every_side_goes_first_in_turn() -> None:
    assert stats.turns(["a", "b", "c"], 4) == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
