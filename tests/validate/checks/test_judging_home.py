"""The other claims of `users`: what is mounted on the caches' folder, and whether a user can write there."""

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
TOLD = "`-v truetag-cache:/c` `--user $(id -u):$(id -g)` `install -d -m 1777 cache` `--tmpfs /home:exec`"


def evidence(claim: Claim) -> dict[str, Any]:
    """Of an image that is well."""
    caches: dict[str, Any] = {
        name: {"path": path, "executable": True}
        if claim.expect["writable"]
        else {"path": path, "error": "denied"}
        for name, path in claim.expect["caches"].items()
    }
    prefix = PREFIX if claim.expect["writable"] else "/opt/venv"
    return {
        "uid": claim.expect["uid"],
        "gid": claim.expect["gid"],
        "mounted": {"mounted": True, "owner": 0, "mode": "1777"},
        "caches": caches,
        "additions": {
            "python": "/opt/truetag/additions/cu126-torch27/python",
            "code": 0,
            "prefix": prefix,
            "torch": "/opt/venv/lib/python3.11/site-packages/torch/__init__.py",
            "writable": claim.expect["writable"],
            "said": "" if claim.expect["writable"] else TOLD,
        },
    }


@pytest.mark.parametrize(
    ("claim", "path", "value", "status", "words"),
    [
        *((claim, "mounted|owner", 0, Status.PASS, "") for claim in CLAIMS.values()),
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
            "can't write HF_HOME (denied",
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
            "packages would be added to /opt/venv",
        ),
        (VOLUME, "additions|torch", f"{PREFIX}/lib/torch/x.py", Status.FAIL, "not the image's"),
        (VOLUME, "additions|code", 1, Status.FAIL, "does not run"),
        (VOLUME, "uid", 0, Status.UNPROVEN, "the probe ran as 0:1001"),
        (VOLUME, "mounted|mounted", False, Status.UNPROVEN, "nothing is mounted"),
        (
            FOREIGN,
            "additions|said",
            "Permission denied",
            Status.FAIL,
            "is not told of -v truetag-cache:",
        ),
        (FOREIGN, "caches", {"HF_HOME": {"path": HF_HOME}}, Status.UNPROVEN, "not the case"),
    ],
)
def test_each_fault_is_named(
    claim: Claim, path: str, value: object, status: Status, words: str
) -> None:
    verdict, reason = judge_claim(claim, spoiled(evidence(claim), path, value))
    assert verdict is status and words in reason
