"""The plan: that the project's own matrix is sound; over the small one, what is accepted, what is refused, and why."""

import dataclasses
import json
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

LOCKABLE = """cu126-torch25 cu124-torch25 cu124-torch26 cu126-torch27 cu128-torch28 cu128-torch29 cu128-torch210
cu130-torch211 cu130-torch212 cu130-torch213 cu130-torch214 cu132-torch215""".split()


def one(name: str, sources: Sources = SOURCES) -> Planned:
    (planned,) = plan.select([name], sources)
    return planned


def test_the_matrix_is_sound() -> None:
    names = [image.name for image in plan.plan(REAL)]
    assert len(names) == len(set(names))
    assert set(LOCKABLE) <= set(names)


def test_a_variant_of_its_own_index_is_pinned_by_its_local_version() -> None:
    image = one("cu128-torch27").image
    assert image is not None and image.index is not None and image.index.endswith("/cu128")
    assert [pin.requirement for pin in image.pins if "+" in pin.requirement] == [
        "torch==2.7.1+cu128"
    ]


def test_an_ad_hoc_refusal_names_what_exists() -> None:
    assert plan.nearest(ImageName.parse("cu129-torch27"), plan.plan(SOURCES))[0] == "cu128-torch27"
    assert "cu132-torch215" in one("cu118-torch215").reasons[-1]
    assert "cu128-torch27" in one("cu126-torch27-sm120").reasons[-1]


def test_an_arch_image_promises_that_arch_alone() -> None:
    found = image("cu126-torch27-sm90", SOURCES)
    assert [str(arch) for arch in found.archs] == ["sm_90"]
    assert found.environment["TORCH_CUDA_ARCH_LIST"] == "9.0"


@pytest.mark.parametrize(
    ("name", "wheel", "variable"),
    [
        (
            "cu126-torch25",
            "cu12torch2.5cxx11abiFALSE-cp311-cp311-linux_x86_64.whl",
            "PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            "cu126-torch27",
            "cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl",
            "PYTORCH_CUDA_ALLOC_CONF",
        ),
        ("cu128-torch29", "", "PYTORCH_CUDA_ALLOC_CONF"),
    ],
)
def test_official_wheel_and_allocator_follow_torch(name: str, wheel: str, variable: str) -> None:
    found = image(name, SOURCES)
    assert [one.filename for one in found.prebuilt] == (
        [f"flash_attn-2.8.3+{wheel}"] if wheel else []
    )
    assert {one for one in found.environment if "ALLOC_CONF" in one} == {variable}


def test_json_has_exactly_the_promised_keys() -> None:
    row = json.loads(
        json.dumps(plan_verb.as_json_entry(one("cu126-torch25"), {"cu126-torch25": Status.PRESENT}))
    )
    assert set(row) == set(
        "name status reasons warnings kept torch python toolkit_cuda wheel_cuda archs min_driver profile pins lock "
        "buildable blocked".split()
    )
    assert (row["lock"], row["buildable"], row["blocked"]) == ("present", True, "")
    refused = plan_verb.as_json_entry(one("cu118-torch27"), {})
    assert (refused["status"], refused["buildable"], refused["blocked"]) == ("refused", False, "")


NONE, OLD = "no lock: can't be built here", "its lock is older than the pins: can't be built here"


@pytest.mark.parametrize(
    ("name", "status", "why", "then"),
    [
        (
            "cu128-torch27",
            Status.MISSING,
            NONE,
            "cu128-torch27` makes it where download.pytorch.org answers",
        ),
        ("cu126-torch27-sm90", Status.MISSING, NONE, "cu126-torch27` makes it"),
        ("cu126-torch27", Status.STALE, OLD, "cu126-torch27` makes it anew"),
    ],
)
def test_an_image_without_a_lock_is_not_said_to_be_ok(
    name: str, status: Status, why: str, then: str
) -> None:
    said = f"{why}; `nox -s lock -- {then}"
    planned = one(name)
    row = plan_verb.as_json_entry(planned, {name: status})
    assert (row["status"], row["lock"], row["buildable"], row["blocked"]) == (
        "accepted",
        status,
        False,
        said,
    )
    text = "\n".join(plan_verb.table([planned], {name: status}))
    assert said in text and ("no lock" in text or "stale" in text) and " ok " not in text


def test_the_small_matrix_of_the_documents_is_one_image_that_reaches_gpus(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8")
    (tmp_path / "matrix.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    (planned,) = plan.plan(matrix.load(tmp_path / "matrix.yaml"))
    assert planned.image and all(one.startswith("silently wrong") for one in planned.warnings)
    assert planned.image.local_name == "mine-cu126-torch27"
    driver = {
        key: value for key, value in planned.image.environment.items() if key.startswith("NVIDIA_")
    }
    assert driver == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.0",
    }


def test_a_prefix_changes_no_image_but_its_name() -> None:
    """Digests, locks and records stay: it is no part of what an image is made from."""
    own = dataclasses.replace(
        SOURCES, matrix=SOURCES.matrix.model_copy(update={"prefix": "me/images:"})
    )
    ours, theirs = (
        one("cu126-torch25").image,
        plan.plan_one(ImageName.parse("cu126-torch25"), own).image,
    )
    assert ours and theirs and theirs.local_name == "me/images:cu126-torch25"
    assert dataclasses.replace(theirs, prefix="") == ours


def test_the_matrix_has_an_arm64_image_of_each_torch_from_2_11_on() -> None:
    names = {one.name: one for one in plan.plan(REAL) if one.image_name.platform is Platform.ARM64}
    assert {str(one.image_name.torch) for one in names.values()} == {
        "2.11",
        "2.12",
        "2.13",
        "2.14",
        "2.15",
    }
    assert all(one.image for one in names.values())


def test_boards_whose_gpu_code_of_its_family_serves_are_supported() -> None:
    archs = set(image("cu130-torch213-arm64").archs)
    assert {Arch(9, 0), Arch(10, 0), Arch(10, 3), Arch(11, 0), Arch(12, 1)} < archs
    assert not {Arch(8, 7), Arch(10, 3), Arch(11, 0), Arch(12, 1)} & set(
        image("cu130-torch211").archs
    )
    assert image("cu130-torch211-sm121-arm64").archs == (Arch(12, 1),)
    older = image("cu130-torch211-arm64")
    assert Arch(11, 0) not in older.archs, "its triton can't assemble for it"
    assert older.pin("flash-attn") is None and image("cu130-torch211").pin("flash-attn"), (
        "optional, and no wheel"
    )


def test_the_lock_is_for_aarch64_with_an_installer_for_either_machine() -> None:
    inputs = lock_inputs(image("cu130-torch211-arm64"))
    assert inputs.platform == "aarch64-manylinux_2_36"
    assert inputs.builders == ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
    assert lock_inputs(image("cu130-torch211")).builders == ()


def test_claims_name_the_processor_and_its_vector_code() -> None:
    facts, names = REAL.facts, ("cu130-torch211-arm64", "cu130-torch211")
    contexts = [
        ClaimContext(image=image(one), facts=facts.on(image(one).name.platform)) for one in names
    ]
    arm64, amd64 = (
        {(one.check, one.subject): one for one in image_claims(context).claims}
        for context in contexts
    )
    assert arm64["pins", "torch"].expect["machine"] == "aarch64"
    assert "machine" not in amd64["pins", "torch"].expect
    assert arm64["image", "labels"].expect["architecture"] == "arm64"
    assert ("instructions", "sve") in arm64 and ("instructions", "avx512") in amd64
    assert "121" in arm64["device-code", "torch"].expect["archs"]
    assert arm64["device-code", "torch"].expect["also"] == ["torch/lib/libtorch_cuda_linalg.so"]
    assert ("native", "torchao") in amd64 and ("native", "torchao") not in arm64
