"""The table of official wheels: each row is one wheel that some image could take, and no row contradicts its file."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from images.config.facts import PrebuiltRelease
from images.config.names import Minor
from images.planning.candidate import Candidate
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES

FACTS = SOURCES.facts
WHEELS = [(release, wheel) for release in FACTS.prebuilt for wheel in release.wheels]
ROW = {
    "torch": "2.7",
    "cuda": 12,
    "cxx11_abi": True,
    "python": "3.11",
    "file": "causal_conv1d-1.6.2.post1+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl",
    "sha256": "0" * 64,
}


def release(**changes: object) -> PrebuiltRelease:
    own = {key: changes.pop(key) for key in ("package", "version", "address") if key in changes}
    usual = {
        "package": "causal-conv1d",
        "version": "1.6.2.post1",
        "address": "https://example.invalid/v1/",
    }
    wheels = [{**ROW, **changes}]
    return PrebuiltRelease.model_validate(
        {**usual, "archs": ["9.0"], "source": "a list", "wheels": wheels, **own}
    )


def test_no_two_wheels_are_the_same_and_none_serves_a_combination_twice() -> None:
    assert (
        len({wheel.sha256 for _, wheel in WHEELS})
        == len({wheel.file for _, wheel in WHEELS})
        == len(WHEELS)
    )
    keys = {
        (one.package, one.version, at.torch, at.cuda, at.cxx11_abi, at.python) for one, at in WHEELS
    }
    assert len(keys) == len(WHEELS)


def test_each_wheel_goes_with_a_torch_and_a_base_that_exist() -> None:
    builds = {
        (str(Minor.parse(torch)), Minor.parse(cuda).major, variant.cxx11_abi)
        for torch, row in FACTS.torch.items()
        for cuda, variant in row.variants.items()
    }
    pythons = {base.python for base in SOURCES.matrix.bases.values()}
    for _, wheel in WHEELS:
        assert (wheel.torch, wheel.cuda, wheel.cxx11_abi) in builds and wheel.python in pythons, (
            wheel.file
        )


def test_each_wheel_is_found_for_its_build_and_no_other_by_one_mechanism() -> None:
    """Every row of every package, asked for as the plan asks."""
    for release, wheel in WHEELS:
        candidate: Any = SimpleNamespace(
            facts=FACTS,
            name=SimpleNamespace(torch=Minor.parse(wheel.torch)),
            wheel_cuda=Minor(wheel.cuda, 0),
            variant=SimpleNamespace(cxx11_abi=wheel.cxx11_abi),
            base=SimpleNamespace(python=Minor.parse(wheel.python)),
        )
        found = Candidate.find_official_wheel(candidate, release.package, release.version)
        assert found is not None and (found.filename, found.sha256) == (wheel.file, wheel.sha256)
        assert found.url == release.address + wheel.file.replace("+", "%2B")
        assert [arch.capability for arch in found.archs] == sorted(
            release.archs, key=lambda text: Minor.parse(text)
        )
        assert Candidate.find_official_wheel(candidate, release.package, "0.0.1") is None


def test_no_code_that_takes_wheels_knows_a_package_by_name() -> None:
    names = {
        name for one in FACTS.prebuilt for name in (one.package, one.package.replace("-", "_"))
    }
    folders = [
        ROOT / "images" / name
        for name in ("wheels", "planning/rules", "locking", "building", "context")
    ]
    files = [path for folder in folders for path in folder.glob("*.py")]
    files += [ROOT / "images/planning" / f"{name}.py" for name in ("candidate", "plan")]
    assert len(files) > 20
    said = {path.name: name for path in files for name in names if name in path.read_text()}
    assert said == {}


def test_what_has_an_official_wheel_can_be_compiled_for_other_builds() -> None:
    for found in FACTS.prebuilt:
        assert FACTS.packages[found.package][found.version].form == "cuda-source"
        assert found.version in SOURCES.matrix.sources[found.package].releases


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"torch": "2.8"}, "build cu12torch2.7cxx11abitrue"),
        ({"cuda": 13}, "build cu12torch2.7cxx11abitrue"),
        ({"cxx11_abi": False}, "build cu12torch2.7cxx11abitrue"),
        ({"python": "3.12"}, "tags cp311-cp311-linux_x86_64"),
        ({"package": "mamba-ssm"}, "package causal-conv1d"),
        ({"version": "1.7.0"}, "version 1.6.2.post1"),
        ({"file": ROW["file"].replace("x86_64", "aarch64")}, "tags cp311-cp311-linux_aarch64"),  # type: ignore[attr-defined]
        ({"file": "causal_conv1d.zip"}, "causal_conv1d.zip"),
        ({"sha256": "0" * 63}, "should match pattern"),
        ({"sha256": ""}, "should match pattern"),
        ({"address": "http://example.invalid/v1/"}, "should match pattern"),
        ({"address": "https://example.invalid/v1"}, "should match pattern"),
    ],
)
def test_a_row_that_contradicts_its_file_or_has_no_hash_is_refused(
    changes: dict[str, object], said: str
) -> None:
    assert release().wheels[0].torch == "2.7"
    with pytest.raises(ValidationError, match=said):
        release(**changes)
