"""Which jobs are this process's, and which of their records it puts aside."""

from pathlib import Path

import pytest

from images.fleet import booking
from images.fleet.ledger import Ledger
from tests.images.fleet.test_ledger import JOB, judged, run_of


def test_the_record_that_is_outdated_is_put_aside_and_no_other(tmp_path: Path) -> None:
    """Another process judged the job since this command looked at its record."""
    ledger = Ledger(tmp_path)
    ledger.commit(judged("n1"))
    seen = ledger.records_of([JOB.key])
    ledger.put_aside(JOB.key)
    ledger.commit(judged("n2"))
    with ledger.running(run_of("one")):
        mine = booking.take(ledger, run_of("one"), JOB, seen, lambda _key, text: pytest.fail(text))
        assert mine and mine == ledger.booked(JOB.key)
        kept = ledger.record(JOB.key)
        assert kept and kept.worker.node == "n2"
        booking.take(ledger, run_of("one"), JOB, {JOB.key: kept}, lambda _key, text: pytest.fail(text))
        assert ledger.record(JOB.key) is None


def test_a_job_that_another_has_is_left_to_it_and_told(tmp_path: Path) -> None:
    ledger, told = Ledger(tmp_path), list[str]()
    with ledger.running(run_of("one")), ledger.running(run_of("two")):
        theirs = booking.take(ledger, run_of("one"), JOB, {}, lambda _key, text: told.append(text))
        assert theirs and not told
        assert booking.take(ledger, run_of("two"), JOB, {}, lambda _key, text: told.append(text)) is None
        assert ledger.booked(JOB.key) == theirs and told[0].startswith("is left to ")
