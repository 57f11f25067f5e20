"""Profiles: what they pin, share, refuse and claim; pages and snippets that speak of them."""

import dataclasses
import json
import os
import re
import subprocess
from datetime import timedelta
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from images.config import matrix, yamlfile
from images.config.matrix import Sources
from images.config.names import Arch
from images.config.paths import CHECKOUT
from images.config.schema import Profile
from images.engine.gpus import Attachment
from images.errors import UserError
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from images.planning.plan import Planned
from images.site import records
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support import small
from tests.support.checkout import ROOT
from tests.support.judging import judge_claim
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as REAL
from tests.support.sources import image as sources_image
from tools import profile_docs, releases
from validate.checks._behaviour import Limits, judge_limits
from validate.claims import Claim, Tier
from validate.judging import Status

image = partial(sources_image, sources=SOURCES)
real_image = partial(sources_image, sources=REAL)
MATRIX_FILE = yamlfile.parse("matrix.yaml", small.MATRIX.read_text())
IMAGES_WITH_PROFILE = [planned for planned in plan.plan(SOURCES) if planned.profile]
VOLTA = Arch(7, 0)


def claims_of(image: Image) -> dict[tuple[str, str], Claim]:
    """Return an image's claims for a machine without a GPU, by check and subject."""
    facts = (REAL if image.revision == REAL.revision else SOURCES).facts
    context = ClaimContext(image=image, facts=facts, no_gpu="none here")
    return {(claim.check, claim.subject): claim for claim in image_claims(context).claims}


def with_profile(name: str, **changes: object) -> Sources:
    """Return the small sources with another profile of this name."""
    profile: Profile = SOURCES.matrix.profiles[name].model_copy(update=changes)
    profiles = {**SOURCES.matrix.profiles, name: profile}
    matrix_with_profile = SOURCES.matrix.model_copy(update={"profiles": profiles})
    return dataclasses.replace(SOURCES, matrix=matrix_with_profile)


# --- layers and locks -----------------------------------------------------------------------------


ALL_LAYERS = ("torch.txt", "kernels.txt", "libraries.txt", "toolkit.txt", "light.txt")
# A profile with another transformers has libraries of its own, and all layers above them.
LOWER_LAYERS = ("torch.txt", "kernels.txt")


@pytest.mark.parametrize(
    ("without_profile", "with_its_profile", "shared_files"),
    [
        ("cu128-torch28", "cu128-torch28-transformers", ALL_LAYERS),
        ("cu128-torch28", "cu128-torch28-axolotl", ALL_LAYERS),
        ("cu128-torch28", "cu128-torch28-axolotl-multigpu", ALL_LAYERS),
        ("cu130-torch213", "cu130-torch213-axolotl", ALL_LAYERS),
        ("cu124-torch25", "cu124-torch25-colossalai", LOWER_LAYERS),
        ("cu128-torch210", "cu128-torch210-unsloth", LOWER_LAYERS),
    ],
)
def test_the_lock_of_a_profile_shares_layers_byte_for_byte(
    without_profile: str, with_its_profile: str, shared_files: tuple[str, ...]
) -> None:
    plain = lock_file.read(real_image(without_profile), CHECKOUT.locks)
    profiled = lock_file.read(real_image(with_its_profile), CHECKOUT.locks)

    for name in shared_files:
        assert plain.files[name] == profiled.files[name], name


def test_a_waived_package_is_in_no_lock() -> None:
    axolotl = real_image("cu130-torch213-axolotl")
    lock = lock_file.read(axolotl, CHECKOUT.locks)

    assert axolotl.waived == ("nvidia-cutlass-dsl-libs-cu12", "torch-c-dlpack-ext", "xformers")
    assert "xformers" not in lock.versions(axolotl.layers)


def test_a_package_without_a_wheel_is_locked_as_source_with_the_tools_that_build_it() -> None:
    axolotl = lock_file.read(real_image("cu128-torch28-axolotl"), CHECKOUT.locks)
    transformers = lock_file.read(real_image("cu128-torch28-transformers"), CHECKOUT.locks)

    (source,) = (package for package in axolotl.layers["profile"] if package.name == "axolotl")
    assert len(source.hashes) == 1
    assert b"setuptools==" in axolotl.files["build.txt"]
    assert "build.txt" not in transformers.files, "it has wheels of all packages"


def test_a_package_that_is_waived_and_pinned_is_installed_in_the_pinned_version() -> None:
    """axolotl 0.21.0 requires zstandard==0.22.0, which has no wheel for Python 3.13."""
    axolotl = real_image("cu130-torch214-py313-axolotl")
    lock = lock_file.read(axolotl, CHECKOUT.locks)

    assert "zstandard==0.22.0" in REAL.facts.packages["axolotl"]["0.21.0"].requires
    assert axolotl.overrides == ("nvidia-cudnn-cu13==9.26.0.51", "zstandard==0.25.0")
    assert "zstandard" not in axolotl.waived
    assert lock.versions(axolotl.layers)["zstandard"] == "0.25.0"


# --- overrides and silent faults ------------------------------------------------------------------


def test_an_override_of_the_matrix_is_locked_claimed_and_warned_of() -> None:
    overridden = real_image("cu128-torch28")
    lock = lock_file.read(overridden, CHECKOUT.locks)
    context = ClaimContext.from_lock(overridden, lock, REAL.facts, missing={}, custom_base=False)

    assert overridden.overrides == ("nvidia-cudnn-cu12==9.15.1.9",)
    cudnn_claims = [
        claim.expect
        for claim in image_claims(context).claims
        if (claim.check, claim.subject) == ("native", "cudnn")
    ]
    assert cudnn_claims == [{"version": "9.15.1.9"}]
    warning = (
        "nvidia-cudnn-cu12==9.15.1.9 replaces the version that packages require, on purpose "
        "(`overrides` in matrix.yaml: torch's own is wrong"
    )
    assert any(warning in text for text in overridden.warnings)
    assert VOLTA not in overridden.archs, "this cuDNN has no code for Volta"


def test_an_override_is_for_one_torch_and_one_cuda_major() -> None:
    assert real_image("cu130-torch214").overrides == ("nvidia-cudnn-cu13==9.26.0.51",)
    assert not real_image("cu126-torch214").overrides, "another CUDA major"
    assert not real_image("cu130-torch215").overrides, "another torch"


def test_the_cudnn_of_the_facts_is_the_locked_one() -> None:
    for planned in plan.plan(REAL):
        image = planned.image
        if image is None or not lock_file.is_present(image, CHECKOUT.locks):
            continue
        locked = lock_file.read(image, CHECKOUT.locks).versions(["torch"])
        cudnn_versions = [
            version for name, version in locked.items() if name.startswith("nvidia-cudnn-")
        ]
        assert cudnn_versions == [image.cudnn], planned.name


def test_an_image_without_the_override_warns_of_the_faults_of_its_cudnn() -> None:
    (planned,) = plan.select(["cu126-torch28"], REAL)

    def warns_of(text: str) -> bool:
        return any(text in warning for warning in planned.warnings)

    assert warns_of("conv3d in bfloat16 over a large input")
    assert warns_of("at rare shapes or in rare programs: see whether your program is one of those")
    assert warns_of("in the issues ")
    assert warns_of("linkedin/Liger-Kernel#1483, linkedin/Liger-Kernel#272")


def test_an_image_warns_of_the_faults_of_every_cudnn_while_its_own_is_not_known() -> None:
    (planned,) = plan.select(["cu126-torch213"], REAL)

    silent = [warning for warning in planned.warnings if warning.startswith("silently")]
    assert any("pytorch#196678" in warning for warning in silent)


def test_an_image_for_older_gpus_does_without_the_override() -> None:
    (older,) = (planned for planned in plan.plan(REAL) if planned.name == "cu126-torch29")

    assert VOLTA in older.archs


# --- what a profile pins --------------------------------------------------------------------------


def test_a_profile_inherits_pins_optional_packages_and_settings_of_the_one_it_extends() -> None:
    multigpu = image("cu128-torch28-axolotl-multigpu")

    pins = {pin.name for pin in multigpu.pins}
    assert {"axolotl", "deepspeed", "ray"} <= pins
    assert multigpu.entrypoint == "p2p.sh"
    assert image("cu124-torch25-colossalai").environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_an_optional_package_is_pinned_only_where_it_fits() -> None:
    assert image("cu128-torch28-axolotl-multigpu").pin("fbgemm-gpu-genai")
    assert not image("cu130-torch213-axolotl").pin("fbgemm-gpu-genai")


def test_an_optional_package_that_must_be_compiled_is_an_optional_pin_that_no_lock_has() -> None:
    pin = image("cu130-torch213-axolotl").pin("causal-conv1d")
    lock = lock_file.read(real_image("cu130-torch213-axolotl"), CHECKOUT.locks)

    assert pin is not None
    assert (pin.compiled, pin.optional, pin.locked, pin.layer) == (True, True, False, "profile")
    assert pin.needs == ("ninja", "packaging")
    assert str(pin.minimum_arch) == "sm_75"
    assert "causal-conv1d" not in lock.versions(lock.inputs.layers)
    assert "ninja" in lock.versions(["profile"]), "the lock brings what it requires"


def test_a_required_package_that_must_be_compiled_is_no_optional_pin() -> None:
    pins = {"2.13": {"axolotl": "0.19.0", "causal-conv1d": "1.7.0"}}
    requiring = with_profile("axolotl", stacks=pins, optional={})

    pin = image("cu130-torch213-sm90-axolotl", sources=requiring).pin("causal-conv1d")

    assert pin is not None
    assert (pin.compiled, pin.optional) == (True, False)


def test_an_optional_package_may_have_a_version_for_each_torch() -> None:
    older = real_image("cu128-torch28-axolotl").pin("causal-conv1d")
    newer = real_image("cu130-torch213-axolotl").pin("causal-conv1d")

    assert older is not None
    assert newer is not None
    assert (older.version, newer.version) == ("1.6.2.post1", "1.7.0")


def test_an_optional_package_without_a_version_for_a_torch_is_left_out() -> None:
    only_for_28 = with_profile("axolotl", optional={"causal-conv1d": {"2.8": "1.6.2.post1"}})

    assert image("cu130-torch213-axolotl", sources=only_for_28).pin("causal-conv1d") is None


def test_an_optional_package_with_an_official_wheel_need_not_be_compiled() -> None:
    older, newer = real_image("cu128-torch28-axolotl"), real_image("cu130-torch213-axolotl")

    assert sorted(wheel.name for wheel in older.prebuilt) == ["causal-conv1d", "flash-attn"]
    assert not any(
        "causal-conv1d 1.6.2.post1" in text and "compiled it" in text for text in older.warnings
    )
    assert not newer.prebuilt


def test_an_extension_that_can_be_compiled_is_noted_at_its_pin() -> None:
    pin = image("cu124-torch25-colossalai").pin("colossalai")

    assert pin is not None
    assert (pin.extension_source, str(pin.minimum_arch), pin.locked) == (
        "colossalai",
        "sm_75",
        True,
    )


def test_an_extension_that_cannot_be_compiled_is_warned_of_and_not_claimed() -> None:
    toolkits = {**SOURCES.matrix.toolkits}
    toolkits["12.4"] = toolkits["12.4"].model_copy(update={"compiler": None})
    without_nvcc = dataclasses.replace(
        SOURCES, matrix=SOURCES.matrix.model_copy(update={"toolkits": toolkits})
    )

    colossalai = image("cu124-torch25-colossalai", sources=without_nvcc)

    assert not any(pin.extension_source for pin in colossalai.pins)
    lack = "compiled extensions, as colossalai 0.5.0 is published as source only, and no"
    assert any(lack in warning for warning in colossalai.warnings)
    claims = claims_of(colossalai)
    assert ("device-code", "colossalai") not in claims
    assert ("native", "colossalai") not in claims


def test_faults_of_a_profile_are_named() -> None:
    faulty = with_profile(
        "unsloth", stacks={"2.10": {"Unsloth_Zoo": "1.0"}, "9.9": {}}, extends="nothing"
    )

    problems = matrix.find_inconsistencies(faulty.matrix, MATRIX_FILE, faulty.facts)
    text = "\n".join(map(str, problems))

    assert "write 'Unsloth_Zoo' as 'unsloth-zoo'" in text
    assert "no stack for torch 9.9" in text
    assert "extends 'nothing'" in text


def test_extensions_that_no_source_makes_or_that_are_not_pinned_are_faults() -> None:
    faulty = with_profile("colossalai", extensions=["colossalai", "nothing", "flash-attn"])

    problems = matrix.find_inconsistencies(faulty.matrix, MATRIX_FILE, faulty.facts)
    causes = [problem.cause for problem in problems]

    assert causes == [
        "'nothing' is no row of `sources`",
        "flash-attn makes flash-attn, which the profile does not pin",
    ]


# --- claims ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["cu128-torch28-axolotl", "cu128-torch28-axolotl-multigpu", "cu130-torch213-axolotl"]
)
def test_torchvisions_kernels_are_claimed_for_every_architecture_of_the_image(name: str) -> None:
    axolotl = real_image(name)

    claims = {
        check: claim
        for (check, subject), claim in claims_of(axolotl).items()
        if subject == "torchvision"
    }

    assert [*claims] == ["pins", "device-code", "imports", "native"]
    archs = {str(arch.major * 10 + arch.minor): "cubin" for arch in axolotl.archs}
    assert claims["device-code"].expect["archs"] == archs


@pytest.mark.parametrize("planned", IMAGES_WITH_PROFILE, ids=lambda planned: planned.name)
def test_without_a_gpu_the_gpu_claims_of_a_profile_are_unproven(planned: Planned) -> None:
    checks = ("framework", "cpu-examples", "gpu-examples", "multigpu-examples")
    assert planned.image is not None

    of_profile = [claim for claim in claims_of(planned.image).values() if claim.check in checks]

    assert of_profile
    for claim in of_profile:
        if claim.tier not in (Tier.GPU, Tier.MULTIGPU):
            continue
        if claim.required:
            assert claim.unproven == "none here"
        else:
            # An example that compiles code needs an image with nvcc.
            assert "nvcc" in claim.unproven


@pytest.mark.parametrize(
    ("tiers", "runs_on_gpu"),
    [
        ((), True),  # all tiers that the machine allows: it has a GPU
        ((Tier.CPU, Tier.GPU), True),
        ((Tier.STATIC, Tier.CPU), False),
    ],
)
def test_an_example_that_runs_on_the_gpu_does_not_run_on_the_cpu_as_well(
    tiers: tuple[Tier, ...], runs_on_gpu: bool
) -> None:
    with_gpu = Attachment(mode=GpuMode.NVIDIA, reason="")
    context = ClaimContext(image=real_image("cu130-torch213-axolotl"), facts=REAL.facts)

    claims = {
        (claim.check, claim.subject): claim
        for claim in image_claims(context.on_host(with_gpu, tiers)).claims
    }
    on_cpu = claims["cpu-examples", "axolotl-lora"]
    on_gpu = claims["gpu-examples", "axolotl-lora"]

    assert on_gpu.required
    assert not on_gpu.unproven
    assert on_cpu.required is not runs_on_gpu
    not_measured = judge_claim(on_cpu, {}).status
    assert not_measured is (Status.NOT_APPLICABLE if runs_on_gpu else Status.FAIL)


@pytest.mark.parametrize(
    ("capability", "is_claimed"), [((9, 0), True), ((8, 0), False)], ids=["Hopper", "Ampere"]
)
def test_examples_with_flash_attn_4_are_claimed_from_hopper_on(
    capability: tuple[int, int], is_claimed: bool
) -> None:
    gpu = Gpu(name="x", capability=capability, memory=80 << 30)
    inventory = Inventory(driver="580.1", gpus=(gpu,), source="test")
    attached = Attachment(mode=GpuMode.NVIDIA, reason="", inventory=inventory)
    context = ClaimContext(image=real_image("cu130-torch214-transformers"), facts=REAL.facts)

    claims = {
        claim.subject: claim
        for claim in image_claims(context.on_host(attached, ())).claims
        if claim.check == "gpu-examples"
    }

    assert claims["flash4"].required is is_claimed
    why_not = claims["flash4"].expect.get("not_applicable", "")
    assert ("takes compute capability 9.0" in why_not) is not is_claimed
    assert claims["flash4"].expect["at_least"]["flash_attn_4"] == 1, (
        "else torch's own attention would do"
    )
    assert claims["bf16"].required, "an example without flash-attn-4"


def test_a_claim_that_the_pins_make_impossible_is_unproven_and_not_required() -> None:
    claims = claims_of(image("cu124-torch25-colossalai"))
    resume, quantized = claims["resume", "trainer"], claims["4bit-llama", "weights"]

    assert not resume.required
    assert "cannot read back the random state" in resume.unproven
    # transformers 4.51 refuses to load 4-bit weights without a GPU, but converts others.
    assert quantized.required
    assert not quantized.unproven


def test_code_of_a_compiled_package_is_claimed_from_its_minimum_architecture_on() -> None:
    claim = claims_of(image("cu128-torch28-axolotl"))["device-code", "causal-conv1d"]

    assert "70" not in claim.expect["archs"]
    assert claim.expect["archs"]["75"] == "cubin"
    assert claim.expect["files"] == ["causal_conv1d_cuda*.so"]


@pytest.mark.parametrize(
    ("expect", "evidence", "status"),
    [
        ({"equal": {"a": 1}}, {"a": 1}, Status.PASS),
        ({"equal": {"a": 1}}, {"a": 2}, Status.FAIL),
        ({"at_most": {"a": 0.1}}, {"a": 0.05}, Status.PASS),
        ({"at_most": {"a": 0.1}}, {"a": float("nan")}, Status.FAIL),
        ({"at_least": {"a": 0.1}}, {"a": 0.05}, Status.FAIL),
        ({"equal": {"a": 1}}, {}, Status.FAIL),
    ],
    ids=["equal", "unequal", "below a maximum", "nan", "below a minimum", "not measured"],
)
def test_a_figure_passes_only_within_its_limits(
    expect: Limits, evidence: dict[str, object], status: Status
) -> None:
    assert judge_limits("x", expect, evidence).status is status


# --- the entrypoint of profiles for several GPUs --------------------------------------------------


_HEAD = "\t\033[4mGPU0\tGPU1\t\033[0m\n"
_LEGEND = (
    "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    "  NS   = Not supported\n"
)
_LINKED = f"{_HEAD} GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n{_LEGEND}"
_APART = f"{_HEAD} GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n{_LEGEND}"
_UNSUPPORTED = f"{_HEAD} GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n{_LEGEND}"
_SINGLE = f"\t\033[4mGPU0\t\033[0m\n GPU0\tX\t\n{_LEGEND}"
_NO_NVIDIA_SMI = None


@pytest.mark.parametrize(
    ("matrix_of_driver", "variables_of_user", "p2p_disable"),
    [
        (_LINKED, {}, "unset"),
        (_APART, {}, "1"),
        (_UNSUPPORTED, {}, "1"),
        (_SINGLE, {}, "unset"),
        (_NO_NVIDIA_SMI, {}, "unset"),
        (_APART, {"NCCL_P2P_DISABLE": "0"}, "0"),
    ],
    ids=["linked", "apart", "not supported", "one GPU", "no nvidia-smi", "the user's own value"],
)
def test_the_entrypoint_switches_p2p_off_only_where_the_driver_has_none(
    matrix_of_driver: str | None,
    variables_of_user: dict[str, str],
    p2p_disable: str,
    tmp_path: Path,
) -> None:
    """`nvidia-smi topo -p2p r` prints the matrix."""
    if matrix_of_driver is not None:
        (tmp_path / "matrix").write_text(matrix_of_driver)
        nvidia_smi = tmp_path / "nvidia-smi"
        nvidia_smi.write_text(
            f'#!/bin/sh\n[ "$*" = "topo -p2p r" ] && exec cat {tmp_path}/matrix\nexit 9\n'
        )
        nvidia_smi.chmod(0o755)

    entrypoint = ROOT / "templates" / "entrypoints" / "p2p.sh"
    command = ["sh", str(entrypoint), "sh", "-c", 'printf "%s" "${NCCL_P2P_DISABLE-unset}"']
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables_of_user}
    finished = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)

    assert finished.stdout == p2p_disable


# --- docs/profiles.md -----------------------------------------------------------------------------


def unsloth_table(
    rows: list[profile_docs.PageRow], verdicts: dict[tuple[str, str], Status]
) -> list[str]:
    """Return the lines of the tables about unsloth's page, with `rows` as its only rows.

    `verdicts` are those of the recorded runs of its image, by check and subject.
    """
    recorded = {"cu128-torch210-unsloth": verdicts}
    pages = {**profile_docs.pages(), "unsloth-setup": rows}
    text = profile_docs.tables(SOURCES, pages, recorded)
    return text.partition("## unsloth")[2].splitlines()


@pytest.mark.parametrize(
    ("verdict_of_each_day", "counts"),
    [
        ([Status.FAIL, Status.PASS], Status.PASS),
        ([Status.PASS, Status.FAIL], Status.FAIL),
        # A run that proves nothing does not take back what an earlier one has shown.
        ([Status.FAIL, Status.UNPROVEN], Status.FAIL),
        ([Status.UNPROVEN, Status.UNPROVEN], Status.UNPROVEN),
    ],
)
def test_the_latest_run_that_judged_a_claim_counts(
    verdict_of_each_day: list[Status], counts: Status, tmp_path: Path
) -> None:
    template = next(line for line in records.read() if line.date and not line.experiment)
    assert template.date is not None
    lines = []
    for day, status in enumerate(verdict_of_each_day):
        changes = {
            "id": f"{template.image}/day-{day}",
            "date": template.date + timedelta(days=day),
            "claims": {Tier.CPU: {status: ["imports/torch"]}},
        }
        lines.append(template.model_copy(update=changes))
    newest_first = "\n".join(line.model_dump_json() for line in reversed(lines))
    (tmp_path / records.LINES).write_text(newest_first)

    assert profile_docs.recorded(tmp_path) == {template.image: {("imports", "torch"): counts}}


@pytest.mark.parametrize(
    ("verdicts", "cell", "open_as"),
    [
        ([Status.PASS, Status.PASS], "PASS", ""),
        ([Status.NOT_APPLICABLE] * 2, "NOT_APPLICABLE", ""),
        ([Status.PASS, None], "open (1 of 2 PASS)", "pins/torch never run"),
        ([Status.PASS, Status.UNPROVEN], "open (1 of 2 PASS)", "pins/torch UNPROVEN"),
        ([Status.PASS, Status.FAIL], "FAIL (1 of 2 PASS)", "pins/torch FAIL"),
        ([None, None], "no run", "no run"),
    ],
    ids=["both hold", "neither applies", "one never run", "one unproven", "one fails", "no run"],
)
def test_a_row_passes_only_if_every_claim_of_it_was_run_and_holds(
    verdicts: list[Status | None], cell: str, open_as: str
) -> None:
    row = profile_docs.PageRow(asks="both", by=["pins/unsloth", "pins/torch"])
    keys = [("pins", "unsloth"), ("pins", "torch")]
    recorded = {key: status for key, status in zip(keys, verdicts, strict=True) if status}

    lines = unsloth_table([row], recorded)

    assert f"| both | pins/unsloth, pins/torch | {cell} |  |" in lines
    listed_as_open = [line for line in lines if line.startswith("| unsloth | both |")]
    if open_as:
        assert listed_as_open == [f"| unsloth | both | `cu128-torch210-unsloth`: {open_as} |"]
    else:
        assert listed_as_open == []


def test_a_row_that_is_known_not_to_hold_is_open_whatever_its_claims_say() -> None:
    known = profile_docs.PageRow(asks="known", by=["pins/unsloth"], open="for this reason")

    lines = unsloth_table([known], {("pins", "unsloth"): Status.PASS})

    assert "| known | pins/unsloth | open | **does not hold yet**: for this reason |" in lines
    assert "| unsloth | known | for this reason |" in lines


def test_a_row_whose_claims_need_a_gpu_says_so_while_it_is_open() -> None:
    unseen = profile_docs.PageRow(asks="unseen", by=["framework/unsloth-*"])

    lines = unsloth_table([unseen], {("pins", "unsloth"): Status.PASS})

    (line,) = (line for line in lines if line.startswith("| unsloth | unseen |"))
    assert line.endswith(" never run (needs a GPU) |")


_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*(?:_\*)?")
ROWS_THAT_REFUSE = [row for rows in profile_docs.pages().values() for row in rows if row.refuses]


@pytest.mark.parametrize("row", ROWS_THAT_REFUSE, ids=lambda row: row.asks[:30])
def test_a_row_names_exactly_the_variables_that_it_refuses(row: profile_docs.PageRow) -> None:
    assert sorted(_VARIABLE.findall(row.asks)) == sorted(row.refuses)


@pytest.mark.parametrize(
    ("by", "refuses", "cause"),
    [
        ("pins/nothing", [], "no image of the profile has a claim 'pins/nothing'"),
        (
            "pins/unsloth",
            ["FSDP_VERSION", "NOT_DENIED"],
            "says that images with NOT_DENIED are refused, and no claim refuses them",
        ),
    ],
    ids=["claim", "variable"],
)
def test_a_row_that_names_an_unknown_claim_or_variable_is_an_error(
    by: str, refuses: list[str], cause: str
) -> None:
    row = profile_docs.PageRow(asks="something", by=[by], refuses=refuses)

    with pytest.raises(UserError, match=cause):
        unsloth_table([row], {})


# --- tools.releases -------------------------------------------------------------------------------


def test_the_metadata_of_a_release_becomes_a_row_without_extras() -> None:
    metadata = (
        "Name: Thing_X\nVersion: 1.0\nRequires-Python: >=3.9\n"
        'Requires-Dist: b>=2\nRequires-Dist: c; extra == "d"\n'
    )

    def install(arguments: object) -> CompletedProcess[str]:
        words = [str(word) for word in arguments]  # type: ignore[attr-defined]
        folder = Path(words[words.index("--target") + 1], "thing_x-1.0.dist-info")
        folder.mkdir()
        (folder / "METADATA").write_text(metadata)
        return CompletedProcess([], 0, "", "")

    row = yaml.safe_load(releases.read_row("thing-x==1.0", "3.11", "here", install))["thing-x"]

    assert list(row.values()) == [{"python": ">=3.9", "requires": ["b>=2"], "source": "here"}]
    with pytest.raises(UserError, match="NAME==VERSION"):
        releases.read_row("thing-x>=1.0", "3.11", "here", install)


# --- snippets in docs/using.md --------------------------------------------------------------------


USING = (ROOT / "docs" / "using.md").read_text()
SNIPPETS = re.findall(r"```(\w+)\n(.*?)```", USING, re.DOTALL)


@pytest.mark.parametrize(
    ("language", "text"), SNIPPETS, ids=[str(number) for number in range(len(SNIPPETS))]
)
def test_a_snippet_is_well_formed(language: str, text: str) -> None:
    if language == "sh":
        environ = {"PATH": os.environ["PATH"]}
        subprocess.run(["sh", "-n"], input=text, text=True, check=True, env=environ)
    elif language == "yaml":
        assert yaml.safe_load(text)
    elif language == "python":
        compile(text, "using.md", "exec")
    else:
        assert language == "json"
        assert json.loads(text)


def test_there_are_snippets_of_each_language() -> None:
    assert {language for language, _ in SNIPPETS} == {"sh", "yaml", "json", "python"}


@pytest.mark.parametrize(
    "way", ["docker", "compose", "Kubernetes", "Slurm with enroot and pyxis", "Dev container"]
)
def test_each_way_to_run_an_image_has_a_snippet_that_names_one(way: str) -> None:
    from_heading = USING.partition(f"\n## {way}\n")[2]
    section = re.split(r"^## ", from_heading, maxsplit=1, flags=re.MULTILINE)[0]

    snippets = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)

    assert snippets
    for snippet in snippets:
        assert re.search(r"\bcu\d+-torch\d+", snippet), snippet


def test_snippets_give_nccl_enough_shared_memory() -> None:
    compose, job = (yaml.safe_load(text) for language, text in SNIPPETS if language == "yaml")
    docker_runs = [
        text for _, text in SNIPPETS if text.startswith("docker run") and "--gpus" in text
    ]

    assert compose["services"]["train"]["shm_size"] == "16gb"
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["memory"]["emptyDir"]["medium"] == "Memory"
    for text in docker_runs:
        assert "--ipc=host" in text or "--shm-size" in text
        assert "--ulimit memlock=-1" in text


def test_snippets_for_slurm_start_one_process_for_each_gpu() -> None:
    one_gpu, several_gpus = (text for _, text in SNIPPETS if "#SBATCH" in text)

    assert "--gpus=1" in one_gpu
    assert "torchrun" not in one_gpu
    assert re.findall(r"--gpus-per-node=(\d+)", several_gpus) == ["8"]
    assert re.findall(r"--nproc_per_node=(\d+)", several_gpus) == ["8"]
