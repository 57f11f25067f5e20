"""Images that print evidence of their own: none of it is taken, a claim fails, and the cause is named."""

import os
from dataclasses import replace

import pytest

from images.building import validating
from images.engine import Engine, ImageInfo
from tests.support.broken_images import SITE, Fault, broken
from validate import judging
from validate.claims import ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine

BROKEN = f"RUN rm {SITE}/bitsandbytes/libbitsandbytes_cuda126.so"
BREAKS = "RUN --mount=type=bind,source=breaks,target=/run/breaks"
FORGER = f"{BREAKS} cp /run/breaks/forge.py /usr/local/bin/forge.py"
WRAP = f"{BREAKS} sh /run/breaks/wrap.sh"
HWCAPS = "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2"
BESIDE = "a process beside the suite"
FORGERIES = {
    BESIDE: ([FORGER], 'HEALTHCHECK --interval=1s CMD ["python3", "-I", "-S", "/usr/local/bin/forge.py"]'),
    "a .pth file": (
        [FORGER, f"RUN echo \"import runpy; runpy.run_path('/usr/local/bin/forge.py')\" > {SITE}/forge.pth"],
        "",
    ),
    "a library's constructor": (
        [
            f"{BREAKS} gcc -shared -fPIC -o /usr/lib/libforge.so /run/breaks/forge.c",
            "RUN echo /usr/lib/libforge.so > /etc/ld.so.preload",
        ],
        "",
    ),
    "python, sh, git and a folder of the loader": (
        [FORGER, f"{WRAP} /usr/bin/python3 /usr/bin/dash /usr/bin/git", f"{BREAKS} sh /run/breaks/hwcaps.sh {HWCAPS}"],
        "",
    ),
}
CAUSES = {
    "python, sh, git and a folder of the loader": (
        "/usr/bin/python3 is in the list of Debian's python3-minimal, which has no checksum of it",
        "/usr/bin/dash is not as Debian's dash has it",
        "/usr/bin/git is not as Debian's git has it",
        f"{HWCAPS}/libz.so.1 stands where the loader looks, and belongs to nobody",
    )
}


CLAIMS = ("S5 bitsandbytes", "S9 tools")
"""And S10: what an image prints is read of all of them alike."""


@pytest.mark.parametrize(("name", "run_anyway"), [*((name, True) for name in FORGERIES), (BESIDE, False)])
def test_an_image_that_prints_its_own_evidence_gets_no_pass(
    engine: Engine, parent: ImageInfo, claims: ClaimSet, monkeypatch: pytest.MonkeyPatch, name: str, run_anyway: bool
) -> None:
    monkeypatch.setattr(judging, "_FAULTS_SHOWN", 20)
    layers, last = FORGERIES[name]
    looked_at = tuple(one for one in claims.claims if f"{one.id} {one.subject}" in CLAIMS or one.id == "S10")
    faults = [Fault("forged", layer, "", "", "") for layer in [BROKEN, *layers]]
    faults.append(Fault("forged", "", "", "", "", last=last))
    with broken(engine, parent, f"forged-{os.getpid()}", faults) as reference:
        evidence, verdict = validating.measure_and_judge(
            engine, reference, replace(claims, claims=looked_at), (Tier.STATIC,), run_anyway=run_anyway
        )
    found = {f"{one.claim.id} {one.claim.subject}": one for one in verdict.claims}
    assert verdict.overall is Status.FAIL
    assert all(record.of("forged") is None for record in evidence.records)
    assert found["S5 bitsandbytes"].status is Status.FAIL, found["S5 bitsandbytes"].reason
    assert found["S10 files"].status is Status.FAIL and "forge" in found["S10 files"].reason
    told = " ".join(one.reason for one in verdict.claims if one.claim.id == "S10")
    assert not [cause for cause in CAUSES.get(name, ()) if cause not in told]
    was_run = not found["S9 tools"].reason.startswith("nothing of the image was run: S10 ")
    assert was_run is run_anyway


def test_an_image_of_which_one_claim_of_another_tier_is_asked_is_read_first(
    engine: Engine, parent: ImageInfo, claims: ClaimSet
) -> None:
    fault = Fault("forged", FORGER, "", "", "", last=FORGERIES[BESIDE][1])
    with broken(engine, parent, f"forged-unread-{os.getpid()}", [fault]) as reference:
        asked = validating.chosen(claims, (Tier.CPU,), ["=C3 c-extension"])
        evidence, verdict = validating.measure_and_judge(engine, reference, asked, (Tier.CPU,))
    found = {one.claim.id: one for one in verdict.claims}
    assert found["S10"].status is Status.FAIL and "/usr/local/bin/forge.py belongs to nobody" in found["S10"].reason
    assert found["C3"].reason.startswith("nothing of the image was run: S10 files failed: /usr/local/bin/forge.py")
    assert verdict.overall is Status.FAIL and not evidence.of("cpu.compiler")
