"""What README says ran on GPUs is what results/runs.jsonl has of the same digest."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.checkout import ROOT

_ROW = re.compile(
    r"\| (?P<image>[a-z0-9-]+) \| `(?P<digest>[0-9a-f]{12})` \| (?P<tier>gpu|multigpu) \| [^|]+ "
    r"\| (?P<passed>\d+) \| (?P<unproven>\d+) \|"
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = _ROW.findall(README)
RUNS = [json.loads(line) for line in (ROOT / "results" / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


def counts(image: str, digest: str, tier: str) -> list[tuple[str, int, int]]:
    """Verdict and counts of each recorded run of this digest that judged the tier."""
    runs: list[Any] = [run for run in RUNS if run["image"] == image and run["digest"].startswith(f"sha256:{digest}")]
    tiers = [run["tiers"][tier] for run in runs if run["tiers"].get(tier)]
    return [(one["verdict"], one["counts"].get("PASS", 0), one["counts"].get("UNPROVEN", 0)) for one in tiers]


@pytest.mark.parametrize(("image", "digest", "tier", "passed", "unproven"), ROWS)
def test_a_row_of_what_ran_on_gpus_is_a_recorded_run(
    image: str, digest: str, tier: str, passed: str, unproven: str
) -> None:
    assert ("PASS", int(passed), int(unproven)) in counts(image, digest, tier)


def test_readme_counts_the_images_that_passed_their_gpu_tier() -> None:
    listed = {image for image, _digest, tier, _passed, _unproven in ROWS if tier == "gpu"}
    assert len(listed) == 12 and "Twelve images of the matrix passed their gpu tier" in README
