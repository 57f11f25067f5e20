"""Each rule over facts bent for it: what only one rule can see must be seen."""

import dataclasses
import inspect
from typing import Any

import pytest

from images.config.facts import Facts
from images.config.matrix import Sources
from images.config.names import Minor
from images.planning import plan, rules
from images.planning.plan import Planned
from tests.support.small import SOURCES

FACTS = SOURCES.facts


def one(name: str, facts: Facts = FACTS, **of_matrix: Any) -> Planned:
    sources: Sources = dataclasses.replace(SOURCES, facts=facts, matrix=SOURCES.matrix.model_copy(update=of_matrix))
    (planned,) = plan.select([name], sources)
    return planned


def with_library(version: str, cuda: str, **changes: Any) -> Facts:
    """The facts with another bitsandbytes library."""
    row = FACTS.bitsandbytes[version]
    libraries = {**row.libraries, cuda: row.libraries[cuda].model_copy(update=changes)}
    rows = {**FACTS.bitsandbytes, version: row.model_copy(update={"libraries": libraries})}
    return FACTS.model_copy(update={"bitsandbytes": rows})


def with_official(**changes: Any) -> Facts:
    """The facts with every official wheel built for something else."""
    releases = [
        release.model_copy(update={"wheels": [wheel.model_copy(update=changes) for wheel in release.wheels]})
        for release in FACTS.prebuilt
    ]
    return FACTS.model_copy(update={"prebuilt": releases})


def with_base(key: str, **changes: Any) -> dict[str, Any]:
    rows = SOURCES.matrix.bases
    return {"bases": {**rows, key: rows[key].model_copy(update=changes)}}


def test_nvcc_must_know_an_asked_arch() -> None:
    assert "CUDA 12.8 cannot compile for sm_103" in one("cu128-torch210-sm103").reasons


def test_a_whole_toolkit_must_accept_the_bases_gcc() -> None:
    assert one("cu130-torch211-devel").accepted
    reasons = one("cu130-torch211-devel", **with_base("bookworm", gcc=16)).reasons
    assert "nvcc 13.0 accepts gcc up to 15, bookworm has gcc 16" in reasons


def test_a_whole_toolkit_of_cuda_12_comes_from_debians_packages_where_they_have_it() -> None:
    found = one("cu124-torch26-devel").image
    assert found is not None and found.nvcc_suite == "trixie"
    (plain,) = (one("cu124-torch26").image,)
    assert plain is not None and plain.nvcc_suite == ""
    reasons = one("cu128-torch28-devel").reasons
    assert any("neither as wheels (from 13.0 on) nor as packages of Debian (12.4)" in text for text in reasons)
    assert any("take cu130-torch211-devel, or" in text for text in reasons), "the one that the matrix has"


def test_debians_packages_need_a_base_that_reaches_debian() -> None:
    refused = one("cu124-torch26-devel", **with_base("bookworm", suite="")).reasons
    assert any("nvcc 12.4 comes from Debian's packages, which bookworm does not reach" in text for text in refused)


def test_torch_must_have_a_wheel_for_the_bases_python() -> None:
    reasons = one("cu126-torch27-py399", **with_base("trixie", python="3.99")).reasons
    assert any(text.startswith("torch 2.7.1 has no wheel for Python 3.99") for text in reasons)


def test_another_library_of_bitsandbytes_is_told() -> None:
    stacks = {**SOURCES.matrix.stacks, "2.8": {**SOURCES.matrix.stacks["2.8"], "bitsandbytes": "0.50.2"}}
    warnings = one("cu129-torch28", stacks=stacks).warnings
    assert "bitsandbytes 0.50.2 runs its CUDA 12.8 library beside torch's CUDA 12.9" in warnings


def test_an_arch_that_one_part_reaches_by_ptx_alone_is_not_promised_unasked() -> None:
    bent = with_library("0.49.1", "12.6", archs=["8.0"], ptx=["9.0"])
    assert [str(arch) for arch in one("cu126-torch27", bent).archs] == ["sm_80", "sm_86"]
    asked = one("cu126-torch27-sm90", bent)
    assert asked.accepted and any("sm_90 only through PTX" in text for text in asked.warnings)


def test_an_image_for_no_gpu_at_all_is_refused() -> None:
    reasons = one("cu126-torch27", with_library("0.49.1", "12.6", archs=["3.5"], ptx=[])).reasons
    assert any(text.startswith("no GPU architecture is covered by torch") for text in reasons)


@pytest.mark.parametrize("changes", [{"cxx11_abi": False}, {"python": "3.12"}, {"cuda": 11}, {"torch": "2.6"}])
def test_an_official_wheel_of_another_build_is_none(changes: dict[str, Any]) -> None:
    usual, planned = one("cu126-torch27"), one("cu126-torch27", with_official(**changes))
    assert usual.image is not None and [wheel.name for wheel in usual.image.prebuilt] == ["flash-attn"]
    assert not any("flash-attn" in text for text in usual.warnings)
    assert planned.image is not None and not planned.image.prebuilt
    (told,) = (text for text in planned.warnings if "flash-attn" in text)
    assert told == (
        "no official wheel of flash-attn 2.8.3 is known for torch 2.7, CUDA 12, Python 3.11, new C++ ABI: the image "
        "lacks it until `nox -s wheels -- cu126-torch27 flash-attn` has compiled it"
    )


def test_an_optional_package_that_nothing_can_make_is_said_and_refuses_nothing() -> None:
    planned = one("cu126-torch27", with_official(torch="2.6"), sources={})
    assert planned.accepted
    (told,) = (text for text in planned.warnings if "flash-attn" in text)
    assert told.endswith(
        "`sources` in matrix.yaml does not have it: built without it, unless a wheelhouse has one (--wheelhouse)"
    )


def test_a_required_package_is_taken_as_an_official_wheel_or_refused_where_nothing_can_make_it() -> None:
    required = {"optional": [], "sources": {}}
    assert one("cu126-torch27", **required).accepted
    reasons = one("cu126-torch27", with_official(torch="2.6"), **required).reasons
    assert any(text.startswith("no official wheel of flash-attn 2.8.3 is known for") for text in reasons)


@pytest.mark.parametrize(
    ("version", "cuda", "library"),
    [
        ("0.50.2", "12.6", "12.6"),
        ("0.50.2", "12.9", "12.8"),
        ("0.50.2", "12.5", "12.4"),
        ("0.50.2", "12.0", "12.1"),
        ("0.50.2", "13.1", "13.0"),
        ("0.50.2", "14.0", None),
        ("0.49.1", "12.6", "12.6"),
        ("0.49.1", "12.7", None),
    ],
)
def test_bitsandbytes_own_lookup(version: str, cuda: str, library: str | None) -> None:
    found = FACTS.bitsandbytes[version].library_for(Minor.parse(cuda))
    assert found == (Minor.parse(library) if library else None)


def test_the_variant_stands_in_torchs_version_alone() -> None:
    image = one("cu128-torch27").image
    assert image is not None
    assert [pin.requirement for pin in image.pins if "+" in pin.requirement] == ["torch==2.7.1+cu128"]


def test_every_rule_runs() -> None:
    """A function of the rules' modules that takes a candidate and finds something, and that RULES does not name."""
    written = [
        function
        for module in (rules.stack, rules.packages)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if inspect.signature(function).return_annotation == "Iterator[Finding]" and not name.startswith("_")
    ]
    assert sorted(rules.RULES, key=str) == sorted(written, key=str)
    assert len(rules.RULES) >= 22
