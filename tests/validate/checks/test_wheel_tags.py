"""wheel-tags/python: which wheels fit an image's Python, and what does not fit is named."""

from typing import Any

import pytest

from validate.checks.static import wheel_tags
from validate.environment.wheel_tags import Target, fits
from validate.judging import Finding, Status

PYTHON_311 = Target(python="3.11", machine="x86_64")


@pytest.mark.parametrize(
    "tag",
    [
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp38-abi3-manylinux2014_x86_64",
        "py3-none-any",
        "py2.py3-none-any",
        "py3-none-manylinux_2_27_x86_64",
        "cp311-none-linux_x86_64",
    ],
)
def test_a_wheel_for_this_python_an_earlier_abi_or_any_python_fits(tag: str) -> None:
    assert fits(tag, PYTHON_311)


@pytest.mark.parametrize(
    "tag",
    [
        pytest.param("cp310-cp310-manylinux_2_28_x86_64", id="another-python"),
        pytest.param("cp312-abi3-linux_x86_64", id="stable-abi-of-a-later-python"),
        pytest.param("cp311-cp311-musllinux_1_2_x86_64", id="musl"),
        pytest.param("cp311-cp311-manylinux_2_28_aarch64", id="another-processor"),
        pytest.param("cp311-cp311-win_amd64", id="windows"),
        pytest.param("py2-none-any", id="python-2"),
        pytest.param("nonsense", id="no-tag"),
    ],
)
def test_a_wheel_for_something_else_does_not_fit(tag: str) -> None:
    assert not fits(tag, PYTHON_311)


# ---- Judging.

WELL: dict[str, Any] = {"python": "3.11", "machine": "x86_64", "wheels": 67, "misfits": []}


def judged(**measured: Any) -> Finding:
    """Judge evidence. What is not given is well."""
    evidence: Any = {**WELL, **measured}
    return wheel_tags.judge("", {}, evidence)


def test_wheels_that_fit_pass() -> None:
    assert judged()[:2] == (Status.PASS, "67 wheels are for Python 3.11 on x86_64")


def test_a_wheel_of_another_python_fails() -> None:
    tags = ["cp310-cp310-linux_x86_64"]
    wheel = {"name": "markupsafe", "location": "/site", "tags": tags}

    finding = judged(misfits=[wheel])

    built_for = "built for cp310-cp310-linux_x86_64, not for Python 3.11 on x86_64"
    assert finding[:2] == (Status.FAIL, f"markupsafe in /site is {built_for}")


def test_an_environment_without_wheels_fails() -> None:
    assert judged(wheels=0).status is Status.FAIL
