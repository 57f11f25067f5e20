"""validate/hints.yaml, which people write, into hints.json, which containers read (their Python has no YAML)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from images.config import paths, yamlfile
from images.config.facts import Row, Sentence
from images.config.yamlfile import YamlFile
from images.errors import Problem, UserError

FILE = paths.SUITE / "hints.yaml"
RELEASES = paths.SUITE / "releases.yaml"
"""package -> names, arguments, attributes or modules -> whose they are -> range of releases -> what they have."""


def _pattern(value: object) -> str:
    try:
        re.compile(str(value))
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from None
    return str(value)


def _setting(value: object) -> object:
    """This project's YAML has no truth values: `no` is a word."""
    return {"true": True, "false": False}.get(str(value), value)


class BroughtBy(Row):
    """What a child adds that brings the error, wherever nothing of `unless` is there."""

    name: str
    """A package, or a variable that is switched on."""
    unless: list[str] = []
    """Packages (`huggingface-hub>=1`: from that major on), variables, or `nvcc`."""


class HintRow(Row):
    """One known error."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    pattern: Annotated[str, BeforeValidator(_pattern)]
    examples: list[Sentence] = Field(min_length=1)
    """Lines that must find this row first."""
    cause: Sentence
    fix: Sentence
    source: Sentence
    """A page, `OWNER/REPOSITORY#NUMBER`, or `seed:PAGE`."""
    brought_by: BroughtBy | None = None
    names: dict[str, Sentence] | None = None
    """What is known of a name that `key` gives (without it, the pattern's first group): the fix begins with it."""
    key: str = r"\1"
    only_named: Annotated[bool, BeforeValidator(_setting)] = False
    """The row is about these names alone, and those of RELEASES."""
    no_setting: str = ""
    """Why it is about no setting of doctor's, though it speaks of such things."""
    avoid: list[dict[str, Annotated[str | bool, BeforeValidator(_setting)]]] = []
    """Settings of doctor which together bring the error: it recommends none of these (tests/validate/doctor)."""


class Hints(Row):
    """The whole of hints.yaml."""

    hints: list[HintRow] = Field(min_length=1)


def load(text: str | None = None) -> tuple[HintRow, ...]:
    """Read and check the rows. Raises UserError with every fault and its line."""
    name = paths.shown(FILE)
    file = yamlfile.parse(name, FILE.read_text(encoding="utf-8") if text is None else text)
    problems = list(file.duplicates)
    try:
        rows = tuple(TypeAdapter(Hints).validate_python(file.data).hints)
    except ValidationError as error:
        problems += [_problem(file, one) for one in error.errors()]
        rows = ()
    problems += _twice(file, rows)
    if problems:
        raise UserError(problems)
    return rows


def generated() -> bytes:
    """The content of validate/hints.json."""
    rows = [row.model_dump(exclude={"examples", "avoid", "no_setting"}, exclude_none=True) for row in load()]
    for row in rows:
        if names := row.get("names"):
            known = dict(_released()) if row["only_named"] else {}
            row["names"] = _by_text(known | {key.lower(): text for key, text in names.items()})
    return (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()


def _by_text(names: Mapping[str, str]) -> dict[str, str]:
    """What is told -> the names of which it is, a line each: thousands of names share few texts."""
    found: dict[str, list[str]] = {}
    for name, text in names.items():
        found.setdefault(text, []).append(name)
    return {text: "\n".join(same) for text, same in found.items()}


def _released() -> Iterator[tuple[str, str]]:
    """Each entry of RELEASES, as the rows' keys have it, and where it is."""
    for package, sections in yaml.safe_load(RELEASES.read_text(encoding="utf-8")).items():
        for section, owners in sections.items():
            for owner, ranges in owners.items():
                start = ".__init__" if section == "arguments" and "." not in owner and owner[0].isupper() else ""
                for found, names in ranges.items():
                    releases, _, home = found.partition(" then ")
                    told = f"It is in {package}{releases}{f' (then in {home})' * bool(home)}."
                    for name in str(names).split():
                        yield (f"{name}/" if section == "modules" else f"{owner}{start}/{name}").lower(), told


def _problem(file: YamlFile, error: Any) -> Problem:
    where = file.where(tuple(error["loc"]))
    return Problem(where=where, cause=f"{'.'.join(map(str, error['loc']))}: {error['msg']}", then="fix the line")


def _twice(file: YamlFile, rows: tuple[HintRow, ...]) -> Iterator[Problem]:
    names = [row.id for row in rows]
    for index, row in enumerate(rows):
        if row.id in names[:index]:
            cause = f"{row.id} is the name of an earlier row"
            yield Problem(where=file.where(("hints", index)), cause=cause, then="give it a name of its own")
