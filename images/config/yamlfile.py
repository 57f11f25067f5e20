"""YAML into plain data that remembers its line numbers. Every scalar stays text: 2.10 must not become 2.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import yaml

from images.errors import Problem, UserError

Path = tuple[str | int, ...]
Anchored = TypeVar("Anchored")

_PARSER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_KINDS = {
    yaml.ScalarEvent: yaml.ScalarNode,
    yaml.MappingStartEvent: yaml.MappingNode,
    yaml.SequenceStartEvent: yaml.SequenceNode,
}


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: its data, the line of each node, and the keys that stood twice."""

    name: str
    data: Any
    text: str = field(repr=False)
    duplicates: tuple[Problem, ...] = ()

    @property
    def lines(self) -> Mapping[Path, int]:
        """Read from the text when something is wrong with it, which is seldom: a sound file needs no line."""
        return _marked(self.name, self.text).lines

    def where(self, path: Path) -> str:
        """`matrix.yaml:12`, of the node at `path` or of its nearest parent that exists."""
        lines = self.lines
        for length in range(len(path), -1, -1):
            if path[:length] in lines:
                return f"{self.name}:{lines[path[:length]]}"
        return self.name


def parse(name: str, text: str) -> YamlFile:
    """Read YAML. Raises UserError on a syntax error or an empty file, with file and line."""
    try:
        return YamlFile(name, _simple(text), text)
    except (yaml.YAMLError, RecursionError, _Unusual):
        marked = _marked(name, text)
        return YamlFile(name, marked.data, text, marked.duplicates)


def _simple(text: str) -> Any:
    """The data of a document in which no key stands twice. Anything else raises, and is looked at with its lines."""
    events = yaml.parse(text, Loader=_PARSER)
    next(events)
    if isinstance(next(events), yaml.StreamEndEvent):
        raise _Unusual
    data = _value(next(events), events, {})
    next(events)
    if not isinstance(next(events), yaml.StreamEndEvent):
        raise _Unusual
    return data


def _value(event: yaml.Event, events: Iterator[yaml.Event], anchors: dict[str | None, Any]) -> Any:
    value: Any
    if isinstance(event, yaml.AliasEvent):
        return _known(anchors, event)
    if isinstance(event, yaml.ScalarEvent):
        value = event.value
    elif isinstance(event, yaml.MappingStartEvent):
        value = _mapping(events, anchors)
    else:
        value = [_value(item, events, anchors) for item in _inside(events)]
    if anchor := getattr(event, "anchor", None):
        if anchor in anchors:
            raise _Unusual
        anchors[anchor] = value  # known from here on: one that stands inside of itself is not
    return value


def _mapping(events: Iterator[yaml.Event], anchors: dict[str | None, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key in _inside(events):
        text = str(_value(key, events, anchors)) if isinstance(key, yaml.ScalarEvent) else None
        if text is None or text in result:
            raise _Unusual
        result[text] = _value(next(events), events, anchors)
    return result


@dataclass(frozen=True)
class _Marked:
    """A document with the line of each node, and the keys that stood twice."""

    data: Any
    lines: Mapping[Path, int]
    duplicates: tuple[Problem, ...]


@lru_cache(maxsize=2)
def _marked(name: str, text: str) -> _Marked:
    """Kept while the problems of a file are told. Raises UserError as `parse` does."""
    try:
        node = _composed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        cause = f"is not YAML: {error.problem or error.context}"
        raise UserError(Problem(where=name + line, cause=cause, then="fix the line; editors show it too")) from None
    except yaml.reader.ReaderError as error:
        line = f":{text.count(chr(10), 0, error.position) + 1}"
        cause = f"is not YAML: it holds the control character {chr(error.character)!r}"
        raise UserError(Problem(where=name + line, cause=cause, then="take it out of the line")) from None
    except RecursionError:
        raise _endless(name) from None
    if node is None:
        raise UserError(Problem(where=f"{name}:1", cause="is empty", then=f"`git checkout {name}` brings it back"))
    lines: dict[Path, int] = {}
    duplicates: list[Problem] = []
    try:
        data = _plain(node, (), name, lines, duplicates)
    except RecursionError:  # an alias inside of what it stands for
        raise _endless(name) from None
    return _Marked(data, lines, tuple(duplicates))


def _composed(text: str) -> yaml.Node | None:
    """The tree of a document: read by libyaml's parser, some 15 times faster, and by PyYAML's where that one fails.

    PyYAML's errors are what people are told. The tree is built here: libyaml's parser keeps a stack of its own, but
    PyYAML's builder over it recurses in C, and a file that nests too deep would crash the process.
    """
    try:
        return _document(yaml.parse(text, Loader=_PARSER))
    except (yaml.YAMLError, _Unusual):
        return yaml.compose(text, Loader=yaml.BaseLoader)


class _Unusual(Exception):  # noqa: N818  # no error: PyYAML decides what it is
    """A document that is left to PyYAML."""


def _document(events: Iterator[yaml.Event]) -> yaml.Node | None:
    next(events)
    if isinstance(next(events), yaml.StreamEndEvent):
        return None
    node = _tree(next(events), events, {})
    next(events)
    if not isinstance(next(events), yaml.StreamEndEvent):
        raise _Unusual
    return node


def _tree(event: yaml.Event, events: Iterator[yaml.Event], anchors: dict[str | None, yaml.Node]) -> yaml.Node:
    if isinstance(event, yaml.AliasEvent):
        return _known(anchors, event)
    node: yaml.Node = _KINDS[type(event)]("", getattr(event, "value", []), event.start_mark)
    if anchor := getattr(event, "anchor", None):
        if anchor in anchors:
            raise _Unusual
        anchors[anchor] = node
    if isinstance(event, yaml.MappingStartEvent):
        node.value = [(_tree(key, events, anchors), _tree(next(events), events, anchors)) for key in _inside(events)]
    elif isinstance(event, yaml.SequenceStartEvent):
        node.value = [_tree(item, events, anchors) for item in _inside(events)]
    return node


def _known(anchors: Mapping[str | None, Anchored], alias: yaml.AliasEvent) -> Anchored:
    try:
        return anchors[alias.anchor]
    except KeyError:
        raise _Unusual from None


def _inside(events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
    """Events up to the end of the collection that has just begun."""
    return iter(lambda: event if not isinstance(event := next(events), yaml.CollectionEndEvent) else None, None)


def _endless(name: str) -> UserError:
    cause = "nests too deep, or refers to itself (`&name` around its own `*name`)"
    return UserError(Problem(where=name, cause=cause, then="write the values out"))


def _plain(node: yaml.Node, path: Path, name: str, lines: dict[Path, int], duplicates: list[Problem]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in result:
                cause = f"{key!r} stands twice (first in line {lines[(*path, key)]})"
                duplicates.append(Problem(where=f"{name}:{line}", cause=cause, then="keep one of the two"))
                continue
            lines[(*path, key)] = line
            result[key] = _plain(value_node, (*path, key), name, lines, duplicates)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, index), name, lines, duplicates) for index, item in enumerate(node.value)]
    return node.value
