"""A child of an image: told from its parent, held to its parent's claims, and its changes named."""

from __future__ import annotations

from typing import Any

import pytest

from images.planning import plan
from images.validation import child
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from tests.support.sources import SOURCES
from validate.evidence import Evidence, Measurement, Outcome, Record

(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
LOCKED = {"torch": {"torch": "2.7.1", "sympy": "1.14.0"}, "libraries": {"fsspec": "2025.10.0"}}
PARENT = image_claims(ClaimContext(image=PLANNED.image, facts=SOURCES.facts, locked=LOCKED))
OURS = ['CMD ["bash"]', "WORKDIR /workspace", "USER 1001", "LABEL a=b"]


@pytest.mark.parametrize(
    ("history", "steps"),
    [
        (OURS, ()),
        (["USER 1001", "RUN pip install wandb", *OURS], ("RUN pip install wandb", "USER 1001")),
        (
            ['/bin/sh -c #(nop)  CMD ["bash"]', "/bin/sh -c #(nop) WORKDIR /workspace", "USER 1001"],
            (),
        ),
        (['CMD ["sh"]', "RUN x", *OURS], ("RUN x", 'CMD ["sh"]')),
        (["RUN x", "FROM somewhere"], None),
        ([], None),
    ],
)
def test_the_steps_of_a_child_are_those_above_our_last(history: list[str], steps: tuple[str, ...] | None) -> None:
    assert child.steps_above(history) == steps


def of_child(id: str, subject: str) -> Any:  # noqa: A002
    return next(one for one in child.claims(PARENT).claims if (one.id, one.subject) == (id, subject))


def test_a_child_may_add_packages_and_code_but_not_move_a_pin_or_lie_in_our_labels() -> None:
    assert not of_child("S1", "lock").required and not of_child("S1", "lock").expect["closed"]
    assert of_child("S1", "torch").required and of_child("S1", "transformers").required
    assert "/workspace/*" not in of_child("S8", "leftovers").expect["leftovers"]
    assert "*/.cache/*" in of_child("S8", "leftovers").expect["leftovers"]
    assert of_child("S8", "labels").expect["labels"].keys() == {
        name for name in of_child("S8", "labels").expect["labels"] if name.startswith("dev.truetag.")
    }
    assert of_child("S8", "labels").expect["labels"]["dev.truetag.torch"] == "2.7.1"
    assert not of_child("S8", "size").required
    assert {one.id for one in child.claims(PARENT).claims} == {one.id for one in PARENT.claims}


def evidence(installed: dict[str, list[str]]) -> Evidence:
    claims = child.claims(PARENT).claims
    measured = Measurement(subject="lock", seconds=1, evidence={"installed": installed})
    record = Record(probe="static.pins", outcome=Outcome.COMPLETED, seconds=1, measurements=(measured,))
    return Evidence(image="cu126-torch27", digest="sha256:1", records=(record,), claims=claims)


def installed(**changed: str) -> dict[str, list[str]]:
    lock = next(one for one in PARENT.claims if (one.id, one.subject) == ("S1", "lock"))
    return {name: [version] for name, version in {**lock.expect["versions"], **changed}.items() if version}


def test_added_removed_and_moved_packages_are_named() -> None:
    found = child.changes(evidence(installed(wandb="0.31.0", fsspec="2026.1.0", sympy="")), ["RUN pip install wandb"])
    assert found is not None
    assert (found.added, found.removed) == ({"wandb": "0.31.0"}, {"sympy": "1.14.0"})
    assert found.moved == {"fsspec": ("2025.10.0", "2026.1.0")}
    assert found.lines() == [
        "1 steps above the parent",
        "added 1: wandb 0.31.0",
        "removed 1: sympy 1.14.0",
        "moved 1: fsspec 2025.10.0 to 2026.1.0",
    ]


def test_what_was_not_measured_is_not_called_unchanged() -> None:
    nothing = Evidence(image="a", digest="", records=(), claims=child.claims(PARENT).claims)
    assert child.changes(nothing, ["RUN x"]) is None
    same = child.changes(evidence(installed()), ["RUN x"])
    assert same is not None and same.lines()[1:] == ["no package differs from the parent's"]
