"""The measurement of cold builds explains wrong arguments."""

import pytest

from tests.support import commands


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--repeat", "0"), "greater than or equal to 1"),
        (("--nonsuch",), "No such option: --nonsuch"),
        (("a", "b"), "unexpected extra argument"),
        (("--engine", "a", "--engine", "b"), "was given twice"),
        (("",), "the value is empty"),
    ],
)
def test_a_wrong_argument_gets_place_cause_and_next_step(
    arguments: tuple[str, ...], cause: str
) -> None:
    finished = commands.tool("cold_build", *arguments)

    assert finished.returncode == 2
    message = " ".join(finished.stderr.split())
    assert message.startswith("error ")
    assert cause in message
    assert "next: " in message
