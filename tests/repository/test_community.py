"""Files that GitHub reads: forms for issues, Dependabot, pre-commit; what it requires, as far as it shows offline."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

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


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_github_takes_the_form(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form) <= TOP
    for values in zip(
        *((one.get("id", one), one["attributes"].get("label", one)) for one in form["body"]), strict=True
    ):
        assert len({str(value) for value in values}) == len(values)
    for field in form["body"]:
        attributes = field["attributes"]
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert set(attributes) <= ATTRIBUTES[field["type"]] and set(field.get("validations", {})) <= {"required"}
        assert attributes["value" if field["type"] == "markdown" else "label"]
        options = [str(option) for option in attributes.get("options", ())]
        assert "None" not in options and len(set(options)) == len(options)


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
