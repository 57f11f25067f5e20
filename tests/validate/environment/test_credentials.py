"""Credentials are recognised by their text and by file names, and never quoted."""

import pytest

from tests.support.checkout import ROOT
from validate.environment import credentials

# Each is put together here, so that no tool takes this file for one with credentials.
CREDENTIALS = {
    "-----BEGIN PRIVATE " + 'KEY-----\\n"\r\n  "b3BlbnNzaC1rZXktdjEA': "a private key",
    "-----BEGIN RSA PRIVATE "
    + "KEY-----\nProc-Type: 4\nX: a\n\nb3BlbnNzaC1rZXktdjEA": "a private key",
    "token hf_" + "a" * 34: "a Hugging Face token",
    "x ghp_" + "A1" * 18: "a GitHub token",
    "x gho_" + "A1" * 18: "a GitHub token",
    "x ghu_" + "A1" * 18: "a GitHub token",
    "x ghs_" + "A1" * 18: "a GitHub token",
    "x ghr_" + "A1" * 18: "a GitHub token",
    "github_pat_" + "a1" * 25: "a GitHub token",
    "AKIA" + "ABCDEFGH23456789": "an AWS access key",
    "ASIA" + "ABCDEFGH23456789": "an AWS access key",
    "glpat-" + "a1" * 10: "a GitLab token",
    "pypi-AgE" + "a1" * 25: "a PyPI token",
    "xoxb-" + "a1" * 10: "a Slack token",
    "sk-ant-" + "a1" * 16: "an OpenAI or Anthropic key",
    "AIza" + "a" * 35: "a Google API key",
    "MY_AUTH" + "TOKEN: 0123456789abcdef": "a secret",
    "index-url = https://me:" + "pass1234@host.invalid/simple": "a password in an address",
    "machine h login me password " + "abc123": "a password",
    "WANDB_API_KEY=" + "0123456789abcdef": "a secret",
    'password: "' + "correct-horse" + '"': "a secret",
    "api_key:" + "0123456789abcdef": "a secret",
    "apikey=" + "0123456789abcdef": "a secret",
    "client_secret=" + "0123456789abcdef": "a secret",
}
"""Text -> its kind."""
PARTS_OF_CREDENTIALS = ("pass1234", "abc123", "horse")
NO_CREDENTIALS = """password requisite pam_unix.so
index-url = https://host.invalid/simple
https://user@host.invalid/x
API_KEY=$SECRET
token = None
secret: ${{ secrets.TOKEN }}
git clone ssh://git@host.invalid:22/x
docker run -v /etc/passwd:/etc/passwd:ro -v /run/secret:/run/secrets/key
>0=-----BEGIN RSA HIDDEN KEY-----
[60:text/x-adasrc]""".replace("HIDDEN", "PRIVATE")
GITHUB_TOKEN = "ghp_" + "A1" * 18
HUGGING_FACE_TOKEN = "hf_" + "a" * 34


@pytest.mark.parametrize(("text", "kind"), CREDENTIALS.items(), ids=range(len(CREDENTIALS)))
def test_a_credential_is_found_with_its_line_and_never_quoted(text: str, kind: str) -> None:
    found = list(credentials.find_in_text(f"first line\n{text}\n"))

    assert (2, kind) in found
    assert not any(part in str(found) for part in PARTS_OF_CREDENTIALS)


@pytest.mark.parametrize("line", NO_CREDENTIALS.splitlines())
def test_a_line_that_only_looks_like_a_credential_is_none(line: str) -> None:
    assert not list(credentials.find_in_text(line))


def test_lines_that_only_look_like_credentials_are_none_together() -> None:
    assert not list(credentials.find_in_text(NO_CREDENTIALS))


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"x" * credentials.SMALL_BYTES, id="large-text"),
        pytest.param(b"\0", id="program"),
    ],
)
def test_in_large_texts_and_programs_only_what_an_issuer_marks_is_found(beginning: bytes) -> None:
    content = beginning + f"\n{GITHUB_TOKEN}\nAPI_KEY=0123456789abcdef".encode()

    assert list(credentials.find_in_file(content, "a")) == [(2, "a GitHub token")]


# ---- A variable named `token` is a setting in a settings file, and anything in a program.

CPP_HEADERS = "/usr/local/cuda-12.4/include/cuda/std/detail"


@pytest.mark.parametrize(
    "program",
    [
        "cooperative_groups.h",
        # Headers of C++'s own library have no suffix.
        f"{CPP_HEADERS}/barrier",
        # libstdc++: `_M_token = _S_token_eof;`
        "/opt/conda/x86_64-conda-linux-gnu/include/c++/12/bits/regex_scanner.tcc",
        "site/app/static/login.mjs",
    ],
)
def test_a_variable_of_a_program_is_not_taken_for_a_setting(program: str) -> None:
    line = "auto token = barrier_arrive_and_wait;"

    assert not list(credentials.find_in_text(line, program))


@pytest.mark.parametrize("file", ["x.conf", f"{CPP_HEADERS}/barrier.conf", "/home/trainer/barrier"])
def test_a_variable_of_any_other_file_is_a_setting(file: str) -> None:
    assert list(credentials.find_in_text("my_token = barrier_arrive", file))


def test_what_an_issuer_marks_is_found_in_a_program_too() -> None:
    assert list(credentials.find_in_text(HUGGING_FACE_TOKEN, f"{CPP_HEADERS}/barrier"))


def test_no_text_of_the_suite_looks_like_a_credential() -> None:
    """Each image has a copy of the suite."""
    texts = [
        path
        for path in (ROOT / "validate").rglob("*")
        if path.suffix in (".txt", ".json", ".yaml", ".py")
    ]

    assert texts
    assert not [path for path in texts if [*credentials.find_in_text(path.read_text(), path.name)]]
    # The same line in another text would be found.
    assert list(credentials.find_in_text("chunk_token = abcdefgh1"))


@pytest.mark.parametrize(
    ("path", "is_known"),
    [
        ("/root/.netrc", True),
        ("/home/x/.docker/config.json", True),
        ("/a/.env", True),
        ("/etc/netrc.md", False),
    ],
)
def test_a_file_for_credentials_is_known_by_its_name(path: str, is_known: bool) -> None:
    assert bool(credentials.kind_by_name(path)) is is_known
