"""Claims are written from the resolved image: nothing of them depends on what a container holds."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import get_type_hints, is_typeddict

import jsonschema_rs
import pytest
import yaml

from images.config import schema
from images.config.paths import CHECKOUT
from images.locking import lock_file
from images.locking.wheel_records import WheelRecord
from images.planning import expectations, plan
from images.planning.image import Image
from images.validation import child
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.validation.claims.files import file_claims
from tests.support import sources
from tests.support.cases import cases
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES, image
from validate import checks
from validate.binaries.kernel_states import Excuses
from validate.claims import Claim, ClaimSet

SCHEMA = json.loads((ROOT / "docs" / "schema" / "evidence.schema.json").read_text())
CLAIM_SCHEMA = jsonschema_rs.Draft202012Validator(
    {"$ref": "#/$defs/Claim", "$defs": SCHEMA["$defs"]}
)
ACCEPTED = [planned.image for planned in plan.plan(SOURCES) if planned.image is not None]


def claims(
    name: str,
    missing: Mapping[str, str] | None = None,
    locked: Mapping[str, Mapping[str, str]] | None = None,
    *,
    custom_base: bool = False,
) -> ClaimSet:
    context = ClaimContext(image=image(name), facts=SOURCES.facts, custom_base=custom_base)
    return image_claims(replace(context, missing=missing or {}, locked=locked or {}))


def one(found: ClaimSet, id: str, subject: str) -> Claim:  # noqa: A002
    (claim,) = (claim for claim in found.claims if (claim.check, claim.subject) == (id, subject))
    return claim


def test_a_silent_fault_is_claimed_of_packages_that_the_image_has() -> None:
    padded = [
        [
            claim.subject
            for claim in claims("cu130-torch211", missing).claims
            if claim.subject == "flash-attn-padded"
        ]
        for missing in ({}, {"flash-attn": "no index has a wheel"})
    ]
    assert padded == [["flash-attn-padded"], []], "flash-attn-4 has a module of the same name"


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda accepted: str(accepted.name))
def test_every_image_can_be_promised_probed_and_judged(accepted: Image) -> None:
    found = image_claims(ClaimContext(image=accepted, facts=SOURCES.facts))
    keys = [(claim.check, claim.subject) for claim in found.claims]
    assert len(keys) == len(set(keys))
    assert {claim.check for claim in found.claims} >= {
        *(
            "pins",
            "files",
            "libraries",
            "symbols",
            "device-code",
            "toolkit",
            "environment",
            "image",
            "hygiene",
        ),
        *(
            "system",
            "imports",
            "native",
            "compiler",
            "triton",
            "compile",
            "bridges",
            "threads",
            "users",
        ),
        *("instructions", "4bit-llama", "additions"),
    }
    assert all(checks.judge_of(claim) for claim in found.claims)
    for claim in json.loads(found.dumps())["claims"]:
        CLAIM_SCHEMA.validate(claim)


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda accepted: str(accepted.name))
@pytest.mark.parametrize("custom_base", [False, True])
def test_what_is_expected_has_the_type_that_its_judge_names(
    accepted: Image, *, custom_base: bool
) -> None:
    found = image_claims(ClaimContext(image=accepted, facts=SOURCES.facts, custom_base=custom_base))
    derived = child.derived_claims(found, {"vllm": "it fails"}, conflicts=SOURCES.facts.conflicts)
    for claim in (*found.claims, *derived.claims):
        expected = get_type_hints(checks.judge_of(claim)).get("expect")
        if not is_typeddict(expected):
            continue
        # How an example is run is for its probe, and why a claim does not apply for the judge of all claims.
        keys = claim.expect.keys() - {"example", "not_applicable"}
        assert (
            expected.__required_keys__ - {"example"} <= keys <= get_type_hints(expected).keys()
        ), claim.key


def test_the_code_of_an_official_wheel_is_claimed_as_its_row_says() -> None:
    """device-code follows the table: an sm_120 that the row has is claimed, one that it lacks is not."""
    assert set(one(claims("cu128-torch28"), "device-code", "flash-attn").expect["archs"]) == {
        "80",
        "86",
        "90",
        "100",
        "120",
    }
    assert set(one(claims("cu126-torch25"), "device-code", "flash-attn").expect["archs"]) == {
        "80",
        "86",
        "90",
    }
    wanted = image("cu128-torch28")
    (wheel,) = wanted.prebuilt
    short = replace(
        wanted,
        prebuilt=(replace(wheel, archs=tuple(arch for arch in wheel.archs if arch.major < 10)),),
    )
    found = image_claims(ClaimContext(image=short, facts=SOURCES.facts))
    assert one(found, "device-code", "flash-attn").expect["archs"] == {
        "80": "cubin",
        "86": "cubin",
        "90": "cubin",
    }
    compiled = one(claims("cu130-torch211"), "device-code", "flash-attn").expect["archs"]
    assert set(compiled) == {"80", "86", "90", "100", "120"}
    none = image_claims(
        ClaimContext(
            image=replace(wanted, prebuilt=(replace(wheel, archs=()),)), facts=SOURCES.facts
        )
    )
    assert not [
        claim
        for claim in none.claims
        if (claim.check, claim.subject) == ("device-code", "flash-attn")
    ]


CUBINS = dict.fromkeys(("75", "80", "86", "90", "100", "120"), "cubin")
XFORMERS = {**dict.fromkeys(("75", "80", "86", "90"), "cubin"), "100": "jit", "120": "jit"}


@pytest.mark.parametrize(
    ("name", "key", "what", "expected"),
    [
        ("cu126-torch27", "pins/flash-attn", "locals", ["", "cu126", "cu12torch2.7cxx11abitrue"]),
        ("cu126-torch27", "pins/xformers", "locals", ["", "cu126"]),
        ("cu126-torch27", "pins/nvidia-ml-py", "modules", ["pynvml"]),
        ("cu126-torch25", "pins/torch", "cuda", "12.4"),
        ("cu126-torch25", "toolkit/cuda", "version", "12.6"),
        ("cu126-torch25", "toolkit/cuda", "home", "/usr/local/cuda-12.6"),
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
        ("cu126-torch27", "triton/sm_90", "kernels", ["softmax", "matmul"]),
        ("cu128-torch28", "device-code/torch", "archs", CUBINS),
        ("cu128-torch28", "device-code/xformers", "archs", XFORMERS),
        (
            "cu128-torch28",
            "device-code/bitsandbytes",
            "files",
            ["bitsandbytes/libbitsandbytes_cuda128.so"],
        ),
        (
            "cu124-torch25-colossalai",
            "device-code/colossalai",
            "archs",
            dict.fromkeys(("75", "80", "86", "90"), "cubin"),
        ),
    ],
)
def test_what_is_expected_follows_matrix_and_facts(
    name: str, key: str, what: str, expected: object
) -> None:
    assert one(claims(name), *key.split("/", 1)).expect[what] == expected


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("cu126-torch27", "pins/lock"),
        ("cu126-torch27-sm90", "device-code/pruned"),
        ("cu126-torch27", "records/locked"),
    ],
)
def test_what_a_base_of_ones_own_brought_is_not_promised(name: str, key: str) -> None:
    found = claims(name, custom_base=True)
    claim = one(found, *key.split("/", 1))
    assert "custom base" in claim.unproven and claim.required, (
        "a label can't say that it need not be known"
    )
    labels = one(found, "image", "labels").expect["labels"]
    assert "dev.truetag.pruned" not in labels and labels["dev.truetag.base-origin"] == "custom"


def test_the_order_of_a_custom_bases_own_folders_is_not_promised() -> None:
    lock = lock_file.read(image("cu126-torch27"), SOURCES.workspace.locks)
    path = {}
    for custom_base in (False, True):
        context = ClaimContext.from_lock(
            image("cu126-torch27"), lock, SOURCES.facts, custom_base=custom_base
        )
        path[custom_base] = one(image_claims(context), "lookup", "paths").expect["path"]
    additions, python, toolkit, *system = path[False]
    assert python == "/opt/venv/bin" and system, "the image's own"
    assert path[True] == [additions, toolkit], "conda's Python is elsewhere, and before /usr/bin"


def test_what_could_not_be_had_is_unproven_and_not_required() -> None:
    found = claims("cu126-torch27", {"bitsandbytes": "no wheel answers"})
    about = [claim for claim in found.claims if claim.subject == "bitsandbytes"]
    assert {claim.check for claim in about} == {"pins", "device-code", "imports", "native"}
    assert all(not claim.required and "no wheel answers" in claim.unproven for claim in about)
    assert one(found, "pins", "torch").required


def test_the_lock_is_promised_without_the_toolkits_and_without_what_is_missing() -> None:
    lock = {"torch": {"numpy": "2.4.0"}, "toolkit": {"nvidia-cuda-nvcc-cu12": "12.6.85"}}
    expect = one(claims("cu126-torch27", {"bitsandbytes": "-"}, lock), "pins", "lock").expect
    assert expect["versions"]["numpy"] == "2.4.0"
    assert not {"nvidia-cuda-nvcc-cu12", "bitsandbytes"} & set(expect["versions"])
    assert expect["closed"]


@pytest.mark.parametrize(
    ("version", "operator"),
    [
        ("0.9.0", "torchao::rowwise_scaled_linear_cutlass_s8s4"),
        ("0.10.0", "torchao::rowwise_scaled_linear_sparse_cutlass_f8f8"),
        ("0.18.0", "torchao::rowwise_scaled_linear_sparse_cutlass_f8f8"),
    ],
)
def test_an_operator_is_asked_only_of_releases_that_have_it(version: str, operator: str) -> None:
    of_image = image("cu124-torch26")
    pins = tuple(
        replace(pin, version=version) if pin.name == "torchao" else pin for pin in of_image.pins
    )
    found = image_claims(ClaimContext(image=replace(of_image, pins=pins), facts=SOURCES.facts))
    assert one(found, "native", "torchao").expect["operators"] == [operator]


@pytest.mark.parametrize(("package", "kernel", "real", "excused"), cases(__file__, "kernels"))
@pytest.mark.parametrize("state", ["stub", "absent"])
def test_kernels_are_excused_where_their_package_never_calls_them(
    package: str, kernel: str, real: Sequence[int], excused: Sequence[int], state: str
) -> None:
    excuses = Excuses(expectations.KERNELS_BY_DESIGN[package])
    assert {excuses.apply(kernel, state, arch) for arch in real} == {state}
    assert {excuses.apply(kernel, state, arch) for arch in excused} <= {"by_design"}


@pytest.mark.parametrize(("name", "has"), [("cu130-torch214", True), ("cu132-torch215", False)])
def test_libraries_that_torch_no_longer_requires_are_not_asked_for(name: str, has: bool) -> None:
    assert (
        "**/libcurand.so.*" in one(claims(name), "device-code", "cuda-libraries").expect["files"]
    ) is has


@pytest.mark.parametrize("major", sorted({accepted.wheel_cuda.major for accepted in ACCEPTED}))
def test_cuda_libraries_are_known_for_every_major_of_the_matrix(major: int) -> None:
    assert expectations.cuda_libraries(major)["libcudart"] == str(major)


def test_an_image_for_one_arch_promises_that_nothing_else_is_left() -> None:
    found = claims("cu126-torch27-sm90")
    pruned = one(found, "device-code", "pruned")
    assert pruned.required and not pruned.unproven
    assert (pruned.expect["archs"], pruned.expect["nvidia"]) == ({"90": "cubin"}, False)
    assert set(pruned.expect["by_design_of"]) == set(expectations.KERNELS_BY_DESIGN)
    assert one(found, "image", "labels").expect["labels"]["dev.truetag.pruned"] == "sm_90"
    assert "but NVIDIA's own" in pruned.statement
    assert not [claim for claim in claims("cu126-torch27").claims if claim.subject == "pruned"]


def test_nvidias_libraries_are_claimed_to_be_pruned_only_where_the_matrix_says_so() -> None:
    nvidia = replace(
        SOURCES, matrix=SOURCES.matrix.model_copy(update={"prune": schema.Prune(nvidia=True)})
    )
    found = image_claims(
        ClaimContext(image=sources.image("cu126-torch27-sm90", nvidia), facts=SOURCES.facts)
    )
    assert one(found, "device-code", "pruned").expect["nvidia"] is True
    assert one(found, "image", "labels").expect["labels"]["dev.truetag.pruned"] == "sm_90 nvidia"


EXTENDED = {
    "cu124-torch25-colossalai": (
        "colossalai",
        "framework/colossalai-hybrid-adam",
        "framework/colossalai-fused-adam",
    ),
    "cu130-torch213-axolotl-multigpu": (
        "deepspeed",
        "framework/deepspeed-cpu-adam",
        "framework/deepspeed-fused-adam",
    ),
}


@pytest.mark.parametrize("name", EXTENDED)
def test_compiled_extensions_are_promised_and_without_them_unproven(name: str) -> None:
    package, *behaviours = EXTENDED[name]
    wanted = {f"device-code/{package}", f"native/{package}", *behaviours}
    there = [claim for claim in claims(name).claims if claim.key in wanted]
    assert len(there) == 4 and all(claim.required and not claim.unproven for claim in there)
    lacking = claims(name, {f"{package} extensions": "X, which are not compiled"})
    without = [claim for claim in lacking.claims if claim.key in wanted]
    assert all(
        not claim.required and "goes without X, which are not compiled" in claim.unproven
        for claim in without
    )
    assert one(lacking, "pins", package).required and one(lacking, "imports", package).required


def test_hybrid_adam_is_had_with_the_extensions_or_with_nvcc() -> None:
    def example(name: str, missing: dict[str, str]) -> Claim:
        return one(claims(name, missing), "gpu-examples", "hybrid-adam")

    lacking = {"colossalai extensions": "not compiled"}
    assert not example("cu124-torch25-colossalai", {}).unproven
    assert "neither nvcc nor a wheel" in example("cu124-torch25-colossalai", lacking).unproven
    assert not example("cu124-torch25-devel-colossalai", lacking).unproven


def records_claim(name: str, change: Callable[[WheelRecord], WheelRecord | None]) -> Claim:
    """Return records/locked of an image, where each row of its lock's RECORDs is changed so; None: it is not known."""
    image = sources.image(name)
    lock = lock_file.read(image, CHECKOUT.locks)
    changed = {digest: change(row) for digest, row in lock.wheel_records.items()}
    records = {digest: row for digest, row in changed.items() if row}
    context = ClaimContext.from_lock(
        image, replace(lock, wheel_records=records), SOURCES.facts, missing={}, custom_base=False
    )
    (found,) = (claim for claim in file_claims(context) if claim.key == "records/locked")
    return found


@pytest.mark.parametrize(
    ("name", "change", "required", "known"),
    [
        ("cu126-torch27", lambda row: row, True, True),
        ("cu126-torch27-sm90", lambda row: row, True, True),
        # Nobody has read what a changed pruner leaves.
        ("cu126-torch27-sm90", lambda row: replace(row, pruned={}), False, False),
        ("cu126-torch27", lambda row: replace(row, pruned={}), True, True),
        ("cu126-torch27", lambda _row: None, True, False),
    ],
)
def test_records_are_required_but_those_of_a_changed_pruner(
    name: str, change: Callable[[WheelRecord], WheelRecord | None], required: bool, known: bool
) -> None:
    found = records_claim(name, change)
    assert found.required is required and ("torch" not in found.expect["unknown"]) is known
    assert known or f"`lock {name}`" in found.expect["unknown"]["torch"]


def test_every_fault_that_is_tried_in_a_real_image_names_a_claim_of_it() -> None:
    rows = yaml.safe_load((ROOT / "tests/integration/faults.yaml").read_text(encoding="utf-8"))
    keys = {
        key
        for faults in rows.values()
        for row in faults.values()
        for key in row
        if key not in ("layer", "last")
    }
    image = sources.image("cu126-torch27")
    context = ClaimContext.from_lock(image, lock_file.read(image, CHECKOUT.locks), SOURCES.facts)
    assert keys <= {claim.key for claim in image_claims(context).claims}
