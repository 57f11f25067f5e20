"""examples/: listed, current, paired with a real configuration, and each one claimed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.config.paths import EXAMPLES as FOLDER
from images.validation.claims.examples import EXAMPLES, Example
from images.validation.containers import suite_files
from tests.support.cases import cases
from validate.claims import Claim, ClaimSet, Tier
from validate.examples.evidence import ADAPTERS

CONFIGURATIONS = sorted(
    path
    for path in FOLDER.glob("*/*.yaml")
    if path.parent.name != "kubernetes" and not path.stem.endswith("-real")
)
SIZES = set(cases(__file__, "sizes"))
"""What a real configuration may have otherwise: the model's name, and sizes."""


def named(path: Path) -> str:
    return str(path.relative_to(FOLDER))


def flat(config: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield from (
            flat(value, f"{at}{key}.") if isinstance(value, dict) else [(f"{at}{key}", value)]
        )


def test_the_data_is_current_and_small() -> None:
    subprocess.run([sys.executable, str(FOLDER / "data" / "make.py"), "--check"], check=True)
    for path in (FOLDER / "data").glob("*.jsonl"):
        assert path.read_text().count("\n") == 400 and path.stat().st_size < 100_000


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=named)
def test_a_real_configuration_differs_in_model_and_sizes_alone(path: Path) -> None:
    tiny, real = (
        dict(flat(yaml.safe_load(one.read_text())))
        for one in (path, path.with_stem(f"{path.stem}-real"))
    )
    assert set(tiny) == set(real)
    differing = {key.rpartition(".")[2] for key in tiny if tiny[key] != real[key]}
    assert differing and differing <= SIZES


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=named)
def test_every_example_is_listed_and_claimed(path: Path) -> None:
    claimed = {f"{example.family.folder}/{example.config}.yaml": example for example in EXAMPLES}
    example = claimed[named(path)]
    (row,) = (
        line
        for line in (FOLDER / "README.md").read_text().splitlines()
        if f"({named(path)})" in line
    )
    assert all(f"`{command}`" in row for command in example.training_commands())
    assert ", ".join(example.tiers) in row
    assert ("nothing is claimed: " in row) == (not example.tiers)


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.subject for example in EXAMPLES])
def test_every_claim_has_its_files(example: Example) -> None:
    assert (FOLDER / example.family.folder / f"{example.config}.yaml").is_file()
    assert example.run()["adapter"] in ADAPTERS


def test_a_container_gets_the_examples_that_its_claims_name_and_no_other() -> None:
    def asking(folder: str) -> Claim:
        expect = {"example": {"folder": folder}}
        return Claim(
            check="cpu-examples",
            subject=folder,
            tier=Tier.CPU,
            probe="cpu.examples",
            statement="x",
            expect=expect,
        )

    def carried_by(*claims: Claim) -> set[str]:
        return {
            name
            for name in suite_files(ClaimSet(image="a", claims=claims))
            if name.startswith("examples/")
        }

    carried = carried_by(asking("transformers"))
    assert {
        "examples/tiny.py",
        "examples/data/questions.jsonl",
        "examples/transformers/trainer.yaml",
    } <= carried
    assert {name.split("/")[1] for name in carried if name.count("/") > 1} == {
        "data",
        "transformers",
    }
    shared = carried_by()
    assert {"examples/tiny.py", "examples/data/questions.jsonl"} <= shared, (
        "every image has the model and the data"
    )
    assert {name.split("/")[1] for name in shared if name.count("/") > 1} == {"data"}
