"""hygiene: credentials are told by kind and never quoted; labels, size, settings and leftovers are judged from
evidence."""

from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.checkout import ROOT
from tests.support.judging import fails, judge_claim, spoiled_by, wrong
from validate.claims import HOST_PROBE, Claim, Tier
from validate.environment import credentials, patterns
from validate.judging import Finding, Status

HEALTHY: dict[str, Any] = cases(__file__, "healthy")
EXPECT: dict[str, Any] = cases(__file__, "expected")


def judged(subject: str, **evidence: Any) -> Finding:
    of_host = subject in ("labels", "size", "settings", "history", "layers")
    check, probe = ("image", HOST_PROBE) if of_host else ("hygiene", "static.hygiene")
    claim = Claim(
        check=check,
        subject=subject,
        tier=Tier.STATIC,
        probe=probe,
        statement="-",
        expect=EXPECT[subject],
    )
    return judge_claim(claim, {**HEALTHY, **evidence})


@pytest.mark.parametrize("subject", EXPECT)
def test_a_healthy_image_passes_and_what_could_not_be_read_leaves_it_unproven(subject: str) -> None:
    assert judged(subject).status is Status.PASS
    unsure = subject in ("leftovers", "secrets")
    assert judged(subject, unreadable=["/root"]).status is (
        Status.UNPROVEN if unsure else Status.PASS
    )


def test_labels_that_do_not_name_a_silent_fault_are_unproven() -> None:
    found = judged("labels", labels={**HEALTHY["labels"], "dev.truetag.silent-faults": "b#2"})
    assert found.status is Status.UNPROVEN and "does not name a#1" in found.reason
    older = {
        **HEALTHY["labels"],
        "dev.truetag.matrix-revision": "0",
        "org.opencontainers.image.version": "0",
    }
    assert judged("labels", labels=older) == Finding(
        Status.PASS, "1 labels say what the matrix says, by revision 0"
    )


@pytest.mark.parametrize(("subject", "culprit", "changes"), wrong("hygiene"))
def test_each_fault_is_named(subject: str, culprit: str, changes: dict[str, Any]) -> None:
    fails(judged(subject, **spoiled_by(HEALTHY, changes)), culprit)


CREDENTIALS = {
    "-----BEGIN PRIVATE " + 'KEY-----\\n"\r\n  "b3BlbnNzaC1rZXktdjEA': "a private key",
    "-----BEGIN RSA PRIVATE "
    + "KEY-----\nProc-Type: 4\nX: a\n\nb3BlbnNzaC1rZXktdjEA": "a private key",
    "token hf_" + "a" * 34: "a Hugging Face token",
    **{f"x gh{one}_" + "A1" * 18: "a GitHub token" for one in "pousr"},
    "github_pat_" + "a1" * 25: "a GitHub token",
    **{one + "ABCDEFGH23456789": "an AWS access key" for one in ("AKIA", "ASIA")},
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
    **{one + "0123456789abcdef": "a secret" for one in ("api_key:", "apikey=", "client_secret=")},
}
NO_CREDENTIALS = """password requisite pam_unix.so
index-url = https://host.invalid/simple
https://user@host.invalid/x
API_KEY=$SECRET
token = None
secret: ${{ secrets.TOKEN }}
git clone ssh://git@host.invalid:22/x
>0=-----BEGIN RSA HIDDEN KEY-----
[60:text/x-adasrc]""".replace("HIDDEN", "PRIVATE")


def test_credentials_are_recognised_and_never_quoted() -> None:
    assert not list(credentials.find_in_text(NO_CREDENTIALS))
    for text, kind in CREDENTIALS.items():
        found = list(credentials.find_in_text(f"first line\n{text}\n"))
        assert (2, kind) in found and not any(
            part in str(found) for part in ("pass1234", "abc123", "horse")
        )


def test_of_large_texts_and_programs_what_issuers_mark_is_told() -> None:
    for content in (b"x" * credentials.SMALL_BYTES, b"\0"):
        found = credentials.find_in_file(
            content + b"\nghp_" + b"A1" * 18 + b"\nAPI_KEY=0123456789abcdef", "a"
        )
        assert list(found) == [(2, "a GitHub token")]


def test_variables_of_programs_are_not_read_as_settings() -> None:
    """Headers without a suffix are programs, too."""
    line, place = (
        "auto token = barrier_arrive_and_wait;",
        "/usr/local/cuda-12.4/include/cuda/std/detail",
    )
    assert not list(credentials.find_in_text(line, "cooperative_groups.h"))
    assert not list(credentials.find_in_text(line, f"{place}/barrier"))
    for path in ("x.conf", f"{place}/barrier.conf", "/home/trainer/barrier"):
        assert list(credentials.find_in_text("my_token = barrier_arrive", path)), "a setting"
    assert list(credentials.find_in_text("hf_" + "a" * 34, f"{place}/barrier")), (
        "what an issuer's token looks like is told"
    )


def test_no_text_of_the_suite_which_each_image_has_looks_like_a_credential() -> None:
    texts = [
        path
        for path in (ROOT / "validate").rglob("*")
        if path.suffix in (".txt", ".json", ".yaml", ".py")
    ]
    assert not [path for path in texts if [*credentials.find_in_text(path.read_text(), path.name)]]
    assert list(credentials.find_in_text("chunk_token = abcdefgh1"))


def test_files_are_known_by_name() -> None:
    paths = ("/root/.netrc", "/home/x/.docker/config.json", "/etc/netrc.md", "/a/.env")
    assert [path for path in paths if not credentials.kind_by_name(path)] == ["/etc/netrc.md"]
    first = patterns.first_of(["*/b?.so", "/a/[bc]*", "/[!b]/*", "*"])
    assert list(map(first, ("/a/b1.so", "/a/cc", "/a/d", "/b/[bc]"))) == [
        "*/b?.so",
        "/a/[bc]*",
        "/[!b]/*",
        "*",
    ]
    assert patterns.first_of(["*.so"])("/a.py") is None
    assert patterns.first_of(["[\nb]c"])("bc")
