"""Images that print evidence of their own: none of it is taken, a claim fails, and the cause is named."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from images.building import validating
from images.context.labels import BaseContext
from images.context.templates import EPOCH
from images.engine import ContainerSpec, Engine, ImageInfo
from images.engine.runtime import Stopped
from images.errors import UserError
from images.validation import containers, own_python
from images.validation.containers import INSIDE
from tests.support.broken_images import BREAKS as PROGRAMS
from tests.support.broken_images import SITE, Fault, broken
from tests.support.engine_contents import built
from validate import judging
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Record
from validate.judging import Status

pytestmark = pytest.mark.engine

BREAKS = "RUN --mount=type=bind,source=breaks,target=/run/breaks"
FORGER = f"{BREAKS} cp /run/breaks/forge.py /usr/local/bin/forge.py"
WRAP = f"{BREAKS} sh /run/breaks/wrap.sh"
HWCAPS = "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2"
BESIDE = 'HEALTHCHECK --interval=1s CMD ["python3", "-I", "-S", "/usr/local/bin/forge.py"]'
PTH = f"RUN echo \"import runpy; runpy.run_path('/usr/local/bin/forge.py')\" > {SITE}/forge.pth"
FORGERIES = [
    f"RUN rm {SITE}/bitsandbytes/libbitsandbytes_cuda126.so",
    FORGER,
    PTH,
    f"{BREAKS} sh /run/breaks/hwcaps.sh {HWCAPS}",
    f"{BREAKS} gcc -shared -fPIC -o /usr/lib/libforge.so /run/breaks/forge.c",
    f"{WRAP} /usr/bin/python3 /usr/bin/dash /usr/bin/git",
    "RUN echo /usr/lib/libforge.so > /etc/ld.so.preload",
]
"""Layers. None hinders another: each process that starts forges, and one beside the suite does."""
CAUSES = (
    "/usr/local/bin/forge.py belongs to nobody",
    "forge.pth is loaded by Python, at each start",
    "/usr/lib/libforge.so belongs to nobody",
    "/etc/ld.so.preload is loaded by every program",
    "/usr/bin/python3 is in the list of Debian's python3-minimal, which has no checksum of it",
    "/usr/bin/dash is not as Debian's dash has it",
    "/usr/bin/git is not as Debian's git has it",
    f"{HWCAPS}/libz.so.1 stands where the loader looks, and belongs to nobody",
)
"""What is told of them."""
CLAIMS = ("S10 files", "S10 lookup", "S10 packages", "S5 bitsandbytes", "C2 bitsandbytes")
"""The forged record is of the probe of the last, which runs programs of the image."""


def test_an_image_that_prints_its_own_evidence_gets_no_pass(
    engine: Engine, parent: ImageInfo, claims: ClaimSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "_FAULTS_SHOWN", 20)
    looked_at = tuple(one for one in claims.claims if f"{one.id} {one.subject}" in CLAIMS)
    faults = [*(Fault("forged", one, "", "", "") for one in FORGERIES), Fault("", "", "", "", "", last=BESIDE)]
    with broken(engine, parent, f"forged-{os.getpid()}", faults) as reference:
        evidence, verdict = validating.measure_and_judge(
            engine, reference, replace(claims, claims=looked_at), (Tier.STATIC, Tier.CPU), run_anyway=True
        )
    found = {f"{one.claim.id} {one.claim.subject}": one for one in verdict.claims}
    assert verdict.overall is Status.FAIL
    assert all(record.of("forged") is None for record in evidence.records)
    assert found["S5 bitsandbytes"].status is Status.FAIL, found["S5 bitsandbytes"].reason
    assert found["S10 files"].status is Status.FAIL and "forge" in found["S10 files"].reason
    told = " ".join(one.reason for one in verdict.claims if one.claim.id == "S10")
    assert not [cause for cause in CAUSES if cause not in told], told
    assert not found["C2 bitsandbytes"].reason.startswith("nothing of the image was run")


def test_an_image_of_which_one_claim_of_another_tier_is_asked_is_read_first(
    engine: Engine, parent: ImageInfo, claims: ClaimSet
) -> None:
    fault = Fault("forged", FORGER, "", "", "", last=BESIDE)
    with broken(engine, parent, f"forged-unread-{os.getpid()}", [fault]) as reference:
        asked = validating.chosen(claims, (Tier.CPU,), ["=C3 c-extension"])
        evidence, verdict = validating.measure_and_judge(engine, reference, asked, (Tier.CPU,))
    found = {one.claim.id: one for one in verdict.claims}
    assert found["S10"].status is Status.FAIL and "/usr/local/bin/forge.py belongs to nobody" in found["S10"].reason
    assert found["C3"].reason.startswith("nothing of the image was run: S10 files failed: /usr/local/bin/forge.py")
    assert verdict.overall is Status.FAIL and not evidence.of("cpu.compiler")
    altered = f"RUN set {SITE}/safetensors/*.so && printf x >>$1 && touch -d @{EPOCH} $1"
    with broken(engine, parent, f"altered-{os.getpid()}", [Fault("altered", altered, "", "", "")]) as reference:
        evidence, verdict = validating.measure_and_judge(engine, reference, asked, (Tier.CPU,))
    assert {one.claim.id for one in verdict.of(Status.FAIL)} == {"S2"}, "no RECORD was written, and no time is another"
    (compiler,) = (one for one in verdict.claims if one.claim.id == "C3")
    assert re.search(r"was run: S2 files failed: \S*safetensors_rust\S* of safetensors \S+ is altered", compiler.reason)


def test_the_reader_of_files_loads_no_library_that_the_image_names(
    engine: Engine, parent: ImageInfo, claims: ClaimSet
) -> None:
    """By OpenSSL's settings, which each hash reads, or from a volume among our files: in the process that signs."""
    named = "openssl_conf = a\\n[a]\\nproviders = b\\n[b]\\nc = d\\n[d]\\nmodule = /usr/lib/forge.so\\nactivate = 1\\n"
    forge = f"{BREAKS} gcc -shared -fPIC -o /usr/lib/forge.so /run/breaks/forge.c"
    place = f"RUN rm -f /usr/lib/ssl/openssl.cnf && mkdir -p /usr/lib/ssl && printf '{named}' >/usr/lib/ssl/openssl.cnf"
    faults = [Fault("forged", line, "", "", "") for line in (forge, place, "ENV OPENSSL_CONF=/usr/lib/ssl/openssl.cnf")]
    with broken(engine, parent, f"openssl-{os.getpid()}", faults) as reference:
        image, claims = engine.inspect(reference), claims.about(["=S10 wheels"])
        read = ["--claims", f"{INSIDE}/claims.json", *containers.OF_USER], claims, own_python.user_of(image)
        said, end, _ = own_python._read(engine, image, *read, timeout=600)
    linked = f"RUN mkdir -p /opt/own/python/lib && ln -s own /opt/link && ln -s /opt/link {INSIDE}"
    volume = Fault("forged", f"{linked}\nVOLUME /opt/own/python/lib", "", "", "")
    between = broken(engine, parent, f"volume-{os.getpid()}", [volume])
    with between as reference, pytest.raises(UserError, match="declares volumes"):
        own_python._read(engine, engine.inspect(reference), *read, timeout=600)
    assert end.code == 0 and not [line for line in said if "forged" in line]


def test_output_without_end_is_not_kept(engine: Engine, base: BaseContext) -> None:
    with pytest.raises(Stopped, match="printed more than 67 MB"):
        containers.run_suite(engine, ContainerSpec(base.reference, ["yes", "x" * 4000]), {}, timeout=600)


@pytest.mark.parametrize("user", ["0", "1001"])
def test_a_process_beside_the_suite_of_the_same_user_can_sign_no_record(
    engine: Engine, base: BaseContext, user: str
) -> None:
    """It runs while the suite waits for its own record, and looks for the key."""
    claim = Claim(id="C1", subject="own", tier=Tier.CPU, probe="cpu.forges", statement="-")
    probe = "import runpy\n\ndef measure(claims):\n    runpy.run_path('/judge/forge.py')\n    yield 'own', {}\n"
    planted: dict[str, bytes | Path] = {
        "validate/checks/cpu/forges.py": probe.encode(),
        "forge.py": PROGRAMS / "forge.py",
    }
    suite = containers.suite_files(ClaimSet(image="a", claims=(claim,)))
    spec = ContainerSpec(
        base.reference,
        [*own_python.command(INSIDE), f"{INSIDE}/validate", "--claims", f"{INSIDE}/claims.json"],
        volumes=[INSIDE],
        tmpfs={"/tmp": "rw,mode=1777"},
        env={**own_python.environment(INSIDE), "TMPDIR": "/tmp"},
        user=user,
    )
    files = {INSIDE: {**own_python.files(INSIDE), **suite, **planted}}
    found = list[Record]()
    others, *_ = containers.run_suite(engine, spec, files, timeout=600, asked=["cpu.forges"], on_record=found.append)
    assert any('"forged"' in line for line in others), "it reached the suite's output"
    assert [[one.subject for one in record.measurements] for record in found] == [["own"]]


def test_nothing_that_an_image_says_of_its_start_has_a_part_in_a_container(engine: Engine, base: BaseContext) -> None:
    init = "RUN printf '#!/bin/sh\\necho forged\\n' >/sbin/docker-init && chmod 755 /sbin/docker-init"
    start = ['SHELL ["echo", "forged"]', 'ENTRYPOINT ["echo", "forged"]', "CMD forged", "ONBUILD RUN false"]
    lines = [f"FROM {base.reference}", init, *start, "HEALTHCHECK --interval=1s CMD echo forged", ""]
    with built(engine, f"truetag-test-start-{os.getpid()}", "\n".join(lines)) as tag:
        for is_init, first in ((True, "docker-init"), (False, "cat")):
            with engine.container(ContainerSpec(tag, ["cat", "/proc/1/comm"], init=is_init)) as box:
                assert box.run(300).stdout == f"{first}\n"
                said = engine.sdk.inspect_container(box.id)
                assert said["Config"]["Healthcheck"]["Test"] == ["NONE"] and "Health" not in said["State"]
