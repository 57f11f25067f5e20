"""How long a run may still take: plain arithmetic on earlier records."""

from typing import Any

import pytest

from images.fleet import remaining
from images.fleet.remaining import Remaining


def test_a_job_takes_what_its_kind_took_before_and_one_without_a_record_the_median() -> None:
    kinds = {"a": "x", "b": "y", "c": "z"}
    assert remaining.expected(kinds, {"x": 60.0, "y": 300.0, "w": 120.0}) == {"a": 60.0, "b": 300.0, "c": 120.0}


def test_where_no_record_exists_no_time_is_shown() -> None:
    nothing = Remaining.of({"a": "x", "b": "y"}, {})
    assert nothing.before("a") == ""
    nothing.ended(["a"])
    assert nothing.told({"b": 5.0}, 60.0) == "; 1 wait or run"


@pytest.mark.parametrize(
    ("running", "at_once", "seconds"),
    [
        ({}, 1, 900.0),
        ({}, 2, 450.0),
        ({}, 3, 300.0),
        ({}, 9, 300.0),  # no job is split
        ({"a": 200.0, "b": 200.0}, 2, 300.0),  # c is whole, whoever takes it
        ({"a": 400.0, "b": 280.0, "c": 240.0}, 3, 60.0),  # a takes longer than before, and ends at some time
    ],
)
def test_what_is_left_is_shared_by_the_workers_that_run_at_once(
    running: dict[str, float], at_once: int, seconds: float
) -> None:
    assert remaining.seconds_left(dict.fromkeys("abc", 300.0), running, at_once) == seconds


def test_the_last_job_leaves_nothing_to_tell() -> None:
    left = Remaining.of({"a": "x"}, {"x": 60.0})
    left.ended(["a"])
    assert left.told({}, 60.0) == ""


def after(running: dict[str, float], elapsed: float, **more: Any) -> str:
    """What is told of four jobs of ten minutes when the first of six has ended."""
    left = Remaining(left=dict.fromkeys("abcd", 600.0), done=600.0, **more)
    return left.told(running, elapsed)


def test_as_many_run_at_once_as_were_seen_to() -> None:
    assert after({"a": 0.0, "b": 0.0}, 600.0) == "; 4 wait or run, about 20 min"
    assert after({}, 600.0, at_once=4) == "; 4 wait or run, about 10 min", "squeue was not asked again yet"


def test_where_nobody_tells_what_runs_the_pace_so_far_goes_on() -> None:
    assert after({}, 300.0) == "; 4 wait or run, about 20 min", "two at once"
    assert after({}, 600.0) == "; 4 wait or run, about 40 min"


def test_a_job_that_is_handed_over_says_what_it_took_before() -> None:
    assert Remaining.of({"a": "x"}, {"x": 61.0}).before("a") == "; takes about 2 min"
    assert remaining.about(1.0) == "about 1 min"
