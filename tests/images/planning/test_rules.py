"""Rules over facts and a matrix bent for them: what only one rule can see must be seen, and is said with its reason."""

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
from images.planning import plan, rules
from images.planning.candidate import Finding
from images.planning.plan import Planned
from tests.support.checkout import ROOT
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as REAL

FACTS = SOURCES.facts
MATRIX = SOURCES.matrix


def one(name: str, sources: Sources = SOURCES) -> Planned:
    return plan.plan_one(ImageName.parse(name), sources)


def bent(facts: Facts = FACTS, of: Sources = SOURCES, **of_matrix: Any) -> Sources:
    return dataclasses.replace(of, facts=facts, matrix=of.matrix.model_copy(update=of_matrix))


def with_stack(torch: str, **pins: str) -> Sources:
    """Some pins of one stack moved (underscores stand for dashes)."""
    moved = {name.replace("_", "-"): version for name, version in pins.items()}
    return bent(stacks={**MATRIX.stacks, torch: {**MATRIX.stacks[torch], **moved}})


def with_library(version: str, cuda: str, **changes: Any) -> Facts:
    """The facts with another bitsandbytes library."""
    row = FACTS.bitsandbytes[version]
    libraries = {**row.libraries, cuda: row.libraries[cuda].model_copy(update=changes)}
    rows = {**FACTS.bitsandbytes, version: row.model_copy(update={"libraries": libraries})}
    return FACTS.model_copy(update={"bitsandbytes": rows})


def with_official(**changes: Any) -> Facts:
    """The facts with every official wheel built for something else."""
    releases = [
        release.model_copy(
            update={"wheels": [wheel.model_copy(update=changes) for wheel in release.wheels]}
        )
        for release in FACTS.prebuilt
    ]
    return FACTS.model_copy(update={"prebuilt": releases})


def with_base(key: str, **changes: Any) -> Sources:
    return bent(bases={**MATRIX.bases, key: MATRIX.bases[key].model_copy(update=changes)})


def with_profile(
    name: str, of: Sources = SOURCES, facts: Facts | None = None, **changes: Any
) -> Sources:
    profiles = {**of.matrix.profiles, name: of.matrix.profiles[name].model_copy(update=changes)}
    return bent(facts or of.facts, of, profiles=profiles)


def with_requirements() -> Facts:
    """Two packages that require different versions of a third."""
    like = FACTS.packages["ray"]["2.52.1"].model_copy(update={"python": ""})
    rows = {"one": ["third==1.0"], "two": ["third>=2"]}
    known = {
        name: {"1.0": like.model_copy(update={"requires": requires})}
        for name, requires in rows.items()
    }
    return FACTS.model_copy(update={"packages": {**FACTS.packages, **known}})


def requiring_conv1d(**of_matrix: Any) -> Sources:
    pins = {"2.13": {"axolotl": "0.19.0", "causal-conv1d": "1.7.0"}}
    return bent(of=with_profile("axolotl", stacks=pins, optional={}), **of_matrix)


def conv1d(**changes: Any) -> Sources:
    row = MATRIX.sources["causal-conv1d"].model_copy(update=changes)
    return requiring_conv1d(sources={**MATRIX.sources, "causal-conv1d": row})


NO_COMPILER = MATRIX.toolkits["13.0"].model_copy(update={"devel": [], "compiler": None})
NO_NVCC = requiring_conv1d(toolkits={**MATRIX.toolkits, "13.0": NO_COMPILER})
NO_CODE = bent(with_library("0.49.1", "12.6", archs=["3.5"], ptx=[]))
BY_PTX = bent(with_library("0.49.1", "12.6", archs=["8.0"], ptx=["9.0"]))
OTHER_LIBRARY = with_stack("2.8", bitsandbytes="0.50.2")
NO_WHEEL = bent(with_official(torch="2.6"), optional=[], sources={})
NO_SOURCE = bent(with_official(torch="2.6"), sources={})
UNRULED = with_profile("colossalai", stacks={"2.5": {"colossalai": "0.5.0", "peft": "0.13.2"}})
UNREAD = with_profile("axolotl", stacks={"2.8": {"axolotl": "0.14.0"}})
STACKS = REAL.matrix.profiles["axolotl"].stacks
OF_ANOTHER_TORCH = {**STACKS["2.8"], "torchvision": STACKS["2.13"]["torchvision"]}
VISION = with_profile("axolotl", REAL, stacks={**STACKS, "2.8": OF_ANOTHER_TORCH})
THREE = {"axolotl": "0.13.2", "one": "1.0", "two": "1.0"}
CLASHING = with_profile("axolotl", facts=with_requirements(), stacks={"2.8": THREE})
DEAD = with_profile("transformers", stacks={"2.8": {"nvidia-ml-py3": "7.352.0"}})
WHY = Conflict(
    packages={"torch": ">=2.8,<2.9", "triton": ">=3.4"}, why="the first fails", source="-"
)
TOGETHER = bent(FACTS.model_copy(update={"conflicts": [WHY]}))
NEITHER = "neither as wheels (from 13.0 on) nor as packages of Debian (12.4): take cu130-torch211-devel, or"


@pytest.mark.parametrize(
    ("name", "sources", "reason"),
    [
        ("cu118-torch215", SOURCES, "torch 2.15.0 has no wheel for CUDA 11 (it has "),
        ("cu126-torch27-sm120", SOURCES, "torch 2.7.1 cu126 has no code for sm_120"),
        ("cu126-torch27-sm87", SOURCES, "sm_87 is a GPU of boards with ARM processors"),
        ("cu130-torch211-sm121", REAL, "sm_121 is a GPU of boards with ARM processors"),
        (
            "cu126-torch27-devel",
            SOURCES,
            "neither as wheels (from 13.0 on) nor as packages of Debian",
        ),
        ("cu128-torch28-devel", SOURCES, NEITHER),
        ("cu126-torch27-py311", SOURCES, "the name is cu126-torch27"),
        ("cu124-torch26-py313", SOURCES, "xformers 0.0.29.post3 needs Python"),
        ("cu126-torch23", SOURCES, "nothing is known of torch 2.3"),
        ("cu126-torch27-axolotl", SOURCES, "has pins for torch 2.8, 2.13 only"),
        ("cu126-torch27-nothing", SOURCES, "no profile 'nothing'"),
        ("cu127-torch27", SOURCES, "no parts for a CUDA 12.7 toolkit"),
        ("cu118-torch27", SOURCES, "excluded by matrix.yaml"),
        ("cu128-torch210-sm103", SOURCES, "CUDA 12.8 cannot compile for sm_103"),
        ("cu130-torch211", with_stack("2.11", xformers="0.0.35"), "without: [xformers]"),
        (
            "cu126-torch27",
            with_stack("2.7", xformers="0.0.30"),
            "but the stack pins 2.7.1: pin 0.0.31.post1",
        ),
        (
            "cu130-torch211",
            with_stack("2.11", xformers="0.0.34"),
            "but the stack pins 2.11.0: leave xformers out",
        ),
        (
            "cu126-torch212-py312",
            with_stack("2.12", torchao="0.16.0"),
            "but the stack pins 2.12.1: leave torchao out",
        ),
        ("cu128-torch29", with_stack("2.9", xformers="0.0.33"), "built for CUDA 13.0"),
        ("cu126-torch27", with_stack("2.7", triton="3.4.0"), "needs triton==3.3.1"),
        ("cu128-torch28", with_stack("2.8", torchao="0.18.0"), "needs libcudart.so.13"),
        ("cu128-torch28", with_stack("2.8", torchao="0.14.1"), "pin 0.13.0"),
        ("cu132-torch215", with_stack("2.15", bitsandbytes="0.49.1"), "libbitsandbytes_cuda132.so"),
        (
            "cu128-torch28",
            with_stack("2.8", bitsandbytes="0.1.0"),
            "nothing is known of bitsandbytes 0.1.0",
        ),
        (
            "cu130-torch211-devel",
            with_base("bookworm", gcc=16),
            "nvcc 13.0 accepts gcc up to 15, but bookworm has gcc 16",
        ),
        (
            "cu124-torch26-devel",
            with_base("bookworm", suite=""),
            "Debian's packages, which bookworm does not reach",
        ),
        (
            "cu126-torch27-py399",
            with_base("trixie", python="3.99"),
            "torch 2.7.1 has no wheel for Python 3.99",
        ),
        ("cu126-torch27", NO_CODE, "no GPU architecture is covered by torch"),
        ("cu126-torch27", NO_WHEEL, "no official wheel of flash-attn 2.8.3 is known for"),
        (
            "cu124-torch25-colossalai",
            UNRULED,
            "transformers==4.51.3, but the stack of torch 2.5 pins transformers 4.57.6",
        ),
        ("cu128-torch28-axolotl", UNREAD, "python -m tools.releases axolotl==0.14.0"),
        (
            "cu128-torch28-axolotl",
            VISION,
            "requires torch==2.13.0, but the stack of torch 2.8 pins torch 2.8.0",
        ),
        (
            "cu128-torch28-axolotl",
            VISION,
            "is built for CUDA 13, but torch's wheel brings CUDA 12.8",
        ),
        (
            "cu128-torch28-axolotl",
            CLASHING,
            "two 1.0 requires third>=2, which excludes the third 1.0 that one 1.0",
        ),
        (
            "cu128-torch28-transformers",
            DEAD,
            "nvidia-ml-py3 is no longer maintained: pin nvidia-ml-py instead",
        ),
        ("cu128-torch28", TOGETHER, "torch 2.8.0 and triton 3.4.0 fail together: the first fails"),
        (
            "cu130-torch213-axolotl",
            conv1d(releases={"1.5.2": "0" * 64}),
            "`sources` in matrix.yaml does not have it",
        ),
        (
            "cu130-torch213-axolotl",
            conv1d(torch="<2.13"),
            "compiles on torch <2.13, but the stack pins torch 2.13.0",
        ),
        ("cu130-torch213-axolotl", conv1d(minimum_arch="13.0"), "compiles for sm_130 and newer"),
        ("cu130-torch213-axolotl", NO_NVCC, "has an nvcc of CUDA 13.0"),
        (
            "cu130-torch210-arm64",
            REAL,
            "for CUDA on aarch64 was measured: 2.11.0 is the first",
        ),
        ("cu126-torch211-arm64", REAL, "torch 2.11.0 has no wheel for CUDA 12 (it has cu130)"),
        (
            "cu130-torch211-sm87-arm64",
            REAL,
            "sm_87 is the GPU of Jetson Orin: CUDA for it stays apart",
        ),
        (
            "cu130-torch211-sm110-arm64",
            REAL,
            "the ptxas of Triton 3.6.0 does not know sm_110: what is compiled at",
        ),
        ("cu130-torch211-devel-arm64", REAL, "-devel images were tried on linux/amd64 only"),
        (
            "cu130-torch213-axolotl-arm64",
            REAL,
            "the profile axolotl was resolved and tried on linux/amd64 only",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    name: str, sources: Sources, reason: str
) -> None:
    planned = one(name, sources)
    assert not planned.image and any(reason in text for text in planned.reasons), planned.reasons


COMPILE_CONV1D = "`nox -s wheels -- cu130-torch213-axolotl causal-conv1d` has compiled it"


@pytest.mark.parametrize(
    ("name", "sources", "warning"),
    [
        ("cu126-torch25", SOURCES, "minor version compatibility"),
        ("cu129-torch28", OTHER_LIBRARY, "runs its CUDA 12.8 library beside torch's CUDA 12.9"),
        ("cu126-torch27-sm90", BY_PTX, "sm_90 only through PTX"),
        (
            "cu126-torch27",
            NO_SOURCE,
            "does not have it: the image is built without it, unless a wheelhouse has one (--wheelhouse)",
        ),
        (
            "cu124-torch25-colossalai",
            SOURCES,
            "pins transformers 4.51.3 instead of the stack's 4.57.6",
        ),
        ("cu128-torch28-axolotl", SOURCES, "vllm 0.11.0 requires xformers==0.0.32.post1"),
        (
            "cu128-torch28-axolotl",
            SOURCES,
            "mamba-ssm 1.2.0.post1 requires causal-conv1d<1.5.2,>=1.2.0, but the profile",
        ),
        ("cu130-torch213-axolotl", SOURCES, "fbgemm-gpu-genai 1.3.0 is built for CUDA 12"),
        ("cu130-torch213-axolotl", REAL, "axolotl 0.19.0 requires xformers"),
        ("cu130-torch213-axolotl", SOURCES, f"the image lacks it until {COMPILE_CONV1D}"),
        (
            "cu130-torch213-axolotl",
            requiring_conv1d(),
            f"no image can be built before {COMPILE_CONV1D}",
        ),
        (
            "cu124-torch25-colossalai",
            SOURCES,
            "lacks its compiled extensions until `nox -s wheels -- cu124",
        ),
        (
            "cu130-torch211-arm64",
            REAL,
            "lacks flash-attn 2.8.3.post2 (optional): no wheel for aarch64",
        ),
    ],
)
def test_what_is_otherwise_than_one_might_think_is_said(
    name: str, sources: Sources, warning: str
) -> None:
    planned = one(name, sources)
    assert planned.image and any(warning in text for text in planned.warnings), planned.warnings


def test_all_reasons_come_at_once() -> None:
    sources = with_stack("2.7", xformers="0.0.30", triton="3.4.0", torchao="0.18.0")
    assert len(one("cu126-torch27", sources).reasons) >= 4


def test_an_arch_that_one_part_reaches_by_ptx_alone_is_not_promised_unasked() -> None:
    assert [str(arch) for arch in one("cu126-torch27", BY_PTX).archs] == ["sm_80", "sm_86"]


@pytest.mark.parametrize(
    "changes", [{"cxx11_abi": False}, {"python": "3.12"}, {"cuda": 11}, {"torch": "2.6"}]
)
def test_an_official_wheel_of_another_build_is_none(changes: dict[str, Any]) -> None:
    usual, planned = one("cu126-torch27"), one("cu126-torch27", bent(with_official(**changes)))
    assert usual.image is not None and [wheel.name for wheel in usual.image.prebuilt] == [
        "flash-attn"
    ]
    assert not any("flash-attn" in text for text in usual.warnings)
    assert planned.image is not None and not planned.image.prebuilt
    (told,) = (text for text in planned.warnings if "flash-attn" in text)
    assert told == (
        "no official wheel of flash-attn 2.8.3 is known for torch 2.7, CUDA 12, Python 3.11, new C++ ABI: the image "
        "lacks it until `nox -s wheels -- cu126-torch27 flash-attn` has compiled it"
    )


def test_bitsandbytes_own_lookup() -> None:
    nearest = {
        "12.6": "12.6",
        "12.9": "12.8",
        "12.5": "12.4",
        "12.0": "12.1",
        "13.1": "13.0",
        "14.0": "None",
    }
    for version, libraries in (("0.50.2", nearest), ("0.49.1", {"12.6": "12.6", "12.7": "None"})):
        row = FACTS.bitsandbytes[version]
        assert {cuda: str(row.library_for(Minor.parse(cuda))) for cuda in libraries} == libraries


def test_every_rule_runs() -> None:
    """A function of the rules' modules that takes a candidate and finds something, and that RULES does not name."""
    written = [
        function
        for module in (rules.stack, rules.packages)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if inspect.signature(function).return_annotation == Iterator[Finding]
        and not name.startswith("_")
    ]
    assert sorted(rules.RULES, key=str) == sorted(written, key=str)
    assert len(rules.RULES) >= 14


def test_releases_beside_a_conflict_are_no_part_of_it() -> None:
    other = Conflict(
        packages={"torch": ">=2.8,<2.9", "triton": ">=3.5"}, why="the first fails", source="-"
    )
    assert one("cu128-torch28", bent(FACTS.model_copy(update={"conflicts": [other]}))).image


@pytest.mark.parametrize(
    "lock", sorted((ROOT / "locks").glob("*/torch.txt")), ids=lambda file: file.parent.name
)
def test_no_lock_holds_releases_that_are_known_to_fail_together(lock: Path) -> None:
    """Planning sees what is pinned; the lock has what these require, too."""
    versions = {}
    for file in lock.parent.glob("*.txt"):
        for name, version in re.findall(
            r"^([\w.-]+)==([\w.]+)", file.read_text(encoding="utf-8"), re.MULTILINE
        ):
            versions[canonicalize_name(name)] = version
    assert "torch" in versions
    assert [
        conflict.sentence(versions)
        for conflict in REAL.facts.conflicts
        if conflict.applies_to(versions)
    ] == []
