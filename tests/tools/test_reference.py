"""The generated reference pages: every verb, every option, every field."""

import json
from typing import Any

import typer

from images import cli
from images.config.paths import RESOURCES as ROOT
from tools import reference

GROUP: Any = typer.main.get_command(cli.app)
COMMANDS = [GROUP.get_command(None, verb) for verb in cli.VERBS]


def test_the_cli_page_has_every_verb_and_every_option() -> None:
    page = reference.cli_page(COMMANDS)
    sections = {text.partition("\n")[0]: text for text in page.split("\n## ")[1:]}
    assert list(sections) == list(cli.VERBS)
    for command in COMMANDS:
        for parameter in command.params:
            spelled = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[0]
            assert spelled.replace("|", "\\|") in sections[command.name], (command.name, spelled)
            assert parameter.help or parameter.param_type_name == "argument", (command.name, spelled)


def test_the_json_page_has_every_field_of_every_schema() -> None:
    schemas = {path.name: json.loads(path.read_text()) for path in (ROOT / "docs" / "schema").glob("*.json")}
    page = reference.json_page(schemas)
    for name, schema in schemas.items():
        assert f"## {name.removesuffix('.schema.json')}\n" in page
        for one in (schema, *schema.get("$defs", {}).values()):
            assert all(f"| `{field}` |" in page for field in one.get("properties", {}))
