"""Every image that a hint, a page's row or a document names is one that can be had."""

import re
from pathlib import Path

import pytest

from images.config import paths
from images.config.names import ImageName
from images.config.paths import CHECKOUT
from images.locking import lock_file
from images.planning import plan
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from validate import hints

PLANNED = {one.name: one for one in plan.plan(SOURCES)}
NAME = re.compile(r"\bcu\d{2,3}-torch\d+(?:-[a-z0-9]+)*")
TAGGED = re.compile(r"-candidate$|-\d{8}-[0-9a-f]{12}$")
"""What tags add to a name."""
REFUSED_ON_PURPOSE = {"cu118-torch215": "README.md and docs/matrix.md show how the plan refuses it"}
ROWS = {row.id: row for row in hints.known()}
DOCUMENTS = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md"))


def unavailable(name: str) -> str:
    """Why nobody can build an image of the matrix; empty if it can be built."""
    planned = PLANNED.get(name)
    if planned is None:
        return f"{name} is no image of the matrix"
    if planned.image is None:
        return f"{name} is refused: {'; '.join(planned.reasons)}"
    return lock_file.why_blocked(planned.image, lock_file.state(planned.image, CHECKOUT.locks)[0])


def faults(text: str) -> list[str]:
    """What is wrong with the images that a fix names: each must be there, and `-devel` alone is no image."""
    named = NAME.findall(text)
    found = [why for name in named if (why := unavailable(name))]
    if re.search(r"-devel\b", NAME.sub("", text)) and not any(
        name.endswith("-devel") for name in named
    ):
        found.append("names no -devel image that there is")
    return found


@pytest.mark.parametrize("row", ROWS)
def test_a_hint_names_images_that_can_be_built(row: str) -> None:
    assert not faults(f"{ROWS[row].cause} {ROWS[row].fix}")


def test_a_hint_that_leads_to_no_image_is_found() -> None:
    assert faults("Use a -devel image.") == ["names no -devel image that there is"]
    assert faults("Take cu128-torch28-devel.") == ["cu128-torch28-devel is no image of the matrix"]
    assert "is refused" in faults("Take cu118-torch25.")[0]
    assert not faults("Use a -devel image (cu124-torch26-devel).")


def test_rows_of_pages_name_images_that_can_be_built() -> None:
    text = (paths.DATA / "pages.yaml").read_text(encoding="utf-8")
    assert not [why for name in NAME.findall(text) if (why := unavailable(name))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_images_that_the_plan_accepts(path: Path) -> None:
    text = re.sub(
        r"<!-- generated.*?<!-- /generated -->",
        "",
        path.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    for name in {TAGGED.sub("", found) for found in NAME.findall(text)} - set(REFUSED_ON_PURPOSE):
        planned = PLANNED.get(name) or plan.plan_one(ImageName.parse(name), SOURCES)
        assert planned.image, f"{name}: {'; '.join(planned.reasons)}"
    assert not plan.plan_one(ImageName.parse("cu118-torch215"), SOURCES).image, (
        "the excuse is out of date"
    )


@pytest.mark.parametrize(
    "name", ["cu126-torch27-devel", "cu128-torch28-devel", "cu118-torch25-devel"]
)
def test_a_refused_devel_image_is_answered_with_images_that_can_be_built(name: str) -> None:
    reasons = "; ".join(plan.plan_one(ImageName.parse(name), SOURCES).reasons)
    offered = [found for found in NAME.findall(reasons) if found.endswith("-devel")]
    assert offered and not [why for found in offered if (why := unavailable(found))]
