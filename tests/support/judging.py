"""Judging one claim by the file of its check."""

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
    """Raises TypeError where no check has the claim."""
    judge = checks.judge_of(claim)
    if judge is None:
        raise TypeError(f"{claim.probe} has no judge of {claim.key}")
    return apply_judge(judge, claim, evidence)


def fails(finding: Finding, *told: str) -> None:
    """It is a FAIL whose reason says each of these."""
    assert finding.status is Status.FAIL, finding.reason
    assert not [words for words in told if words not in finding.reason], finding.reason


def says(finding: Finding, words: str) -> None:
    """It is a FAIL whose reason says this; where there are no words, a PASS."""
    assert (finding.status, words in finding.reason) == (
        Status.FAIL if words else Status.PASS,
        True,
    ), finding.reason


def spoiled(evidence: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value at `ranks|1|facts` (`*`: at each); KeyError takes it away, a function makes it of what
    was there."""

    def keys(place: Any, name: str) -> list[Any]:
        return list(place) if name == "*" else [int(name) if isinstance(place, list) else name]

    found: dict[str, Any] = {"": copy.deepcopy(dict(evidence))}
    *parents, last = ["", *path.split("|")] if path else [""]
    places: list[Any] = [found]
    for name in parents:
        places = [place[key] for place in places for key in keys(place, name)]
    for place, key in [(one, key) for one in places for key in keys(one, last)]:
        if value is KeyError:
            del place[key]
        else:
            place[key] = value(place[key]) if callable(value) else value
    whole: dict[str, Any] = found[""]
    return whole


def wrong(part: str, **words: str) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Claim, what its reason must say, and what is changed in good evidence: a part of wrong.yaml, `{word}` replaced.

    The changes are paths and values of `spoiled`; None: nothing is left of the evidence.
    """
    text = (ROOT / "tests" / "validate" / "checks" / "wrong.yaml").read_text(encoding="utf-8")
    for word, meaning in words.items():
        text = text.replace(f"{{{word}}}", meaning)
    absent = {"(absent)": KeyError}

    def value(said: Any) -> Any:
        return absent.get(said, said) if isinstance(said, str) else said

    return [
        (claim, reason, changes and {path: value(said) for path, said in changes.items()})
        for claim, rows in yaml.load(text, Loader=yaml.CSafeLoader)[part].items()
        for reason, changes in rows.items()
    ]


def spoiled_by(evidence: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy with these changes, one after the other."""
    found = dict(evidence) if changes is not None else {}
    for path, value in (changes or {}).items():
        found = spoiled(found, path, value)
    return found
