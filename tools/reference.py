"""Make reference pages of the documentation from the program itself.

The page of the command line comes from the commands, the page of JSON files from their schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_CLI_HEAD = """\
# Command line

`nox -s VERB -- ...` in a checkout, `truetag VERB ...` where the package is installed: both take the
same arguments. Every verb also takes `--matrix FILE`; default: `./matrix.yaml`, else the
checkout's. `locks/`, `results/` and `out/` are beside that file.

Exit status: 0 success, 1 a step or a verdict failed, 2 wrong input, 130 interrupted.
"""
_JSON_HEAD = """\
# JSON files

What the verbs read and write as data. Each file has a JSON Schema (2020-12); `nox -s generate`
writes them.
"""


def cli_page(commands: Iterable[Any]) -> str:
    """Return the page with every verb, its arguments and options.

    `commands`: those of click that Typer makes of the verbs.
    """
    lines = _CLI_HEAD.split("\n")
    for command in commands:
        lines += _verb(command)
    return "\n".join(lines)


def json_page(schemas: Mapping[str, Schema]) -> str:
    """Return the page with every JSON file and its fields.

    `schemas`: file name below docs/schema/ -> JSON Schema.
    """
    lines = _JSON_HEAD.split("\n")
    for name, schema in sorted(schemas.items()):
        lines += _file(name, schema)
    return "\n".join(lines)


def _verb(command: Any) -> Iterator[str]:
    """Yield the lines of a verb's section."""
    purpose, _, more = (command.help or "").strip().partition("\n")
    yield from (f"## {command.name}", "", purpose, "")
    if more.strip():
        yield from (_in_one_line(more), "")
    yield from ("| argument or option | meaning | default |", "|---|---|---|")
    for parameter in command.params:
        meaning = getattr(parameter, "help", None) or ""
        default = _cell(_default(parameter))
        yield f"| {_spelling(parameter)} | {_cell(meaning)} | {default} |"
    yield ""


def _default(parameter: Any) -> str:
    """Return a parameter's default as code; empty if there is none, or it is empty or computed."""
    default = getattr(parameter, "default", None)
    if default in (None, "", (), [], False) or callable(default):
        return ""
    return f"`{default}`"


def _spelling(parameter: Any) -> str:
    """Return how a parameter is written on the command line: `--tier` `TIER`."""
    is_flag = getattr(parameter, "is_flag", False)
    metavar = parameter.metavar or ("" if is_flag else str(parameter.name).upper())
    required = " (required)" if parameter.required else ""
    if parameter.param_type_name == "argument":
        return f"`{_escape(metavar)}`{required}"
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    return f"{names} `{_escape(metavar)}`{required}" if metavar else names


def _file(name: str, schema: Schema) -> Iterator[str]:
    """Yield the lines of a file's section: its own fields, then those of the objects in it."""
    title = name.removesuffix(".schema.json")
    yield from (f"## {title}", "")
    yield from (f"{schema.get('title', name)}. Schema: [{name}](../schema/{name}).", "")
    yield from _fields(schema)
    for key, definition in sorted(schema.get("$defs", {}).items()):
        if not definition.get("properties"):
            continue
        yield from (f"### {title}: {key}", "")
        description = _in_one_line(str(definition.get("description", "")))
        if description:
            yield from (description, "")
        yield from _fields(definition)


def _fields(schema: Schema) -> Iterator[str]:
    """Yield the lines of a table of an object's fields; nothing if it has none of its own."""
    properties = schema.get("properties", {})
    if not properties:
        return
    required = set(schema.get("required", ()))
    yield from ("| field | type | |", "|---|---|---|")
    for name, field in properties.items():
        remarks = [] if name in required else ["optional"]
        meaning = _in_one_line(str(field.get("description", "")))
        if meaning:
            remarks.append(meaning)
        yield f"| `{name}` | {_cell(_type(field))} | {_cell('. '.join(remarks))} |"
    yield ""


def _type(field: Schema) -> str:
    """Return the type of a field in words: `list of string or null`."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    for several in ("anyOf", "oneOf"):
        if several in field:
            # Different schemas may have the same words: these stand once.
            return " or ".join(dict.fromkeys(_type(alternative) for alternative in field[several]))

    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    values = field.get("additionalProperties")
    if kind == "object" and isinstance(values, Mapping):
        return f"object of {_type(values)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _in_one_line(text: str) -> str:
    """Return a text without line breaks and indentation."""
    return " ".join(text.split())


def _escape(text: str) -> str:
    """Return code for a cell of a Markdown table."""
    return text.replace("|", "\\|")


def _cell(text: str) -> str:
    """Return text for a cell of a Markdown table."""
    return _escape(text).replace("<", "&lt;")
