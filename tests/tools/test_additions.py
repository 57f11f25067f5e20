"""What a measurement of an added package is called: torch that moved is never called anything else."""

from collections.abc import Mapping
from typing import Any

import pytest

from images.planning.user_overlay import packages
from tools import additions

OURS = "torch 2.7.1+cu126 12.6 /opt/venv/lib/python3.11/site-packages/torch/__init__.py\nimported\n"
GOOD: Mapping[str, Any] = {
    "seconds": 9.0,
    "installed": {"code": 0, "said": ""},
    "bytes": 5_000_000,
    "before": {"torch": "2.7.1", "fsspec": "1"},
    "after": {"torch": "2.7.1", "fsspec": "2", "wandb": "0.31.0"},
    "at_work": {"code": 0, "said": OURS},
}


def row(**changed: object) -> dict[str, Any]:
    return additions.row("wandb", "wandb", {**GOOD, **changed}, bin_folder="/opt/venv/bin")


def test_what_was_added_and_what_moved_beside_it_is_kept() -> None:
    found = row()
    assert (found["verdict"], found["version"], found["added"]) == ("added", "0.31.0", 1)
    assert found["moved"] == {"fsspec": ["1", "2"]} and found["megabytes"] == 5.0


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"installed": {"code": 1, "said": "ERROR: ResolutionImpossible: for help"}}, "refused"),
        ({"installed": {"code": 1, "said": "ERROR: No matching distribution"}}, "failed"),
        ({"at_work": {"code": 1, "said": OURS + "ImportError: no GPU"}}, "added, not importable"),
        (
            {
                "at_work": {
                    "code": 0,
                    "said": OURS.replace("/opt/venv", "/home/trainer/.cache/venvs/a"),
                }
            },
            additions.MOVED,
        ),
        ({"at_work": {"code": 1, "said": "ImportError: libcudart.so.13"}}, additions.MOVED),
        ({"after": {"torch": "2.8.0", "wandb": "1"}}, additions.MOVED),
        (
            {"after": {"torch": "2.8.0"}, "installed": {"code": 1, "said": "ResolutionImpossible"}},
            additions.MOVED,
        ),
    ],
)
def test_the_verdict_says_what_became_of_torch(changed: dict[str, object], verdict: str) -> None:
    assert row(**changed)["verdict"] == verdict


def test_every_package_that_was_measured_is_in_the_list_and_none_moved_torch() -> None:
    measured = additions.read()["rows"]
    assert {one["package"] for one in measured} <= packages().keys()
    assert not [one["package"] for one in measured if one["verdict"] == additions.MOVED]
