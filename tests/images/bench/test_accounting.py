"""Bytes of layers, and of those that an engine still has to fetch."""

import json

from images.bench import accounting
from images.bench.accounting import Layer
from tests.support.bench import layer


def test_a_layer_that_is_held_is_not_fetched_again() -> None:
    base, torch, light, other = layer("base", 50), layer("torch", 2000), layer("light", 1), layer("other", 3)
    totals = accounting.fetched([[base, torch, light], [base, torch, other], [base, torch, light]])
    assert [total.gzip for total in totals] == [2051, 3, 0]
    assert [total.layers for total in totals] == [3, 1, 0]


def test_a_layer_on_another_one_than_before_is_fetched_again() -> None:
    base, torch, light, other = layer("base", 50), layer("torch", 2000), layer("light", 1), layer("other", 3)
    totals = accounting.fetched([[base, torch, light], [base, other, torch, light]])
    assert [total.gzip for total in totals] == [2051, 2004]


def test_a_layer_that_stands_twice_is_counted_once() -> None:
    assert accounting.total([layer("a", 5), layer("a", 5), layer("b", 2)]).gzip == 7


def test_what_a_rebuild_changed() -> None:
    assert accounting.changed(["a", "b", "c"], ["a", "x", "c"]) == ("x",)
    assert accounting.changed(["a"], ["a"]) == ()


def test_a_layer_survives_its_file() -> None:
    one = layer("sha256:1", 7)
    assert Layer.from_json(json.loads(json.dumps(one.as_json()))) == one
