"""YAML into plain data that remembers its line numbers, and into pydantic models: every problem at once, with its line.

Every scalar stays text: 2.10 must not become 2.1.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from images.config.paths import DATA
from images.errors import Problem, wrong

Path = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_LOADERS = (getattr(yaml, "CBaseLoader", yaml.BaseLoader), yaml.BaseLoader)
"""libyaml's is some 15 times faster; PyYAML's errors are what people are told."""


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
            node = yaml.compose(text, Loader=loader)
            if node is None:
                raise wrong(f"{name}:1", "is empty", f"`git checkout {name}` brings it back")
            lines: dict[Path, int] = {}
            duplicates: list[Problem] = []
            return YamlFile(name, _data(node, (), name, lines, duplicates), lines, duplicates)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{name}:{mark.line + 1}" if mark else name
            of_two = isinstance(error, yaml.composer.ComposerError) and error.context  # `problem` alone says too little
            cause = f"is not YAML: {error.context}, {error.problem}" if of_two else f"is not YAML: {error.problem}"
        except yaml.reader.ReaderError as error:
            where = f"{name}:{text.count(chr(10), 0, error.position) + 1}"
            cause, then = f"is not YAML: it holds the control character {chr(error.character)!r}", "take it out"
        except RecursionError:
            cause = "nests too deep, or refers to itself (`&name` around its own `*name`)"
            raise wrong(name, cause, "write the values out") from None
    raise wrong(where, cause, then)


def _data(node: yaml.Node, path: Path, name: str, lines: dict[Path, int], duplicates: list[Problem]) -> Any:
    """The plain data of a node. Fills in `lines` and `duplicates`; of a key that stands twice, the first counts."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_data(one, (*path, index), name, lines, duplicates) for index, one in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return node.value
    result: dict[str, Any] = {}
    for key_node, value in node.value:
        key, line = str(_data(key_node, (*path, "[key]"), name, {}, [])), key_node.start_mark.line + 1
        if key in result:
            cause = f"{key!r} stands twice (first in line {lines[(*path, key)]})"
            duplicates.append(Problem(where=f"{name}:{line}", cause=cause, then="keep one of the two"))
            continue
        lines[(*path, key)] = line
        result[key] = _data(value, (*path, key), name, lines, duplicates)
    return result


def table(name: str) -> Any:
    """A file of images/data as plain data, with numbers as numbers."""
    text = (DATA / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def validated(model: type[Model], file: YamlFile) -> tuple[Model | None, list[Problem], frozenset[Path]]:
    """The model, what was wrong, and the paths left out of it to get that far (None: nothing sound remained)."""
    problems, left_out, data = list(file.duplicates), set[Path](), deepcopy(file.data)
    while True:
        try:
            return model.model_validate(data), problems, frozenset(left_out)
        except ValidationError as error:
            # Without pydantic's mark of an error in a mapping's key, which is a part of its own.
            errors = [(tuple(one for one in item["loc"] if one != "[key]"), dict(item)) for item in error.errors()]
        # Only the first round's errors are the person's: later ones come from what was left out.
        if not left_out:
            for at, item in errors:
                place, message = ".".join(map(str, at)), str(item["msg"]).removeprefix("Value error, ")
                said = {"extra_forbidden": f"unknown key {place!r}", "missing": f"{place!r} is missing"}
                cause = said.get(str(item["type"]), f"{place}: {message}")
                problems.append(Problem(where=file.where(at), cause=cause, then=fix(file)))
        paths = {_node(data, at) for at, _ in errors}
        if () in paths:
            return None, problems, frozenset(left_out)
        left_out |= paths
        for *parents, last in sorted(paths, reverse=True):  # what is inside goes first, and later items of a list
            container = data
            for part in parents:
                container = container[part]
            del container[last]


def fix(file: YamlFile) -> str:
    """What a person does about a problem of the file."""
    return f"fix {file.name}; docs/matrix.md explains each key"


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
