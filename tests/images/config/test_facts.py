"""The table of official wheels: some image could take each, and each fits its file's name."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from images.config.facts import PrebuiltRelease, PrebuiltWheel
from images.config.names import Minor
from images.planning.candidate import Candidate
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES

FACTS = SOURCES.facts
WHEELS = [(release, wheel) for release in FACTS.prebuilt for wheel in release.wheels]
FILE = "causal_conv1d-1.6.2.post1+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"


# --- the rows of the table ------------------------------------------------------------------------


def test_no_wheel_stands_twice() -> None:
    assert len({wheel.sha256 for _, wheel in WHEELS}) == len(WHEELS)
    assert len({wheel.file for _, wheel in WHEELS}) == len(WHEELS)


def test_each_combination_has_one_wheel() -> None:
    combinations = set()
    for release, wheel in WHEELS:
        build = (wheel.torch, wheel.cuda, wheel.cxx11_abi, wheel.python)
        combinations.add((release.package, release.version, *build))

    assert len(combinations) == len(WHEELS)


def test_each_wheel_goes_with_a_torch_and_a_python_that_we_have() -> None:
    builds_of_torch = set()
    for torch, row in FACTS.torch.items():
        for cuda, variant in row.variants.items():
            build = (str(Minor.parse(torch)), Minor.parse(cuda).major, variant.cxx11_abi)
            builds_of_torch.add(build)
    pythons = {base.python for base in SOURCES.matrix.bases.values()}

    for _, wheel in WHEELS:
        assert (wheel.torch, wheel.cuda, wheel.cxx11_abi) in builds_of_torch, wheel.file
        assert wheel.python in pythons, wheel.file


def candidate_for(wheel: PrebuiltWheel) -> Any:
    """Return what `find_official_wheel` reads of a candidate, for the build of a wheel."""
    return SimpleNamespace(
        facts=FACTS,
        name=SimpleNamespace(torch=Minor.parse(wheel.torch)),
        wheel_cuda=Minor(wheel.cuda, 0),
        variant=SimpleNamespace(cxx11_abi=wheel.cxx11_abi),
        base=SimpleNamespace(python=Minor.parse(wheel.python)),
    )


def test_each_wheel_is_found_for_its_own_build() -> None:
    for release, wheel in WHEELS:
        found = Candidate.find_official_wheel(
            candidate_for(wheel), release.package, release.version
        )

        assert found is not None
        assert (found.filename, found.sha256) == (wheel.file, wheel.sha256)
        assert found.url == release.address + wheel.file.replace("+", "%2B")
        archs = [arch.capability for arch in found.archs]
        assert archs == sorted(release.archs, key=lambda text: Minor.parse(text))


def test_no_wheel_is_found_for_another_version() -> None:
    for release, wheel in WHEELS:
        candidate = candidate_for(wheel)

        assert Candidate.find_official_wheel(candidate, release.package, "0.0.1") is None


def test_a_package_with_official_wheels_can_be_compiled_for_other_builds() -> None:
    for release in FACTS.prebuilt:
        assert FACTS.packages[release.package][release.version].form == "cuda-source"
        assert release.version in SOURCES.matrix.sources[release.package].releases


def test_no_code_that_takes_wheels_names_a_package() -> None:
    names = set()
    for release in FACTS.prebuilt:
        names.update((release.package, release.package.replace("-", "_")))
    folders = ("wheels", "planning/rules", "locking", "building", "context")
    files = [path for folder in folders for path in (ROOT / "images" / folder).glob("*.py")]
    files += [ROOT / "images/planning" / f"{name}.py" for name in ("candidate", "plan")]
    assert len(files) > 20

    for path in files:
        text = path.read_text()
        assert not [name for name in names if name in text], path


# --- what a row must be ---------------------------------------------------------------------------


def release_with(**changes: object) -> PrebuiltRelease:
    """Return a release with one wheel. `changes` are of the release or of the wheel, by key."""
    release = {
        "package": "causal-conv1d",
        "version": "1.6.2.post1",
        "address": "https://example.invalid/v1/",
        "archs": ["9.0"],
        "source": "a list",
    }
    wheel = {
        "torch": "2.7",
        "cuda": 12,
        "cxx11_abi": True,
        "python": "3.11",
        "file": FILE,
        "sha256": "0" * 64,
    }
    for key, value in changes.items():
        row: dict[str, Any] = release if key in release else wheel
        row[key] = value
    return PrebuiltRelease.model_validate({**release, "wheels": [wheel]})


def test_a_row_that_fits_its_file_is_accepted() -> None:
    assert release_with().wheels[0].torch == "2.7"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        # The file's name says otherwise.
        ({"torch": "2.8"}, "build cu12torch2.7cxx11abitrue"),
        ({"cuda": 13}, "build cu12torch2.7cxx11abitrue"),
        ({"cxx11_abi": False}, "build cu12torch2.7cxx11abitrue"),
        ({"python": "3.12"}, "tags cp311-cp311-linux_x86_64"),
        ({"package": "mamba-ssm"}, "package causal-conv1d"),
        ({"version": "1.7.0"}, "version 1.6.2.post1"),
        ({"file": FILE.replace("x86_64", "aarch64")}, "tags cp311-cp311-linux_aarch64"),
        ({"file": "causal_conv1d.zip"}, "causal_conv1d.zip"),
        # No sha256.
        ({"sha256": "0" * 63}, "should match pattern"),
        ({"sha256": ""}, "should match pattern"),
        # No https, or no folder.
        ({"address": "http://example.invalid/v1/"}, "should match pattern"),
        ({"address": "https://example.invalid/v1"}, "should match pattern"),
    ],
)
def test_a_row_that_contradicts_its_file_or_has_no_hash_is_refused(
    changes: dict[str, object], cause: str
) -> None:
    with pytest.raises(ValidationError, match=cause):
        release_with(**changes)
