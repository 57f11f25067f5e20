"""C8's other claims: what is mounted on the caches' folder, and whether a user can write there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from images.planning import plan
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from tests.support.judging import judge_claim
from tests.support.sources import SOURCES
from validate.claims import Claim
from validate.judging import Status

(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
CLAIMS = {
    claim.subject: claim
    for claim in image_claims(ClaimContext(image=PLANNED.image, facts=SOURCES.facts)).claims
    if claim.probe == "cpu.home"
}
VOLUME, FOREIGN = CLAIMS["named volume"], CLAIMS["foreign folder"]
PREFIX = "/home/trainer/.cache/venvs/cu126-torch27-0"
HF_HOME = VOLUME.expect["caches"]["HF_HOME"]
TOLD = "`-v truetag-cache:/c` `--user $(id -u):$(id -g)` `install -d -m 1777 cache` `--tmpfs /home:exec`"


def evidence(claim: Claim) -> dict[str, Any]:
    """Of an image that is well."""
    caches: dict[str, Any] = {
        name: {"path": path, "executable": True} if claim.expect["writable"] else {"path": path, "error": "denied"}
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


def judged(claim: Claim, found: dict[str, Any]) -> tuple[Status, str]:
    return judge_claim(claim, found)


@pytest.mark.parametrize("subject", CLAIMS)
def test_an_image_that_is_well_is_green(subject: str) -> None:
    assert judged(CLAIMS[subject], evidence(CLAIMS[subject]))[0] is Status.PASS


def put(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        *folders, last = path
        for name in folders:
            found = found[name]
        found[last] = value

    return change


@pytest.mark.parametrize(
    ("claim", "change", "status", "words"),
    [
        (VOLUME, put("caches", "HF_HOME", value={"path": "", "error": "not set"}), Status.FAIL, "HF_HOME is not set"),
        (
            VOLUME,
            put("caches", "HF_HOME", value={"path": HF_HOME, "error": "Permission denied: x"}),
            Status.FAIL,
            "uid 1001 can't write HF_HOME (Permission denied",
        ),
        (
            VOLUME,
            put("caches", "TRITON_CACHE_DIR", "executable", value=False),
            Status.FAIL,
            "TRITON_CACHE_DIR=/home/trainer/.cache/triton is mounted noexec",
        ),
        (VOLUME, put("additions", "prefix", value="/opt/venv"), Status.FAIL, "packages would be added to /opt/venv"),
        (VOLUME, put("additions", "torch", value=f"{PREFIX}/lib/torch/x.py"), Status.FAIL, "not the image's"),
        (VOLUME, put("additions", "code", value=1), Status.FAIL, "does not run"),
        (VOLUME, put("uid", value=0), Status.UNPROVEN, "the probe ran as 0:1001"),
        (VOLUME, put("mounted", "mounted", value=False), Status.UNPROVEN, "nothing is mounted"),
        (FOREIGN, put("additions", "said", value="Permission denied"), Status.FAIL, "is not told of -v truetag-cache:"),
        (
            FOREIGN,
            put("caches", value={"HF_HOME": {"path": HF_HOME}}),
            Status.UNPROVEN,
            "not the case",
        ),
    ],
)
def test_each_fault_is_named(
    claim: Claim, change: Callable[[dict[str, Any]], None], status: Status, words: str
) -> None:
    found = copy.deepcopy(evidence(claim))
    change(found)
    verdict, reason = judged(claim, found)
    assert verdict is status and words in reason
