"""Broken images (faults.yaml): each is caught by the check that its row names."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from images.engine import Engine, ImageInfo
from tests.support.broken_images import INSTALL, NAME, SITE, Fault, broken, judged
from validate import judging
from validate.claims import ClaimSet
from validate.judge import ClaimVerdict
from validate.judging import Status

pytestmark = pytest.mark.engine

Found = Mapping[tuple[str, str], ClaimVerdict]
"""Number and subject of a claim -> its verdict."""
_MOUNTS = (
    "RUN --mount=type=bind,source=breaks,target=/run/breaks "
    "--mount=type=bind,source=suite,target=/run/suite "
    "export PYTHONDONTWRITEBYTECODE=1; "
)
WORDS = {
    "{kernels}": f"{_MOUNTS} python3 /run/breaks/kernels.py",
    "{extension}": f"{_MOUNTS} sh /run/breaks/extension.sh",
    "{record}": f"{_MOUNTS} python3 /run/breaks/record.py",
    "{install}": INSTALL,
    "{install under umask 077}": INSTALL.replace("&& pip", "&& umask 077 && pip"),
    "{bitsandbytes}": f"{SITE}/bitsandbytes/libbitsandbytes_cuda126.so",
    "{site}": SITE,
}
"""What layers of faults.yaml say in short."""


def fault(name: str, row: Mapping[str, str]) -> Fault:
    """A row of faults.yaml."""
    layer = row.get("layer", "")
    for word, text in WORDS.items():
        layer = layer.replace(word, text)
    layer = layer if re.match("[A-Z]+ |$", layer) else f"RUN {layer}"
    ((claim, culprit),) = ((key, text) for key, text in row.items() if key not in ("layer", "last"))
    check, subject = claim.split("/", 1)
    return Fault(name, layer, check, subject, culprit, row.get("last", ""))


IMAGES = {
    image: {name: fault(name, row) for name, row in rows.items()}
    for image, rows in yaml.load(
        Path(__file__).with_name("faults.yaml").read_text(), Loader=yaml.CSafeLoader
    ).items()
}
"""Image -> its faults, by their names."""


@pytest.fixture(scope="module")
def found(engine: Engine, claims: ClaimSet, base_image: ImageInfo) -> Callable[[str], Found]:
    """Return a function from an image's name to its verdict, by the claims of its faults.

    Each image is built and judged once.
    """

    @cache
    def of(image: str) -> Found:
        faults = tuple(IMAGES[image].values())
        about = {(fault.claim, fault.subject) for fault in faults}
        asked = tuple(one for one in claims.claims if (one.check, one.subject) in about)
        with (
            broken(engine, base_image, image.replace(" ", "-"), tuple(faults)) as tag,
            pytest.MonkeyPatch.context() as all_shown,
        ):
            all_shown.setattr(judging, "_FAULTS_SHOWN", 200)
            verdict = judged(engine, tag, replace(claims, claims=asked))
        return {(row.claim.check, row.claim.subject): row for row in verdict.claims}

    return of


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(group, name, id=f"{group}: {name}")
        for group, names in IMAGES.items()
        for name in names
    ],
)
def test_each_fault_is_caught_by_the_check_named(
    found: Callable[[str], Found], group: str, name: str
) -> None:
    fault = IMAGES[group][name]
    row = found(group)[fault.claim, fault.subject]
    assert row.status is Status.FAIL, row.reason
    assert fault.culprit in row.reason


def test_none_of_them_is_seen_in_the_base_image(base_image: ImageInfo, out: Path) -> None:
    """The base image's own verdict, of the build that gave it its name."""
    verdict = json.loads((out / NAME / "verdict.json").read_text())
    found = {(row["check"], row["subject"]): row["verdict"] for row in verdict["claims"]}
    assert verdict["digest"] == base_image.digest
    about = {
        (fault.claim, fault.subject) for faults in IMAGES.values() for fault in faults.values()
    }
    assert {key: found.get(key) for key in about} == dict.fromkeys(about, "PASS")
