"""Pairs of a fleet, planned and booked."""

import pytest

from images.bench import results
from images.bench.parts import fleet
from images.fleet.ledger import Ledger
from images.fleet.model import Booking
from tests.support.bench import bench_on


def test_every_job_of_the_pairs_is_booked_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[Booking | None] = []

    class Watched(Ledger):
        def release(self, key: str, run_id: str) -> None:
            given_back.append(self.booked(key))
            super().release(key, run_id)
            assert self.booked(key) is None and self.job(key)

    monkeypatch.setattr(fleet, "PAIRS", (36,))
    monkeypatch.setattr(fleet, "Ledger", Watched)
    monkeypatch.setattr(results, "busy_now", lambda: 0.0)
    bench, said = bench_on(None)
    (size,) = fleet.fleet(bench)["sizes"]
    keys = {one.key for one in given_back if one}
    assert size["pairs"] == 36 and size["jobs"] == len(keys) == len(given_back) == 34  # static and cpu are one job
    assert said and said[0].startswith("36 pairs: planned in")
