"""Images for linux/arm64: what the plan accepts, refuses and leaves out, each with its reason."""

from images.config.names import Arch
from images.config.platforms import Platform
from images.locking.inputs import lock_inputs
from images.planning import plan
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.sources import SOURCES, image


def test_the_matrix_has_an_arm64_image_of_each_torch_from_2_11_on() -> None:
    names = {one.name: one for one in plan.plan(SOURCES) if one.image_name.platform is Platform.ARM64}
    assert {str(one.image_name.torch) for one in names.values()} == {"2.11", "2.12", "2.13", "2.14", "2.15"}
    assert all(one.accepted for one in names.values())


def test_boards_whose_gpu_code_of_its_family_serves_are_supported() -> None:
    archs = set(image("cu130-torch213-arm64").archs)
    assert {Arch(9, 0), Arch(10, 0), Arch(10, 3), Arch(11, 0), Arch(12, 1)} < archs
    assert not {Arch(8, 7), Arch(10, 3), Arch(11, 0), Arch(12, 1)} & set(image("cu130-torch211").archs)
    assert image("cu130-torch211-sm121-arm64").archs == (Arch(12, 1),)
    older = image("cu130-torch211-arm64")
    assert Arch(11, 0) not in older.archs, "its triton can't assemble for it"
    assert older.pin("flash-attn") is None and image("cu130-torch211").pin("flash-attn"), "optional, and no wheel"


def test_the_lock_is_for_aarch64_with_an_installer_for_either_machine() -> None:
    inputs = lock_inputs(image("cu130-torch211-arm64"))
    assert inputs.platform == "aarch64-manylinux_2_36"
    assert inputs.builders == ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
    assert lock_inputs(image("cu130-torch211")).builders == ()


def test_claims_name_the_processor_and_its_vector_code() -> None:
    facts, names = SOURCES.facts, ("cu130-torch211-arm64", "cu130-torch211")
    contexts = [ClaimContext(image=image(one), facts=facts.on(image(one).platform)) for one in names]
    arm64, amd64 = ({(one.id, one.subject): one for one in image_claims(context).claims} for context in contexts)
    assert arm64["S1", "torch"].expect["machine"] == "aarch64"
    assert "machine" not in amd64["S1", "torch"].expect
    assert arm64["S8", "labels"].expect["architecture"] == "arm64"
    assert ("C9", "sve") in arm64 and ("C9", "avx512") in amd64
    assert "121" in arm64["S5", "torch"].expect["archs"]
    assert arm64["S5", "torch"].expect["also"] == ["torch/lib/libtorch_cuda_linalg.so"]
    assert ("C2", "torchao") in amd64 and ("C2", "torchao") not in arm64
