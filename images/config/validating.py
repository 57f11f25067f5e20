"""A parsed YAML file into a pydantic model: every problem at once, each with its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from images.config import yamlfile
from images.config.facts import Row
from images.config.yamlfile import YamlFile
from images.errors import Problem

Model = TypeVar("Model", bound=Row)


def validated(model: type[Model], file: YamlFile) -> tuple[Model | None, list[Problem], frozenset[yamlfile.Path]]:
    """The model, what was wrong, and the paths left out of it to get that far (None: nothing sound remained)."""
    problems, left_out, data = list(file.duplicates), set[yamlfile.Path](), file.data
    while True:
        try:
            return model.model_validate(data), problems, frozenset(left_out)
        except ValidationError as error:
            errors = error.errors()
        # Only the first round's errors are the person's: later ones come from what was left out.
        if not left_out:
            problems += [
                Problem(where=file.where(_path(item["loc"])), cause=_sentence(dict(item)), then=advice(file))
                for item in errors
            ]
        paths = {_node(data, _path(item["loc"])) for item in errors}
        if () in paths:
            return None, problems, frozenset(left_out)
        left_out |= paths
        data = _without(data, paths)


def advice(file: YamlFile) -> str:
    """What a person does about a problem of the file."""
    return f"fix {file.name}; docs/matrix.md explains each key"


def _path(loc: tuple[str | int, ...]) -> yamlfile.Path:
    """Pydantic's location, which marks an error in a mapping's key by a part of its own."""
    return tuple(part for part in loc if part != "[key]")


def _node(data: Any, path: yamlfile.Path) -> yamlfile.Path:
    """What to leave out for an error at `path`: the deepest node there is, but an item of a list as a whole."""
    found: yamlfile.Path = ()
    for part in path:
        inside = (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
        if not inside:
            break
        data, found = data[part], (*found, part)
        if isinstance(part, int):
            break
    return found


def _sentence(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return f"unknown key {place!r}"
    if error["type"] == "missing":
        return f"{place!r} is missing"
    return f"{place}: {str(error['msg']).removeprefix('Value error, ')}"


def _without(data: Any, paths: set[yamlfile.Path]) -> Any:
    if isinstance(data, dict):
        kept = {key: value for key, value in data.items() if (key,) not in paths}
        return {key: _without(value, {path[1:] for path in paths if path[0] == key}) for key, value in kept.items()}
    if isinstance(data, list):
        kept_items = [(index, value) for index, value in enumerate(data) if (index,) not in paths]
        return [_without(value, {path[1:] for path in paths if path[0] == index}) for index, value in kept_items]
    return data
