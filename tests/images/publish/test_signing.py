"""The password of a private key: asked for once, where a person sees the question, and given to cosign alone."""

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

COSIGN = """\
#!/bin/sh
read -r typed
printf '%s' "${COSIGN_PASSWORD-read: $typed}"
"""
"""Prints the password that it got, or what it read in place of one."""


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A key, a program in cosign's place, and no password."""
    (tmp_path / "cosign").write_text(COSIGN)
    (tmp_path / "cosign").chmod(stat.S_IRWXU)
    (tmp_path / "cosign.key").write_text("a private key")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("COSIGN_PASSWORD", raising=False)
    monkeypatch.setattr(signing, "_typed_passwords", {})
    return str(tmp_path / "cosign.key")


def printed(key: str) -> str:
    """What cosign says of a key."""
    with signing.public_file(key) as public:
        return Path(public).read_text()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Questions to a person at a terminal, who types `secret`."""
    questions: list[str] = []

    def answer(question: str) -> str:
        questions.append(question)
        return "secret"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", answer)
    return questions


def test_a_person_is_asked_once_and_cosign_alone_gets_the_password(
    key: str, asked: list[str]
) -> None:
    for _ in range(2):
        signing.require_password(key)
    assert asked == [f"password of {key}: "]
    assert printed(key) == "secret"
    assert "COSIGN_PASSWORD" not in os.environ and printed("other.key") == "read: "


@pytest.mark.parametrize("known", ["", "secret"])
def test_a_password_in_the_environment_is_not_asked_for(
    key: str, asked: list[str], known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", known)
    signing.require_password(key)
    assert not asked and printed(key) == known


@pytest.mark.parametrize(("named", "has_one"), [("awskms:///alias/x", False), ("env://MINE", True)])
def test_keys_of_a_service_have_no_password(
    key: str, asked: list[str], named: str, has_one: bool
) -> None:
    signing.require_password(named)
    assert bool(asked) is has_one


def test_where_nobody_can_be_asked_the_variable_is_named(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())
    done = call("publish", NAME, "--to", "registry.test/x", "--key", key)
    assert done.returncode == 2 and "next: set COSIGN_PASSWORD" in " ".join(done.stderr.split())


def test_who_types_nothing_is_told(
    key: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_question: str) -> str:
        raise EOFError

    monkeypatch.setattr("getpass.getpass", end)
    with pytest.raises(UserError, match="set COSIGN_PASSWORD"):
        signing.require_password(key)


def test_cosign_asks_nobody(key: str) -> None:
    """Its question is not seen: it would wait for an answer."""
    ours, (reading, writing) = os.dup(0), os.pipe()
    try:
        os.write(writing, b"typed\n")
        os.dup2(reading, 0)
        assert printed(key) == "read: "
    finally:
        os.dup2(ours, 0)
        for descriptor in (ours, reading, writing):
            os.close(descriptor)
