"""The command line as a person meets it: exit codes, messages with place, cause and next command, no traceback."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from images import cli, errors
from images.commands.site import write
from images.nightly import results
from images.nightly.results import Job, Outcome
from images.site import records
from tests.support import site_samples as samples
from tests.support.cases import cases
from tests.support.checkout import ROOT
from tests.support.commands import Called, call
from tests.support.site_samples import OLD


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As a shell starts it, where the process itself is in question."""
    command = [sys.executable, "-m", "images", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_plan_json_is_alone_on_stdout() -> None:
    finished = process("plan", "cu126-torch25", "cu118-torch215", "--json")
    rows = json.loads(finished.stdout)["images"]
    assert finished.returncode == 0
    assert [(row["name"], row["status"]) for row in rows] == [
        ("cu126-torch25", "accepted"),
        ("cu118-torch215", "refused"),
    ]
    assert (rows[0]["toolkit_cuda"], rows[0]["wheel_cuda"], rows[0]["lock"]) == (
        "12.6",
        "12.4",
        "present",
    )
    assert any("has no wheel for CUDA 11" in reason for reason in rows[1]["reasons"])


@pytest.mark.parametrize(("arguments", "sentence", "following"), cases(__file__, "wrong"))
def test_wrong_input_is_told_with_the_next_step_and_exit_2(
    arguments: list[str], sentence: str, following: str
) -> None:
    finished = call(*arguments)
    assert finished.returncode == 2, finished.stderr
    said = " ".join(finished.stderr.split())
    assert sentence in said
    assert following in said
    assert "Traceback" not in said


@pytest.mark.parametrize("base", ["a b", "Debian", "x\nRUN evil", "-x"])
def test_render_takes_no_base_that_is_no_name_of_an_image(base: str, tmp_path: Path) -> None:
    ended = call("render", "cu126-torch25", f"--base={base}", "--out", str(tmp_path))
    assert ended.returncode == 2
    assert "is no name of an image" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_render_writes_a_context_that_plain_docker_accepts(tmp_path: Path) -> None:
    finished = call("render", "cu126-torch25", "--out", str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    context = tmp_path / "cu126-torch25" / "context"
    assert {path.name for path in context.iterdir()} >= {
        "Dockerfile",
        "host",
        "locks",
        "scripts",
        "wheels",
    }
    assert (context / "locks" / "torch.txt").read_text().count("--hash=sha256:") > 10
    (context / "left-over").write_text("of an older rendering")
    mine = tmp_path / "matrix.yaml"
    mine.write_text('prefix: "mine-"\n' + (ROOT / "matrix.yaml").read_text())
    (tmp_path / "locks").symlink_to(ROOT / "locks")
    again = call("render", "cu126-torch25", "--out", str(tmp_path), "--matrix", str(mine))
    assert not (context / "left-over").exists()
    assert "docker build -t mine-cu126-torch25-candidate " in again.stderr, (
        "the name that `validate --tag` looks for"
    )


def test_a_folder_that_cannot_be_written_is_told_before_any_work() -> None:
    finished = call(
        "validate", "cu126-torch25", "--engine", "tcp://127.0.0.1:9", "--out", "/dev/null/results"
    )
    assert finished.returncode == 2
    assert (
        "/dev/null: is no folder" in finished.stderr and "tcp://127.0.0.1:9" not in finished.stderr
    )
    assert "next: " in finished.stderr and "Traceback" not in finished.stderr


def test_a_folder_that_this_user_may_not_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "access", lambda _path, mode: not mode & os.W_OK
    )  # root may write anywhere
    finished = call("render", "cu126-torch25", "--out", str(tmp_path / "new" / "results"))
    assert finished.returncode == 2 and not list(tmp_path.iterdir())
    assert f"{tmp_path}: may not be written by this user" in finished.stderr.replace("\n", "")


@pytest.mark.parametrize(
    ("host", "standard"), [("", False), ("", True), ("tcp://192.0.2.1:2375", False)]
)
def test_where_only_the_private_engine_is_dockers_commands_are_told_its_address(
    host: str,
    standard: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "truetag" / "engine").mkdir(parents=True)
    (tmp_path / "truetag" / "engine" / "docker.sock").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setattr(
        os, "access", lambda path, _mode: standard and path == "/var/run/docker.sock"
    )
    cli._print_problem(
        errors.Problem(where="a disk", cause="is full", then="`docker builder prune`")
    )
    cli._print_problem(errors.Problem(where="a disk", cause="is refused", then="`docker login`"))
    address = f"export DOCKER_HOST=unix://{tmp_path}/truetag/engine/docker.sock"
    assert capsys.readouterr().err.replace("\n", "").count(address) == (not host and not standard)


def test_the_version_names_the_commit_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    told = call("--version")
    assert told.returncode == 0 and f"commit {commit.stdout.strip()}" in told.stdout, told.stdout
    monkeypatch.setattr(errors, "IS_CHECKOUT", False)
    monkeypatch.setattr(metadata, "version", lambda _name: "7.1")
    assert call("--version").stdout == "truetag 7.1\n"


def test_settings_that_are_ignored_and_an_engine_that_does_not_answer_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    finished = call("build", "cu126-torch27", "--engine", "tcp://127.0.0.1:9")
    said = " ".join(finished.stderr.split())
    assert "PIP_CERT names" in said and "no readable file of certificates" in said
    assert finished.returncode == 1 and "Traceback" not in said
    assert "tcp://127.0.0.1:9" in said and "no Docker Engine answers" in said


@pytest.mark.parametrize(
    ("sent", "ignored", "status", "said"),
    [
        ("SIGINT", "", 130, "nothing is left running"),
        ("SIGTERM", "", 130, "nothing is left running"),
        ("SIGHUP", "", 130, "nothing is left running"),
        ("SIGHUP", "SIGHUP", 0, "goes on"),
    ],
)
def test_an_interrupt_that_comes_out_as_another_error_is_one(
    sent: str, ignored: str, status: int, said: str
) -> None:
    """As `threading` has it where a lock is about to be taken again. Whom `nohup` starts is not hung up."""
    program = (
        "import signal, sys\n"
        "from images import cli\n"
        "for name in ('SIGINT', 'SIGTERM', 'SIGHUP'):\n"
        f"  known = signal.SIG_IGN if name == {ignored!r} else signal.default_int_handler\n"
        "  signal.signal(getattr(signal, name), known)\n"
        "def app(**_):\n"
        f"  try: signal.raise_signal(signal.{sent})\n"
        "  except KeyboardInterrupt: raise RuntimeError('release unlocked lock')\n"
        "  print('goes on', file=sys.stderr)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, said in " ".join(done.stderr.split())) == (status, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_told_with_the_folders_and_what_is_free_there() -> None:
    """A write that fails does not say where: /dev/full fails each one so."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "images", "plan", "cu126-torch25"]
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "No space left on device (free: " in done.stderr and f" GB in {ROOT}" in done.stderr


HEAVY = ("docker", "requests", "jinja2", "cyclonedx", "google.protobuf")
OF_OTHER_VERBS = (
    *(
        f"images.{name}"
        for name in ("audit", "chooser", "fleet", "nightly", "publish", "registry", "site")
    ),
    "images.wheels.builder",
)


def test_help_lists_every_verb_with_its_summary_and_each_explains_itself() -> None:
    output = " ".join(
        CliRunner().invoke(cli.app, ["--help"], catch_exceptions=False).output.split()
    )
    for verb in cli.VERBS:
        assert cli.VERBS[verb]
        assert f" {verb} {cli.VERBS[verb]}" in output
        assert CliRunner().invoke(cli.app, [verb, "--help"], catch_exceptions=False).exit_code == 0


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


@pytest.mark.parametrize(
    "name", ["-", "requirements.txt", "uv.lock", "sub/Dockerfile", "train.Dockerfile"]
)
def test_an_audit_of_a_list_of_packages_says_what_to_audit_instead(name: str) -> None:
    done = call("audit", name)
    assert done.returncode == 2 and "install them into an empty environment" in done.stderr


def test_writing_again_removes_what_is_gone_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "CNAME").write_text("mine")
    write({"index.html": b"1", "images/a.html": b"1", "images/b.html": b"1"}, tmp_path)
    write({"index.html": b"2", "images/b.html": b"2"}, tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert (
        left == {"CNAME", "index.html", "images/b.html"}
        and (tmp_path / "index.html").read_bytes() == b"2"
    )


def test_the_command_writes_a_site_of_several_folders_and_names_wrong_input(tmp_path: Path) -> None:
    def site(*arguments: str) -> Called:
        return call("site", "--out", str(tmp_path / "out"), *arguments)

    line = samples.job("cu126-torch27", Job.CONTROL, Outcome.PASS, digest=OLD)
    results.append(line, tmp_path / "branch" / "nightly")
    folders = ("--results", str(records.FOLDER), "--results", str(tmp_path / "branch"))
    done = site("--date", "2026-11-21", *folders)
    assert done.returncode == 0 and "index.html: " in done.stdout, done.stderr
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    (digests,) = (
        {run["digest"] for run in one["runs"]}
        for one in index["images"]
        if one["name"] == "cu126-torch27"
    )
    assert index["date"] == "2026-11-21" and OLD in digests and len(digests) > 1
    done = site("--date", "yesterday")
    assert (
        done.returncode == 2
        and "write it as 2026-11-21" in done.stderr
        and "Traceback" not in done.stderr
    )
    (tmp_path / "results" / "nightly").mkdir(parents=True)
    (tmp_path / "results" / "nightly" / "2026-11.jsonl").write_text("{}\n")
    done = site("--results", str(tmp_path / "results"))
    assert done.returncode == 2 and "2026-11.jsonl:1" in done.stderr
