"""The command line as a person meets it: exit codes, messages with place, cause and next command, no traceback."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from images import errors
from images.config.paths import RESOURCES as ROOT
from tests.support.commands import call


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
    assert (rows[0]["toolkit_cuda"], rows[0]["wheel_cuda"], rows[0]["lock"]) == ("12.6", "12.4", "present")


def test_the_plan_shows_refused_rows_with_their_reason() -> None:
    finished = call("plan", "cu118-torch215")
    assert finished.returncode == 0
    assert "refused" in finished.stdout and "none for CUDA 11" in " ".join(finished.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "sentence", "following"),
    [
        (["plan", "zzz"], "matches no image of the matrix", "next: `nox -s plan` lists all"),
        (["plan", "cu126-torch2"], "matches no image", "nearest: cu126-torch2"),
        (["plan", "torch>>2"], "'>2' is not a version", "write a name"),
        (["plan", "--jsn"], "No such option: --jsn", "`nox -s plan -- --help`"),
        (["build"], "Missing argument", "`nox -s build -- --help`"),
        (["bild"], "No such command", "images --help"),
        (["build", "cu118-torch27"], "is refused: excluded by matrix.yaml", "nox -s plan"),
        (["build", "cu126-torch27-sm120"], "no code for sm_120", "nox -s plan"),
        (["build", "cu128-torch27"], "cu128-torch27 has no lock", "nox -s lock -- cu128-torch27"),
        (["validate", "cu126-*"], "means", "name one"),
        (["validate"], "neither a name nor recorded evidence", "nox -s validate -- --evidence FILE"),
        (["validate", "cu126-torch25", "--tag", "--claim", "S1"], "can't follow from some", "leave --claim out"),
        (["engine", "explode"], "is an unknown action", "status, start, stop or wipe"),
    ],
)
def test_wrong_input_is_told_with_the_next_step_and_exit_2(arguments: list[str], sentence: str, following: str) -> None:
    finished = call(*arguments)
    assert finished.returncode == 2, finished.stderr
    said = " ".join(finished.stderr.split())
    assert sentence in said
    assert following in said
    assert "Traceback" not in said


def test_an_engine_that_does_not_answer_is_named() -> None:
    finished = call("build", "cu126-torch27", "--engine", "tcp://127.0.0.1:9")
    assert finished.returncode == 1
    assert "tcp://127.0.0.1:9" in finished.stderr and "no Docker Engine answers" in finished.stderr
    assert "Traceback" not in finished.stderr


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
    assert {path.name for path in context.iterdir()} >= {"Dockerfile", "host", "locks", "scripts", "wheels"}
    assert (context / "locks" / "torch.txt").read_text().count("--hash=sha256:") > 10
    (context / "left-over").write_text("of an older rendering")
    call("render", "cu126-torch25", "--out", str(tmp_path))
    assert not (context / "left-over").exists()


def test_a_folder_that_cannot_be_written_is_told_before_any_work() -> None:
    finished = call("validate", "cu126-torch25", "--engine", "tcp://127.0.0.1:9", "--out", "/dev/null/results")
    assert finished.returncode == 2
    assert "/dev/null: is no folder" in finished.stderr and "tcp://127.0.0.1:9" not in finished.stderr
    assert "next: " in finished.stderr and "Traceback" not in finished.stderr


def test_a_folder_that_this_user_may_not_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)  # root may write anywhere
    finished = call("render", "cu126-torch25", "--out", str(tmp_path / "new" / "results"))
    assert finished.returncode == 2 and not list(tmp_path.iterdir())
    assert f"{tmp_path}: may not be written by this user" in finished.stderr.replace("\n", "")


def test_the_version_names_the_commit_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = call("--version")
    assert told.returncode == 0 and f"commit {commit.stdout.strip()}" in told.stdout, told.stdout
    monkeypatch.setattr(errors, "IS_CHECKOUT", False)
    monkeypatch.setattr(metadata, "version", lambda _name: "7.1")
    assert call("--version").stdout == "truetag 7.1\n"


def test_settings_that_are_ignored_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    finished = call("build", "cu126-torch27", "--engine", "tcp://127.0.0.1:9")
    said = " ".join(finished.stderr.split())
    assert "PIP_CERT names" in said and "no readable file of certificates" in said


def test_a_full_disk_is_told_with_the_folders_and_what_is_free_there() -> None:
    """A write that fails does not say where: /dev/full fails each one so."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "images", "plan", "cu126-torch25"]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "No space left on device (free: " in done.stderr and f" GB in {ROOT}" in done.stderr
