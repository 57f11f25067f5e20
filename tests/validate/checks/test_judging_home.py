"""users: what the image's user can write, with each way to mount the cache folder."""

from typing import Any

import pytest

from tests.support.claims import bare_claims
from tests.support.judging import judge_claim, spoiled
from validate.claims import Claim
from validate.judging import Status

CLAIMS = {
    claim.subject: claim for claim in bare_claims("cu126-torch27").measured_by(["cpu.home"]).claims
}
VOLUME, FOREIGN = CLAIMS["named-volume"], CLAIMS["foreign-folder"]
PREFIX = "/home/trainer/.cache/venvs/cu126-torch27-0"
HF_HOME = VOLUME.expect["caches"]["HF_HOME"]
ADVICE = (
    "`-v truetag-cache:/c` `--user $(id -u):$(id -g)` `install -d -m 1777 cache` "
    "`--tmpfs /home:exec`"
)
"""What the image prints where its user can't write: every way out."""


def healthy_evidence(claim: Claim) -> dict[str, Any]:
    """What an image that is well measures for a claim."""
    is_writable = claim.expect["writable"]
    caches: dict[str, Any] = {}
    for name, path in claim.expect["caches"].items():
        if is_writable:
            caches[name] = {"path": path, "executable": True}
        else:
            caches[name] = {"path": path, "error": "denied"}
    return {
        "uid": claim.expect["uid"],
        "gid": claim.expect["gid"],
        "mounted": {"mounted": True, "owner": 0, "mode": "1777"},
        "caches": caches,
        "additions": {
            "python": "/opt/truetag/additions/cu126-torch27/python",
            "code": 0,
            "prefix": PREFIX if is_writable else "/opt/venv",
            "torch": "/opt/venv/lib/python3.11/site-packages/torch/__init__.py",
            "writable": is_writable,
            "said": "" if is_writable else ADVICE,
        },
    }


@pytest.mark.parametrize("subject", CLAIMS)
def test_a_healthy_image_passes(subject: str) -> None:
    claim = CLAIMS[subject]

    assert judge_claim(claim, healthy_evidence(claim)).status is Status.PASS


@pytest.mark.parametrize(
    ("claim", "path", "value", "status", "words"),
    [
        (
            VOLUME,
            "caches|HF_HOME",
            {"path": "", "error": "not set"},
            Status.FAIL,
            "HF_HOME is not set",
        ),
        (
            VOLUME,
            "caches|HF_HOME",
            {"path": HF_HOME, "error": "denied"},
            Status.FAIL,
            "can't write to HF_HOME (denied",
        ),
        (
            VOLUME,
            "caches|TRITON_CACHE_DIR|executable",
            False,
            Status.FAIL,
            "/.cache/triton is mounted noexec",
        ),
        (
            VOLUME,
            "additions|prefix",
            "/opt/venv",
            Status.FAIL,
            "pip would add packages to /opt/venv",
        ),
        (VOLUME, "additions|torch", f"{PREFIX}/lib/torch/x.py", Status.FAIL, "not the image's"),
        (VOLUME, "additions|code", 1, Status.FAIL, "does not run"),
        (VOLUME, "uid", 0, Status.UNPROVEN, "and it ran as 0:1001"),
        (VOLUME, "mounted|mounted", False, Status.UNPROVEN, "none is mounted"),
        (
            FOREIGN,
            "additions|said",
            "Permission denied",
            Status.FAIL,
            "about these ways out: -v truetag-cache:",
        ),
        (
            FOREIGN,
            "caches",
            {"HF_HOME": {"path": HF_HOME}},
            Status.UNPROVEN,
            "needs a user who can't write",
        ),
    ],
)
def test_each_fault_is_named(
    claim: Claim, path: str, value: object, status: Status, words: str
) -> None:
    evidence = spoiled(healthy_evidence(claim), path, value)

    finding = judge_claim(claim, evidence)

    assert finding.status is status
    assert words in finding.reason
