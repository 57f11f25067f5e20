"""Reads YAML with line numbers, and checks it against pydantic models: all problems at once.

Every scalar stays text: 2.10 must not become 2.1.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from images.config.paths import DATA
from images.errors import Problem, UserError, wrong
from validate.installation import by_installation

Path = tuple[str | int, ...]
"""Keys and indexes that lead to a node: `("stacks", "2.7", "torch")`."""
Model = TypeVar("Model", bound=BaseModel)

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""The loader of libyaml, which is some 15 times as fast, if PyYAML has it."""


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: its data, the line of each node, and its duplicate keys."""

    name: str
    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict, repr=False)
    duplicates: list[Problem] = field(default_factory=list)

    def where(self, path: Path) -> str:
        """Return file and line of a node (`matrix.yaml:12`), or of its nearest known parent."""
        while path and path not in self.lines:
            path = path[:-1]
        if path not in self.lines:
            return self.name
        return f"{self.name}:{self.lines[path]}"


def parse(name: str, text: str) -> YamlFile:
    """Return the data of YAML text, and the line of each value. `name` is the file's, for messages.

    Every number stays text. Raises UserError, with the line where that is known, for an empty file,
    a syntax error, a control character, and values that nest too deep. Duplicate keys are only
    listed, in `duplicates` of the result.
    """
    try:
        node = yaml.compose(text, Loader=_LOADER)
        if node is None:
            then = by_installation(
                checkout=f"`git checkout {name}` brings it back",
                installed="write its content, or remove the file if you do not need it",
            )
            raise wrong(name, "the file is empty", then)
        lines: dict[Path, int] = {}
        duplicates: list[Problem] = []
        # This also fills `lines` and `duplicates`.
        data = _read_node(node, (), name, lines, duplicates)
        return YamlFile(name, data, lines, duplicates)
    except yaml.MarkedYAMLError as error:
        # The place of the error, if it has one; else that of what surrounds it.
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        cause = f"is not YAML: {error.problem}"
        then = "correct this line, or the one above it"
        # The line with the place; empty if the error is at the end of the text. A line can hold a
        # token or a login, so no more than one character of it is shown.
        source_line = "".join(text.splitlines()[mark.line : mark.line + 1]) if mark else ""
        if mark and source_line:
            character = source_line[mark.column : mark.column + 1]
            column = f"column {mark.column + 1}"
            cause += f": {column}, at {character!r}" if character else f": {column}, where it ends"
            if character == "\t":
                cause = f"is not YAML: a tab is in {column}"
                then = "replace the tab with spaces: YAML is indented with spaces only"
            elif "cannot start any token" in str(error.problem):
                cause = f"is not YAML: no value may begin with {character}, as in {column}"
                then = "put this value into quotes"
        # A ComposerError is about two places, and `problem` describes only the second.
        if isinstance(error, yaml.composer.ComposerError) and error.context:
            cause = f"is not YAML: {error.context}, {error.problem}"
        raise wrong(where, cause, then) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        cause = f"is not YAML: it holds the control character {chr(error.character)!r}"
        raise wrong(f"{name}:{line}", cause, "delete this character") from None
    except RecursionError:
        cause = "nests too deep, or refers to itself (`&name` around its own `*name`)"
        then = "write the values themselves in place of each `*name`"
        raise wrong(name, cause, then) from None


def _read_node(
    node: yaml.Node, path: Path, name: str, lines: dict[Path, int], duplicates: list[Problem]
) -> Any:
    """Return a node of a YAML file as plain data: lists, dicts and texts.

    `path` has the keys and indexes that lead to the node in the file `name`: ("images", 0). Two
    arguments are filled: `lines` gets the line of the node and of every node below it (path -> line
    from 1 on), and `duplicates` a problem for each key that a mapping has twice. Of two equal keys,
    the first counts.
    """
    # A value in a mapping has the line of its key, which was noted before.
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            items.append(_read_node(item, (*path, index), name, lines, duplicates))
        return items
    if not isinstance(node, yaml.MappingNode):
        return node.value

    mapping: dict[str, Any] = {}
    for key_node, value in node.value:
        # In YAML, a key may be a list or a mapping, too. The lines of its parts are of no use.
        key = str(_read_node(key_node, (*path, "[key]"), name, lines={}, duplicates=[]))
        line = key_node.start_mark.line + 1
        if key in mapping:
            cause = f"{key!r} stands twice (first in line {lines[(*path, key)]})"
            then = "delete one of the two lines, the one whose value is wrong"
            duplicates.append(Problem(where=f"{name}:{line}", cause=cause, then=then))
            continue
        lines[(*path, key)] = line
        mapping[key] = _read_node(value, (*path, key), name, lines, duplicates)
    return mapping


def table(name: str) -> Any:
    """Return a file of images/data as plain data, with numbers as numbers."""
    text = (DATA / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def fix(file: YamlFile, page: str, step: str = "") -> str:
    """Return what to do about a problem of a file: `step`, or to correct the line.

    `page` is the page that explains its keys.
    """
    place = by_installation(checkout=page, installed=f"{page} of truetag's repository")
    return f"{step or f'correct this line of {file.name}'}; {place} explains each key"


def _known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """Return the keys that a section of a file may have. `path` leads to the section."""
    types: list[Any] = [model]
    for part in path:
        inner: list[Any] = []
        for outer in types:
            fields = getattr(outer, "model_fields", {})
            if part in fields:
                inner.append(fields[part].annotation)
            else:
                # The types of a mapping's or list's items.
                inner.extend(get_args(outer))
        types = inner
    keys: list[str] = []
    for section in types:
        # A section may be written as `Section | None`.
        for option in (section, *get_args(section)):
            keys.extend(getattr(option, "model_fields", {}))
    return keys


def validated(model: type[Model], file: YamlFile, page: str) -> Model:
    """Return the data of a file as a pydantic model. `page` is the page that explains its keys.

    Raises UserError with every key that stands twice, is unknown or missing, or has a wrong value.
    """
    # Keys that stand twice were found when the file was read.
    problems = list(file.duplicates)
    model_of_file = None
    try:
        model_of_file = model.model_validate(file.data)
    except ValidationError as error:
        for fault in error.errors():
            # For an error in a mapping's key, pydantic ends the path with `[key]`.
            path = tuple(part for part in fault["loc"] if part != "[key]")
            # `stacks.2.7.torch`
            place = ".".join(map(str, path))
            then = fix(file, page)
            if fault["type"] == "extra_forbidden":
                cause = f"unknown key {place!r}"
                keys = _known_keys(model, path[:-1])
                close = get_close_matches(str(path[-1]), keys, n=1)
                names = close[0] if close else f"a key of this section ({', '.join(keys)})"
                then = fix(file, page, f"rename it to {names}, or delete it")
            elif fault["type"] == "missing":
                cause = f"{place!r} is missing"
            elif fault["type"] == "model_type":
                cause = f"lines of the form `key: value` are expected {place and 'below ' + place}"
            elif fault["type"] == "list_type":
                cause = f"{place}: a list is expected: [A, B], or a line `- A` for each"
            elif fault["type"] == "string_pattern_mismatch":
                pattern = fault["ctx"]["pattern"]
                cause = f"{place}: {fault['input']!r} has another form than is allowed: {pattern}"
            else:
                message = fault["msg"].removeprefix("Value error, ")
                cause = f"{place}: {message}" if place else message
            problems.append(Problem(where=file.where(path), cause=cause, then=then))
    if model_of_file is None or problems:
        raise UserError(problems)
    return model_of_file
