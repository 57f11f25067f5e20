"""wheel-tags/python: which wheels fit an image's Python."""

import pytest

from validate.checks.static import wheel_tags
from validate.checks.static.wheel_tags import Measured, MisfittingWheel
from validate.environment.wheel_tags import Target, fits
from validate.judging import Status


@pytest.mark.parametrize(
    ("tag", "does_fit"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp38-abi3-manylinux2014_x86_64", True),
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("py3-none-manylinux_2_27_x86_64", True),
        ("cp311-none-linux_x86_64", True),
        ("cp310-cp310-manylinux_2_28_x86_64", False),
        ("cp312-abi3-linux_x86_64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-win_amd64", False),
        ("py2-none-any", False),
        ("nonsense", False),
    ],
)
def test_a_tag_fits_a_python_and_a_processor_or_not(tag: str, does_fit: bool) -> None:
    assert fits(tag, Target(python="3.11", machine="x86_64")) is does_fit


def test_a_wheel_of_another_python_is_named() -> None:
    wheel = MisfittingWheel(name="markupsafe", location="/site", tags=["cp310-cp310-linux_x86_64"])
    good = Measured(python="3.11", machine="x86_64", wheels=67, misfits=[])
    assert wheel_tags.judge("", {}, good) == (
        Status.PASS,
        "67 wheels are for Python 3.11 on x86_64",
    )
    status, reason = wheel_tags.judge("", {}, {**good, "misfits": [wheel]})
    assert status is Status.FAIL
    assert (
        reason
        == "markupsafe in /site is built for cp310-cp310-linux_x86_64, not for Python 3.11 on x86_64"
    )
    assert wheel_tags.judge("", {}, {**good, "wheels": 0}).status is Status.FAIL
