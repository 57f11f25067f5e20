"""Files that GitHub reads: forms for issues, Dependabot, pre-commit; what it requires, as far as it shows offline."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml

from images.config.paths import RESOURCES as ROOT

FOLDER = ROOT / ".github"


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
