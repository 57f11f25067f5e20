"""native/cudnn: the locked cuDNN is the one that torch runs with."""

import pytest

from validate.checks.cpu.cudnn import judge
from validate.judging import Status


@pytest.mark.parametrize(
    ("running", "status", "words"),
    [
        pytest.param(91501, Status.PASS, "torch runs with cuDNN 9.15.1.9", id="the locked one"),
        pytest.param(
            91002,
            Status.FAIL,
            "torch runs with cuDNN 9.10.2; the lock has 9.15.1.9. Another copy",
            id="another one",
        ),
        pytest.param(8902, Status.FAIL, "cuDNN 8.9.2; the lock has", id="a number of cuDNN 8"),
        pytest.param(
            None, Status.FAIL, "torch loads no cuDNN, and the lock has cuDNN 9.15.1.9", id="none"
        ),
    ],
)
def test_torch_must_run_with_the_locked_version(
    running: int | None, status: Status, words: str
) -> None:
    finding = judge("cudnn", {"version": "9.15.1.9"}, {"version": running})  # type: ignore[typeddict-item]

    assert finding.status is status
    assert words in finding.reason
