"""Validation runs are judged again, and refused where they were edited."""

import json
from pathlib import Path
from typing import Any

import pytest

from images.errors import UserError
from images.publish import attestation
from tests.support.attested import DIGEST, NAME, PIP, evidence, files, judged
from tests.support.engine_contents import image_info


def test_a_run_is_judged_again() -> None:
    verdict_file, evidence_file = files(evidence(PIP))
    assert attestation.read(evidence_file, "here", verdict_file).verdict == judged(PIP)
    assert attestation.read(evidence_file, "here").verdict == judged(PIP)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v, e: (v.replace(b'"PASS"', b'"FAIL"'), e), "not what the evidence says"),
        (lambda v, e: (v, e.replace(b'"26.3"', b'"26.4"')), "changed after it was measured"),
        (lambda v, e: (v.replace(b"ab", b"cd"), e), "the verdict is of cu126-torch27 sha256:cdcd"),
        (lambda v, e: (b"{}", e), "is no attestation"),
        (lambda v, e: (v, b"nonsense"), "is no attestation"),
        (lambda v, e: (json.dumps({**json.loads(v), "claims": []}).encode(), e), "S1 pip is PASS"),
    ],
)
def test_a_run_that_was_edited_is_refused(change: Any, words: str) -> None:
    verdict_file, evidence_file = change(*files(evidence(PIP)))
    with pytest.raises(UserError, match=words):
        attestation.read(evidence_file, "here", verdict_file)


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
    for file, content in zip(("verdict.json", "evidence.json"), files(evidence(PIP)), strict=True):
        (tmp_path / file).write_bytes(content)
    assert attestation.read_folder(tmp_path, NAME, image_info(id=DIGEST)).verdict == judged(PIP)
    with pytest.raises(UserError, match=words):
        attestation.read_folder(tmp_path, name, image_info(id=image_id))
