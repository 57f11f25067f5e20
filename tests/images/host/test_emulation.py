"""Emulators: one that containers would not find counts as none, and what can't be registered is told."""

from pathlib import Path

import pytest

from images.config.platforms import Platform
from images.errors import UserError
from images.host import emulation

PROGRAM = "/usr/libexec/qemu-binfmt/aarch64-binfmt-P"
ENTRY = "{state}\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: {flags}\noffset 0\nmagic 7f454c46\n"
RULE = ":qemu-aarch64:M::\\x7f\\x45:\\xff\\xff:/usr/libexec/qemu-binfmt/aarch64-binfmt-P:OPF"


def registry(folder: Path, state: str = "enabled", flags: str = "POF") -> Path:
    (folder / "qemu-aarch64").write_text(ENTRY.format(state=state, flags=flags))
    return folder


@pytest.mark.parametrize(
    ("state", "flags", "found"),
    [("enabled", "POF", PROGRAM), *((*off, "") for off in (("disabled", "POF"), ("enabled", "PO"), ("enabled", "")))],
)
def test_an_emulator_counts_that_the_kernel_holds_open(tmp_path: Path, state: str, flags: str, found: str) -> None:
    assert emulation.registered(Platform.ARM64, registry(tmp_path, state, flags)) == found


def test_one_that_is_there_is_taken_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    emulation.require(Platform.ARM64, said.append, registry=registry(tmp_path))
    assert not said


def test_the_packages_rule_is_handed_to_the_kernel_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 0)
    (tmp_path / "register").write_text("")
    (tmp_path / "qemu-aarch64.conf").write_text(f"# a comment\n{RULE}\n")
    said: list[str] = []
    with pytest.raises(UserError, match="the kernel did not take the emulator's registration"):  # as no kernel is there
        emulation.require(Platform.ARM64, said.append, registry=tmp_path, rules=tmp_path)
    assert (tmp_path / "register").read_text() == RULE
    assert said == ["registering qemu for aarch64 programs with the kernel"]


def test_a_user_who_may_not_register_is_told_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 1000)
    with pytest.raises(UserError) as told:
        emulation.require(Platform.ARM64, print, registry=tmp_path)
    (problem,) = told.value.problems
    assert problem.where == "linux/arm64" and "apt-get install qemu-user-static" in problem.then
