"""The command line as a person meets it: exit status, and messages with the next command."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from images import cli
from images.commands.site import write
from images.errors import Problem
from images.nightly import results
from images.nightly.results import Job, Outcome
from images.site import records
from tests.support import site_samples as samples
from tests.support.cases import cases
from tests.support.checkout import ROOT
from tests.support.commands import Called, call
from tests.support.site_samples import OLD
from validate import installation

SILENT_ENGINE = ("--engine", "tcp://127.0.0.1:9")


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a verb as a shell starts it, in a process of its own."""
    command = [sys.executable, "-m", "images", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the checkout."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def in_one_line(text: str) -> str:
    """Return a text as if no line of it had been wrapped."""
    return " ".join(text.split())


# --- the address of the package index -------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "http://user:pa/S3CRET@host.example/simple",
        "http://user:8080/S3CRET@host.example/simple",
        "http://user:pa#S3CRET@host.example/simple",
        "https://user:pa?S3CRET@host.example/simple",
        r"https://user:pa\S3CRET@host.example/simple",
        "https://user:pa S3CRET@host.example/simple",
        "https://user:p@ss/S3CRET@host.example/simple",
        "https://to/S3CRET@host.example/simple",
        "inner=https://user:pa/S3CRET@host.example/simple",
        "https://user:S3CRET@host.example:80x/simple",
        "https://user:S3CRET@host.example:99999/simple",
        "https://user:S3CRET@[bad/simple",
        "https://user:S3CRET@ho%zzst/simple",
        "https://user:S3CRET@/simple",
        "ftp://user:S3CRET@host.example/simple",
        "host.example/simple",
        "user:S3CRET@host.example/simple",
    ],
)
@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"])
@pytest.mark.parametrize("verb", [("lock", "--check"), ("render",)])
def test_an_index_address_that_can_not_be_read_is_refused_without_showing_its_password(
    verb: tuple[str, ...], variable: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, address)

    called = call(*verb, "cu126-torch25")

    printed = in_one_line(called.stdout + called.stderr)
    assert called.returncode == 2
    assert f"error {variable}: the address of the index can't be read: " in printed
    assert "/ as %2F, # as %23, @ as %40" in printed
    assert "S3CRET" not in printed
    assert "host.example" not in printed


@pytest.mark.parametrize("variable", ["https_proxy", "HTTP_PROXY"])
def test_a_proxy_whose_address_can_not_be_read_is_refused_without_showing_its_password(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable.lower(), raising=False)
    monkeypatch.setenv(variable, "http://user:S3CRET@[bad:3128")

    called = call("render", "cu126-torch25")

    printed = in_one_line(called.stdout + called.stderr)
    assert called.returncode == 2
    assert f"error {variable.lower()}: this address can't be read" in printed
    assert "S3CRET" not in printed


def test_what_uv_says_of_an_index_address_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given an address whose host has the form of a name, and which uv refuses.
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:S3@CRET@1.2.3.999/simple")

    called = call("lock", "--check", "cu126-torch25")

    printed = in_one_line(called.stdout + called.stderr)
    cause = "'http://***@1.2.3.999/simple' for the variable UV_DEFAULT_INDEX: invalid IPv4 address"
    assert f"uv failed: invalid value {cause} next:" in printed
    assert "S3" not in printed
    assert "CRET" not in printed


# --- plan and render ------------------------------------------------------------------------------


def test_the_json_of_plan_is_alone_on_stdout() -> None:
    finished = run_process("plan", "cu126-torch25", "cu118-torch215", "--json")

    assert finished.returncode == 2
    accepted, refused = json.loads(finished.stdout)["images"]
    assert (accepted["name"], accepted["status"]) == ("cu126-torch25", "accepted")
    assert (accepted["toolkit_cuda"], accepted["wheel_cuda"]) == ("12.6", "12.4")
    assert accepted["lock"] == "present"
    assert (refused["name"], refused["status"]) == ("cu118-torch215", "refused")
    assert any("has no wheel for CUDA 11" in reason for reason in refused["reasons"])


def test_plan_says_first_that_it_shows_the_checkouts_matrix_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_checkout = call("plan", "cu126-torch25")
    assert "no matrix.yaml in this folder" not in in_checkout.stderr

    monkeypatch.chdir(tmp_path)
    elsewhere = in_one_line(call("plan", "cu126-torch25").stderr)
    assert elsewhere.startswith("no matrix.yaml in this folder: this is truetag's own, ")
    assert f"`nox -s init -- {tmp_path}` writes one of your own" in elsewhere


def test_render_writes_a_context_for_plain_docker(tmp_path: Path) -> None:
    finished = call("render", "cu126-torch25", "--out", str(tmp_path))

    assert finished.returncode == 0, finished.stderr
    context = tmp_path / "cu126-torch25" / "context"
    names = {path.name for path in context.iterdir()}
    assert {"Dockerfile", "host", "locks", "scripts", "wheels"} <= names
    assert (context / "locks" / "torch.txt").read_text().count("--hash=sha256:") > 10


def test_render_reports_each_lock_of_debians_packages_that_its_contexts_leave_out_once(
    tmp_path: Path,
) -> None:
    # Two of these images stand on bookworm, one on trixie, and Ubuntu has no lock.
    names = ("cu126-torch25", "cu126-torch27", "cu128-torch210-py313", "cu130-torch211-py312")

    finished = call("render", *names, "--out", str(tmp_path))

    assert finished.returncode == 0, finished.stderr
    message = in_one_line(finished.stderr)
    assert re.findall(r"(\S+) is not used", message) == [
        "locks/debian/bookworm-amd64.txt",
        "locks/debian/trixie-amd64.txt",
    ]
    assert "takes debian:bookworm-slim by its tag" in message
    assert "`--pull --no-cache`" in message


def test_render_tells_the_options_of_docker_build_before_its_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "images", "render", "cu126-torch25", "--out", str(tmp_path)]

    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, check=True
    )

    message = in_one_line(finished.stdout)
    assert 0 < message.index("`--pull --no-cache`") < message.index("docker build -t")


def test_render_reports_no_unused_lock_of_a_base_that_the_user_named(tmp_path: Path) -> None:
    finished = call("render", "cu126-torch25", "--base", "mine:1", "--out", str(tmp_path))

    assert finished.returncode == 0, finished.stderr
    assert "is not used" not in finished.stderr
    message = in_one_line(finished.stderr)
    assert "mine:1 was not looked at: the context fits a base with Python 3.11" in message
    assert "`nox -s build -- cu126-torch25 --base mine:1` looks" in message


def test_a_pin_that_a_rule_refuses_may_be_changed(tmp_path: Path) -> None:
    text = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
    (tmp_path / "matrix.yaml").write_text(
        re.sub(r"\baccelerate: [\d.]+", "accelerate: 0.20.0", text)
    )

    finished = call("lock", "cu130-torch214", "--matrix", str(tmp_path / "matrix.yaml"))

    message = in_one_line(finished.stderr)
    assert "in matrix.yaml next: change matrix.yaml as the reason says" in message
    assert "or choose another image: `nox -s plan` lists them" in message


def test_render_names_no_option_that_it_has_not(tmp_path: Path) -> None:
    """Options in a command of another verb, which stands in backticks, are that verb's."""
    finished = call("render", "cu124-torch25-colossalai", "--out", str(tmp_path))

    message = re.sub("`[^`]*`", "", finished.stderr)
    own_options = re.findall("--[a-z-]+", call("render", "--help").stdout)
    assert re.findall("--[a-z-]+", message)
    assert set(re.findall("--[a-z-]+", message)) <= set(own_options)


def test_render_names_all_missing_locks_before_it_writes_anything(tmp_path: Path) -> None:
    """It wrote four contexts of `cu12*`, and then stopped at the first image without a lock."""
    names = ("cu126-torch25", "cu121-torch25", "cu128-torch27")

    finished = call("render", *names, "--out", str(tmp_path))

    assert finished.returncode == 2
    assert "cu121-torch25 has no lock" in finished.stderr
    assert "cu128-torch27 has no lock" in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_render_removes_files_of_an_earlier_context(tmp_path: Path) -> None:
    leftover = tmp_path / "cu126-torch25" / "context" / "leftover"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("of an older rendering")

    call("render", "cu126-torch25", "--out", str(tmp_path))

    assert not leftover.exists()
    assert (leftover.parent / "Dockerfile").exists()


def test_render_names_the_image_as_validate_looks_for_it(tmp_path: Path) -> None:
    with_prefix = tmp_path / "matrix.yaml"
    with_prefix.write_text('prefix: "mine-"\n' + (ROOT / "matrix.yaml").read_text())
    (tmp_path / "locks").symlink_to(ROOT / "locks")

    finished = call("render", "cu126-torch25", "--out", str(tmp_path), "--matrix", str(with_prefix))

    assert "docker build -t mine-cu126-torch25-candidate " in finished.stderr
    header = (tmp_path / "cu126-torch25" / "context" / "Dockerfile").read_text().split("FROM")[0]
    assert "docker build -t mine-cu126-torch25-candidate ." in header
    options = f"--tag --matrix {with_prefix} --out {tmp_path}"
    assert f"`nox -s validate -- cu126-torch25 {options}`" in in_one_line(finished.stderr)


@pytest.mark.parametrize("base", ["a b", "Debian", "x\nRUN evil", "-x"])
def test_render_refuses_a_base_that_is_no_name_of_an_image(base: str, tmp_path: Path) -> None:
    finished = call("render", "cu126-torch25", f"--base={base}", "--out", str(tmp_path))

    assert finished.returncode == 2
    assert "is no name of an image" in finished.stderr
    assert not list(tmp_path.iterdir())


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "cause", "next_step"), cases(__file__, "wrong"))
def test_wrong_input_ends_with_status_2_and_the_next_step(
    arguments: list[str], cause: str, next_step: str
) -> None:
    finished = call(*arguments)

    assert finished.returncode == 2, finished.stderr
    message = in_one_line(finished.stderr)
    assert cause in message
    assert next_step in message
    assert "S3CRET" not in message
    assert "Traceback" not in message


LONG = "a" * 5_000


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", LONG, "cu126-torch25", *SILENT_ENGINE),
        ("plan", LONG),
        ("plan", f"{LONG} {LONG}"),
        ("plan", "a b " * 5_000),
        ("plan", "--matrix", LONG),
        ("validate", "--evidence", LONG),
        ("choose", "--gpu", LONG),
        (LONG,),
        ("plan", f"--{LONG}"),
        ("a b " * 5_000,),
        ("buld", LONG),
    ],
    ids=lambda arguments: " ".join(argument[:9] for argument in arguments),
)
def test_of_a_very_long_value_only_the_beginning_is_shown(arguments: tuple[str, ...]) -> None:
    finished = call(*arguments)

    assert finished.returncode in (1, 2)
    assert " characters)" in in_one_line(finished.stderr)
    assert "next: " in finished.stderr
    assert len(finished.stderr) < 1_000


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "\x1b[31mx", "cu126-torch25", *SILENT_ENGINE),
        ("plan", "\x1b]0;title\x07"),
        ("plan", "--matrix", "\x1b[2J"),
        ("validate", "--evidence", "\x9b31m"),
        ("choose", "--gpu", "\x1b[31mx"),
        ("\x1b[31mx",),
    ],
)
def test_what_a_terminal_would_obey_is_escaped_in_errors(arguments: tuple[str, ...]) -> None:
    finished = call(*arguments)

    assert finished.returncode in (1, 2)
    assert finished.stderr.replace("\n", "").isprintable()
    assert "\\x" in finished.stderr


def test_a_folder_that_cannot_be_made_is_refused_before_any_work() -> None:
    finished = call("validate", "cu126-torch25", *SILENT_ENGINE, "--out", "/dev/null/results")

    assert finished.returncode == 2
    assert "/dev/null: this is no folder" in finished.stderr
    assert "tcp://127.0.0.1:9" not in finished.stderr, "the engine was not asked"
    assert "next: " in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_folder_that_this_user_may_not_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)

    finished = call("render", "cu126-torch25", "--out", str(tmp_path / "new" / "results"))

    assert finished.returncode == 2
    assert not list(tmp_path.iterdir())
    message = finished.stderr.replace("\n", "")
    assert f"{tmp_path}: you may not write to this folder" in message


@pytest.mark.parametrize(
    "name", ["-", "requirements.txt", "uv.lock", "sub/Dockerfile", "train.Dockerfile"]
)
def test_an_audit_of_a_list_of_packages_says_what_to_audit_instead(name: str) -> None:
    finished = call("audit", name)

    assert finished.returncode == 2
    assert "only what is installed can be audited" in finished.stderr


# --- engines --------------------------------------------------------------------------------------


def test_an_engine_that_does_not_answer_is_named() -> None:
    finished = call("build", "cu126-torch27", *SILENT_ENGINE)

    message = in_one_line(finished.stderr)
    assert finished.returncode == 1
    assert "tcp://127.0.0.1:9" in message
    assert "no Docker Engine answers" in message
    assert "Traceback" not in message


def test_a_setting_of_the_host_that_is_ignored_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))

    finished = call("build", "cu126-torch27", *SILENT_ENGINE)

    message = in_one_line(finished.stderr)
    assert "PIP_CERT names" in message
    assert "no readable file of certificates" in message


@pytest.mark.parametrize(
    ("docker_host", "has_system_engine", "is_address_printed"),
    [("", False, True), ("", True, False), ("tcp://192.0.2.1:2375", False, False)],
    ids=["only the private engine", "an engine of the system", "DOCKER_HOST is set"],
)
def test_advice_to_call_docker_comes_with_the_address_of_the_private_engine(
    docker_host: str,
    has_system_engine: bool,
    is_address_printed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    socket = tmp_path / "truetag" / "engine" / "docker.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.setattr(
        os, "access", lambda path, _mode: has_system_engine and path == "/var/run/docker.sock"
    )

    cli._print_problem(Problem(where="a disk", cause="is full", then="`docker builder prune`"))
    # A command that needs no engine.
    cli._print_problem(Problem(where="a disk", cause="is refused", then="`docker login`"))

    printed = capsys.readouterr().err.replace("\n", "")
    address = f"export DOCKER_HOST=unix://{socket}"
    assert printed.count(address) == (1 if is_address_printed else 0)


# --- interrupts and full disks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal_sent", "signal_ignored", "status", "message"),
    [
        ("SIGINT", "", 130, "nothing is left running"),
        ("SIGTERM", "", 130, "nothing is left running"),
        ("SIGHUP", "", 130, "nothing is left running"),
        ("SIGHUP", "SIGHUP", 0, "goes on"),  # as `nohup` has it
    ],
)
def test_another_error_that_an_interrupt_causes_is_an_interrupt(
    signal_sent: str, signal_ignored: str, status: int, message: str
) -> None:
    """`threading` raises such an error if an interrupt comes while it takes a lock again."""
    finished = run_program(
        "import signal, sys\n"
        "from images import cli\n"
        "for name in ('SIGINT', 'SIGTERM', 'SIGHUP'):\n"
        f"  is_ignored = name == {signal_ignored!r}\n"
        "  handler = signal.SIG_IGN if is_ignored else signal.default_int_handler\n"
        "  signal.signal(getattr(signal, name), handler)\n"
        "def app(**_):\n"
        f"  try: signal.raise_signal(signal.{signal_sent})\n"
        "  except KeyboardInterrupt: raise RuntimeError('release unlocked lock')\n"
        "  print('goes on', file=sys.stderr)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )

    assert finished.returncode == status, finished.stderr
    assert message in in_one_line(finished.stderr)
    # Said at once: stopping containers takes seconds.
    assert ("stopping: " in finished.stderr) == (status == 130)
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("program", "imported", "status", "message"),
    [
        # It sets a handler of its own later: there is nothing to clean up yet.
        ("images", "typer", -signal.SIGINT, ""),
        # Process 1 of a container is not ended by a signal that it does not handle.
        ("validate", "argparse", 130, "stopped\n"),
    ],
)
def test_ctrl_c_while_modules_are_imported_shows_no_traceback(
    program: str, imported: str, status: int, message: str, tmp_path: Path
) -> None:
    """Somebody who sees a typing error presses Ctrl-C within 0.3 s."""
    module = tmp_path / f"{imported}.py"
    module.write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(9)"
    )

    finished = subprocess.run(
        [sys.executable, "-m", program, "doctor"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (finished.returncode, finished.stderr) == (status, message)


def test_a_full_disk_is_reported_with_the_free_space_of_the_folders() -> None:
    """A write that fails does not say where. Each write to /dev/full fails in this way."""
    command = [sys.executable, "-m", "images", "plan", "cu126-torch25"]
    with Path("/dev/full").open("w") as full:
        finished = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert finished.returncode == 1
    assert "No space left on device (free: " in finished.stderr
    assert f" GB in {ROOT}" in finished.stderr
    assert "Traceback" not in finished.stderr


# --- help, version and imports --------------------------------------------------------------------


def test_the_version_of_a_checkout_names_the_commit() -> None:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    finished = call("--version")

    assert finished.returncode == 0
    assert f"commit {commit.strip()}" in finished.stdout


def test_the_version_of_an_installed_package_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "IS_CHECKOUT", False)
    monkeypatch.setattr(metadata, "version", lambda _name: "7.1")

    assert call("--version").stdout == "truetag 7.1\n"


def test_help_lists_every_verb_with_its_summary() -> None:
    help_text = CliRunner().invoke(cli.app, ["--help"], catch_exceptions=False).output

    for verb, summary in cli.VERBS.items():
        assert summary
        assert f" {verb} {summary}" in in_one_line(help_text)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_a_help(verb: str) -> None:
    result = CliRunner().invoke(cli.app, [verb, "--help"], catch_exceptions=False)

    assert result.exit_code == 0


def test_an_option_is_a_flag_at_every_verb_or_at_none() -> None:
    group: Any = typer.main.get_command(cli.app)
    kinds_by_option: dict[str, set[bool]] = {}
    for verb in cli.VERBS:
        for parameter in group.get_command(None, verb).params:
            is_flag = bool(getattr(parameter, "is_flag", False))
            for name in parameter.opts:
                if name.startswith("--") and name != "--help":
                    kinds_by_option.setdefault(name, set()).add(is_flag)

    assert len(kinds_by_option) <= 60
    for name, kinds in kinds_by_option.items():
        assert len(kinds) == 1, name


HEAVY = ("docker", "requests", "jinja2", "cyclonedx", "google.protobuf")
OF_OTHER_VERBS = (
    "images.audit",
    "images.chooser",
    "images.fleet",
    "images.nightly",
    "images.publish",
    "images.registry.client",
    "images.site",
    "images.wheels.builder",
)


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], (*HEAVY, "pydantic", "images.commands.common")),
        # As CI asks. For people, `plan NAME` also reads the recorded runs.
        (["plan", "--json", "cu126-torch25"], (*HEAVY, "validate.judge")),
        (["build", "cu126-torch25", *SILENT_ENGINE], OF_OTHER_VERBS),
    ],
    ids=["help", "plan", "build"],
)
def test_only_what_a_verb_needs_is_imported(arguments: list[str], absent: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "from images import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)"
    )

    finished = run_program(program, *arguments)

    assert finished.returncode == 0
    assert finished.stderr.splitlines()[-1] == "[]"


# --- site -----------------------------------------------------------------------------------------


def test_writing_a_site_again_removes_pages_that_are_gone_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "CNAME").write_text("mine")
    write({"index.html": b"1", "images/a.html": b"1", "images/b.html": b"1"}, tmp_path)

    write({"index.html": b"2", "images/b.html": b"2"}, tmp_path)

    paths = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert paths == {"CNAME", "index.html", "images/b.html"}
    assert (tmp_path / "index.html").read_bytes() == b"2"


def call_site(folder: Path, *arguments: str) -> Called:
    return call("site", "--out", str(folder / "out"), *arguments)


def test_a_site_has_the_runs_of_all_folders_of_results(tmp_path: Path) -> None:
    line = samples.job("cu126-torch27", Job.CONTROL, Outcome.PASS, digest=OLD)
    results.append(line, tmp_path / "branch" / "nightly")
    folders = ("--results", str(records.FOLDER), "--results", str(tmp_path / "branch"))

    finished = call_site(tmp_path, "--date", "2026-11-21", *folders)

    assert finished.returncode == 0, finished.stderr
    assert "index.html: " in finished.stdout
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["date"] == "2026-11-21"
    (torch27,) = (entry for entry in index["images"] if entry["name"] == "cu126-torch27")
    digests = {run["digest"] for run in torch27["runs"]}
    assert OLD in digests
    assert len(digests) > 1


def test_a_date_that_is_none_is_refused(tmp_path: Path) -> None:
    finished = call_site(tmp_path, "--date", "yesterday")

    assert finished.returncode == 2
    assert "write it as 2026-11-21" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_folder_of_results_that_is_not_there_is_refused(tmp_path: Path) -> None:
    finished = call_site(tmp_path, "--results", str(tmp_path / "result"))

    assert finished.returncode == 2
    assert "there is no such folder" in finished.stderr
    assert not (tmp_path / "out").exists()


def test_a_damaged_line_of_results_is_named(tmp_path: Path) -> None:
    lines = tmp_path / "results" / "nightly" / "2026-11.jsonl"
    lines.parent.mkdir(parents=True)
    lines.write_text("{}\n")

    finished = call_site(tmp_path, "--results", str(tmp_path / "results"))

    assert finished.returncode == 2
    assert "2026-11.jsonl:1" in finished.stderr
