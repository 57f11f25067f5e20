"""What an image brings by accident does not get in the way of its validation."""

import os
import re
from dataclasses import replace

import pytest

from images.building import validating
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine, ImageInfo
from images.engine.runtime import Stopped
from images.validation import containers
from tests.support.broken_images import Fault, broken
from tests.support.engine_contents import built
from validate.claims import ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine


def test_an_image_with_a_broken_file_is_not_run_whatever_was_asked_for(
    engine: Engine, base_image: ImageInfo, claims: ClaimSet
) -> None:
    asked = validating.choose_claims(claims, (Tier.CPU,), ["compiler/triton-launcher"])
    # Modes are read in seconds. Of an altered file, faults.yaml shows that its claim fails.
    modes = tuple(claim for claim in asked.admission if claim.check == "modes")
    asked = replace(asked, admission=modes)
    fault = Fault("closed", "RUN chmod 600 /etc/group", "", "", "")
    with broken(engine, base_image, f"closed-{os.getpid()}", [fault]) as reference:
        evidence, verdict = validating.measure_and_judge(engine, reference, asked, (Tier.CPU,))

    assert not evidence.record_of("cpu.compiler")
    assert "modes" in {row.claim.check for row in verdict.claims_with(Status.FAIL)}
    (compiler,) = (row for row in verdict.claims if row.claim.check == "compiler")
    assert re.search(r"was run: .*modes/users failed: /etc/group has mode 600", compiler.reason)


def test_output_without_end_is_not_kept(engine: Engine, base: BaseContext) -> None:
    with pytest.raises(Stopped, match="printed more than 67 MB"):
        containers.run_suite(
            engine, ContainerSpec(base.reference, ["yes", "x" * 4000]), {}, timeout=600
        )


def test_nothing_that_an_image_says_of_its_start_has_a_part_in_a_container(
    engine: Engine, base: BaseContext
) -> None:
    init = (
        "RUN printf '#!/bin/sh\\necho other\\n' >/sbin/docker-init && chmod 755 /sbin/docker-init"
    )
    start = [
        'SHELL ["echo", "other"]',
        'ENTRYPOINT ["echo", "other"]',
        "CMD other",
        "ONBUILD RUN false",
    ]
    lines = [f"FROM {base.reference}", init, *start, "HEALTHCHECK --interval=1s CMD echo other", ""]
    with built(engine, f"truetag-test-start-{os.getpid()}", "\n".join(lines)) as tag:
        for is_init, first in ((True, "docker-init"), (False, "cat")):
            with engine.container(ContainerSpec(tag, ["cat", "/proc/1/comm"], init=is_init)) as box:
                assert box.run(300).stdout == f"{first}\n"
                said = engine.sdk.inspect_container(box.id)
                assert (
                    said["Config"]["Healthcheck"]["Test"] == ["NONE"]
                    and "Health" not in said["State"]
                )
