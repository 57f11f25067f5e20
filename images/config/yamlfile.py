"""YAML into plain data that remembers its line numbers, and into pydantic models: every problem at once, with its line.

Every scalar stays text: 2.10 must not become 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError

from images.errors import Problem, UserError

Path = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_LOADERS = (getattr(yaml, "CBaseLoader", yaml.BaseLoader), yaml.BaseLoader)
"""libyaml's is some 15 times faster; PyYAML's errors are what people are told."""
_OPEN = object()
"""What an anchor stands for while it is read."""


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: its data, the line of each node, and the keys that stood twice."""

    name: str
    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict, repr=False)
    duplicates: list[Problem] = field(default_factory=list)

    def where(self, path: Path) -> str:
        """`matrix.yaml:12`, of the node at `path` or of its nearest parent that exists."""
        found = next((path[:length] for length in range(len(path), -1, -1) if path[:length] in self.lines), None)
        return self.name if found is None else f"{self.name}:{self.lines[found]}"


def parse(name: str, text: str) -> YamlFile:
    """Read YAML. Raises UserError on a syntax error or an empty file, with file and line."""
    where, then = name, "fix the line; editors show it too"
    for loader in _LOADERS:
        try:
            return _Reader(name, yaml.parse(text, Loader=loader)).document()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{name}:{mark.line + 1}" if mark else name
            cause = f"is not YAML: {error.problem or error.context}"
        except yaml.reader.ReaderError as error:
            where = f"{name}:{text.count(chr(10), 0, error.position) + 1}"
            cause, then = f"is not YAML: it holds the control character {chr(error.character)!r}", "take it out"
        except RecursionError:
            cause = "nests too deep, or refers to itself (`&name` around its own `*name`)"
            raise UserError(Problem(where=name, cause=cause, then="write the values out")) from None
    raise UserError(Problem(where=where, cause=cause, then=then))


class _Reader:
    """Builds the data of a document from its events: a builder of libyaml's would crash where a file nests too deep."""

    def __init__(self, name: str, events: Iterator[Any]) -> None:
        self.file, self.events = YamlFile(name), events
        self.anchors: dict[str, tuple[Any, Path]] = {}

    def document(self) -> YamlFile:
        next(self.events)
        if isinstance(next(self.events), yaml.StreamEndEvent):
            then = f"`git checkout {self.file.name}` brings it back"
            raise UserError(Problem(where=f"{self.file.name}:1", cause="is empty", then=then))
        data = self.value(next(self.events), ())
        next(self.events)
        more = next(self.events)
        if not isinstance(more, yaml.StreamEndEvent):
            raise ComposerError(None, None, "found another document", more.start_mark)
        return YamlFile(self.file.name, data, self.file.lines, self.file.duplicates)

    def value(self, event: Any, path: Path) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self.aliased(event, path)
        anchor = event.anchor
        if anchor in self.anchors:
            raise ComposerError(None, None, f"found duplicate anchor {anchor!r}", event.start_mark)
        if anchor:
            self.anchors[anchor] = _OPEN, path
        self.file.lines.setdefault(path, event.start_mark.line + 1)
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = event.value
        elif isinstance(event, yaml.MappingStartEvent):
            value = self.mapping(path)
        else:
            value = [self.value(item, (*path, index)) for index, item in enumerate(self.inside())]
        if anchor:
            self.anchors[anchor] = value, path
        return value

    def aliased(self, event: Any, path: Path) -> Any:
        if event.anchor not in self.anchors:
            raise ComposerError(None, None, f"found undefined alias {event.anchor!r}", event.start_mark)
        value, at = self.anchors[event.anchor]
        if value is _OPEN:
            raise RecursionError
        inner = [(node[len(at) :], line) for node, line in self.file.lines.items() if node[: len(at)] == at]
        for rest, line in inner:
            self.file.lines.setdefault((*path, *rest), line)
        return value

    def mapping(self, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for event in self.inside():
            key, line = str(self.value(event, (*path, "[key]"))), event.start_mark.line + 1
            if key in result:
                cause = f"{key!r} stands twice (first in line {self.file.lines[(*path, key)]})"
                where = f"{self.file.name}:{line}"
                self.file.duplicates.append(Problem(where=where, cause=cause, then="keep one of the two"))
                self.value(next(self.events), (*path, "[twice]"))
                continue
            self.file.lines[(*path, key)] = line
            result[key] = self.value(next(self.events), (*path, key))
        return result

    def inside(self) -> Iterator[Any]:
        """Events up to the end of the collection that has just begun."""
        while not isinstance(event := next(self.events), yaml.CollectionEndEvent):
            yield event


def validated(model: type[Model], file: YamlFile) -> tuple[Model | None, list[Problem], frozenset[Path]]:
    """The model, what was wrong, and the paths left out of it to get that far (None: nothing sound remained)."""
    problems, left_out, data = list(file.duplicates), set[Path](), file.data
    while True:
        try:
            return model.model_validate(data), problems, frozenset(left_out)
        except ValidationError as error:
            errors = [(_location(item["loc"]), dict(item)) for item in error.errors()]
        # Only the first round's errors are the person's: later ones come from what was left out.
        if not left_out:
            problems += [
                Problem(where=file.where(at), cause=_sentence(at, item), then=fix(file)) for at, item in errors
            ]
        paths = {_node(data, at) for at, _ in errors}
        if () in paths:
            return None, problems, frozenset(left_out)
        left_out |= paths
        data = _without(data, paths)


def fix(file: YamlFile) -> str:
    """What a person does about a problem of the file."""
    return f"fix {file.name}; docs/matrix.md explains each key"


def _location(loc: tuple[str | int, ...]) -> Path:
    """Without pydantic's mark of an error in a mapping's key, which is a part of its own."""
    return tuple(part for part in loc if part != "[key]")


def _sentence(at: Path, error: Mapping[str, Any]) -> str:
    place = ".".join(map(str, at))
    if error["type"] == "extra_forbidden":
        return f"unknown key {place!r}"
    if error["type"] == "missing":
        return f"{place!r} is missing"
    return f"{place}: {str(error['msg']).removeprefix('Value error, ')}"


def _node(data: Any, path: Path) -> Path:
    """What to leave out for an error at `path`: the deepest node there is, but an item of a list as a whole."""
    found: Path = ()
    for part in path:
        inside = (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
        if not inside:
            break
        data, found = data[part], (*found, part)
        if isinstance(part, int):
            break
    return found


def _without(data: Any, paths: set[Path]) -> Any:
    if not isinstance(data, dict | list):
        return data
    pairs = list(data.items() if isinstance(data, dict) else enumerate(data))
    kept = {
        key: _without(value, {path[1:] for path in paths if path[0] == key})
        for key, value in pairs
        if (key,) not in paths
    }
    return kept if isinstance(data, dict) else list(kept.values())
