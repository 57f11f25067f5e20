"""README and docs/ list what there is: runs on GPUs, verbs, claims, packages, references."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from images import cli
from images.site import records
from tests.support.checkout import ROOT
from tests.support.probes import all_probes
from tests.support.sources import SOURCES
from tools import gpu_runs
from validate import hints
from validate.judging import Status

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_counts_the_images_that_passed_their_gpu_tier() -> None:
    assert gpu_runs.passed(gpu_runs.statuses(SOURCES)) in " ".join(README.split())


def test_readme_names_every_verb() -> None:
    commands = README.partition("## Commands")[2].partition("## Documentation")[0]
    assert not {verb for verb in cli.VERBS if not re.search(rf"\b{verb}\b", commands)}


def test_every_claim_is_a_row_of_the_page_on_validation() -> None:
    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    table = page.partition("## Claims")[2].partition("## Several GPUs")[0]
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \|", table, re.MULTILINE))

    judged = set()
    for _, file in all_probes():
        judged.update(key.partition("/")[0] for key in file.CLAIMS)

    assert listed - {"check"} == judged


def test_the_layout_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layout = text.partition("## Layout")[2].partition("## ")[0]

    packages = [*ROOT.glob("images/*/__init__.py"), *ROOT.glob("validate/*/__init__.py")]
    names = {path.parent.name for path in packages}

    assert not {name for name in names if not re.search(rf"\b{name}/", layout)}


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.name)
def test_references_to_pull_are_those_that_publish_makes(path: Path) -> None:
    """They are REGISTRY/REPOSITORY:NAME (for enroot, REGISTRY#REPOSITORY:NAME)."""
    name_as_repository = r"\b(?:REGISTRY|HOST)[/#]cu\d+-torch\S+"

    assert not re.findall(name_as_repository, path.read_text(encoding="utf-8"))


def test_the_page_on_origin_lists_the_recorded_images() -> None:
    page = " ".join((ROOT / "docs" / "reproducible.md").read_text(encoding="utf-8").split())
    record = json.loads((ROOT / "locks" / "layers.json").read_text(encoding="utf-8"))
    images = set()
    for row in record.values():
        images.update(build["image"] for build in row["builds"])

    listed = re.search(r"records (\d+) images: (.*?)\. ", page)
    assert listed
    assert set(re.findall(r"cu\d+-[a-z0-9-]+", listed[2])) == images
    assert int(listed[1]) == len(images)


def test_the_picture_of_the_way_to_a_tag_names_our_verbs_and_verdicts() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "matrix-to-tag.svg")
    texts = [element for element in picture.iter() if element.tag.endswith("}text")]
    verbs = [element.text for element in texts if element.get("class") == "verb"]
    words = re.findall(r"\w+", " ".join(str(element.text) for element in texts))

    steps = [verb for verb in verbs if verb in cli.VERBS]
    assert steps == ["plan", "lock", "build", "validate", "publish"]
    assert set(verbs) - set(steps) == {"matrix.yaml", "NAME", "REGISTRY/REPOSITORY:NAME"}
    assert {word for word in words if word.isupper()} <= {
        *Status.__members__,
        *("CUDA", "NAME", "REGISTRY", "REPOSITORY"),
    }
    assert "](docs/matrix-to-tag.svg)" in README


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/*.svg")), ids=lambda path: path.name)
def test_a_picture_loads_nothing_and_runs_nothing(path: Path) -> None:
    """A reader's browser shows it, and a page may be read without a network."""
    for element in ElementTree.parse(path).iter():
        assert element.tag.rpartition("}")[2] not in ("script", "image", "foreignObject")
        assert not [name for name in element.attrib if name.endswith("href")]


def test_the_comparison_says_of_us_what_is_so() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    gpus = {gpu for line in records.read(ROOT / "results") for gpu in line.gpus}

    for section in re.findall(r"\]\(#([a-z-]+)\)", page):
        headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
        anchors = [
            re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-") for heading in headings
        ]
        assert section in anchors
    # The GPUs of recorded runs, and whether images are published, as README says.
    assert {re.sub(r".*(H100|H200).*", r"\1", gpu) for gpu in gpus} == {"H100", "H200"}
    assert ("**none yet**" in page) is ("**No images are published yet.**" in README)


def test_the_comparison_links_what_shows_that_others_do_not_do_something() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    links = set(re.findall(r"^\[([\w-]+)\]: https://", page, re.MULTILINE))

    # `| no |` without a link, and cells with a link: `| [no][pytorch-dockerfile] |`.
    assert re.findall(r"\| no \|", page) == []
    names = set(re.findall(r"\| \[[\w ]+\]\[([\w-]+)\]", page))
    assert names
    assert names <= links


def test_the_example_of_a_hint_is_what_hint_says_today() -> None:
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    example = page.partition("\nno kernel image is available")[2].partition("```")[0]
    (hint,) = hints.find(["no kernel image is available for execution on the device"])

    for part, text in (("cause", hint.cause), ("fix", hint.fix)):
        (shown,) = re.findall(rf"^  {part}: (.*) \.\.\.$", example, re.MULTILINE)
        assert text.startswith(shown)
