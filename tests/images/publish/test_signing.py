"""The password of a private key: who is asked for it, how often, and who gets it."""

import os
import stat
import sys
from io import StringIO
from pathlib import Path

import pytest

from images.errors import UserError
from images.publish import signing
from tests.support.attested import NAME
from tests.support.commands import call

FAKE_COSIGN = """\
#!/bin/sh
read -r typed
printf '%s' "${COSIGN_PASSWORD-read: $typed}"
"""
"""Prints the password that it got, or `read: ` and what it read in place of one."""


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A private key whose password is not known yet, beside a program in cosign's place."""
    (tmp_path / "cosign").write_text(FAKE_COSIGN)
    (tmp_path / "cosign").chmod(stat.S_IRWXU)
    (tmp_path / "cosign.key").write_text("a private key")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("COSIGN_PASSWORD", raising=False)
    monkeypatch.setattr(signing, "_typed_passwords", {})
    return str(tmp_path / "cosign.key")


def output_of_cosign(key: str) -> str:
    """What the fake cosign prints when it is called for a key."""
    with signing.public_file(key) as public:
        return Path(public).read_text()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions to a person at a terminal, who answers each with `secret`."""
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return "secret"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", answer)
    return asked


def test_a_person_is_asked_once_for_the_password_of_a_key(key: str, questions: list[str]) -> None:
    signing.require_password(key)
    signing.require_password(key)

    assert questions == [f"password of {key}: "]


def test_only_cosign_gets_a_typed_password_and_only_for_its_key(
    key: str, questions: list[str]
) -> None:
    signing.require_password(key)

    assert output_of_cosign(key) == "secret"
    assert output_of_cosign("other.key") == "read: "
    assert "COSIGN_PASSWORD" not in os.environ


@pytest.mark.parametrize("password", ["", "secret"], ids=["an empty one", "one"])
def test_a_password_in_the_environment_is_not_asked_for(
    key: str, questions: list[str], password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", password)

    signing.require_password(key)

    assert not questions
    assert output_of_cosign(key) == password


@pytest.mark.parametrize(
    ("name", "has_password"),
    [
        pytest.param("awskms:///alias/x", False, id="a key in a service"),
        pytest.param("env://MINE", True, id="a key in a variable"),
    ],
)
def test_only_a_key_outside_of_a_service_has_a_password(
    key: str, questions: list[str], name: str, has_password: bool
) -> None:
    signing.require_password(name)

    assert bool(questions) is has_password


def test_where_nobody_can_be_asked_the_message_names_the_variable(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_terminal = StringIO()
    monkeypatch.setattr(sys, "stdin", no_terminal)

    result = call("publish", NAME, "--to", "registry.test/x", "--key", key)

    assert result.returncode == 2
    assert "next: set the variable COSIGN_PASSWORD" in " ".join(result.stderr.split())


def test_if_nothing_is_typed_the_message_names_the_variable(
    key: str, questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_of_input(_question: str) -> str:
        raise EOFError

    monkeypatch.setattr("getpass.getpass", end_of_input)

    with pytest.raises(UserError, match="set the variable COSIGN_PASSWORD"):
        signing.require_password(key)


def test_cosign_reads_nothing_from_the_terminal(key: str) -> None:
    """Nobody would see its question: it would wait for an answer."""
    standard_input = 0
    original_input = os.dup(standard_input)
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, b"typed\n")
        os.dup2(read_end, standard_input)

        assert output_of_cosign(key) == "read: "
    finally:
        os.dup2(original_input, standard_input)
        for descriptor in (original_input, read_end, write_end):
            os.close(descriptor)
