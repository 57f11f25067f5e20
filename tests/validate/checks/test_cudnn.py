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
            "torch runs with cuDNN 91002, the lock has 9.15.1.9 (91501)",
            id="another one",
        ),
        pytest.param(None, Status.FAIL, "torch runs with cuDNN None", id="none"),
    ],
)
def test_torch_must_run_with_the_locked_version(
    running: int | None, status: Status, words: str
) -> None:
    finding = judge("cudnn", {"version": "9.15.1.9"}, {"version": running})  # type: ignore[typeddict-item]

    assert finding.status is status
    assert words in finding.reason
