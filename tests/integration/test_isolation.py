"""What an image brings by accident does not get in the way of its validation."""

import os
import re

import pytest

from images.building import validating
from images.context.labels import BaseContext
from images.context.templates import EPOCH
from images.engine import ContainerSpec, Engine, ImageInfo
from images.engine.runtime import Stopped
from images.validation import containers
from tests.support.broken_images import SITE, Fault, broken
from tests.support.engine_contents import built
from validate.claims import ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine


def test_an_image_with_a_damaged_file_is_not_run_whatever_was_asked_for(
    engine: Engine, base_image: ImageInfo, claims: ClaimSet
) -> None:
    # The time is kept, and no RECORD is written again: only the content tells.
    damage = f"RUN set {SITE}/safetensors/*.so && printf x >>$1 && touch -d @{EPOCH} $1"
    asked = validating.choose_claims(claims, (Tier.CPU,), ["compiler/triton-launcher"])
    with broken(
        engine, base_image, f"damaged-{os.getpid()}", [Fault("damaged", damage, "", "", "")]
    ) as reference:
        evidence, verdict = validating.measure_and_judge(engine, reference, asked, (Tier.CPU,))
    assert not evidence.record_of("cpu.compiler")
    assert "files" in {one.claim.check for one in verdict.claims_with(Status.FAIL)}
    (compiler,) = (one for one in verdict.claims if one.claim.check == "compiler")
    assert re.search(
        r"was run: .*files/recorded failed: \S*safetensors_rust\S* of safetensors \S+ is altered",
        compiler.reason,
    )


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
