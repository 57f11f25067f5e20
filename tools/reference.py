"""Reference pages of the documentation: the command line from its commands, the JSON files from their schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def cli_page(commands: Iterable[Any]) -> str:
    """Every verb with its arguments and options. `commands` are those that Typer makes of the verbs."""
    head = [
        "# Command line",
        "",
        "`nox -s VERB -- ...` in a checkout, `truetag VERB ...` where the package is installed: both take the same",
        "arguments. Every verb also takes `--matrix FILE`; default: `./matrix.yaml`, else the checkout's.",
        "`locks/`, `results/` and `out/` are beside that file.",
        "",
        "Exit status: 0 success, 1 a step or a verdict failed, 2 wrong input, 130 interrupted.",
        "",
    ]
    return "\n".join([*head, *(line for command in commands for line in _verb(command))])


def json_page(schemas: Mapping[str, Schema]) -> str:
    """Every JSON file with its fields. `schemas`: file name below docs/schema/ -> JSON Schema."""
    head = [
        "# JSON files",
        "",
        "What the verbs read and write as data. Each file has a JSON Schema (2020-12); `nox -s generate` writes them.",
        "",
    ]
    return "\n".join(
        [*head, *(line for name, schema in sorted(schemas.items()) for line in _file(name, schema))]
    )


def _verb(command: Any) -> Iterator[str]:
    purpose, _, more = (command.help or "").strip().partition("\n")
    yield from (f"## {command.name}", "", purpose, "")
    if more.strip():
        yield from (" ".join(more.split()), "")
    yield from ("| argument or option | meaning | default |", "|---|---|---|")
    for parameter in command.params:
        default = getattr(parameter, "default", None)
        shown = (
            f"`{default}`"
            if default not in (None, "", (), [], False) and not callable(default)
            else ""
        )
        yield f"| {_spelled(parameter)} | {_cell(getattr(parameter, 'help', None) or '')} | {_cell(shown)} |"
    yield ""


def _spelled(parameter: Any) -> str:
    metavar = parameter.metavar or (
        "" if getattr(parameter, "is_flag", False) else str(parameter.name).upper()
    )
    if parameter.param_type_name == "argument":
        return f"`{_code(metavar)}`" + (" (required)" if parameter.required else "")
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    required = " (required)" if parameter.required else ""
    return f"{names} `{_code(metavar)}`{required}" if metavar else names


def _file(name: str, schema: Schema) -> Iterator[str]:
    yield from (f"## {name.removesuffix('.schema.json')}", "")
    yield from (f"{schema.get('title', name)}. Schema: [{name}](../schema/{name}).", "")
    yield from _fields(schema)
    for key, definition in sorted(schema.get("$defs", {}).items()):
        if definition.get("properties"):
            yield from (f"### {name.removesuffix('.schema.json')}: {key}", "")
            if described := str(definition.get("description", "")).strip():
                yield from (" ".join(described.split()), "")
            yield from _fields(definition)


def _fields(schema: Schema) -> Iterator[str]:
    properties = schema.get("properties", {})
    if not properties:
        return
    required = set(schema.get("required", ()))
    yield from ("| field | type | |", "|---|---|---|")
    for name, field in properties.items():
        meaning = " ".join(str(field.get("description", "")).split())
        optional = "" if name in required else "optional"
        yield f"| `{name}` | {_cell(_type(field))} | {_cell('. '.join(filter(None, (optional, meaning))))} |"
    yield ""


def _type(field: Schema) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{one}`" for one in field["enum"])
    for several in ("anyOf", "oneOf"):
        if several in field:
            return " or ".join(dict.fromkeys(_type(one) for one in field[several]))
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    if kind == "object" and isinstance(values := field.get("additionalProperties"), Mapping):
        return f"object of {_type(values)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _code(text: str) -> str:
    return text.replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
