"""`publish --all-platforms`: the images of a row, whose claims hold for which, and what can't go together."""

import pytest

from images.commands import common, publishing
from images.planning import plan
from images.planning.image import Image
from tests.support.commands import call
from tests.support.sources import SOURCES

AMD64, ARM64 = "cu130-torch211", "cu130-torch211-arm64"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (AMD64, (AMD64, ARM64)),
        (ARM64, (AMD64, ARM64)),
        ("cu126-torch27", ("cu126-torch27",)),
        ("cu130-torch211-py314", ("cu130-torch211-py314",)),
    ],
)
def test_the_images_of_a_row(name: str, row: tuple[str, ...]) -> None:
    assert common.row_of(name, SOURCES) == row


def image(name: str) -> Image:
    (planned,) = plan.select([name], SOURCES)
    assert planned.image is not None
    return planned.image


def labels(name: str, revision: str) -> dict[str, str]:
    return {"dev.truetag.image": name, "dev.truetag.matrix-revision": revision}


def test_each_image_of_a_row_is_held_to_its_own_claims() -> None:
    amd64, arm64 = image(AMD64), image(ARM64)

    def claimed(images: list[Image], name: str, revision: str) -> str:
        found = publishing._claims_of(images, labels(name, revision), SOURCES)
        return found.image if found else ""

    assert claimed([amd64, arm64], AMD64, "x") == AMD64
    assert claimed([amd64, arm64], ARM64, "x") == ARM64
    assert claimed([amd64], ARM64, arm64.revision) == ARM64
    assert claimed([amd64], ARM64, "of another matrix") == "", (
        "it was published before: its attestation's own claims hold"
    )
    assert claimed([amd64], "something-else", "x") == AMD64, "what is published as a name is held to that name"


@pytest.mark.parametrize("option", ["--image", "--attestation"])
def test_an_option_about_one_image_is_refused_for_all_platforms(option: str) -> None:
    done = call("publish", AMD64, "--all-platforms", option, "x", "--to", "registry.test/x")
    assert done.returncode == 2
    assert "--image and --attestation mean one image" in done.stderr and "next: publish each platform's" in done.stderr
