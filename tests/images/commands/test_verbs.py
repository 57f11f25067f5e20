"""The command line: every verb has its function, help names them all, and none is imported before it is called."""

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from images import cli
from tests.support.checkout import ROOT

HEAVY = ("docker", "requests", "jinja2", "cyclonedx", "google.protobuf")
OF_OTHER_VERBS = (
    *(
        f"images.{name}"
        for name in ("apptainer", "audit", "chooser", "fleet", "nightly", "publish", "registry", "site")
    ),
    "images.wheels.builder",
)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_is_found_and_explained(verb: str) -> None:
    found = CliRunner().invoke(cli.app, [verb, "--help"], catch_exceptions=False)
    assert found.exit_code == 0


def test_help_lists_every_verb_with_its_summary() -> None:
    output = " ".join(CliRunner().invoke(cli.app, ["--help"], catch_exceptions=False).output.split())
    for verb in cli.VERBS:
        assert cli.VERBS[verb]
        assert f" {verb} {cli.VERBS[verb]}" in output


def test_an_option_says_the_same_of_every_verb() -> None:
    group: Any = typer.main.get_command(cli.app)
    told: dict[str, set[bool]] = {}
    for one in (one for verb in cli.VERBS for one in group.get_command(None, verb).params):
        for name in (name for name in one.opts if name.startswith("--") and name != "--help"):
            told.setdefault(name, set()).add(bool(getattr(one, "is_flag", False)))
    assert len(told) <= 60 and {name for name, flags in told.items() if len(flags) > 1} == set()


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], (*HEAVY, "pydantic", "images.commands.common")),
        (["plan", "cu126-torch25"], (*HEAVY, "validate.judge")),
        (["build", "cu126-torch25", "--engine", "tcp://127.0.0.1:9"], OF_OTHER_VERBS),
    ],
)
def test_only_what_a_verb_needs_is_imported(arguments: list[str], absent: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "from images import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
