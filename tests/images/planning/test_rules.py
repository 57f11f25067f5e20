"""Each rule refuses or warns for its reason, in a matrix or facts changed so that it applies."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from images.config.facts import Conflict, Facts
from images.config.matrix import Sources
from images.config.names import ImageName, Minor
from images.config.schema import IndexRow
from images.planning import plan, rules
from images.planning.candidate import Finding
from images.planning.image import PrivateIndex
from images.planning.plan import Planned
from tests.support.checkout import ROOT
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as REAL

FACTS = SOURCES.facts
MATRIX = SOURCES.matrix


def planned(name: str, sources: Sources = SOURCES) -> Planned:
    return plan.plan_one(ImageName.parse(name), sources)


def sources_with(facts: Facts = FACTS, of: Sources = SOURCES, **of_matrix: Any) -> Sources:
    """Return the sources `of` with other facts, and other values of some keys of the matrix."""
    return dataclasses.replace(of, facts=facts, matrix=of.matrix.model_copy(update=of_matrix))


def with_stack(torch: str, **pins: str) -> Sources:
    """Return sources with some pins of one stack moved (underscores stand for dashes)."""
    moved = {name.replace("_", "-"): version for name, version in pins.items()}
    return sources_with(stacks={**MATRIX.stacks, torch: {**MATRIX.stacks[torch], **moved}})


def with_base(key: str, **changes: Any) -> Sources:
    base = MATRIX.bases[key].model_copy(update=changes)
    return sources_with(bases={**MATRIX.bases, key: base})


def with_profile(
    name: str, of: Sources = SOURCES, facts: Facts | None = None, **changes: Any
) -> Sources:
    profile = of.matrix.profiles[name].model_copy(update=changes)
    return sources_with(facts or of.facts, of, profiles={**of.matrix.profiles, name: profile})


def facts_with_library(version: str, cuda: str, **changes: Any) -> Facts:
    """Return facts in which one CUDA library of a bitsandbytes release is another."""
    row = FACTS.bitsandbytes[version]
    libraries = {**row.libraries, cuda: row.libraries[cuda].model_copy(update=changes)}
    rows = {**FACTS.bitsandbytes, version: row.model_copy(update={"libraries": libraries})}
    return FACTS.model_copy(update={"bitsandbytes": rows})


def facts_with_official_wheels_for(**build: Any) -> Facts:
    """Return facts in which every official wheel is built for something else."""
    releases = []
    for release in FACTS.prebuilt:
        wheels = [wheel.model_copy(update=build) for wheel in release.wheels]
        releases.append(release.model_copy(update={"wheels": wheels}))
    return FACTS.model_copy(update={"prebuilt": releases})


def facts_with_conflict(triton: str) -> Facts:
    """Return facts by which torch 2.8 fails together with these versions of Triton."""
    packages = {"torch": ">=2.8,<2.9", "triton": triton}
    conflict = Conflict(packages=packages, why="the first fails", source="-")
    return FACTS.model_copy(update={"conflicts": [conflict]})


def requiring_conv1d(**of_matrix: Any) -> Sources:
    """Return sources whose profile axolotl requires causal-conv1d, which has no wheel."""
    pins = {"2.13": {"axolotl": "0.19.0", "causal-conv1d": "1.7.0"}}
    return sources_with(of=with_profile("axolotl", stacks=pins, optional={}), **of_matrix)


def with_source_of_conv1d(**changes: Any) -> Sources:
    """Return those sources with another row for how causal-conv1d is compiled."""
    row = MATRIX.sources["causal-conv1d"].model_copy(update=changes)
    return requiring_conv1d(sources={**MATRIX.sources, "causal-conv1d": row})


TOOLKIT_WITHOUT_NVCC = MATRIX.toolkits["13.0"].model_copy(update={"devel": [], "compiler": None})
NO_NVCC = requiring_conv1d(toolkits={**MATRIX.toolkits, "13.0": TOOLKIT_WITHOUT_NVCC})
BITSANDBYTES_FOR_KEPLER = sources_with(facts_with_library("0.49.1", "12.6", archs=["3.5"], ptx=[]))
BITSANDBYTES_WITH_PTX_ABOVE_SM80 = sources_with(
    facts_with_library("0.49.1", "12.6", archs=["8.0"], ptx=["9.0"])
)
NO_WHEEL_OF_A_REQUIRED_PACKAGE = sources_with(
    facts_with_official_wheels_for(torch="2.6"), optional=[], sources={}
)
NO_WHEEL_OF_AN_OPTIONAL_PACKAGE = sources_with(
    facts_with_official_wheels_for(torch="2.6"), sources={}
)
OLDER_TRANSFORMERS_NEEDED = with_profile(
    "colossalai", stacks={"2.5": {"colossalai": "0.5.0", "peft": "0.13.2"}}
)
WITH_A_PACKAGE_OF_OUR_OWN = sources_with(
    optional=["own"],
    layers={**MATRIX.layers, "light": ["own"]},
    stacks={**MATRIX.stacks, "2.7": {"torch": "2.7.1", "triton": "3.3.1", "own": "1.0"}},
)
UNKNOWN_AXOLOTL = with_profile("axolotl", stacks={"2.8": {"axolotl": "0.14.0"}})
ABANDONED_PACKAGE = with_profile("transformers", stacks={"2.8": {"nvidia-ml-py3": "7.352.0"}})
REAL_STACKS = REAL.matrix.profiles["axolotl"].stacks
TORCHVISION_OF_213 = {**REAL_STACKS["2.8"], "torchvision": REAL_STACKS["2.13"]["torchvision"]}
TORCHVISION_OF_ANOTHER_TORCH = with_profile(
    "axolotl", REAL, stacks={**REAL_STACKS, "2.8": TORCHVISION_OF_213}
)


@pytest.mark.parametrize(
    ("name", "sources", "reason"),
    [
        # What the name asks for.
        ("cu126-torch23", SOURCES, "nothing is known of torch 2.3"),
        ("cu118-torch215", SOURCES, "torch 2.15.0 has no wheel for CUDA 11 (it has "),
        ("cu127-torch27", SOURCES, "`toolkits` in matrix.yaml has no CUDA 12.7, only 11.8, 12.1"),
        ("cu126-torch27-py311", SOURCES, "write cu126-torch27"),
        ("cu126-torch27-nothing", SOURCES, "no profile 'nothing'"),
        ("cu126-torch27-axolotl", SOURCES, "has pins for torch 2.8, 2.13 only"),
        ("cu118-torch27", SOURCES, "excluded by matrix.yaml"),
        (
            "cu126-torch27-py399",
            with_base("trixie", python="3.99"),
            "torch 2.7.1 has no wheel for Python 3.99",
        ),
        # GPU architectures.
        ("cu126-torch27-sm120", SOURCES, "torch 2.7.1 cu126 has no code for sm_120"),
        # In which direction to look.
        ("cu126-torch27-sm120", SOURCES, "name an image of a newer CUDA or torch, or take sm_120"),
        ("cu126-torch27-sm30", SOURCES, "name an image of an older CUDA or torch, or take sm_30"),
        (
            "cu126-torch27-sm87",
            SOURCES,
            "name the image for linux/arm64 (cu126-torch27-sm87-arm64)",
        ),
        (
            "cu130-torch211-sm121",
            REAL,
            "name the image for linux/arm64 (cu130-torch211-sm121-arm64)",
        ),
        (
            "cu128-torch210-sm103",
            SOURCES,
            "nvcc of CUDA 12.8 cannot compile for sm_103: name an image of a CUDA that can (12.9",
        ),
        ("cu126-torch27", BITSANDBYTES_FOR_KEPLER, "no GPU architecture is covered by torch"),
        # nvcc of -devel images.
        (
            "cu126-torch27-devel",
            SOURCES,
            "neither as wheels (CUDA 13.0 and later) nor as packages of Debian",
        ),
        (
            "cu128-torch28-devel",
            SOURCES,
            "neither as wheels (CUDA 13.0 and later) nor as packages of Debian (CUDA 12.4 only): "
            "build cu130-torch211-devel; or build cu128-torch28 on",
        ),
        (
            "cu130-torch211-devel",
            with_base("bookworm", gcc=16),
            "but the base bookworm has gcc 16: "
            "build cu130-torch211-py312-devel or cu130-torch211-py313-devel, whose",
        ),
        (
            "cu124-torch26-devel",
            with_base("bookworm", suite=""),
            "nvcc 12.4 is installed from packages of Debian, but the base bookworm",
        ),
        # Triton, xformers, torchao and bitsandbytes: each must fit torch, CUDA and Python.
        ("cu126-torch27", with_stack("2.7", triton="3.4.0"), "needs triton==3.3.1"),
        (
            "cu126-torch27",
            with_stack("2.7", xformers="0.0.30"),
            "but the stack pins torch 2.7.1: pin xformers 0.0.31.post1 at `stacks.2.7`",
        ),
        (
            "cu130-torch211",
            with_stack("2.11", xformers="0.0.34"),
            "but the stack pins torch 2.11.0: no release that truetag knows fits this image; leave "
            "xformers out, with `without: [xformers]` in the image's row of matrix.yaml",
        ),
        ("cu130-torch211", with_stack("2.11", xformers="0.0.35"), "without: [xformers]"),
        ("cu128-torch29", with_stack("2.9", xformers="0.0.33"), "built for CUDA 13.0"),
        ("cu124-torch26-py313", SOURCES, "xformers 0.0.29.post3 needs Python"),
        ("cu128-torch28", with_stack("2.8", torchao="0.14.1"), "pin torchao 0.13.0"),
        (
            "cu126-torch212-py312",
            with_stack("2.12", torchao="0.16.0"),
            "leave torchao out, with `without: [torchao]` in the image's row",
        ),
        ("cu128-torch28", with_stack("2.8", torchao="0.18.0"), "needs libcudart.so.13"),
        ("cu132-torch215", with_stack("2.15", bitsandbytes="0.49.1"), "libbitsandbytes_cuda132.so"),
        # Packages that contradict torch, CUDA or each other.
        (
            "cu124-torch25-colossalai",
            OLDER_TRANSFORMERS_NEEDED,
            "transformers==4.51.3, but the stack of torch 2.5 pins transformers 4.57.6",
        ),
        (
            "cu128-torch28-axolotl",
            TORCHVISION_OF_ANOTHER_TORCH,
            "requires torch==2.13.0, but the stack of torch 2.8 pins torch 2.8.0",
        ),
        (
            "cu128-torch28-axolotl",
            TORCHVISION_OF_ANOTHER_TORCH,
            "is built for CUDA 13, but torch's wheel brings CUDA 12.8",
        ),
        (
            "cu128-torch28-transformers",
            ABANDONED_PACKAGE,
            "nvidia-ml-py3 is no longer maintained: pin nvidia-ml-py instead of it in matrix.yaml",
        ),
        (
            "cu128-torch28",
            sources_with(facts_with_conflict(triton=">=3.4")),
            "torch 2.8.0 and triton 3.4.0 fail together: the first fails",
        ),
        # Packages without a wheel that nobody can compile for this image.
        (
            "cu126-torch27",
            NO_WHEEL_OF_A_REQUIRED_PACKAGE,
            "no official wheel of flash-attn 2.8.3 is known for",
        ),
        (
            "cu130-torch213-axolotl",
            with_source_of_conv1d(releases={"1.5.2": "0" * 64}),
            "`sources` in matrix.yaml has no row for this release",
        ),
        (
            "cu130-torch213-axolotl",
            with_source_of_conv1d(torch="<2.13"),
            "compiles on torch <2.13, but the stack pins torch 2.13.0",
        ),
        (
            "cu130-torch213-axolotl",
            with_source_of_conv1d(minimum_arch="13.0"),
            "compiles for sm_130 and newer",
        ),
        ("cu130-torch213-axolotl", NO_NVCC, "has an nvcc of CUDA 13.0"),
        # linux/arm64.
        (
            "cu130-torch210-arm64",
            REAL,
            "for CUDA on aarch64 was measured: 2.11.0 is the first that PyPI has",
        ),
        # The first on the index would be refused for this GPU in its turn (OpenRAL/openral#167).
        (
            "cu128-torch29-sm110-arm64",
            REAL,
            "are not used: name an image of torch 2.12 with CUDA 13.0, the oldest",
        ),
        ("cu126-torch211-arm64", REAL, "torch 2.11.0 has no wheel for CUDA 12 (it has cu130)"),
        (
            "cu130-torch211-sm87-arm64",
            REAL,
            "sm_87 is the GPU of Jetson Orin, where no image runs (CUDA for it stays apart",
        ),
        (
            "cu130-torch211-sm110-arm64",
            REAL,
            "on such a GPU would fail: name an image of torch 2.12 with CUDA 13.0, the oldest",
        ),
        (
            "cu130-torch211-devel-arm64",
            REAL,
            "take -devel out of the name (cu130-torch211-arm64), or the platform (cu130-torch211-d",
        ),
        (
            "cu130-torch213-axolotl-arm64",
            REAL,
            "take the profile out of the name (cu130-torch213-arm64), or the platform",
        ),
    ],
)
def test_an_image_that_cannot_exist_is_refused_with_the_reason(
    name: str, sources: Sources, reason: str
) -> None:
    refused = planned(name, sources)

    assert not refused.image
    assert any(reason in text for text in refused.reasons), refused.reasons


COMPILE_CONV1D = "`nox -s wheels -- cu130-torch213-axolotl causal-conv1d` has compiled"


@pytest.mark.parametrize(
    ("name", "sources", "warning"),
    [
        # Another CUDA or other code than the name says.
        ("cu126-torch25", SOURCES, "minor version compatibility"),
        ("cu126-torch27-sm90", BITSANDBYTES_WITH_PTX_ABOVE_SM80, "sm_90 only through PTX"),
        # Releases and packages of which no table knows anything.
        (
            "cu128-torch28",
            with_stack("2.8", bitsandbytes="0.99.0"),
            "truetag has no rules for bitsandbytes 0.99.0 (`python -m tools.releases NAME==VERSION",
        ),
        (
            "cu128-torch28-axolotl",
            UNKNOWN_AXOLOTL,
            "nothing checks that compiled code is for CUDA 12.8 and for these GPUs",
        ),
        (
            "cu126-torch27",
            WITH_A_PACKAGE_OF_OUR_OWN,
            "no index is asked for own 1.0, as it is optional, and `sources` in matrix.yaml has "
            "no row for this release (docs/wheels.md shows how to add one, by which `nox -s wheels "
            "-- cu126-torch27 own` compiles it): the image is built without own, unless a folder",
        ),
        # Pins of a profile.
        ("cu128-torch28-axolotl", SOURCES, "vllm 0.11.0 requires xformers==0.0.32.post1"),
        ("cu130-torch213-axolotl", REAL, "axolotl 0.19.0 requires xformers"),
        # Optional packages that the image lacks.
        (
            "cu128-torch28-axolotl",
            SOURCES,
            "mamba-ssm 1.2.0.post1 requires causal-conv1d<1.5.2,>=1.2.0, but the profile",
        ),
        ("cu130-torch213-axolotl", SOURCES, "fbgemm-gpu-genai 1.3.0 is built for CUDA 12"),
        (
            "cu130-torch211-arm64",
            REAL,
            "lacks flash-attn 2.8.3.post2 (optional): no wheel for aarch64",
        ),
        # Packages that must be compiled first.
        (
            "cu126-torch27",
            NO_WHEEL_OF_AN_OPTIONAL_PACKAGE,
            "compiles it): the image is built without flash-attn, "
            "unless a folder of yours has a wheel of it (--wheelhouse FOLDER)",
        ),
        (
            "cu130-torch213-axolotl",
            SOURCES,
            f"the image lacks causal-conv1d until {COMPILE_CONV1D} it",
        ),
        (
            "cu130-torch213-axolotl",
            requiring_conv1d(),
            f"no image can be built before {COMPILE_CONV1D} causal-conv1d",
        ),
        (
            "cu124-torch25-colossalai",
            SOURCES,
            "without its compiled extensions, until `nox -s wheels -- cu124",
        ),
    ],
)
def test_an_accepted_image_warns_of_what_its_user_would_not_expect(
    name: str, sources: Sources, warning: str
) -> None:
    accepted = planned(name, sources)

    assert accepted.image
    assert any(warning in text for text in accepted.warnings), accepted.warnings


def test_a_refused_image_names_no_command_that_would_be_refused_as_well() -> None:
    """`nox -s wheels` compiles nothing that `sources` does not have (h2o-llmstudio#1096)."""
    refused = planned("cu126-torch27", NO_WHEEL_OF_A_REQUIRED_PACKAGE)

    assert not refused.image
    assert [text for text in refused.warnings if "has compiled it" in text] == []


def test_all_reasons_against_an_image_are_given_at_once() -> None:
    sources = with_stack("2.7", xformers="0.0.30", triton="3.4.0", torchao="0.18.0")

    assert len(planned("cu126-torch27", sources).reasons) >= 4


def test_an_architecture_that_one_part_runs_only_by_ptx_is_supported_only_on_request() -> None:
    without_request = planned("cu126-torch27", BITSANDBYTES_WITH_PTX_ABOVE_SM80)

    assert [str(arch) for arch in without_request.archs] == ["sm_80", "sm_86"]


@pytest.mark.parametrize(
    "other_build",
    [{"cxx11_abi": False}, {"python": "3.12"}, {"cuda": 11}, {"torch": "2.6"}],
    ids=lambda build: next(iter(build)),
)
def test_an_official_wheel_of_another_build_is_not_taken(other_build: dict[str, Any]) -> None:
    as_it_is = planned("cu126-torch27")
    with_other_builds = planned(
        "cu126-torch27", sources_with(facts_with_official_wheels_for(**other_build))
    )

    assert as_it_is.image is not None
    assert [wheel.name for wheel in as_it_is.image.prebuilt] == ["flash-attn"]
    assert not any("flash-attn" in text for text in as_it_is.warnings)

    assert with_other_builds.image is not None
    assert not with_other_builds.image.prebuilt
    (warning,) = (text for text in with_other_builds.warnings if "flash-attn" in text)
    assert warning == (
        "no official wheel of flash-attn 2.8.3 is known for torch 2.7, CUDA 12, Python 3.11, "
        "new C++ ABI: the image lacks flash-attn until `nox -s wheels -- cu126-torch27 "
        "flash-attn` has compiled it and the image is built again"
    )


@pytest.mark.parametrize(
    ("release", "library_by_torch_cuda"),
    [
        (
            "0.50.2",  # the same CUDA, else the nearest lower minor, else the nearest higher one
            {
                "12.6": "12.6",
                "12.9": "12.8",
                "12.5": "12.4",
                "12.0": "12.1",
                "13.1": "13.0",
                "14.0": "None",
            },
        ),
        ("0.49.1", {"12.6": "12.6", "12.7": "None"}),  # only the same CUDA
    ],
)
def test_bitsandbytes_loads_the_library_that_its_own_lookup_finds(
    release: str, library_by_torch_cuda: dict[str, str]
) -> None:
    row = FACTS.bitsandbytes[release]

    found = {cuda: str(row.library_for(Minor.parse(cuda))) for cuda in library_by_torch_cuda}
    assert found == library_by_torch_cuda


def test_rules_names_every_rule_that_is_written() -> None:
    """A rule is a public function of the rules' modules that yields findings."""
    written = []
    for module in (rules.stack, rules.packages):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            yields_findings = inspect.signature(function).return_annotation == Iterator[Finding]
            if yields_findings and not name.startswith("_"):
                written.append(function)

    assert sorted(rules.RULES, key=str) == sorted(written, key=str)
    assert len(rules.RULES) >= 14


@pytest.mark.parametrize(("cuda", "is_named"), [("12.9", True), ("12.7", False)])
def test_listing_wheels_is_advised_only_for_a_cuda_that_the_facts_know(
    cuda: str, is_named: bool
) -> None:
    """Else the next plan refuses the image all the same."""
    toolkits = {key: row for key, row in SOURCES.matrix.toolkits.items() if key != cuda}
    matrix = SOURCES.matrix.model_copy(update={"toolkits": toolkits})
    name = f"cu{cuda.replace('.', '')}-torch28"

    reasons = " ".join(planned(name, dataclasses.replace(SOURCES, matrix=matrix)).reasons)

    assert f"has no CUDA {cuda}, only" in reasons
    assert (f"or list the wheels of CUDA {cuda} there" in reasons) is is_named


def test_releases_outside_the_ranges_of_a_conflict_are_accepted() -> None:
    newer_triton_conflicts = sources_with(facts_with_conflict(triton=">=3.5"))

    assert planned("cu128-torch28", newer_triton_conflicts).image


@pytest.mark.parametrize(("transformers", "is_warned"), [("4.50.3", False), ("4.51.3", True)])
def test_releases_that_cannot_resume_a_run_together_are_accepted_with_a_warning(
    transformers: str, is_warned: bool
) -> None:
    stack = {**REAL.matrix.stacks["2.5"], "transformers": transformers}
    sources = sources_with(REAL.facts, REAL, stacks={**REAL.matrix.stacks, "2.5": stack})

    image = planned("cu126-torch25", sources).image

    assert image
    assert any("cannot resume a run" in text for text in image.warnings) is is_warned


@pytest.mark.parametrize(
    "lock", sorted((ROOT / "locks").glob("*/torch.txt")), ids=lambda file: file.parent.name
)
def test_no_lock_holds_releases_that_are_known_to_fail_together(lock: Path) -> None:
    """The plan sees only what is pinned; a lock also has what these packages require."""
    versions = {}
    for file in lock.parent.glob("*.txt"):
        text = file.read_text(encoding="utf-8")
        for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE):
            versions[canonicalize_name(name)] = version

    assert "torch" in versions
    for conflict in REAL.facts.conflicts:
        assert not conflict.applies_to(versions), conflict.sentence(versions)


@pytest.mark.parametrize(
    ("is_in_layer", "step"),
    [
        (True, "pin it at `stacks.2.5` in matrix.yaml"),
        (
            False,
            "add setuptools beside triton in `layers`, and pin it at `stacks.2.5` in matrix.yaml",
        ),
    ],
)
def test_a_package_that_imports_what_it_does_not_require_is_refused_without_a_pin_of_that(
    *, is_in_layer: bool, step: str
) -> None:
    """A user's image with triton 3.1 and no setuptools was built for 20 minutes, and failed."""
    stack = dict(REAL.matrix.stacks["2.5"])
    layers = dict(REAL.matrix.layers)
    assert planned("cu126-torch25", REAL).image
    del stack["setuptools"]
    if not is_in_layer:
        layers["torch"] = [name for name in layers["torch"] if name != "setuptools"]

    stacks = {**REAL.matrix.stacks, "2.5": stack}
    refused = planned("cu126-torch25", sources_with(REAL.facts, REAL, stacks=stacks, layers=layers))

    assert refused.image is None
    (reason,) = refused.reasons
    assert reason.startswith("triton 3.1.0 imports setuptools (Triton compiles")
    assert f": {step}" in reason


def test_no_step_is_about_a_triton_that_another_step_replaces() -> None:
    stack = {name: pin for name, pin in REAL.matrix.stacks["2.7"].items() if name != "setuptools"}
    stacks = {**REAL.matrix.stacks, "2.7": {**stack, "triton": "3.2.0"}}

    refused = planned("cu126-torch27", sources_with(REAL.facts, REAL, stacks=stacks))

    assert any("pin triton==3.3.1 at `stacks.2.7`" in reason for reason in refused.reasons)
    assert not any("setuptools" in reason for reason in refused.reasons)


def test_a_private_package_is_accepted_with_a_warning_that_names_its_index() -> None:
    row = IndexRow(url="https://pypi.acme.test/simple", packages=["acme", "acme-other"])
    sources = sources_with(
        indexes={"acme-corp": row},
        layers={**MATRIX.layers, "light": [*MATRIX.layers["light"], "acme"]},
        common={**MATRIX.common, "acme": "0.3.0"},
    )

    accepted = planned("cu126-torch27", sources)

    assert accepted.image is not None
    pin = accepted.image.pin("acme")
    assert pin is not None
    assert pin.index == PrivateIndex(name="acme-corp", url=row.url)
    assert accepted.image.reserved == ("acme-other",)
    source = (
        f"acme 0.3.0: taken from the private index acme-corp ({row.url}) and from no other index"
    )
    warning = (
        f"{source}: if that index asks for a login, whoever locks or builds sets "
        "UV_INDEX_ACME_CORP_USERNAME and UV_INDEX_ACME_CORP_PASSWORD, or writes it into ~/.netrc; "
        "nothing else needs to be done"
    )
    assert warning in accepted.warnings
