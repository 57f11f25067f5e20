"""What README and docs/ list is what there is: runs on GPUs by digest, verbs, claims, packages, references to pull."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from images import cli
from images.planning import plan
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from validate import checks

_ROW = re.compile(
    r"\| (?P<image>[a-z0-9-]+) \| `(?P<digest>[0-9a-f]{12})` \| (?P<tier>gpu|multigpu) \| [^|]+ "
    r"\| (?P<passed>\d+) \| (?P<unproven>\d+) \|"
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
GPUS = (ROOT / "results" / "gpu.md").read_text(encoding="utf-8")
ROWS = _ROW.findall(GPUS)
RUNS = [json.loads(line) for line in (ROOT / "results" / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


def counts(image: str, digest: str, tier: str) -> list[tuple[str, int, int]]:
    """Verdict and counts of each recorded run of this digest that judged the tier."""
    runs: list[Any] = [run for run in RUNS if run["image"] == image and run["digest"].startswith(f"sha256:{digest}")]
    tiers = [run["tiers"][tier] for run in runs if run["tiers"].get(tier)]
    return [(one["verdict"], one["counts"].get("PASS", 0), one["counts"].get("UNPROVEN", 0)) for one in tiers]


@pytest.mark.parametrize(("image", "digest", "tier", "passed", "unproven"), ROWS)
def test_a_row_of_what_ran_on_gpus_was_recorded(image: str, digest: str, tier: str, passed: str, unproven: str) -> None:
    assert ("PASS", int(passed), int(unproven)) in counts(image, digest, tier)


def test_readme_counts_the_images_that_passed_their_gpu_tier() -> None:
    on_one, on_several = ({row[:2] for row in ROWS if row[2] == tier} for tier in ("gpu", "multigpu"))
    names, planned = {image for image, _digest in on_one}, {one.name for one in plan.plan(SOURCES)}
    assert (len(names), len(names - planned), len(on_one & on_several)) == (22, 4, 5)
    said = "Twenty-two images (four of them outside the matrix) passed their gpu tier on an H100 or H200, five of "
    assert all(f"{said}them also multigpu under the same image ID" in " ".join(text.split()) for text in (README, GPUS))


def test_readme_names_every_verb() -> None:
    commands = README.partition("## Commands")[2].partition("## Documentation")[0]
    assert not {verb for verb in cli.VERBS if not re.search(rf"\b{verb}\b", commands)}


def test_every_claim_is_a_row_of_the_page_on_validation() -> None:
    rows = re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs" / "validation.md").read_text(encoding="utf-8"), re.MULTILINE)
    claims = {key.partition(" ")[0] for _, file in checks.every() for key in file.CLAIMS}
    assert sorted(rows) == sorted(claims)


def test_the_layout_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layout = text.partition("## Layout")[2].partition("## ")[0]
    packages = {path.parent.name for top in ("images", "validate") for path in (ROOT / top).glob("*/__init__.py")}
    assert not {name for name in packages if not re.search(rf"\b{name}/", layout)}


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.name)
def test_references_to_pull_are_those_that_publish_makes(path: Path) -> None:
    """REGISTRY/REPOSITORY:NAME, for enroot REGISTRY#REPOSITORY:NAME: the name is the tag."""
    assert not re.findall(r"\b(?:REGISTRY|HOST)[/#]cu\d+-torch\S+", path.read_text(encoding="utf-8"))
