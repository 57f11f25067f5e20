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

PLANNED = {planned.name: planned for planned in plan.plan(SOURCES)}
NAME = re.compile(r"\bcu\d{2,3}-torch\d+(?:-[a-z0-9]+)*")
TAGGED = re.compile(r"-candidate$|-\d{8}-[0-9a-f]{12}$")
"""What tags add to a name."""
REFUSED_ON_PURPOSE = {"cu118-torch215": "README.md and docs/matrix.md show how the plan refuses it"}
OF_EXAMPLES = {"cu126-torch27-tracking": "a matrix in docs/matrix.md, whose profile ours has not"}
GENERATED = re.compile(r"<!-- generated.*?<!-- /generated -->", re.DOTALL)
HINTS = {row.id: row for row in hints.known()}
DOCUMENTS = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md"))


def why_unavailable(name: str) -> str:
    """Return why nobody can build an image of the matrix; empty if it can be built."""
    planned = PLANNED.get(name)
    if planned is None:
        return f"{name} is no image of the matrix"
    if planned.image is None:
        return f"{name} is refused: {'; '.join(planned.reasons)}"
    state, *_ = lock_file.state(planned.image, CHECKOUT.locks)
    return lock_file.why_blocked(planned.image, state)


def faults(text: str) -> list[str]:
    """Return what is wrong with the images that a fix names.

    Each must be there. Who speaks of `-devel` images must name one, as not every image has one.
    """
    names = NAME.findall(text)
    reasons = [why_unavailable(name) for name in names]
    found = [reason for reason in reasons if reason]
    speaks_of_devel = re.search(r"-devel\b", NAME.sub("", text))
    if speaks_of_devel and not any(name.endswith("-devel") for name in names):
        found.append("names no -devel image that there is")
    return found


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_names_images_that_can_be_built(hint: str) -> None:
    assert not faults(f"{HINTS[hint].cause} {HINTS[hint].fix}")


def test_a_hint_that_leads_to_no_image_is_found() -> None:
    assert faults("Use a -devel image.") == ["names no -devel image that there is"]
    assert faults("Take cu128-torch28-devel.") == ["cu128-torch28-devel is no image of the matrix"]
    assert "is refused" in faults("Take cu118-torch25.")[0]
    assert not faults("Use a -devel image (cu124-torch26-devel).")


def test_rows_of_pages_name_images_that_can_be_built() -> None:
    text = (paths.DATA / "pages.yaml").read_text(encoding="utf-8")

    reasons = [why_unavailable(name) for name in NAME.findall(text)]

    assert not [reason for reason in reasons if reason]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_images_that_the_plan_accepts(path: Path) -> None:
    text = GENERATED.sub("", path.read_text(encoding="utf-8"))
    names = {TAGGED.sub("", name) for name in NAME.findall(text)}

    for name in names - set(REFUSED_ON_PURPOSE) - set(OF_EXAMPLES):
        planned = PLANNED.get(name) or plan.plan_one(ImageName.parse(name), SOURCES)
        assert planned.image, f"{name}: {'; '.join(planned.reasons)}"
    refused = plan.plan_one(ImageName.parse("cu118-torch215"), SOURCES)
    assert not refused.image, "the excuse is out of date"


@pytest.mark.parametrize(
    "name", ["cu126-torch27-devel", "cu128-torch28-devel", "cu118-torch25-devel"]
)
def test_a_refused_devel_image_is_answered_with_images_that_can_be_built(name: str) -> None:
    reasons = "; ".join(plan.plan_one(ImageName.parse(name), SOURCES).reasons)

    offered = [found for found in NAME.findall(reasons) if found.endswith("-devel")]

    assert offered
    assert not [found for found in offered if why_unavailable(found)]
