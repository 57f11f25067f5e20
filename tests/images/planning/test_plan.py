"""The plan: the project's own matrix is sound; what is accepted of the small one, and what not."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from images.commands import plan as plan_verb
from images.config import matrix
from images.config.matrix import Sources
from images.config.names import Arch, ImageName
from images.config.platforms import Platform
from images.locking.inputs import lock_inputs
from images.locking.lock_file import Status
from images.planning import plan
from images.planning.plan import Planned
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.checkout import ROOT
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as REAL
from tests.support.sources import image
from validate.claims import Claim

USUAL_IMAGES = (
    "cu126-torch25",
    "cu124-torch25",
    "cu124-torch26",
    "cu126-torch27",
    "cu128-torch28",
    "cu128-torch29",
    "cu128-torch210",
    "cu130-torch211",
    "cu130-torch212",
    "cu130-torch213",
    "cu130-torch214",
    "cu132-torch215",
)


def planned(name: str, sources: Sources = SOURCES) -> Planned:
    (only,) = plan.select([name], sources)
    return only


# --- the project's own matrix ---------------------------------------------------------------------


def test_the_matrix_has_each_name_once_and_the_usual_images() -> None:
    names = [image.name for image in plan.plan(REAL)]

    assert len(names) == len(set(names))
    assert set(USUAL_IMAGES) <= set(names)


def test_the_matrix_in_the_documents_is_one_image_that_reaches_gpus(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8")
    (tmp_path / "matrix.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])

    (only,) = plan.plan(matrix.load(tmp_path / "matrix.yaml"))

    assert only.image
    assert all(warning.startswith("silently wrong") for warning in only.warnings)
    assert only.image.local_name == "mine-cu126-torch27"
    nvidia_variables = {
        name: value for name, value in only.image.environment.items() if name.startswith("NVIDIA_")
    }
    assert nvidia_variables == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.0",
    }


# --- accepted images ------------------------------------------------------------------------------


def test_a_torch_of_its_own_index_is_pinned_by_its_local_version() -> None:
    cu128 = planned("cu128-torch27").image

    assert cu128 is not None
    assert cu128.index is not None
    assert cu128.index.endswith("/cu128")
    with_local_version = [pin.requirement for pin in cu128.pins if "+" in pin.requirement]
    assert with_local_version == ["torch==2.7.1+cu128"]


def test_an_image_for_one_architecture_supports_only_that() -> None:
    for_sm90 = image("cu126-torch27-sm90", SOURCES)

    assert [str(arch) for arch in for_sm90.archs] == ["sm_90"]
    assert for_sm90.environment["TORCH_CUDA_ARCH_LIST"] == "9.0"


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("cu126-torch25", "cu12torch2.5cxx11abiFALSE"),
        ("cu126-torch27", "cu12torch2.7cxx11abiTRUE"),
        ("cu128-torch29", None),
    ],
)
def test_the_official_wheel_of_flash_attn_is_that_for_the_images_torch(
    name: str, build: str | None
) -> None:
    filenames = [wheel.filename for wheel in image(name, SOURCES).prebuilt]

    if build:
        assert filenames == [f"flash_attn-2.8.3+{build}-cp311-cp311-linux_x86_64.whl"]
    else:
        assert filenames == []


@pytest.mark.parametrize("name", ["cu126-torch25", "cu126-torch27", "cu128-torch29"])
def test_the_allocators_variable_has_the_name_that_this_torch_reads(name: str) -> None:
    variables = {
        variable for variable in image(name, SOURCES).environment if "ALLOC_CONF" in variable
    }

    assert variables == {"PYTORCH_CUDA_ALLOC_CONF"}


def test_a_prefix_changes_nothing_of_an_image_but_its_name_in_an_engine() -> None:
    """Digests, locks and records stay: it is no part of what an image is made from."""
    matrix_with_prefix = SOURCES.matrix.model_copy(update={"prefix": "me/images:"})
    sources = dataclasses.replace(SOURCES, matrix=matrix_with_prefix)

    without_prefix = planned("cu126-torch25").image
    with_prefix = plan.plan_one(ImageName.parse("cu126-torch25"), sources).image

    assert without_prefix
    assert with_prefix
    assert with_prefix.local_name == "me/images:cu126-torch25"
    assert dataclasses.replace(with_prefix, prefix="") == without_prefix


# --- refused images -------------------------------------------------------------------------------


def test_the_nearest_image_differs_least() -> None:
    names = plan.nearest(ImageName.parse("cu129-torch27"), plan.plan(SOURCES))

    assert names[0] == "cu128-torch27"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("cu118-torch215", "cu132-torch215"),
        ("cu126-torch27-sm120", "cu128-torch27"),
        # The torch is a typing error, so the spelling counts.
        ("cu126-torch277", "images of the matrix: cu126-torch27,"),
        # Two digits are swapped.
        ("cu126-torch52", "images of the matrix: cu126-torch25,"),
        # The last digit is missing.
        ("cu128-torch21", "images of the matrix: cu128-torch210,"),
    ],
)
def test_a_refused_image_that_the_matrix_lacks_names_the_nearest(name: str, nearest: str) -> None:
    assert nearest in planned(name).reasons[-1]


def test_issues_of_rare_faults_have_the_whole_name_of_their_repository() -> None:
    """Nothing else is said of these faults, so that a reader has to find the issues."""
    (warning,) = [text for text in planned("cu128-torch29", REAL).warnings if "the issues" in text]

    issues = warning.partition("the issues ")[2].split(", ")
    assert "pytorch/pytorch#144643" in issues
    assert all(re.fullmatch(r"[\w-]+/[\w-]+#\d+", issue) for issue in issues)


def test_images_for_arm_are_nearest_to_a_gpu_that_only_arm_boards_have() -> None:
    refused = planned("cu128-torch29-sm110", REAL)

    assert "images of the matrix: cu130-torch212-arm64," in refused.reasons[-1]


# --- `plan --json` and the table ------------------------------------------------------------------


def test_the_json_of_an_image_has_exactly_the_promised_keys() -> None:
    locks = {"cu126-torch25": Status.PRESENT}

    entry = json.loads(json.dumps(plan_verb.as_json_entry(planned("cu126-torch25"), locks)))

    assert set(entry) == {
        "name",
        "status",
        "reasons",
        "warnings",
        "kept",
        "torch",
        "python",
        "toolkit_cuda",
        "wheel_cuda",
        "archs",
        "min_driver",
        "profile",
        "pins",
        "lock",
        "buildable",
        "blocked",
    }
    assert (entry["lock"], entry["buildable"], entry["blocked"]) == ("present", True, "")


def test_a_refused_image_is_neither_buildable_nor_blocked() -> None:
    entry = plan_verb.as_json_entry(planned("cu118-torch27"), {})

    assert (entry["status"], entry["buildable"], entry["blocked"]) == ("refused", False, "")


NO_LOCK = "no lock: can't be built here"
OLD_LOCK = "its lock is older than the pins: can't be built here"


@pytest.mark.parametrize(
    ("name", "status", "blocked", "state"),
    [
        (
            "cu128-torch27",
            Status.MISSING,
            f"{NO_LOCK}; `nox -s lock -- cu128-torch27` makes it "
            "where download.pytorch.org answers",
            "no lock",
        ),
        (
            "cu126-torch27-sm90",
            Status.MISSING,
            f"{NO_LOCK}; `nox -s lock -- cu126-torch27` makes it",
            "no lock",
        ),
        (
            "cu126-torch27",
            Status.STALE,
            f"{OLD_LOCK}; `nox -s lock -- cu126-torch27` makes it anew",
            "stale",
        ),
        (
            "cu126-torch27",
            Status.DAMAGED,
            "its lock is damaged: can't be built here; "
            "`nox -s lock -- cu126-torch27` makes it anew",
            "damaged",
        ),
    ],
    ids=[
        "only one index has its torch",
        "an arch image has its parent's lock",
        "a stale lock",
        "a damaged lock",
    ],
)
def test_an_accepted_image_without_a_usable_lock_is_blocked(
    name: str, status: Status, blocked: str, state: str
) -> None:
    entry = plan_verb.as_json_entry(planned(name), {name: status})
    table = "\n".join(plan_verb.table([planned(name)], {name: status}))

    assert (entry["status"], entry["lock"]) == ("accepted", status)
    assert (entry["buildable"], entry["blocked"]) == (False, blocked)
    assert blocked in table
    assert state in table
    assert " ok " not in table


# --- linux/arm64 ----------------------------------------------------------------------------------


def test_the_matrix_has_an_arm64_image_of_each_torch_from_2_11_on() -> None:
    for_arm64 = [
        planned for planned in plan.plan(REAL) if planned.image_name.platform is Platform.ARM64
    ]

    torch_minors = {str(planned.image_name.torch) for planned in for_arm64}
    assert torch_minors == {"2.11", "2.12", "2.13", "2.14", "2.15"}
    assert all(planned.image for planned in for_arm64)


def test_an_arm64_image_supports_boards_that_run_code_of_their_family() -> None:
    on_arm64 = set(image("cu130-torch213-arm64").archs)
    on_amd64 = set(image("cu130-torch211").archs)

    assert {Arch(9, 0), Arch(10, 0), Arch(10, 3), Arch(11, 0), Arch(12, 1)} < on_arm64
    assert on_amd64.isdisjoint({Arch(8, 7), Arch(10, 3), Arch(11, 0), Arch(12, 1)})
    assert image("cu130-torch211-sm121-arm64").archs == (Arch(12, 1),)


def test_a_board_that_triton_does_not_know_is_not_supported() -> None:
    assert Arch(11, 0) not in image("cu130-torch211-arm64").archs


def test_an_optional_package_without_a_wheel_for_aarch64_is_left_out() -> None:
    assert image("cu130-torch211").pin("flash-attn")
    assert image("cu130-torch211-arm64").pin("flash-attn") is None


def test_the_lock_is_for_aarch64_with_an_installer_for_either_machine() -> None:
    inputs = lock_inputs(image("cu130-torch211-arm64"))

    assert inputs.platform == "aarch64-manylinux_2_36"
    assert inputs.builders == ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
    assert lock_inputs(image("cu130-torch211")).builders == ()


def claims_of(name: str) -> dict[tuple[str, str], Claim]:
    real_image = image(name)
    context = ClaimContext(image=real_image, facts=REAL.facts.on(real_image.name.platform))
    return {(claim.check, claim.subject): claim for claim in image_claims(context).claims}


def test_claims_name_the_processor_and_its_vector_instructions() -> None:
    arm64, amd64 = claims_of("cu130-torch211-arm64"), claims_of("cu130-torch211")

    assert arm64["pins", "torch"].expect["machine"] == "aarch64"
    assert "machine" not in amd64["pins", "torch"].expect
    assert arm64["image", "labels"].expect["architecture"] == "arm64"
    assert ("instructions", "sve") in arm64
    assert ("instructions", "avx512") in amd64


def test_claims_follow_from_what_was_measured_in_aarch64_wheels() -> None:
    arm64, amd64 = claims_of("cu130-torch211-arm64"), claims_of("cu130-torch211")

    assert "121" in arm64["device-code", "torch"].expect["archs"]
    # This library has device code in the x86-64 wheel and none in this one.
    assert arm64["device-code", "torch"].expect["also"] == ["torch/lib/libtorch_cuda_linalg.so"]
    assert ("native", "torchao") in amd64
    assert ("native", "torchao") not in arm64
