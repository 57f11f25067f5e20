"""The verdict on an added package: whatever else happened, torch that moved is called so."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from images.planning.user_overlay import packages
from tools import additions
from tools.additions import Trial

OURS = "torch 2.7.1+cu126 12.6 /opt/venv/lib/python3.11/site-packages/torch/__init__.py\nimported\n"
"""What a program prints that uses the image's own torch, then imports the added package."""
USERS = OURS.replace("/opt/venv", "/home/trainer/.cache/venvs/a")
"""The same with a torch that the user's environment got."""
GOOD: Mapping[str, Any] = {
    "seconds": 9.0,
    "installed": {"code": 0, "said": ""},
    "bytes": 5_000_000,
    "before": {"torch": "2.7.1", "fsspec": "1"},
    "after": {"torch": "2.7.1", "fsspec": "2", "wandb": "0.31.0"},
    "at_work": {"code": 0, "said": OURS},
}
CONFLICT = {"code": 1, "said": "ERROR: ResolutionImpossible: for help"}
ANOTHER_ERROR = {"code": 1, "said": "ERROR: No matching distribution"}


def row_of_trial(**changed: object) -> dict[str, Any]:
    """Return the row of a trial of wandb that went well but for these fields."""
    trial = cast("Trial", {**GOOD, **changed})
    return additions.row("wandb", "wandb", trial, bin_folder="/opt/venv/bin")


def test_what_was_added_and_what_moved_beside_it_is_kept() -> None:
    row = row_of_trial()

    assert (row["verdict"], row["version"], row["added"]) == ("added", "0.31.0", 1)
    assert row["moved"] == {"fsspec": ["1", "2"]}
    assert row["megabytes"] == 5.0


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"installed": CONFLICT}, "refused"),
        ({"installed": ANOTHER_ERROR}, "failed"),
        ({"at_work": {"code": 1, "said": OURS + "ImportError: no GPU"}}, "added, not importable"),
        ({"at_work": {"code": 0, "said": USERS}}, additions.MOVED),
        ({"at_work": {"code": 1, "said": "ImportError: libcudart.so.13"}}, additions.MOVED),
        ({"after": {"torch": "2.8.0", "wandb": "1"}}, additions.MOVED),
        ({"after": {"torch": "2.8.0"}, "installed": CONFLICT}, additions.MOVED),
    ],
    ids=[
        "pip finds a conflict",
        "pip fails otherwise",
        "the package can't be imported",
        "torch is imported from the user's environment",
        "torch can't be imported any more",
        "torch has another version",
        "torch has another version after a conflict",
    ],
)
def test_the_verdict_says_what_became_of_torch(changed: dict[str, object], verdict: str) -> None:
    assert row_of_trial(**changed)["verdict"] == verdict


def test_every_package_that_was_measured_is_in_the_list_and_none_moved_torch() -> None:
    rows = additions.read()["rows"]

    assert {row["package"] for row in rows} <= packages().keys()
    assert not [row["package"] for row in rows if row["verdict"] == additions.MOVED]
