"""validate.inside: what a container judges of its own image, and what it says of the rest."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from validate import inside
from validate.claims import Claim, ClaimSet, Tier
from validate.inside import describe_left_out, parse_options, reason_left_out, split_unread
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

HOST_ONLY = "only an engine's host sees the settings and layers of an image"
OTHER_USERS = "they take containers of other users"
OWN_FILES = "a running container has temporary files of its own"


def make_claim(key: str, probe: str) -> Claim:
    """Return a claim of the static tier."""
    check, _, subject = key.partition("/")
    return Claim(check=check, subject=subject, tier=Tier.STATIC, probe=probe, statement="")


def make_verdict(
    key: str,
    probe: str,
    status: Status,
    reason: str = "",
    evidence: Mapping[str, Any] = MappingProxyType({}),
) -> Verdict:
    """Return the verdict on one claim."""
    judged = ClaimVerdict(
        claim=make_claim(key, probe), status=status, reason=reason, seconds=0, evidence=evidence
    )
    return Verdict(image="x", digest="", evidence_sha256="", claims=(judged,))


@pytest.mark.parametrize(
    ("key", "probe", "reason"),
    [
        ("pins/torch", "static.pins", ""),
        ("debian/packages", "static.debian", ""),
        ("modes/users", "static.modes", ""),
        ("hygiene/secrets", "static.hygiene", ""),
        ("hygiene/leftovers", "static.hygiene", OWN_FILES),
        ("image/history", "host.image", HOST_ONLY),
        ("origin/layers", "host.origin", HOST_ONLY),
        ("arbitrary-uid/environment", "cpu.arbitrary_uid", OTHER_USERS),
        ("additions/torchaudio", "cpu.additions", OTHER_USERS),
    ],
)
def test_a_container_leaves_out_what_its_user_cannot_measure(
    key: str, probe: str, reason: str
) -> None:
    assert reason_left_out(make_claim(key, probe)) == reason


UNREADABLE = {"unreadable": ["/root"]}


@pytest.fixture
def user_id(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let this process have the user of our images, whoever runs the tests."""
    monkeypatch.setattr("os.geteuid", lambda: 1001)
    return 1001


@pytest.mark.usefixtures("user_id")
def test_so_does_it_where_its_user_may_not_read_all_files() -> None:
    reason = "/root can't be read"
    verdict = make_verdict("hygiene/secrets", "static.hygiene", Status.UNPROVEN, reason, UNREADABLE)

    judged, unread = split_unread(verdict)

    assert judged.claims == ()
    assert describe_left_out(ClaimSet(image="an image on cu126-torch25", claims=()), unread) == [
        "not judged in a container: hygiene/secrets (/root can't be read)",
        "`nox -s validate -- cu126-torch25 --image IMAGE` in a checkout of truetag judges them,"
        " too",
    ]


@pytest.mark.parametrize(
    ("probe", "status", "evidence"),
    [
        pytest.param("static.hygiene", Status.FAIL, UNREADABLE, id="a fault was found"),
        pytest.param("static.debian", Status.PASS, UNREADABLE, id="all could be read"),
        pytest.param("static.pins", Status.UNPROVEN, UNREADABLE, id="it needs no root"),
        pytest.param("static.debian", Status.UNPROVEN, {}, id="the probe was not run"),
        pytest.param(
            "static.debian",
            Status.UNPROVEN,
            {**UNREADABLE, "probe": {"outcome": "crashed"}},
            id="the probe did not run to its end",
        ),
    ],
)
@pytest.mark.usefixtures("user_id")
def test_all_other_claims_stay_in_the_verdict(
    probe: str, status: Status, evidence: dict[str, Any]
) -> None:
    verdict = make_verdict("some/claim", probe, status, evidence=evidence)

    assert split_unread(verdict) == (verdict, [])


def test_what_root_may_not_read_stays_in_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    verdict = make_verdict(
        "hygiene/secrets", "static.hygiene", Status.UNPROVEN, evidence=UNREADABLE
    )

    assert split_unread(verdict) == (verdict, [])
    assert verdict.overall is Status.UNPROVEN


@pytest.mark.usefixtures("user_id")
def test_a_claim_that_is_unproven_from_the_start_stays_in_the_verdict() -> None:
    verdict = make_verdict(
        "hygiene/secrets", "static.hygiene", Status.UNPROVEN, evidence=UNREADABLE
    )
    (judged,) = verdict.claims
    judged = replace(judged, claim=replace(judged.claim, unproven="flash-attn is not here"))

    assert split_unread(replace(verdict, claims=(judged,)))[1] == []


def test_claims_of_one_reason_share_a_line_in_which_each_check_stands_once() -> None:
    of_image = ClaimSet(
        image="an image on cu126-torch25",
        claims=(
            make_claim("image/size", "host.image"),
            make_claim("image/history", "host.image"),
            make_claim("pins/torch", "static.pins"),
            make_claim("hygiene/leftovers", "static.hygiene"),
            make_claim("origin/layers", "host.origin"),
        ),
    )

    lines = describe_left_out(of_image, [])

    assert lines[:-1] == [
        f"not judged in a container: image, origin ({HOST_ONLY})",
        f"not judged in a container: hygiene/leftovers ({OWN_FILES})",
    ]


def test_nothing_is_said_where_nothing_is_left_out() -> None:
    of_image = ClaimSet(image="x", claims=(make_claim("pins/torch", "static.pins"),))

    assert describe_left_out(of_image, []) == []


def test_a_task_of_slurm_knows_which_node_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NODEID", "1")

    assert parse_options(["--nodes", "gpu-1,gpu-2"]).node == 1
    assert parse_options(["--nodes", "gpu-1,gpu-2", "--node", "0"]).node == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--nodes gpu-1", "--nodes takes two hosts, `--nodes gpu-1,gpu-2`, not 'gpu-1'"),
        ("--nodes gpu-1,gpu-1 --node 0", "--nodes takes two hosts"),
        ("--nodes gpu-1,gpu-2,gpu-3 --node 0", "--nodes takes two hosts"),
        ("--nodes gpu-1,gpu-2,gpu-1 --node 0", "--nodes takes two hosts"),
        ("--nodes gpu-1, --node 0", "--nodes takes two hosts"),
        # A variable that is not set.
        ("--nodes= --node 0", "--nodes takes two hosts"),
        ("--nodes gpu-1,gpu-2", "which of the two nodes is this machine? Add --node 0"),
        ("--nodes gpu-1,gpu-2 --node 2", "which of the two nodes is this machine?"),
        ("--nodes gpu-1,gpu-2 --node 0 --tier gpu", "leave out --tier"),
    ],
)
def test_options_of_two_machines_that_do_not_go_together_are_refused(
    options: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SLURM_NODEID", raising=False)

    with pytest.raises(SystemExit, match="2"):
        parse_options(options.split())

    assert words in capsys.readouterr().err


def test_what_another_machine_tells_is_not_obeyed_by_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inside._complain("node 1 (gpu-2) reports: \x1b[2J ALL PASS")

    assert capsys.readouterr().err == "validate: node 1 (gpu-2) reports: \\x1b[2J ALL PASS\n"
