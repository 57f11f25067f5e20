"""Files that GitHub reads: forms for issues, Dependabot, pre-commit; what it requires, as far as it shows offline."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.config.paths import RESOURCES as ROOT

FOLDER = ROOT / ".github"
FORMS = sorted(path for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
# GitHub's "Syntax for issue forms" and "Syntax for GitHub's form schema", read 2026-11-22.
TOP = {"name", "description", "title", "labels", "projects", "assignees", "type", "body"}
ATTRIBUTES = {
    "markdown": {"value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "input": {"label", "description", "placeholder", "value"},
    "dropdown": {"label", "description", "multiple", "options", "default"},
    "checkboxes": {"label", "description", "options"},
}


def faults(form: Any) -> Iterator[str]:
    """What GitHub would refuse of a form."""
    for key in ("name", "description", "body"):
        if not form.get(key):
            yield f"has no {key}"
    yield from (f"unknown key {key}" for key in set(form) - TOP)
    fields = [one for one in form.get("body") or () if one.get("type") != "markdown"]
    if not fields:
        yield "asks for nothing"
    for kind in ("id", "label"):
        values = [one.get("id") if kind == "id" else one.get("attributes", {}).get("label") for one in fields]
        given = [value for value in values if value is not None]
        yield from (f"{kind} {value!r} stands twice" for value in set(given) if given.count(value) > 1)
    for one in form.get("body") or ():
        yield from _faults_of_field(one)


def _faults_of_field(one: Any) -> Iterator[str]:
    kind, attributes = one.get("type"), one.get("attributes") or {}
    if kind not in ATTRIBUTES:
        yield f"unknown type {kind}"
        return
    yield from (f"unknown attribute {key} of {kind}" for key in set(attributes) - ATTRIBUTES[kind])
    yield from (f"unknown key {key} of {kind}" for key in set(one) - {"type", "id", "attributes", "validations"})
    if not attributes.get("value" if kind == "markdown" else "label"):
        yield f"{kind} lacks its text"
    if "id" in one and not re.fullmatch(r"[A-Za-z0-9_-]+", str(one["id"])):
        yield f"id {one['id']!r} is none"
    options = attributes.get("options", [])
    if kind in ("dropdown", "checkboxes") and (not options or len({str(option) for option in options}) < len(options)):
        yield f"{kind} needs distinct options"
    if any(not isinstance(option, str if kind == "dropdown" else dict) or option == "None" for option in options):
        yield f"an option of {kind} is none"
    if set(one.get("validations", {})) - {"required"}:
        yield "unknown validation"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_github_takes_the_form(path: Path) -> None:
    assert list(faults(yaml.safe_load(path.read_text()))) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("description: An image", "about: An image", "has no description"),
        ("type: dropdown", "type: select", "unknown type select"),
        ("id: doctor", "id: image", "'image' stands twice"),
        ("label: What fails", "label: Image", "'Image' stands twice"),
        ("render: json", "language: json", "unknown attribute language"),
        ("        - Pulled from a registry\n", "        - None\n", "an option of dropdown is none"),
        ("      required: true", "      mandatory: true", "unknown validation"),
    ],
)
def test_what_github_refuses_is_told(old: str, new: str, told: str) -> None:
    text = (FOLDER / "ISSUE_TEMPLATE" / "broken-combination.yml").read_text()
    assert old in text
    assert any(told in fault for fault in faults(yaml.safe_load(text.replace(old, new))))


def test_forms_have_names_of_their_own() -> None:
    names = [yaml.safe_load(path.read_text())["name"] for path in FORMS]
    assert len(set(names)) == len(names)


def test_a_broken_combination_comes_with_the_machine_it_broke_on() -> None:
    form = yaml.safe_load((FOLDER / "ISSUE_TEMPLATE" / "broken-combination.yml").read_text())
    (doctor,) = (field for field in form["body"] if field.get("id") == "doctor")
    assert doctor["validations"]["required"] is True and doctor["attributes"]["render"] == "json"
    assert '"--json"' in (ROOT / "validate" / "doctor" / "main.py").read_text()


def test_dependabot_looks_where_something_is() -> None:
    known = {"pip": "pyproject.toml", "github-actions": ".github/workflows", "npm": "package.json"}
    config = yaml.safe_load((FOLDER / "dependabot.yml").read_text())
    assert config["version"] == 2
    for update in config["updates"]:
        assert update["schedule"]["interval"] in ("daily", "weekly", "monthly")
        assert (ROOT / update["directory"].lstrip("/") / known[update["package-ecosystem"]]).exists()


def test_hooks_run_commands_that_exist() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in (hook for repository in config["repos"] for hook in repository["hooks"]):
        assert {"id", "name", "entry", "language"} <= set(hook)
        program, *arguments = shlex.split(hook["entry"])
        assert shutil.which(program, path=str(Path(sys.executable).parent))
        if arguments[:1] == ["-m"]:
            assert find_spec(arguments[1])


def test_the_licence_is_the_one_that_the_package_names() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()
