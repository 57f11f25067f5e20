"""YAML into plain data that remembers its line numbers, and into pydantic models: every problem at once, with its line.

Every scalar stays text: 2.10 must not become 2.1.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from images.config.paths import DATA
from images.errors import Problem, UserError, wrong

Path = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""libyaml's, where PyYAML has it: it is some 15 times faster."""


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: its data, the line of each node, and the keys that stood twice."""

    name: str
    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict, repr=False)
    duplicates: list[Problem] = field(default_factory=list)

    def where(self, path: Path) -> str:
        """`matrix.yaml:12`, of the node at `path` or of its nearest parent that exists."""
        found = next(
            (path[:length] for length in range(len(path), -1, -1) if path[:length] in self.lines),
            None,
        )
        return self.name if found is None else f"{self.name}:{self.lines[found]}"


def parse(name: str, text: str) -> YamlFile:
    """Read YAML. Raises UserError on a syntax error or an empty file, with file and line."""
    where, then = name, "fix the line; editors show it too"
    try:
        node = yaml.compose(text, Loader=_LOADER)
        if node is None:
            raise wrong(f"{name}:1", "is empty", f"`git checkout {name}` brings it back")
        lines: dict[Path, int] = {}
        duplicates: list[Problem] = []
        return YamlFile(name, _data(node, (), name, lines, duplicates), lines, duplicates)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        cause = f"is not YAML: {error.problem}"
        # Of two places that contradict each other, `problem` alone says too little.
        if isinstance(error, yaml.composer.ComposerError) and error.context:
            cause = f"is not YAML: {error.context}, {error.problem}"
    except yaml.reader.ReaderError as error:
        where = f"{name}:{text.count(chr(10), 0, error.position) + 1}"
        cause, then = (
            f"is not YAML: it holds the control character {chr(error.character)!r}",
            "take it out",
        )
    except RecursionError:
        cause = "nests too deep, or refers to itself (`&name` around its own `*name`)"
        then = "write the values out"
    raise wrong(where, cause, then)


def _data(
    node: yaml.Node, path: Path, name: str, lines: dict[Path, int], duplicates: list[Problem]
) -> Any:
    """The plain data of a node. Fills in `lines` and `duplicates`; of a key that stands twice, the first counts."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [
            _data(one, (*path, index), name, lines, duplicates)
            for index, one in enumerate(node.value)
        ]
    if not isinstance(node, yaml.MappingNode):
        return node.value
    result: dict[str, Any] = {}
    for key_node, value in node.value:
        key, line = (
            str(_data(key_node, (*path, "[key]"), name, {}, [])),
            key_node.start_mark.line + 1,
        )
        if key in result:
            cause = f"{key!r} stands twice (first in line {lines[(*path, key)]})"
            duplicates.append(
                Problem(where=f"{name}:{line}", cause=cause, then="keep one of the two")
            )
            continue
        lines[(*path, key)] = line
        result[key] = _data(value, (*path, key), name, lines, duplicates)
    return result


def table(name: str) -> Any:
    """A file of images/data as plain data, with numbers as numbers."""
    text = (DATA / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def fix(file: YamlFile, page: str) -> str:
    """Return what a person does about a problem of the file. `page` is about its keys."""
    return f"fix {file.name}; {page} explains each key"


def validated(model: type[Model], file: YamlFile, page: str) -> Model:
    """Return the model of a file. `page` is about its keys.

    Raises UserError with every key that stands twice, is unknown or missing, or has a wrong value.
    """
    problems = list(file.duplicates)
    model_of_file = None
    try:
        model_of_file = model.model_validate(file.data)
    except ValidationError as error:
        for fault in error.errors():
            # pydantic marks an error in a mapping's key by a part of its own.
            path = tuple(part for part in fault["loc"] if part != "[key]")
            place = ".".join(map(str, path))
            message = fault["msg"].removeprefix("Value error, ")
            causes = {
                "extra_forbidden": f"unknown key {place!r}",
                "missing": f"{place!r} is missing",
            }
            cause = causes.get(fault["type"], f"{place}: {message}")
            problems.append(Problem(where=file.where(path), cause=cause, then=fix(file, page)))
    if model_of_file is None or problems:
        raise UserError(problems)
    return model_of_file
