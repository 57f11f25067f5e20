"""Records of probes: what is printed of them while a validation run goes on."""

from validate.evidence import Outcome, Record


def test_a_completed_probe_is_shown_without_its_log() -> None:
    record = Record(probe="cpu.home", outcome=Outcome.COMPLETED, seconds=1.23, log="a warning\n")

    assert record.progress_line() == "measured cpu.home in 1.2 s (completed)"


def test_a_probe_that_crashed_is_shown_with_the_last_line_of_its_log() -> None:
    log = "Traceback (most recent call last):\nKeyError: 'NODE'\x1b[0m\n\n"
    record = Record(probe="cpu.home", outcome=Outcome.CRASHED, seconds=1.23, log=log)

    assert record.progress_line() == "measured cpu.home in 1.2 s (crashed: KeyError: 'NODE' [0m)"


def test_a_probe_that_printed_nothing_is_shown_with_its_outcome_alone() -> None:
    record = Record(probe="cpu.home", outcome=Outcome.TIMED_OUT, seconds=60.0)

    assert record.progress_line() == "measured cpu.home in 60.0 s (timed-out)"


def test_a_long_last_line_is_cut() -> None:
    record = Record(probe="cpu.home", outcome=Outcome.TIMED_OUT, seconds=60.0, log="x" * 1000)

    assert record.progress_line() == f"measured cpu.home in 60.0 s (timed-out: {'x' * 200})"
