"""The table of kernels, and the claims that are written from it."""

import ast
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from images.hardware.inventory import Gpu, Inventory
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.sources import SOURCES, image
from validate import checks, kernels
from validate.claims import Claim, Tier
from validate.kernels import expected_path
from validate.kernels._names import Name, at_least, patterns

TABLE = kernels.table()
FOLDER = Path(kernels.__file__).parent
H100 = Inventory(
    driver="580.1",
    gpus=(Gpu(name="NVIDIA H100", capability=(9, 0), memory=80 * 1024**3),),
    source="test",
)
TURING = Inventory(
    driver="580.1",
    gpus=(Gpu(name="Tesla T4", capability=(7, 5), memory=16 * 1024**3),),
    source="test",
)


def gpu_claims(
    name: str, inventory: Inventory | None = H100, no_gpu: str = "", **missing: str
) -> list[Claim]:
    absent = {key.replace("_", "-"): why for key, why in missing.items()}
    context = ClaimContext(
        image=image(name), facts=SOURCES.facts, missing=absent, inventory=inventory, no_gpu=no_gpu
    )
    found = image_claims(context)
    return [claim for claim in found.claims if claim.tier is Tier.GPU]


def test_every_part_of_the_catalogue_has_kernels() -> None:
    families = {"numerics", "attention", "bitsandbytes", "triton", "liger", "compile", "fp8"}
    assert {row.check for row in TABLE.values()} == families


@pytest.mark.parametrize("subject", TABLE)
def test_a_kernel_is_whole(subject: str) -> None:
    row = TABLE[subject]
    assert {row.check, f"{row.check}/{subject}"} & checks.import_check(row.probe).CLAIMS.keys()
    assert row.statement
    assert row.cases or row.figures, "nothing would be measured"
    assert not row.figures or row.observe
    assert all(least < most for least, most in row.figures.values())
    assert row.expected_kernels or row.libraries, "nothing would tell which code ran"
    for pattern in (*row.other_kernels, *row.aside_kernels, *row.libraries):
        re.compile(pattern)
    reason = row.supports((3, 5), {})
    assert row.supports((9, 0), {}) is None and (reason is None or "3.5 is " in reason)
    for case in row.needs_capability:  # named by its dtype, which no other case has
        dtype = kernels.dtype_of(case)
        assert case in row.cases and dtype in row.tolerance
        assert [name for name in row.cases if kernels.dtype_of(name) == dtype] == [case]


def test_names_of_files_are_subjects() -> None:
    files = {path.stem for path in FOLDER.glob("[!_]*.py")} - {"judge", "runner"}
    assert len(TABLE) == len(files)
    for subject, row in TABLE.items():
        name = subject.replace("-", "_")
        assert files & {name, f"{row.check}_{name}"}
        assert kernels.kernel_of(row.check, subject) is row


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_no_kernel_imports_what_the_host_lacks(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= {
        "__future__",
        "validate",
        *sys.stdlib_module_names,
    }


def test_an_image_promises_the_kernels_of_what_it_pins() -> None:
    by_subject = {claim.subject: claim for claim in gpu_claims("cu126-torch27")}
    assert {"xformers-cutlass", "flash-attn-dense", "nf4", "rope", "gpus", "training"} <= set(
        by_subject
    )
    assert "xformers-cutlass" not in {claim.subject for claim in gpu_claims("cu130-torch212")}
    assert by_subject["gpus"].expect["inventory"]["gpus"][0]["capability"] == [9, 0]
    assert by_subject["sdpa-flash"].expect["capability"] == [9, 0]


@pytest.mark.parametrize(
    ("name", "host", "subject", "why"),
    [
        ("cu126-torch27", TURING, "scaled-mm", "7.5 is below 8.9"),
        ("cu126-torch27", TURING, "gemm-fp32", ""),
        ("cu126-torch27", TURING, "nf4", ""),
        # torch 2.5 leaves cuDNN without nvrtc: on an H100 'No execution plans support the graph' in every case
        ("cu126-torch25", H100, "sdpa-cudnn", "pytorch#145580"),
        ("cu126-torch25", None, "sdpa-cudnn", "pytorch#145580"),
        ("cu126-torch25", H100, "sdpa-flash", ""),
        *(
            (name, H100, "sdpa-cudnn", "")
            for name in ("cu124-torch26", "cu126-torch27", "cu128-torch28")
        ),
    ],
)
def test_what_a_gpu_or_a_version_lacks_is_no_promise(
    name: str, host: Inventory | None, subject: str, why: str
) -> None:
    (found,) = [claim for claim in gpu_claims(name, host) if claim.subject == subject]
    said = found.expect.get("not_applicable", "")
    assert (found.required, bool(said)) == (not why, bool(why)) and why in said


def test_what_an_older_gpu_cannot_do_in_one_dtype_is_left_out_and_the_least_capable_decides() -> (
    None
):
    both = replace(H100, gpus=(*H100.gpus, *TURING.gpus))
    old, new, mixed = (
        next(one for one in gpu_claims("cu126-torch27", host) if one.subject == "xformers-cutlass")
        for host in (TURING, H100, both)
    )
    assert (old.expect["cases"], list(old.expect["tolerance"])) == (["float16 causal"], ["float16"])
    assert "7.5 is below 8.0" in old.expect["left_out"]["bfloat16 cross"]
    assert old.required and "left_out" not in new.expect and "capabilities" not in new.expect
    assert (mixed.expect["capability"], mixed.expect["capabilities"]) == ([7, 5], [[7, 5], [9, 0]])


@pytest.mark.parametrize("image", ["cu128-torch28", "cu128-torch211"])
def test_cases_that_a_version_cannot_do_are_left_out_and_the_claim_says_why(image: str) -> None:
    """cuDNN before 9.15.1 reads past the end where a length is no multiple of 128."""
    old, new = (
        {claim.subject: claim for claim in gpu_claims(name)} for name in (image, "cu130-torch211")
    )
    expect = old["sdpa-cudnn"].expect
    assert expect["cases"]
    assert all(case.endswith("in 128s") for case in expect["cases"])
    assert set(expect["left_out"]) == set(new["sdpa-cudnn"].expect["cases"]) - set(expect["cases"])
    assert all("pytorch#169849" in why for why in expect["left_out"].values())
    assert "left_out" not in new["sdpa-cudnn"].expect
    assert "left_out" not in old["sdpa-flash"].expect


def test_a_claim_has_the_names_of_the_images_own_versions() -> None:
    old, new = (
        {claim.subject: claim for claim in gpu_claims(name)}
        for name in ("cu126-torch25", "cu128-torch28")
    )
    assert old["fullgraph"].expect["names_of"] == "torch 2.5.1"
    assert old["fullgraph"].expect["expected_kernels"] == ["^triton_$"]
    assert new["fullgraph"].expect["expected_kernels"] == ["^triton_[a-z]+_fused_"]


def test_without_a_gpu_every_claim_exists_and_is_unproven() -> None:
    with_gpu, without = (
        gpu_claims("cu126-torch27"),
        gpu_claims("cu126-torch27", None, "no GPU was found"),
    )
    assert [claim.subject for claim in with_gpu] == [claim.subject for claim in without]
    assert {claim.unproven for claim in without} == {"no GPU was found"}
    by_model = ("speed", "step")  # required where a GPU model is known, and what it did before
    assert all(
        claim.required or claim.expect.get("known")
        for claim in without
        if claim.check not in by_model
    )


def test_kernels_of_a_wheel_that_could_not_be_had_are_not_required() -> None:
    claims = gpu_claims("cu126-torch27", flash_attn="no wheel")
    about = [claim for claim in claims if claim.key.startswith("attention/flash-attn-")]
    assert about
    assert all(not claim.required and "no wheel" in claim.unproven for claim in about)


TORCHES = sorted(SOURCES.facts.torch)
OTHERS = dict.fromkeys({row.package for row in TABLE.values()}, "1.0")
NAMES = [
    name for row in TABLE.values() for names in row.expected_kernels.values() for name in names
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.pattern)
def test_a_name_has_a_source_and_some_version(name: Name) -> None:
    assert name.source
    re.compile(name.pattern)
    assert any(patterns([name], {"torch": torch}) for torch in TORCHES) or name.of != "torch"


@pytest.mark.parametrize(
    "torch", [torch for torch in TORCHES if at_least({"torch": torch}, "torch", "2.5")]
)
def test_every_part_of_a_kernel_has_a_name_in_every_torch(torch: str) -> None:
    for subject, row in TABLE.items():
        expected = expected_path(row, {**OTHERS, "torch": torch})["expected_kernels"]
        assert len(expected) == len(row.expected_kernels), subject


@pytest.mark.parametrize(
    ("version", "holds"),
    [("2.5.1", False), ("2.6.0", True), ("2.6.0a1+cu126", True), ("2.8.4", True), ("2.9.0", False)],
)
def test_a_name_holds_from_a_version_on_and_before_another(version: str, holds: bool) -> None:
    assert (
        bool(patterns([Name("x", "test", since="2.6", before="2.9")], {"torch": version})) is holds
    )
    assert patterns([Name("x", "test", since="9")], {}), "a version that is not given excludes none"
