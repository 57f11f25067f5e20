"""The table of kernels, and the claims that are written from it."""

import ast
import re
import sys
from collections.abc import Mapping
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
H100 = Gpu(name="NVIDIA H100", capability=(9, 0), memory=80 * 1024**3)
TESLA_T4 = Gpu(name="Tesla T4", capability=(7, 5), memory=16 * 1024**3)


def host_with(*gpus: Gpu) -> Inventory:
    return Inventory(driver="580.1", gpus=gpus, source="test")


HOST_WITH_H100 = host_with(H100)
HOST_WITH_T4 = host_with(TESLA_T4)


def gpu_claims(
    image_name: str,
    host: Inventory | None = HOST_WITH_H100,
    no_gpu: str = "",
    missing: Mapping[str, str] | None = None,
) -> dict[str, Claim]:
    """Return subject -> claim of the gpu tier about an image.

    `no_gpu`: why the host has none. `missing`: package that the image could not get -> why.
    """
    context = ClaimContext(
        image=image(image_name),
        facts=SOURCES.facts,
        missing=missing or {},
        inventory=host,
        no_gpu=no_gpu,
    )
    claims = image_claims(context).claims
    return {claim.subject: claim for claim in claims if claim.tier is Tier.GPU}


# The table.


def test_each_check_of_kernels_has_some() -> None:
    checks_of_table = {kernel.check for kernel in TABLE.values()}

    assert checks_of_table == {
        "numerics",
        "attention",
        "bitsandbytes",
        "triton",
        "liger",
        "compile",
        "fp8",
    }


@pytest.mark.parametrize("subject", TABLE)
def test_a_kernel_is_whole(subject: str) -> None:
    kernel = TABLE[subject]

    judged_keys = checks.import_check(kernel.probe).CLAIMS.keys()
    assert {kernel.check, f"{kernel.check}/{subject}"} & judged_keys, "nothing would judge it"
    assert kernel.statement
    assert kernel.cases or kernel.figures, "nothing would be measured"
    assert not kernel.figures or kernel.observe, "nothing would measure its figures"
    assert all(least < most for least, most in kernel.figures.values())
    assert kernel.expected_kernels or kernel.libraries, "nothing would tell which code ran"
    for pattern in (*kernel.other_kernels, *kernel.aside_kernels, *kernel.libraries):
        re.compile(pattern)


@pytest.mark.parametrize("subject", TABLE)
def test_a_kernel_runs_on_hopper_and_says_which_older_gpus_it_cannot_run_on(subject: str) -> None:
    kernel = TABLE[subject]

    assert kernel.gpu_obstacle((9, 0), {}) is None
    reason = kernel.gpu_obstacle((3, 5), {})
    assert reason is None or "3.5 is " in reason


@pytest.mark.parametrize(
    "subject", [subject for subject, kernel in TABLE.items() if kernel.needs_capability]
)
def test_a_case_that_needs_a_newer_gpu_begins_with_a_dtype_that_no_other_case_has(
    subject: str,
) -> None:
    kernel = TABLE[subject]
    for case in kernel.needs_capability:
        dtype = kernels.dtype_of(case)

        assert case in kernel.cases
        assert dtype in kernel.tolerance
        assert [name for name in kernel.cases if kernels.dtype_of(name) == dtype] == [case]


def test_each_file_is_a_kernel_and_has_the_name_of_its_subject() -> None:
    files = {path.stem for path in FOLDER.glob("[!_]*.py")} - {"judge", "runner"}

    assert len(TABLE) == len(files)
    for subject, kernel in TABLE.items():
        name = subject.replace("-", "_")
        assert files & {name, f"{kernel.check}_{name}"}
        assert kernels.kernel_of(kernel.check, subject) is kernel


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_kernels_file_imports_nothing_that_the_host_lacks(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")

    packages = {name.partition(".")[0] for name in imported}
    assert packages <= {"__future__", "validate", *sys.stdlib_module_names}


# The claims.


def test_an_image_has_a_claim_for_each_kernel_of_the_packages_that_it_pins() -> None:
    claims = gpu_claims("cu126-torch27")

    assert {"xformers-cutlass", "flash-attn-dense", "nf4", "rope", "gpus", "training"} <= {*claims}
    assert "xformers-cutlass" not in gpu_claims("cu130-torch212")


def test_claims_expect_the_hosts_gpu() -> None:
    claims = gpu_claims("cu126-torch27")

    assert claims["gpus"].expect["inventory"]["gpus"][0]["capability"] == [9, 0]
    assert claims["sdpa-flash"].expect["capability"] == [9, 0]


WITHOUT_NVRTC = "pytorch#145580"
"""torch 2.5 leaves cuDNN without nvrtc: on an H100 'No execution plans support the graph'."""


@pytest.mark.parametrize(
    ("image_name", "host", "subject", "reason"),
    [
        ("cu126-torch27", HOST_WITH_T4, "scaled-mm", "7.5 is below 8.9"),
        ("cu126-torch25", HOST_WITH_H100, "sdpa-cudnn", WITHOUT_NVRTC),
        ("cu126-torch25", None, "sdpa-cudnn", WITHOUT_NVRTC),
    ],
)
def test_a_kernel_that_a_gpu_or_version_cannot_run_is_not_applicable_and_not_required(
    image_name: str, host: Inventory | None, subject: str, reason: str
) -> None:
    claim = gpu_claims(image_name, host)[subject]

    assert reason in claim.expect["not_applicable"]
    assert not claim.required


@pytest.mark.parametrize(
    ("image_name", "host", "subject"),
    [
        ("cu126-torch27", HOST_WITH_T4, "gemm-fp32"),
        ("cu126-torch27", HOST_WITH_T4, "nf4"),
        ("cu126-torch25", HOST_WITH_H100, "sdpa-flash"),
        ("cu124-torch26", HOST_WITH_H100, "sdpa-cudnn"),
        ("cu126-torch27", HOST_WITH_H100, "sdpa-cudnn"),
        ("cu128-torch28", HOST_WITH_H100, "sdpa-cudnn"),
    ],
)
def test_a_kernel_that_a_gpu_and_version_can_run_is_required(
    image_name: str, host: Inventory, subject: str
) -> None:
    claim = gpu_claims(image_name, host)[subject]

    assert claim.required
    assert not claim.expect.get("not_applicable")


def test_a_case_that_an_older_gpu_cannot_run_is_left_out_with_its_dtype() -> None:
    on_t4 = gpu_claims("cu126-torch27", HOST_WITH_T4)["xformers-cutlass"]
    on_h100 = gpu_claims("cu126-torch27", HOST_WITH_H100)["xformers-cutlass"]

    assert on_t4.expect["cases"] == ["float16 causal"]
    assert [*on_t4.expect["tolerance"]] == ["float16"]
    assert "7.5 is below 8.0" in on_t4.expect["left_out"]["bfloat16 cross"]
    assert on_t4.required
    assert "left_out" not in on_h100.expect


def test_of_different_gpus_the_least_capable_decides_and_all_are_expected() -> None:
    on_both = gpu_claims("cu126-torch27", host_with(H100, TESLA_T4))["xformers-cutlass"]
    on_one = gpu_claims("cu126-torch27", HOST_WITH_H100)["xformers-cutlass"]

    assert on_both.expect["capability"] == [7, 5]
    assert on_both.expect["capabilities"] == [[7, 5], [9, 0]]
    assert "capabilities" not in on_one.expect


@pytest.mark.parametrize("image_name", ["cu128-torch28", "cu128-torch211"])
def test_cases_that_a_version_cannot_run_are_left_out_and_the_claim_says_why(
    image_name: str,
) -> None:
    """cuDNN before 9.15.1 reads past the end where a length is no multiple of 128."""
    of_old_cudnn = gpu_claims(image_name)
    of_new_cudnn = gpu_claims("cu130-torch211")

    expect = of_old_cudnn["sdpa-cudnn"].expect
    all_cases = of_new_cudnn["sdpa-cudnn"].expect["cases"]
    assert expect["cases"]
    assert all(case.endswith("in 128s") for case in expect["cases"])
    assert {*expect["left_out"]} == {*all_cases} - {*expect["cases"]}
    assert all("pytorch#169849" in reason for reason in expect["left_out"].values())
    assert "left_out" not in of_new_cudnn["sdpa-cudnn"].expect
    assert "left_out" not in of_old_cudnn["sdpa-flash"].expect


def test_a_claim_expects_the_names_of_the_images_own_versions() -> None:
    of_torch_25 = gpu_claims("cu126-torch25")["fullgraph"].expect
    of_torch_28 = gpu_claims("cu128-torch28")["fullgraph"].expect

    assert of_torch_25["names_of"] == "torch 2.5.1"
    assert of_torch_25["expected_kernels"] == ["^triton_$"]
    assert of_torch_28["expected_kernels"] == ["^triton_[a-z]+_fused_"]


def test_without_a_gpu_every_claim_exists_and_is_unproven() -> None:
    reason = "no GPU was found"
    with_gpu = gpu_claims("cu126-torch27")
    without_gpu = gpu_claims("cu126-torch27", host=None, no_gpu=reason)

    assert [*with_gpu] == [*without_gpu]
    assert {claim.unproven for claim in without_gpu.values()} == {reason}


def test_without_a_gpu_claims_stay_required() -> None:
    # speed and step are required only where a GPU model is known, and what it did before
    claims = [
        claim
        for claim in gpu_claims("cu126-torch27", host=None, no_gpu="no GPU was found").values()
        if claim.check not in ("speed", "step")
    ]

    assert all(claim.required or claim.expect.get("known") for claim in claims)


def test_kernels_of_a_wheel_that_could_not_be_had_are_unproven_and_not_required() -> None:
    claims = gpu_claims("cu126-torch27", missing={"flash-attn": "no wheel"})

    of_flash_attn = [
        claim for claim in claims.values() if claim.key.startswith("attention/flash-attn-")
    ]
    assert of_flash_attn
    for claim in of_flash_attn:
        assert not claim.required
        assert "no wheel" in claim.unproven


# The names of CUDA kernels.

TORCH_RELEASES = sorted(SOURCES.facts.torch)
OTHER_PACKAGES = dict.fromkeys({kernel.package for kernel in TABLE.values()}, "1.0")
NAMES = [
    name
    for kernel in TABLE.values()
    for names in kernel.expected_kernels.values()
    for name in names
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.pattern)
def test_a_name_has_a_source_and_is_used_by_some_torch_release(name: Name) -> None:
    assert name.source
    re.compile(name.pattern)
    assert any(patterns([name], {"torch": torch}) for torch in TORCH_RELEASES)


@pytest.mark.parametrize(
    "torch", [torch for torch in TORCH_RELEASES if at_least({"torch": torch}, "torch", "2.5")]
)
def test_every_part_of_a_kernel_has_a_known_name_in_every_torch_release(torch: str) -> None:
    for subject, kernel in TABLE.items():
        expected = expected_path(kernel, {**OTHER_PACKAGES, "torch": torch})["expected_kernels"]

        assert len(expected) == len(kernel.expected_kernels), subject


@pytest.mark.parametrize(
    ("version", "is_used"),
    [("2.5.1", False), ("2.6.0", True), ("2.6.0a1+cu126", True), ("2.8.4", True), ("2.9.0", False)],
)
def test_a_name_is_used_from_a_version_on_and_before_another(version: str, is_used: bool) -> None:
    name = Name("x", "test", since="2.6", before="2.9")

    assert bool(patterns([name], {"torch": version})) is is_used


def test_a_version_that_is_not_known_excludes_no_name() -> None:
    assert patterns([Name("x", "test", since="9")], {})
