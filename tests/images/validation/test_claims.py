"""The claims of images: what they expect follows from matrix, facts and lock, not from an image."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import get_type_hints, is_typeddict

import jsonschema_rs
import pytest
import yaml

from images.config import schema
from images.config.paths import CHECKOUT
from images.hardware.inventory import Gpu, Inventory
from images.locking import lock_file
from images.locking.wheel_records import WheelRecord
from images.planning import expectations, plan
from images.planning.image import Image
from images.validation import derived_image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.validation.claims.files import file_claims
from tests.support import sources
from tests.support.cases import cases
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES, image
from validate import checks
from validate.binaries.kernel_states import Excuses
from validate.claims import ADMISSION, Claim, ClaimSet
from validate.derived import derived_claims, parse_declaration
from validate.judging import Status

SCHEMA = json.loads((ROOT / "docs" / "schema" / "evidence.schema.json").read_text())
CLAIM_SCHEMA = jsonschema_rs.Draft202012Validator(
    {"$ref": "#/$defs/Claim", "$defs": SCHEMA["$defs"]}
)
ALL_IMAGES = [planned.image for planned in plan.plan(SOURCES) if planned.image is not None]
"""Every image of the matrix that the rules accept."""
each_image = pytest.mark.parametrize("of_image", ALL_IMAGES, ids=lambda image: str(image.name))

CHECKS_OF_EVERY_IMAGE = {
    "4bit-llama",
    "additions",
    "compile",
    "compiler",
    "device-code",
    "environment",
    "files",
    "hygiene",
    "image",
    "imports",
    "instructions",
    "libraries",
    "native",
    "pins",
    "symbols",
    "system",
    "threads",
    "toolkit",
    "triton",
    "users",
}


def claims_of(
    name: str,
    missing: Mapping[str, str] | None = None,
    locked: Mapping[str, Mapping[str, str]] | None = None,
    *,
    custom_base: bool = False,
) -> ClaimSet:
    """Return the claims of an image of the matrix, without a host; without a lock, too.

    `missing`: optional package -> why the image goes without it. `locked`: layer -> distribution ->
    version.
    """
    return claims_of_image(
        image(name), missing=missing or {}, locked=locked or {}, custom_base=custom_base
    )


def claims_of_image(of_image: Image, **fields: object) -> ClaimSet:
    """Return the claims of an image, without lock and host. `fields`: those of ClaimContext."""
    context = ClaimContext(image=of_image, facts=SOURCES.facts)
    return image_claims(replace(context, **fields))  # type: ignore[arg-type]


def find(claims: ClaimSet, key: str) -> Claim:
    """Return the one claim of this name."""
    (claim,) = (claim for claim in claims.claims if claim.key == key)
    return claim


def keys_of(claims: ClaimSet) -> set[str]:
    return {claim.key for claim in claims.claims}


# --- every image ----------------------------------------------------------------------------------


@each_image
def test_every_image_has_the_basic_claims_each_once_with_a_judge(of_image: Image) -> None:
    claims = claims_of_image(of_image)

    keys = [claim.key for claim in claims.claims]
    assert len(keys) == len(set(keys))
    assert {claim.check for claim in claims.claims} >= CHECKS_OF_EVERY_IMAGE
    assert all(checks.judge_of(claim) for claim in claims.claims)


@each_image
def test_every_claim_keeps_to_the_published_schema(of_image: Image) -> None:
    stored = claims_of_image(of_image).dumps()

    for claim in json.loads(stored)["claims"]:
        CLAIM_SCHEMA.validate(claim)


@each_image
@pytest.mark.parametrize("custom_base", [False, True])
def test_what_is_expected_has_the_type_that_its_judge_names(
    of_image: Image, *, custom_base: bool
) -> None:
    claims = claims_of_image(of_image, custom_base=custom_base)
    declared = parse_declaration(
        '[replaces]\ntorch = "2.0"\n[variables]\nA = "b"\n[commands.smoke]\nrun = "true"'
    )
    derived = derived_claims(claims, derived_image.derived_rules(of_image, SOURCES), declared)

    for claim in (*claims.claims, *derived.claims):
        expected_type = get_type_hints(checks.judge_of(claim)).get("expect")
        if not is_typeddict(expected_type):
            continue
        # The probe reads how an example is run, and the judge of all claims why one does not apply.
        keys = claim.expect.keys() - {"example", "not_applicable"}
        required_keys = expected_type.__required_keys__ - {"example"}
        assert required_keys <= keys <= get_type_hints(expected_type).keys(), claim.key


@pytest.mark.parametrize("major", sorted({of_image.wheel_cuda.major for of_image in ALL_IMAGES}))
def test_cuda_libraries_are_known_for_every_major_of_the_matrix(major: int) -> None:
    assert expectations.cuda_libraries(major)["libcudart"] == str(major)


def test_every_fault_that_is_tried_in_a_real_image_names_a_claim_of_it() -> None:
    rows = yaml.safe_load((ROOT / "tests/integration/faults.yaml").read_text(encoding="utf-8"))
    claims_of_faults = set()
    for faults in rows.values():
        for row in faults.values():
            claims_of_faults |= row.keys() - {"layer", "last"}
    lock = lock_file.read(image("cu126-torch27"), CHECKOUT.locks)

    claims = image_claims(ClaimContext.from_lock(image("cu126-torch27"), lock, SOURCES.facts))

    assert claims_of_faults <= keys_of(claims)


# --- what is expected -----------------------------------------------------------------------------


def on_each(*archs: str, form: str = "cubin") -> dict[str, str]:
    return dict.fromkeys(archs, form)


@pytest.mark.parametrize(
    ("name", "key", "field", "expected"),
    [
        # The local versions of an official wheel, and of a wheel from an index.
        ("cu126-torch27", "pins/flash-attn", "locals", ["", "cu126", "cu12torch2.7cxx11abitrue"]),
        ("cu126-torch27", "pins/xformers", "locals", ["", "cu126"]),
        # A package whose module has another name.
        ("cu126-torch27", "pins/nvidia-ml-py", "modules", ["pynvml"]),
        # No wheel of torch 2.5 is for CUDA 12.6: it is for 12.4, the toolkit is 12.6.
        ("cu126-torch25", "pins/torch", "cuda", "12.4"),
        ("cu126-torch25", "toolkit/cuda", "version", "12.6"),
        ("cu126-torch25", "toolkit/cuda", "home", "/usr/local/cuda-12.6"),
        # bitsandbytes loads the library of torch's CUDA.
        (
            "cu126-torch25",
            "native/bitsandbytes",
            "libraries",
            ["bitsandbytes/libbitsandbytes_cuda124.so"],
        ),
        (
            "cu126-torch27",
            "native/bitsandbytes",
            "libraries",
            ["bitsandbytes/libbitsandbytes_cuda126.so"],
        ),
        (
            "cu128-torch28",
            "device-code/bitsandbytes",
            "files",
            ["bitsandbytes/libbitsandbytes_cuda128.so"],
        ),
        ("cu126-torch27", "triton/sm_90", "kernels", ["softmax", "matmul"]),
        # torch has machine code for each GPU of the image, xformers only PTX for the newest.
        (
            "cu128-torch28",
            "device-code/torch",
            "archs",
            on_each("75", "80", "86", "90", "100", "120"),
        ),
        (
            "cu128-torch28",
            "device-code/xformers",
            "archs",
            on_each("75", "80", "86", "90") | on_each("100", "120", form="jit"),
        ),
        # Extensions that are compiled here, for each GPU of the image.
        (
            "cu124-torch25-colossalai",
            "device-code/colossalai",
            "archs",
            on_each("75", "80", "86", "90"),
        ),
    ],
)
def test_what_is_expected_follows_matrix_and_facts(
    name: str, key: str, field: str, expected: object
) -> None:
    assert find(claims_of(name), key).expect[field] == expected


@pytest.mark.parametrize(
    ("version", "operator"),
    [
        ("0.9.0", "torchao::rowwise_scaled_linear_cutlass_s8s4"),
        ("0.10.0", "torchao::rowwise_scaled_linear_sparse_cutlass_f8f8"),
        ("0.18.0", "torchao::rowwise_scaled_linear_sparse_cutlass_f8f8"),
    ],
)
def test_an_operator_is_expected_only_of_releases_that_have_it(version: str, operator: str) -> None:
    of_image = image("cu124-torch26")
    pins = []
    for pin in of_image.pins:
        pins.append(replace(pin, version=version) if pin.name == "torchao" else pin)

    claims = claims_of_image(replace(of_image, pins=tuple(pins)))

    assert find(claims, "native/torchao").expect["operators"] == [operator]


@pytest.mark.parametrize(
    ("name", "is_expected"), [("cu130-torch214", True), ("cu132-torch215", False)]
)
def test_a_library_that_torch_no_longer_requires_is_not_expected(
    name: str, is_expected: bool
) -> None:
    files = find(claims_of(name), "device-code/cuda-libraries").expect["files"]

    assert ("**/libcurand.so.*" in files) is is_expected


def test_the_lock_is_expected_without_the_toolkit_and_without_missing_packages() -> None:
    locked = {"torch": {"numpy": "2.4.0"}, "toolkit": {"nvidia-cuda-nvcc-cu12": "12.6.85"}}

    claims = claims_of("cu126-torch27", {"bitsandbytes": "-"}, locked)

    expect = find(claims, "pins/lock").expect
    assert expect["versions"]["numpy"] == "2.4.0"
    assert not {"nvidia-cuda-nvcc-cu12", "bitsandbytes"} & set(expect["versions"])
    assert expect["closed"]


def test_a_silent_fault_is_claimed_only_of_a_package_that_the_image_has() -> None:
    """flash-attn-4 has a module of the same name, and another fault."""
    fault_of_flash_attn = "silent-faults/flash-attn-padded"

    with_package = claims_of("cu130-torch211")
    without_package = claims_of("cu130-torch211", {"flash-attn": "no index has a wheel"})

    assert fault_of_flash_attn in keys_of(with_package)
    assert fault_of_flash_attn not in keys_of(without_package)


# --- device code ----------------------------------------------------------------------------------


def archs_of_flash_attn(claims: ClaimSet) -> set[str]:
    return set(find(claims, "device-code/flash-attn").expect["archs"])


def with_official_wheel_for(of_image: Image, *majors: int) -> Image:
    """Return the image with its official wheel, which has code for GPUs of these majors only."""
    (wheel,) = of_image.prebuilt
    archs = tuple(arch for arch in wheel.archs if arch.major in majors)
    return replace(of_image, prebuilt=(replace(wheel, archs=archs),))


@pytest.mark.parametrize(
    ("name", "archs"),
    [
        pytest.param("cu128-torch28", {"80", "86", "90", "100", "120"}, id="official wheel"),
        pytest.param("cu126-torch25", {"80", "86", "90"}, id="older official wheel"),
        pytest.param("cu130-torch211", {"80", "86", "90", "100", "120"}, id="compiled here"),
    ],
)
def test_a_wheel_that_no_index_has_is_expected_to_serve_the_gpus_of_its_row(
    name: str, archs: set[str]
) -> None:
    assert archs_of_flash_attn(claims_of(name)) == archs


def test_a_gpu_that_the_row_of_an_official_wheel_lacks_is_not_expected() -> None:
    without_blackwell = with_official_wheel_for(image("cu128-torch28"), 8, 9)

    claims = claims_of_image(without_blackwell)

    expected = on_each("80", "86", "90")
    assert find(claims, "device-code/flash-attn").expect["archs"] == expected


def test_an_official_wheel_that_serves_no_gpu_has_no_claim_about_its_code() -> None:
    without_code = with_official_wheel_for(image("cu128-torch28"))

    assert "device-code/flash-attn" not in keys_of(claims_of_image(without_code))


@pytest.mark.parametrize(("package", "kernel", "real", "excused"), cases(__file__, "kernels"))
@pytest.mark.parametrize("state", ["stub", "absent"])
def test_kernels_are_excused_on_gpus_where_their_package_never_calls_them(
    package: str, kernel: str, real: Sequence[int], excused: Sequence[int], state: str
) -> None:
    excuses = Excuses(expectations.KERNELS_BY_DESIGN[package])

    assert {excuses.apply(kernel, state, arch) for arch in real} == {state}
    assert {excuses.apply(kernel, state, arch) for arch in excused} <= {"by_design"}


# --- custom bases ---------------------------------------------------------------------------------


BASE_CLAIMS = {"base/authorities", "base/debian", "base/leftovers", "base/modes"}


@each_image
def test_of_an_image_on_a_custom_base_what_we_put_there_is_required(of_image: Image) -> None:
    ours = claims_of_image(of_image)

    claims = claims_of_image(of_image, custom_base=True)

    assert {claim.key for claim in claims.claims if claim.check == "base"} == BASE_CLAIMS
    required = {claim.key for claim in claims.claims if claim.required}
    required_of_ours = {claim.key for claim in ours.claims if claim.required}
    assert required_of_ours - required == {
        # What a base brings.
        "authorities/trusted",
        "debian/packages",
        "hygiene/leftovers",
        "image/size",
        "system/tools",
        "system/verbs",
    }
    assert required <= required_of_ours
    assert all(checks.judge_of(claim) for claim in claims.claims)


def test_nothing_is_unproven_because_of_a_custom_base() -> None:
    ours = claims_of("cu126-torch27-sm90")

    claims = claims_of("cu126-torch27-sm90", custom_base=True)

    unproven = {claim.key for claim in ours.claims if claim.unproven}
    assert {claim.key for claim in claims.claims if claim.unproven} == unproven


def test_a_fault_of_what_a_base_brings_does_not_keep_the_image_from_being_run() -> None:
    claims = claims_of("cu126-torch27", custom_base=True)

    of_base = [claim for claim in claims.claims if claim.check == "base"]

    assert not any(claim.check in ADMISSION or claim.required for claim in of_base)
    assert find(claims, "modes/users").required


@pytest.mark.parametrize("name", ["cu126-torch27", "cu126-torch27-sm90"])
def test_an_image_on_a_custom_base_has_its_label(name: str) -> None:
    labels = find(claims_of(name, custom_base=True), "image/labels").expect["labels"]

    assert labels["dev.truetag.base-origin"] == "custom"


def test_the_path_is_the_same_on_every_base() -> None:
    """The environment is made in /opt/venv on every base, whatever Python the base brings."""
    of_image = image("cu126-torch27")
    lock = lock_file.read(of_image, SOURCES.workspace.locks)

    def path_of(*, custom_base: bool) -> list[str]:
        context = ClaimContext.from_lock(of_image, lock, SOURCES.facts, custom_base=custom_base)
        path: list[str] = find(image_claims(context), "lookup/paths").expect["path"]
        return path

    assert path_of(custom_base=True) == path_of(custom_base=False)


# --- packages that an image goes without ----------------------------------------------------------


def test_claims_about_a_package_that_could_not_be_had_are_unproven_and_not_required() -> None:
    claims = claims_of("cu126-torch27", {"bitsandbytes": "no wheel answers"})

    about_package = [claim for claim in claims.claims if claim.subject == "bitsandbytes"]
    checks_of_package = {claim.check for claim in about_package}
    assert checks_of_package == {"pins", "device-code", "imports", "native"}
    assert all(not claim.required for claim in about_package)
    assert all("no wheel answers" in claim.unproven for claim in about_package)
    assert find(claims, "pins/torch").required


@pytest.mark.parametrize("package", ["bitsandbytes", "torchao", "xformers"])
def test_gpu_code_of_a_release_that_the_facts_do_not_know_is_unproven(package: str) -> None:
    known = image("cu126-torch27")
    pins = tuple(replace(pin, version="99.0") if pin.name == package else pin for pin in known.pins)

    claims = claims_of_image(replace(known, pins=pins))

    device_code = find(claims, f"device-code/{package}")
    assert device_code.unproven == f"nothing is known of {package} 99.0"
    assert not device_code.required
    assert find(claims, f"imports/{package}").required


CLAIMS_ABOUT_EXTENSIONS = {
    "cu124-torch25-colossalai": (
        "device-code/colossalai",
        "native/colossalai",
        "framework/colossalai-hybrid-adam",
        "framework/colossalai-fused-adam",
    ),
    "cu130-torch213-axolotl-multigpu": (
        "device-code/deepspeed",
        "native/deepspeed",
        "framework/deepspeed-cpu-adam",
        "framework/deepspeed-fused-adam",
    ),
}
each_extension = pytest.mark.parametrize(("name", "keys"), CLAIMS_ABOUT_EXTENSIONS.items())


@each_extension
def test_compiled_extensions_are_claimed(name: str, keys: Sequence[str]) -> None:
    claims = claims_of(name)

    for key in keys:
        assert find(claims, key).required
        assert not find(claims, key).unproven


@each_extension
def test_without_compiled_extensions_their_claims_are_unproven_and_the_packages_required(
    name: str, keys: Sequence[str]
) -> None:
    package = keys[0].partition("/")[2]

    claims = claims_of(name, {f"{package} extensions": "X, which are not compiled"})

    for key in keys:
        assert not find(claims, key).required
        assert "goes without X, which are not compiled" in find(claims, key).unproven
    assert find(claims, f"pins/{package}").required
    assert find(claims, f"imports/{package}").required


@pytest.mark.parametrize(
    ("name", "missing", "reason"),
    [
        pytest.param("cu124-torch25-colossalai", {}, "", id="with extensions"),
        pytest.param(
            "cu124-torch25-colossalai",
            {"colossalai extensions": "not compiled"},
            "neither nvcc nor a wheel",
            id="without",
        ),
        pytest.param(
            "cu124-torch25-devel-colossalai",
            {"colossalai extensions": "not compiled"},
            "",
            id="without, and with nvcc",
        ),
    ],
)
def test_the_example_of_hybrid_adam_needs_the_extensions_or_nvcc(
    name: str, missing: dict[str, str], reason: str
) -> None:
    unproven = find(claims_of(name, missing), "gpu-examples/hybrid-adam").unproven

    assert reason in unproven
    assert bool(unproven) is bool(reason)


# --- images for one architecture ------------------------------------------------------------------


def test_an_image_for_one_architecture_is_expected_to_hold_no_other_code() -> None:
    claims = claims_of("cu126-torch27-sm90")

    pruned = find(claims, "device-code/pruned")
    assert pruned.required
    assert not pruned.unproven
    assert pruned.expect["archs"] == {"90": "cubin"}
    assert pruned.expect["nvidia"] is False
    assert set(pruned.expect["by_design_of"]) == set(expectations.KERNELS_BY_DESIGN)
    assert "but NVIDIA's own" in pruned.statement
    assert find(claims, "image/labels").expect["labels"]["dev.truetag.pruned"] == "sm_90"


def test_an_image_for_all_architectures_has_no_claim_about_pruning() -> None:
    assert "device-code/pruned" not in keys_of(claims_of("cu126-torch27"))


def test_nvidias_libraries_are_expected_to_be_pruned_if_the_matrix_says_so() -> None:
    matrix = SOURCES.matrix.model_copy(update={"prune": schema.Prune(nvidia=True)})
    of_image = sources.image("cu126-torch27-sm90", replace(SOURCES, matrix=matrix))

    claims = claims_of_image(of_image)

    assert find(claims, "device-code/pruned").expect["nvidia"] is True
    assert find(claims, "image/labels").expect["labels"]["dev.truetag.pruned"] == "sm_90 nvidia"


# --- RECORDs --------------------------------------------------------------------------------------

RowChange = Callable[[WheelRecord], WheelRecord | None]
"""What a lock knows of a wheel's RECORD -> what it shall know; None: nothing."""


def unchanged(row: WheelRecord) -> WheelRecord:
    return row


def unknown(_row: WheelRecord) -> None:
    """Nobody has read the wheel."""


def records_claim(name: str, change: RowChange) -> Claim:
    """Return the claim records/locked of an image. `change`: what its lock knows of each RECORD."""
    of_image = image(name)
    lock = lock_file.read(of_image, CHECKOUT.locks)
    records = {}
    for digest, row in lock.wheel_records.items():
        changed = change(row)
        if changed:
            records[digest] = changed
    lock = replace(lock, wheel_records=records)
    context = ClaimContext.from_lock(of_image, lock, SOURCES.facts, missing={}, custom_base=False)
    (claim,) = (claim for claim in file_claims(context) if claim.key == "records/locked")
    return claim


@pytest.mark.parametrize(
    ("name", "change", "is_known"),
    [
        ("cu126-torch27", unchanged, True),
        ("cu126-torch27-sm90", unchanged, True),
        ("cu126-torch27", unknown, False),
    ],
)
def test_records_are_required_whether_they_are_known_or_not(
    name: str, change: RowChange, is_known: bool
) -> None:
    claim = records_claim(name, change)

    unknown_records = claim.expect["unknown"]
    assert claim.required
    assert ("torch" not in unknown_records) is is_known
    if not is_known:
        assert f"`lock {name}`" in unknown_records["torch"]


def test_no_record_is_expected_of_a_package_whose_libraries_are_pruned() -> None:
    whole = records_claim("cu126-torch27", unchanged).expect
    pruned = records_claim("cu126-torch27-sm90", unchanged).expect

    assert {"torch", "peft", "nvidia-nccl-cu12"} <= whole["wheels"].keys()
    assert "torch" in pruned["built"] and "torch" not in pruned["wheels"]
    assert {"peft", "nvidia-nccl-cu12"} <= pruned["wheels"].keys()


# --- imports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        # torch 2.5 beside a numpy whose C API it can't use, and without numpy.
        "UserWarning: Failed to initialize NumPy: module 'numpy._core._multiarray_umath' has no "
        "attribute '_ARRAY_API' (Triggered internally at ../torch/csrc/utils/tensor_numpy.cpp:84.)",
        "UserWarning: Failed to initialize NumPy: No module named 'numpy' (Triggered internally)",
    ],
)
def test_torch_that_cannot_use_numpy_says_so_at_import_and_fails(line: str) -> None:
    claim = find(claims_of("cu126-torch27"), "imports/torch")
    judge = checks.judge_of(claim)
    assert judge

    healthy = judge("torch", claim.expect, {"orders": {"first": {"said": []}}})
    faulty = judge("torch", claim.expect, {"orders": {"first": {"said": [line]}}})

    assert healthy.status is Status.PASS
    assert faulty.status is Status.FAIL
    assert "NumPy" in faulty.reason


# --- hosts with different GPUs --------------------------------------------------------------------

V100 = Gpu(name="Tesla V100", capability=(7, 0), memory=32 << 30)
QUADRO = Gpu(name="Quadro RTX 8000", capability=(7, 5), memory=48 << 30)
H100 = Gpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory=80 << 30)


def obstacles_on(*gpus: Gpu) -> dict[str, str]:
    """Return why claims about speed and steps do not apply to a host: name -> reason."""
    inventory = Inventory(driver="580.95", gpus=gpus, source="NVML")
    claims = claims_of_image(image("cu126-torch27"), inventory=inventory)
    reasons = {}
    for claim in claims.claims:
        if claim.check in ("speed", "step"):
            reasons[claim.key] = claim.expect.get("not_applicable", "")
    return reasons


@pytest.mark.parametrize("other", [QUADRO, H100])
def test_the_oldest_of_a_hosts_gpus_decides_what_applies(other: Gpu) -> None:
    reasons = obstacles_on(other, V100)

    assert reasons == obstacles_on(V100)
    assert reasons["step/eager"] == "bfloat16 takes compute capability 8.0, Tesla V100 has 7.0"
    assert reasons["speed/attention-flash"]


def test_on_a_host_whose_gpus_are_all_new_enough_everything_applies() -> None:
    assert not any(obstacles_on(H100, H100).values())
