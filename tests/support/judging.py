"""Judge single claims, and spoil evidence so that they fail."""

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from tests.support.checkout import ROOT
from validate import checks
from validate.claims import Claim
from validate.judge import apply_judge
from validate.judging import Finding, Status


def judge_claim(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """Judge a claim by the file of its check. Raises TypeError if no check has the claim."""
    judge = checks.judge_of(claim)
    if judge is None:
        raise TypeError(f"{claim.probe} has no judge of {claim.key}")
    return apply_judge(judge, claim, evidence)


def fails(finding: Finding, *phrases: str) -> None:
    """Assert that it is a FAIL whose reason has each of these phrases."""
    assert finding.status is Status.FAIL, finding.reason
    assert not [phrase for phrase in phrases if phrase not in finding.reason], finding.reason


def says(finding: Finding, phrase: str) -> None:
    """Assert that it is a FAIL whose reason has this phrase; a PASS if the phrase is empty."""
    expected = Status.FAIL if phrase else Status.PASS
    assert finding.status is expected, finding.reason
    assert phrase in finding.reason, finding.reason


def spoiled(evidence: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of the evidence with another value at a path.

    `path`: keys and indexes, as `ranks|1|facts`; `*` stands for all of them; empty: the whole.
    `value`: the new value; a function from the old to the new one; or KeyError, to remove it.
    """
    # The copy is put into a dict, so that the whole has a key (""), too.
    holder: dict[str, Any] = {"": copy.deepcopy(dict(evidence))}
    *parents, last = ["", *path.split("|")] if path else [""]
    places: list[Any] = [holder]
    for name in parents:
        inner = []
        for place in places:
            inner += [place[key] for key in _keys(place, name)]
        places = inner

    for place in places:
        for key in _keys(place, last):
            if value is KeyError:
                del place[key]
            elif callable(value):
                place[key] = value(place[key])
            else:
                place[key] = value
    whole: dict[str, Any] = holder[""]
    return whole


def _keys(place: Any, name: str) -> list[Any]:
    """Return the keys or indexes that a part of a path stands for."""
    if name == "*":
        return list(place)
    return [int(name) if isinstance(place, list) else name]


def wrong(part: str, **words: str) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Return rows of wrong.yaml: claim, phrase that its reason must have, changes of good evidence.

    Changes are path -> value, as `spoiled` takes them; None: nothing is left of the evidence.
    `words`: what `{word}` in the file is replaced by.
    """
    text = (ROOT / "tests" / "validate" / "checks" / "wrong.yaml").read_text(encoding="utf-8")
    for word, meaning in words.items():
        text = text.replace(f"{{{word}}}", meaning)

    rows: list[tuple[str, str, dict[str, Any] | None]] = []
    for claim, changes_by_phrase in yaml.load(text, Loader=yaml.CSafeLoader)[part].items():
        for phrase, changes in changes_by_phrase.items():
            if changes:
                changes = {path: _value(written) for path, written in changes.items()}
            rows.append((claim, phrase, changes))
    return rows


def _value(written: Any) -> Any:
    """Return the value that a change in wrong.yaml stands for."""
    return KeyError if written == "(absent)" else written


def spoiled_by(evidence: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the evidence with these changes, one after the other; empty for None."""
    if changes is None:
        return {}
    changed = dict(evidence)
    for path, value in changes.items():
        changed = spoiled(changed, path, value)
    return changed
