"""Profiles: what they pin, what is refused, what they share, and that their pages and snippets hold together."""

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
MATRIX = yamlfile.parse("matrix.yaml", small.MATRIX.read_text())


def claims_of(wanted: Image) -> dict[tuple[str, str], Claim]:
    facts = (REAL if wanted.revision == REAL.revision else SOURCES).facts
    claims = image_claims(ClaimContext(image=wanted, facts=facts, no_gpu="none here")).claims
    return {(claim.check, claim.subject): claim for claim in claims}


SMALL_PROFILED = [planned for planned in plan.plan(SOURCES) if planned.profile]


def with_profile(name: str, **changes: object) -> Sources:
    own: Profile = SOURCES.matrix.profiles[name].model_copy(update=changes)
    profiles = {**SOURCES.matrix.profiles, name: own}
    return dataclasses.replace(
        SOURCES, matrix=SOURCES.matrix.model_copy(update={"profiles": profiles})
    )


SHARED = ("torch.txt", "kernels.txt", "libraries.txt", "toolkit.txt", "light.txt")


@pytest.mark.parametrize(
    ("parent", "child", "files"),
    [
        ("cu128-torch28", "cu128-torch28-transformers", SHARED),
        ("cu128-torch28", "cu128-torch28-axolotl", SHARED),
        ("cu128-torch28", "cu128-torch28-axolotl-multigpu", SHARED),
        ("cu130-torch213", "cu130-torch213-axolotl", SHARED),
        ("cu124-torch25", "cu124-torch25-colossalai", SHARED[:2]),
        ("cu128-torch210", "cu128-torch210-unsloth", SHARED[:2]),
    ],
)
def test_a_profile_shares_layers_byte_for_byte(
    parent: str, child: str, files: tuple[str, ...]
) -> None:
    below, above = (
        lock_file.read(image(name, sources=REAL), CHECKOUT.locks) for name in (parent, child)
    )
    assert {name: below.files[name] for name in files} == {
        name: above.files[name] for name in files
    }


@pytest.mark.parametrize(
    "name", ["cu128-torch28-axolotl", "cu128-torch28-axolotl-multigpu", "cu130-torch213-axolotl"]
)
def test_torchvisions_kernels_are_claimed_for_every_arch_of_the_image(name: str) -> None:
    found = image(name, sources=REAL)
    claims = {
        claim: one for (claim, subject), one in claims_of(found).items() if subject == "torchvision"
    }
    assert [*claims] == ["pins", "device-code", "imports", "native", "bridges"]
    assert claims["device-code"].expect["archs"] == {
        str(arch.major * 10 + arch.minor): "cubin" for arch in found.archs
    }


def test_what_is_waived_is_in_no_lock_and_sources_are_by_hash_with_the_tools_that_build_them() -> (
    None
):
    waived, axolotl, plain = (
        image(name, sources=REAL)
        for name in (
            "cu130-torch213-axolotl",
            "cu128-torch28-axolotl",
            "cu128-torch28-transformers",
        )
    )
    assert waived.waived == ("nvidia-cutlass-dsl-libs-cu12", "torch-c-dlpack-ext", "xformers")
    assert "xformers" not in lock_file.read(waived, CHECKOUT.locks).versions(waived.layers)
    locked = lock_file.read(axolotl, CHECKOUT.locks)
    assert [len(one.hashes) for one in locked.layers["profile"] if one.name == "axolotl"] == [1]
    assert b"setuptools==" in locked.files["build.txt"]
    assert "build.txt" not in lock_file.read(plain, CHECKOUT.locks).files


def test_an_override_of_the_matrix_is_locked_said_and_claimed() -> None:
    found = image("cu128-torch28", sources=REAL)
    assert found.overrides == ("nvidia-cudnn-cu12==9.15.1.9",)
    lock = lock_file.read(found, CHECKOUT.locks)
    context = ClaimContext.from_lock(found, lock, REAL.facts, missing={}, custom_base=False)
    assert [
        one.expect
        for one in image_claims(context).claims
        if one.subject == "cudnn" and one.check == "native"
    ] == [{"version": "9.15.1.9"}]
    assert any(
        "nvidia-cudnn-cu12==9.15.1.9 replaces the version that packages require: torch's own is wrong"
        in one
        for one in found.warnings
    )
    assert Arch(7, 0) not in found.archs, "this cuDNN has no code for Volta"
    assert image("cu130-torch214", sources=REAL).overrides == ("nvidia-cudnn-cu13==9.26.0.51",)
    assert (
        not image("cu126-torch214", sources=REAL).overrides
        and not image("cu130-torch215", sources=REAL).overrides
    )


def test_the_cudnn_of_the_facts_is_the_locked_one_and_faults_of_an_unknown_one_are_said() -> None:
    for one in (planned.image for planned in plan.plan(REAL) if planned.image):
        if lock_file.is_present(one, CHECKOUT.locks):
            locked = lock_file.read(one, CHECKOUT.locks).versions(["torch"])
            assert [
                version for name, version in locked.items() if name.startswith("nvidia-cudnn-")
            ] == [one.cudnn]
    (own,) = plan.select(["cu126-torch28"], REAL)
    assert any("conv3d in bfloat16 over a large input" in one for one in own.warnings), (
        "without the override"
    )
    assert any(
        "at rare shapes or in rare programs: Liger-Kernel#1483, Liger-Kernel#272" in one
        for one in own.warnings
    )
    (unknown,) = plan.select(["cu126-torch213"], REAL)
    assert any("pytorch#196678" in one for one in unknown.warnings if one.startswith("silently"))
    older = next(one for one in plan.plan(REAL) if str(one.name) == "cu126-torch29")
    assert Arch(7, 0) in older.archs, "and the images for older GPUs do without it"


def test_what_is_waived_and_pinned_is_there_in_the_pins_version_whatever_requires_another() -> None:
    """axolotl 0.21.0 requires zstandard==0.22.0, which has no wheel for Python 3.13."""
    found = image("cu130-torch214-py313-axolotl", sources=REAL)
    assert "zstandard==0.22.0" in REAL.facts.packages["axolotl"]["0.21.0"].requires
    assert (
        found.overrides == ("nvidia-cudnn-cu13==9.26.0.51", "zstandard==0.25.0")
        and "zstandard" not in found.waived
    )
    assert lock_file.read(found, CHECKOUT.locks).versions(found.layers)["zstandard"] == "0.25.0"


def test_a_profile_takes_over_what_it_extends() -> None:
    several, newer = image("cu128-torch28-axolotl-multigpu"), image("cu130-torch213-axolotl")
    assert several.pin("fbgemm-gpu-genai") and not newer.pin("fbgemm-gpu-genai"), (
        "optional: taken where it fits"
    )
    assert {pin.name for pin in several.pins} >= {"axolotl", "deepspeed", "ray"}
    assert several.entrypoint == "p2p.sh"
    assert image("cu124-torch25-colossalai").environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_mistakes_in_profiles_are_told() -> None:
    broken = with_profile(
        "unsloth", stacks={"2.10": {"Unsloth_Zoo": "1.0"}, "9.9": {}}, extends="nothing"
    )
    told = "\n".join(map(str, matrix.find_inconsistencies(broken.matrix, MATRIX)))
    for sentence in (
        "write 'Unsloth_Zoo' as 'unsloth-zoo'",
        "no stack for torch 9.9",
        "extends 'nothing'",
    ):
        assert sentence in told
    bent = with_profile("colossalai", extensions=["colossalai", "nothing", "flash-attn"])
    causes = [problem.cause for problem in matrix.find_inconsistencies(bent.matrix, MATRIX)]
    assert causes == [
        "'nothing' is no row of `sources`",
        "flash-attn makes flash-attn, which the profile does not pin",
    ]


@pytest.mark.parametrize("planned", SMALL_PROFILED, ids=lambda planned: planned.name)
def test_claims_of_a_profile_are_judged(planned: Planned) -> None:
    assert planned.image is not None
    checks = ("framework", "cpu-examples", "gpu-examples", "multigpu-examples")
    own = [claim for claim in claims_of(planned.image).values() if claim.check in checks]
    on_gpus = [claim for claim in own if claim.tier in (Tier.GPU, Tier.MULTIGPU)]
    assert own and all(claim.unproven == "none here" for claim in on_gpus if claim.required)
    assert all("nvcc" in claim.unproven for claim in on_gpus if not claim.required)


def test_an_example_that_runs_on_the_gpu_does_not_run_on_the_cpu_as_well() -> None:
    attached = Attachment(mode=GpuMode.NVIDIA, reason="")
    context = ClaimContext(image=sources_image("cu130-torch213-axolotl"), facts=REAL.facts)
    for tiers, elsewhere in (
        ((), True),
        ((Tier.CPU, Tier.GPU), True),
        ((Tier.STATIC, Tier.CPU), False),
    ):
        found = {
            (one.check, one.subject): one
            for one in image_claims(context.on_host(attached, tiers)).claims
        }
        on_cpu, on_gpu = (
            found["cpu-examples", "axolotl-lora"],
            found["gpu-examples", "axolotl-lora"],
        )
        assert on_gpu.required and not on_gpu.unproven and on_cpu.required is not elsewhere
        judged = judge_claim(on_cpu, {})
        assert judged.status is (Status.NOT_APPLICABLE if elsewhere else Status.FAIL)


@pytest.mark.parametrize(("capability", "held"), [((9, 0), True), ((8, 0), False)])
def test_examples_with_flash_attn_4_are_claimed_from_hopper_on(
    capability: tuple[int, int], held: bool
) -> None:
    gpus = (Gpu(name="x", capability=capability, memory=80 << 30),)
    attached = Attachment(
        mode=GpuMode.NVIDIA,
        reason="",
        inventory=Inventory(driver="580.1", gpus=gpus, source="test"),
    )
    context = ClaimContext(image=sources_image("cu130-torch214-transformers"), facts=REAL.facts)
    found = image_claims(context.on_host(attached, ())).claims
    claims = {one.subject: one for one in found if one.check == "gpu-examples"}
    assert claims["flash4"].required is held and claims["bf16"].required
    assert (
        "takes compute capability 9.0" in claims["flash4"].expect.get("not_applicable", "")
    ) is not held
    assert claims["flash4"].expect["at_least"]["flash_attn_4"] == 1, (
        "else torch's own attention would do"
    )


def test_what_the_pins_put_out_of_reach_is_said_and_not_required() -> None:
    claims = claims_of(image("cu124-torch25-colossalai"))
    resumed, nf4 = claims["resume", "trainer"], claims["4bit-llama", "weights"]
    assert not resumed.required and "cannot read back the random state" in resumed.unproven
    assert nf4.required and not nf4.unproven, (
        "transformers 4.51 refuses 4-bit weights without a GPU: converted"
    )
    coded = claims_of(image("cu128-torch28-axolotl"))["device-code", "causal-conv1d"].expect
    assert "70" not in coded["archs"] and coded["archs"]["75"] == "cubin", (
        "from its minimum arch on"
    )
    assert coded["files"] == ["causal_conv1d_cuda*.so"]


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
)
def test_figures_are_judged(expect: Limits, evidence: dict[str, object], status: Status) -> None:
    assert judge_limits("x", expect, evidence).status is status


_HEAD = "\t\033[4mGPU0\tGPU1\t\033[0m\n"
_LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  NS   = Not supported\n"
_LINKED = f"{_HEAD} GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n{_LEGEND}"
_APART = f"{_HEAD} GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n{_LEGEND}"
_UNSUPPORTED = f"{_HEAD} GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n{_LEGEND}"
_SINGLE = f"\t\033[4mGPU0\t\033[0m\n GPU0\tX\t\n{_LEGEND}"


@pytest.mark.parametrize(
    ("matrix_of_driver", "given", "value"),
    [
        (_LINKED, {}, "unset"),
        (_APART, {}, "1"),
        (_UNSUPPORTED, {}, "1"),
        (_SINGLE, {}, "unset"),
        (None, {}, "unset"),  # there is no nvidia-smi
        (_APART, {"NCCL_P2P_DISABLE": "0"}, "0"),
    ],
)
def test_the_entrypoint_switches_p2p_off_where_gpus_are_apart_and_nowhere_else(
    matrix_of_driver: str | None, given: dict[str, str], value: str, tmp_path: Path
) -> None:
    """By what `nvidia-smi topo -p2p r` prints."""
    if matrix_of_driver is not None:
        (tmp_path / "matrix").write_text(matrix_of_driver)
        smi = tmp_path / "nvidia-smi"
        smi.write_text(
            f'#!/bin/sh\n[ "$*" = "topo -p2p r" ] && exec cat {tmp_path}/matrix\nexit 9\n'
        )
        smi.chmod(0o755)
    entrypoint = ROOT / "templates" / "entrypoints" / "p2p.sh"
    command = ["sh", str(entrypoint), "sh", "-c", 'printf "%s" "${NCCL_P2P_DISABLE-unset}"']
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", **given}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == value


def profile_table(
    rows: list[profile_docs.PageRow], verdicts: dict[tuple[str, str], Status]
) -> list[str]:
    """The lines of the tables that speak of unsloth's page, with `rows` as its only ones."""
    known = {"cu128-torch210-unsloth": verdicts}
    text = profile_docs.tables(SOURCES, {**profile_docs.pages(), "unsloth-setup": rows}, known)
    return text.partition("## unsloth")[2].splitlines()


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        ([Status.FAIL, Status.PASS], Status.PASS),
        ([Status.PASS, Status.FAIL], Status.FAIL),
        ([Status.FAIL, Status.UNPROVEN], Status.FAIL),
        ([Status.UNPROVEN, Status.UNPROVEN], Status.UNPROVEN),
    ],
)
def test_the_latest_run_of_a_claim_counts(
    found: list[Status], counts: Status, tmp_path: Path
) -> None:
    model = next(line for line in records.read() if line.date and not line.experiment)
    assert model.date is not None
    lines = []
    for day, status in enumerate(found):
        claims, date = {Tier.CPU: {status: ["imports/torch"]}}, model.date + timedelta(days=day)
        lines.append(
            model.model_copy(
                update={"id": f"{model.image}/day-{day}", "date": date, "claims": claims}
            )
        )
    newest_first = "\n".join(line.model_dump_json() for line in reversed(lines))
    (tmp_path / records.LINES).write_text(newest_first)
    assert profile_docs.recorded(tmp_path) == {model.image: {("imports", "torch"): counts}}


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
)
def test_a_row_passes_only_where_every_claim_of_it_was_run_and_holds(
    verdicts: list[Status | None], cell: str, open_as: str
) -> None:
    keys = [("pins", "unsloth"), ("pins", "torch")]
    found = {key: status for key, status in zip(keys, verdicts, strict=True) if status}
    lines = profile_table(
        [profile_docs.PageRow(asks="both", by=["pins/unsloth", "pins/torch"])], found
    )
    assert f"| both | pins/unsloth, pins/torch | {cell} |  |" in lines
    listed = [line for line in lines if line.startswith("| unsloth | both |")]
    assert listed == (
        [f"| unsloth | both | `cu128-torch210-unsloth`: {open_as} |"] if open_as else []
    )


def test_what_is_known_not_to_hold_is_open_whatever_its_claims_say() -> None:
    rows = [
        profile_docs.PageRow(asks="known", by=["pins/unsloth"], open="for this reason"),
        profile_docs.PageRow(asks="unseen", by=["framework/unsloth-*"]),
    ]
    lines = profile_table(rows, {("pins", "unsloth"): Status.PASS})
    assert "| known | pins/unsloth | open | **does not hold yet**: for this reason |" in lines
    assert "| unsloth | known | for this reason |" in lines
    (unseen,) = (line for line in lines if line.startswith("| unsloth | unseen |"))
    assert unseen.endswith(" never run (needs a GPU) |")


_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*(?:_\*)?")


@pytest.mark.parametrize(
    "row",
    [row for rows in profile_docs.pages().values() for row in rows if row.refuses],
    ids=lambda row: row.asks[:30],
)
def test_every_variable_that_a_page_leaves_to_launchers_is_refused(
    row: profile_docs.PageRow,
) -> None:
    assert sorted(_VARIABLE.findall(row.asks)) == sorted(row.refuses), (
        "the row names what it refuses, and all of it"
    )


@pytest.mark.parametrize(
    ("by", "refuses", "said"),
    [
        ("pins/nothing", [], "no image of the profile has a claim 'pins/nothing'"),
        (
            "pins/unsloth",
            ["FSDP_VERSION", "NOT_DENIED"],
            "says that NOT_DENIED is refused, and no image is refused for it",
        ),
    ],
)
def test_a_page_row_that_names_no_claim_or_variable_is_told(
    by: str, refuses: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        profile_table([profile_docs.PageRow(asks="something", by=[by], refuses=refuses)], {})


def test_metadata_becomes_a_row_without_extras() -> None:
    text = 'Name: Thing_X\nVersion: 1.0\nRequires-Python: >=3.9\nRequires-Dist: b>=2\nRequires-Dist: c; extra == "d"\n'

    def run(arguments: object) -> CompletedProcess[str]:
        words = [str(word) for word in arguments]  # type: ignore[attr-defined]
        folder = Path(words[words.index("--target") + 1], "thing_x-1.0.dist-info")
        folder.mkdir()
        (folder / "METADATA").write_text(text)
        return CompletedProcess([], 0, "", "")

    row = releases.read_row("thing-x==1.0", "3.11", "here", run)
    found = yaml.safe_load(row)["thing-x"]
    assert list(found.values()) == [{"python": ">=3.9", "requires": ["b>=2"], "source": "here"}]
    with pytest.raises(UserError, match="NAME==VERSION"):
        releases.read_row("thing-x>=1.0", "3.11", "here", run)


SNIPPETS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "using.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("language", "text"), SNIPPETS, ids=[str(number) for number in range(len(SNIPPETS))]
)
def test_snippets_of_the_docs_are_well_formed(language: str, text: str) -> None:
    if language == "sh":
        subprocess.run(
            ["sh", "-n"], input=text, text=True, check=True, env={"PATH": os.environ["PATH"]}
        )
    elif language == "yaml":
        assert yaml.safe_load(text)
    elif language == "python":
        compile(text, "using.md", "exec")
    else:
        assert language == "json" and json.loads(text)
    assert {language for language, _ in SNIPPETS} == {"sh", "yaml", "json", "python"}


@pytest.mark.parametrize(
    "way", ["docker", "compose", "Kubernetes", "Slurm with enroot and pyxis", "Dev container"]
)
def test_each_way_to_run_an_image_has_a_snippet_that_names_one(way: str) -> None:
    text = (ROOT / "docs" / "using.md").read_text()
    section = re.split(r"^## ", text.partition(f"\n## {way}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    snippets = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert snippets and all(re.search(r"\bcu\d+-torch\d+-", snippet) for snippet in snippets)


def test_snippets_give_nccl_its_memory_and_one_process_a_gpu() -> None:
    compose, job = (yaml.safe_load(text) for language, text in SNIPPETS if language == "yaml")
    assert compose["services"]["train"]["shm_size"] == "16gb"
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["memory"]["emptyDir"]["medium"] == "Memory"
    alone, several = (text for _, text in SNIPPETS if "#SBATCH" in text)
    assert "--gpus=1" in alone and "torchrun" not in alone
    assert re.findall(r"--gpus-per-node=(\d+)|--nproc_per_node=(\d+)", several) == [
        ("8", ""),
        ("", "8"),
    ]
    for text in (
        text for _, text in SNIPPETS if text.startswith("docker run") and "--gpus" in text
    ):
        assert ("--ipc=host" in text or "--shm-size" in text) and "--ulimit memlock=-1" in text


def test_an_optional_package_that_must_be_compiled_is_an_optional_pin_that_no_lock_has() -> None:
    pin = image("cu130-torch213-axolotl").pin("causal-conv1d")
    assert pin is not None
    assert (pin.compiled, pin.optional, pin.locked, pin.layer) == (True, True, False, "profile")
    assert pin.needs == ("ninja", "packaging") and str(pin.minimum_arch) == "sm_75"
    locked = lock_file.read(image("cu130-torch213-axolotl", sources=REAL), CHECKOUT.locks)
    assert "ninja" in locked.versions(["profile"]), "the lock brings what it requires"
    assert "causal-conv1d" not in locked.versions(locked.inputs.layers)
    pins = {"2.13": {"axolotl": "0.19.0", "causal-conv1d": "1.7.0"}}
    required = with_profile("axolotl", stacks=pins, optional={})
    pin = image("cu130-torch213-sm90-axolotl", sources=required).pin("causal-conv1d")
    assert pin is not None and (pin.compiled, pin.optional) == (True, False)


def test_an_optional_package_may_have_a_version_for_each_torch_and_is_official_where_one_is_known() -> (
    None
):
    older, newer = (
        image("cu128-torch28-axolotl", sources=REAL),
        image("cu130-torch213-axolotl", sources=REAL),
    )
    versions = [
        (pin.version if (pin := each.pin("causal-conv1d")) else "") for each in (older, newer)
    ]
    assert versions == ["1.6.2.post1", "1.7.0"]
    assert (
        sorted(wheel.name for wheel in older.prebuilt) == ["causal-conv1d", "flash-attn"]
        and not newer.prebuilt
    )
    assert not any(
        "causal-conv1d 1.6.2.post1" in text and "compiled it" in text for text in older.warnings
    )
    none = with_profile("axolotl", optional={"causal-conv1d": {"2.8": "1.6.2.post1"}})
    assert image("cu130-torch213-axolotl", sources=none).pin("causal-conv1d") is None


def test_the_plan_says_which_extensions_can_be_compiled_and_which_cannot() -> None:
    (pin,) = (pin for pin in image("cu124-torch25-colossalai").pins if pin.name == "colossalai")
    assert (pin.extensions, str(pin.minimum_arch), pin.locked) == ("colossalai", "sm_75", True)
    toolkits = {**SOURCES.matrix.toolkits}
    toolkits["12.4"] = toolkits["12.4"].model_copy(update={"compiler": None})
    bent = dataclasses.replace(
        SOURCES, matrix=SOURCES.matrix.model_copy(update={"toolkits": toolkits})
    )
    without = image("cu124-torch25-colossalai", sources=bent)
    assert not any(pin.extensions for pin in without.pins)
    lacks = "compiled extensions: colossalai 0.5.0 is published as source only, and no"
    assert any(lacks in warning for warning in without.warnings)
    assert not {("device-code", "colossalai"), ("native", "colossalai")} & claims_of(without).keys()
