"""Validation runs are judged again, and refused where they were edited."""

from collections.abc import Callable
from pathlib import Path

import pytest

from images.errors import UserError
from images.publish import attestation
from tests.support.attested import DIGEST, NAME, PIP, evidence, judged
from tests.support.engine_contents import image_info


def test_a_run_is_judged_again() -> None:
    assert attestation.read(evidence(PIP).dumps().encode(), "here").verdict == judged(PIP)


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda e: e.replace(b'"26.3"', b'"26.4"'), "changed after it was measured"), (lambda _: b"no JSON", "no attest")],
)
def test_a_run_that_was_edited_is_refused(change: Callable[[bytes], bytes], words: str) -> None:
    with pytest.raises(UserError, match=words):
        attestation.read(change(evidence(PIP).dumps().encode()), "here")


@pytest.mark.parametrize(
    ("name", "image_id", "words"),
    [
        (NAME, "sha256:" + "1" * 64, f"is the attestation of {NAME} sha256:abab"),
        ("cu128-torch28", DIGEST, "the image is cu128-torch28"),
    ],
)
def test_the_run_of_another_image_is_refused(tmp_path: Path, name: str, image_id: str, words: str) -> None:
    with pytest.raises(UserError, match="there is no attestation"):
        attestation.read_folder(tmp_path, name, image_info(id=image_id))
    (tmp_path / "evidence.json").write_text(evidence(PIP).dumps())
    assert attestation.read_folder(tmp_path, NAME, image_info(id=DIGEST)).verdict == judged(PIP)
    with pytest.raises(UserError, match=words):
        attestation.read_folder(tmp_path, name, image_info(id=image_id))
