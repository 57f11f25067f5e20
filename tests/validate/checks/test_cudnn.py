"""native/cudnn: the locked cuDNN is the one that torch runs with."""

import pytest

from validate.checks.cpu.cudnn import judge
from validate.judging import Status


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ({"version": 91501}, Status.PASS, "torch runs with cuDNN 9.15.1.9"),
        (
            {"version": 91002},
            Status.FAIL,
            "torch runs with cuDNN 91002, the lock has 9.15.1.9 (91501)",
        ),
        ({"version": None}, Status.FAIL, "torch runs with cuDNN None"),
    ],
)
def test_the_version_that_runs_decides(found: dict[str, object], status: Status, said: str) -> None:
    got = judge("cudnn", {"version": "9.15.1.9"}, found)  # type: ignore[arg-type]
    assert got.status is status
    assert said in got.reason
