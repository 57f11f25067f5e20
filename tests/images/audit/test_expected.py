"""The claims of an audit, and how they are judged.

They name no versions. What nobody knows of a package is left out and reported. Habits of conda and
of Debian are no faults; all else is.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from images.audit import expected, survey
from images.audit.device_code import LibraryCode
from images.audit.expected import AUDIT_JUDGES
from images.config.facts import Conflict
from images.config.names import Arch
from images.config.platforms import Platform
from images.planning import expectations
from tests.support.audit_samples import SITE, code, distribution, environment
from tests.support.sources import SOURCES
from validate.claims import Claim, ClaimSet
from validate.judging import Finding, Status

FACTS = SOURCES.facts
# Made for 8.0 and 9.0. There are a few kernels for 8.9, and PTX.
CODE_OF_TORCH = [
    code(
        "torch/lib/libtorch_cuda.so",
        "torch",
        sm_80=1000,
        sm_90=900,
        sm_89=10,
        sm_90a=500,
        compute_90=700,
    )
]


def claims_and_left_out(
    surveyed: Any, code: Sequence[LibraryCode]
) -> tuple[list[Claim], dict[str, str]]:
    """Return the claims about an environment, and the packages that none could be written for."""
    image, left_out = expected.describe_as_image(surveyed, code, FACTS)
    return expected.environment_claims(surveyed, code, FACTS, image), left_out


def claims_of(
    *distributions: dict[str, Any], torch: tuple[str, str] = ("2.7.1+cu126", "12.6")
) -> list[Claim]:
    """Return the claims about an environment. `torch`: its version and its CUDA."""
    surveyed = environment(*distributions, torch=torch)
    return claims_and_left_out(surveyed, CODE_OF_TORCH)[0]


# --- claims ---------------------------------------------------------------------------------------


def test_torch_is_made_for_the_architectures_that_it_has_much_code_for() -> None:
    archs = expected.torch_archs(environment(), CODE_OF_TORCH)

    assert archs == (Arch(8, 0), Arch(9, 0))


def test_without_known_code_torch_is_made_for_no_architecture() -> None:
    assert expected.torch_archs(environment(), []) == ()


def test_an_environment_with_torch_has_the_claims_that_need_no_gpu() -> None:
    claims = claims_of(distribution("torch", "2.7.1"), distribution("triton", "3.3.1"))

    assert {claim.key for claim in claims} >= {
        "files/recorded",
        "libraries/linked",
        "symbols/resolved",
        "device-code/torch",
        "imports/torch",
        "triton/sm_90",
    }
    checks_of_our_images = {"pins", "users", "additions", "device"}
    assert not {claim.check for claim in claims} & checks_of_our_images


@pytest.mark.parametrize(
    "torch",
    [
        pytest.param(("", ""), id="none"),
        pytest.param(("2.7.1+cpu", "None"), id="for the CPU"),
        pytest.param(("2.7.1", "9.0"), id="for a CUDA that nobody knows"),
        pytest.param(("odd", "12.6"), id="of no version"),
    ],
)
def test_of_an_environment_without_torch_for_cuda_only_files_are_read(
    torch: tuple[str, str],
) -> None:
    claims = claims_of(distribution("numpy", "2.0"), torch=torch)

    checks = {claim.check for claim in claims}
    assert checks == {"files", "libraries", "symbols", "environment"}


def test_a_package_of_which_nothing_is_known_is_left_out_with_the_reason() -> None:
    surveyed = environment(
        distribution("torch", "2.7.1"),
        distribution("bitsandbytes", "99.0"),
        distribution("xformers", "odd!"),
    )

    claims, left_out = claims_and_left_out(surveyed, CODE_OF_TORCH)

    assert left_out == {
        "bitsandbytes": "facts.yaml has no row of 99.0",
        "xformers": "odd! is no version that can be compared",
    }
    assert not {claim.subject for claim in claims} & left_out.keys()


def test_of_a_package_that_is_installed_twice_only_the_first_counts() -> None:
    surveyed = environment(
        distribution("xformers", "odd!"),
        distribution("xformers", "0.0.31"),
        torch=("2.7.1+cu126", "12.6"),
    )

    claims, left_out = claims_and_left_out(surveyed, CODE_OF_TORCH)

    assert left_out == {"xformers": "odd! is no version that can be compared"}
    assert "imports/xformers" not in {claim.key for claim in claims}


def test_a_release_that_nobody_knows_of_a_package_with_code_for_gpus_is_unproven() -> None:
    """Such a claim names no libraries: an environment with torchvision 0.20.1 ended an audit."""
    names = [*expectations.NATIVE, *expectations.IMPORTED, *FACTS.packages]
    packages = [distribution(name, "0.0.1") for name in sorted({*names} - {"torch"})]

    claims = claims_of(distribution("torch", "2.7.1"), *packages)

    (claim,) = (claim for claim in claims if claim.key == "device-code/torchvision")
    assert claim.unproven == "nothing is known of torchvision 0.0.1"
    assert not claim.required


def test_what_is_left_out_is_unproven_and_not_required() -> None:
    (claim,) = expected.unaudited_claims({"xformers": "facts.yaml has no row of 9"})

    assert claim.subject == "of-xformers"
    assert claim.unproven
    assert not claim.required


def test_a_library_is_held_to_the_gpus_that_it_has_any_code_for() -> None:
    bitsandbytes = code("bitsandbytes/libbitsandbytes_cuda126.so", "bitsandbytes", sm_80=1000)
    surveyed = environment(distribution("torch", "2.7.1"), distribution("bitsandbytes", "0.49.1"))

    claims, _ = claims_and_left_out(surveyed, [*CODE_OF_TORCH, bitsandbytes])

    (claim,) = (claim for claim in claims if claim.key == "device-code/bitsandbytes")
    assert claim.expect["archs"] == {"80": "cubin"}


# --- files ----------------------------------------------------------------------------------------

WHOLE_FILES = {
    "files": 10,
    "distributions": 1,
    "wrong": [],
    "in_conflict": [],
    "unowned": [],
    "without_record": [],
}
"""Evidence of an environment whose files are as recorded, each with one owner."""


def judge_files(
    subject: str, *, conda_packages: tuple[str, ...] = (), kind: str = "venv", **evidence: Any
) -> Finding:
    """Judge the claim `files/SUBJECT` by evidence that differs from WHOLE_FILES."""
    counts = {}
    for name in ("wrong", "in_conflict", "unowned"):
        counts[f"{name}_count"] = len(evidence.get(name, ()))
    expect = {
        "unowned": expectations.START_FILES,
        "conda": list(conda_packages),
        "kind": kind,
    }
    judge: Any = AUDIT_JUDGES[f"files/{subject}"]
    finding: Finding = judge(subject, expect, {**WHOLE_FILES, **counts, **evidence})
    return finding


def conflict_over(path: str) -> dict[str, Any]:
    return {"in_conflict": [{"path": f"{SITE}/{path}", "owners": ["a 1", "b 1"], "holds": ["a 1"]}]}


ALTERED_FILE_OF_A = {"wrong": [{"path": f"{SITE}/a.py", "owners": {"a 1": "altered"}}]}
ALTERED_FILE_OF_C = {"wrong": [{"path": f"{SITE}/a.py", "owners": {"c 1": "altered"}}]}
FILE_WITHOUT_OWNER = {"unowned": [f"{SITE}/x.py"]}


@pytest.mark.parametrize(
    ("subject", "evidence", "fault"),
    [
        pytest.param("recorded", ALTERED_FILE_OF_A, "a.py of a 1 is altered", id="altered"),
        pytest.param(
            "recorded", conflict_over("a/x.so"), "x.so is claimed by a 1 and b 1", id="library"
        ),
        pytest.param(
            "strays",
            FILE_WITHOUT_OWNER,
            "x.py belongs to no installed Python package",
            id="no owner",
        ),
        pytest.param(
            "strays",
            conflict_over("tests/__init__.py"),
            "tests/__init__.py is claimed by",
            id="tests/",
        ),
    ],
)
def test_a_file_that_is_not_as_recorded_is_a_fault(
    subject: str, evidence: dict[str, Any], fault: str
) -> None:
    finding = judge_files(subject, **evidence)

    assert finding.status is Status.FAIL
    assert fault in finding.reason


@pytest.mark.parametrize(
    ("subject", "evidence"),
    [
        pytest.param("recorded", {}, id="whole files"),
        pytest.param("strays", {}, id="each with an owner"),
        pytest.param("recorded", {"files": 0}, id="no file at all"),
        pytest.param(
            "recorded", {**ALTERED_FILE_OF_C, "conda_packages": ("c",)}, id="altered by conda"
        ),
        pytest.param("strays", {**FILE_WITHOUT_OWNER, "kind": "conda"}, id="owned by conda"),
        # These two are left to the claim on strays, or are no code.
        pytest.param("recorded", conflict_over("tests/__init__.py"), id="two owners in tests/"),
        pytest.param("recorded", conflict_over("a/README.md"), id="two owners of a text"),
        pytest.param("recorded", FILE_WITHOUT_OWNER, id="no owner"),
    ],
)
def test_a_file_that_breaks_nothing_is_no_fault(subject: str, evidence: dict[str, Any]) -> None:
    assert judge_files(subject, **evidence).status is Status.PASS


# --- libraries ------------------------------------------------------------------------------------


def judge_library(library: dict[str, Any], *required: str) -> Finding:
    """Judge the claim `libraries/linked` by one library of `owner`, which requires packages."""
    expect = {
        "of": "environment",
        "cuda_libraries": {},
        "host": ["libcuda.so*"],
        "other_platforms": [],
        "exceptions": expected._RULES["optional_plugins"],
        "requires": {"owner": list(required), "tensorflow": ["owner"]},
    }
    row = {"assumed": {}, "needs_cuda": [], "offered": {}, "owners": ["owner"], **library}
    evidence = {
        "files": 1,
        "unreadable": [],
        "linked": [row],
        "torch_misses": [],
        "torch_holds": {},
        "provided": [],
    }
    judge: Any = AUDIT_JUDGES["libraries/linked"]
    finding: Finding = judge("linked", expect, evidence)
    return finding


NEEDS_CUSOLVER = {
    "path": f"{SITE}/cupyx/_cusolver.so",
    "missing": ["libcusolver.so.11"],
    "offered": {"libcusolver.so.11": ["nvidia-cusolver-cu12"]},
}


@pytest.mark.parametrize(
    ("library", "required", "is_fault"),
    [
        pytest.param(NEEDS_CUSOLVER, (), True, id="nothing loads it"),
        pytest.param(NEEDS_CUSOLVER, ("nvidia-cusolver-cu12",), False, id="its own requirement"),
        pytest.param(NEEDS_CUSOLVER, ("cuda-pathfinder",), False, id="found by its path"),
        pytest.param(
            {
                "path": f"{SITE}/owner/libplugin.so",
                "missing": ["libtensorflow_framework.so.2"],
                "offered": {"libtensorflow_framework.so.2": ["tensorflow"]},
            },
            (),
            False,
            id="opened by a package that requires it",
        ),
        pytest.param(
            {**NEEDS_CUSOLVER, "offered": {}}, ("cuda-pathfinder",), True, id="nobody has it"
        ),
        pytest.param(
            {
                "path": f"{SITE}/torchao/_C_mxfp8.cpython-310-x86_64-linux-gnu.so",
                "missing": ["libcudart.so.13"],
            },
            (),
            False,
            id="an extra of torchao",
        ),
        pytest.param(
            {
                "path": f"{SITE}/cupy_backends/cuda/libs/cutensor.so",
                "missing": ["libcutensor.so.2"],
            },
            (),
            False,
            id="an additional library of CuPy",
        ),
        pytest.param(
            {
                "path": f"{SITE}/onnxruntime/capi/libonnxruntime_providers_tensorrt.so",
                "missing": ["libnvinfer.so.10", "libnvonnxparser.so.10"],
            },
            (),
            False,
            id="TensorRT for onnxruntime",
        ),
        pytest.param(
            {
                "path": f"{SITE}/onnxruntime/capi/libonnxruntime_providers_cuda.so",
                "missing": ["libcurand.so.10"],
            },
            (),
            True,
            id="CUDA for onnxruntime",
        ),
    ],
)
def test_a_missing_library_is_a_fault_unless_something_loads_it_first(
    library: dict[str, Any], required: tuple[str, ...], is_fault: bool
) -> None:
    finding = judge_library(library, *required)

    assert finding.status is (Status.FAIL if is_fault else Status.PASS)


def test_libraries_that_can_not_be_loaded_are_a_fault_also_where_no_other_is() -> None:
    judge: Any = AUDIT_JUDGES["libraries/linked"]
    unreadable = {"path": "/x/a.so", "error": "it is built for AArch64, not x86-64", "owners": []}
    expect = {"of": "environment", "requires": {}}

    nothing = judge("linked", expect, {"files": 0, "unreadable": [], "linked": []})
    only_others = judge("linked", expect, {"files": 0, "unreadable": [unreadable], "linked": []})

    assert (nothing.status, only_others.status) == (Status.PASS, Status.FAIL)


@pytest.mark.parametrize(
    ("name", "torch", "is_fault"),
    [
        ("torchao/_C_mxfp8.abi3.so", "2.9.1", False),
        ("libtorch_c_dlpack_addon_torch25-cuda.so", "2.15.0", False),
        ("libtorch_c_dlpack_addon_torch25-cuda.so", "2.5.1+cu124", True),
        ("libtorch_c_dlpack_addon_torch210-cuda.so", "2.1.0", False),
        ("libtorch_c_dlpack_addon_torch25-cuda.so", "", True),
        ("libtorch_cuda.so", "2.15.0", True),
    ],
)
def test_a_library_that_is_not_loaded_may_lack_symbols(
    name: str, torch: str, is_fault: bool
) -> None:
    lacking = {
        "path": f"{SITE}/{name}",
        "owners": ["some"],
        "elsewhere": 0,
        "undefined": ["_ZN3c10", "torch_call_dispatcher"],
        "undefined_count": 2,
        "versions": [],
        "alternatives": [],
    }
    evidence = {
        "files": 1,
        "checked": 1,
        "symbols": 1,
        "unreadable": [],
        "lacking": [lacking],
        "lacking_count": 1,
    }
    judge: Any = AUDIT_JUDGES["symbols/resolved"]

    exceptions = expected._RULES["optional_symbols"]
    finding = judge("resolved", {"host": [], "exceptions": exceptions, "torch": torch}, evidence)

    assert finding.status is (Status.FAIL if is_fault else Status.PASS)


@pytest.mark.parametrize(
    ("torch", "may_lack"), [(("", ""), True), (("2.7.1+cu126", "12.6"), False)]
)
def test_a_bridge_to_torch_may_lack_its_symbols_where_there_is_no_torch(
    torch: tuple[str, str], may_lack: bool
) -> None:
    """cuda-core has cuda/core/cu12/_tensor_bridge, which it opens when it is given a tensor."""
    claims, _ = claims_and_left_out(environment(torch=torch), [])

    (claim,) = (claim for claim in claims if claim.key == "symbols/resolved")

    bridges = [row for row in claim.expect["exceptions"] if row["path"] == "*.so"]
    assert bool(bridges) is may_lack


@pytest.mark.parametrize(
    ("processor", "unproven"),
    [
        ("x86_64", set()),
        ("", set()),
        ("aarch64", {"libraries/linked", "symbols/resolved"}),
        ("machine 21", {"libraries/linked", "symbols/resolved"}),
    ],
)
def test_what_libraries_of_another_processor_need_is_unproven(
    processor: str, unproven: set[str]
) -> None:
    surveyed = environment(torch=("", ""), processor=processor)
    claims, _ = claims_and_left_out(surveyed, [])

    why_unmeasured = expected.why_not_loadable(surveyed, Platform.AMD64)
    claim_set = ClaimSet(image="x", claims=tuple(claims))
    adapted = expected.adapt_to_folder(claim_set, "3.11", why_unmeasured)

    assert {claim.key for claim in adapted.claims if claim.unproven} == unproven
    assert "libraries/rivals" not in {claim.key for claim in adapted.claims}


# --- releases -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("peft", "is_fault"), [("0.17.1", True), ("0.18.0", False)])
def test_releases_that_are_known_to_fail_together_are_a_fault(peft: str, is_fault: bool) -> None:
    surveyed = environment(distribution("peft", peft), distribution("transformers", "5.0.0"))
    evidence = survey.environment_evidence(surveyed, [])["conflicts"]

    finding = survey.judge_conflicts("conflicts", expected.conflicts_claim(FACTS).expect, evidence)

    assert finding.status is (Status.FAIL if is_fault else Status.PASS)
    assert ("peft 0.17.1 and transformers 5.0.0 fail together: " in finding.reason) is is_fault
    fix = "install 'peft>=0.18' 'transformers>=5.0.0', and leave torch and all other packages"
    assert (fix in finding.next_step) is is_fault


def test_a_conflict_with_a_fix_of_its_own_is_told_that_one_only() -> None:
    """An older torchao is the way out there, and uv would be asked for a newer torch."""
    surveyed = environment(distribution("torchao", "0.18.0"), distribution("torch", "2.9.1"))
    evidence = survey.environment_evidence(surveyed, [])["conflicts"]

    finding = survey.judge_conflicts("conflicts", expected.conflicts_claim(FACTS).expect, evidence)

    assert "torchao 0.18.0 and torch 2.9.1 fail together: " in finding.reason
    assert "pip install --no-deps torchao==0.17.0" in finding.next_step
    assert "torch and all others held" not in finding.next_step


@pytest.mark.parametrize(("liger", "status"), [("0.7.0", Status.KNOWN), ("0.8.0", Status.PASS)])
def test_releases_that_fail_together_at_one_thing_are_known(liger: str, status: Status) -> None:
    surveyed = environment(
        distribution("liger-kernel", liger), distribution("transformers", "5.3.0")
    )
    evidence = survey.environment_evidence(surveyed, [])["limits"]

    limits_claim = expected.limits_claim(FACTS)
    finding = survey.judge_limits("limits", limits_claim.expect, evidence)

    assert finding.status is status
    assert ("mm_token_type_ids" in finding.reason) is (status is Status.KNOWN)
    assert not limits_claim.required


@pytest.mark.parametrize(
    "conflict", [conflict for conflict in FACTS.conflicts if not conflict.fix], ids=str
)
def test_each_conflict_without_a_fix_of_its_own_ends_with_a_newer_release_of_one_package(
    conflict: Conflict,
) -> None:
    versions = dict.fromkeys(conflict.packages, "1000")

    requirements = conflict.requirements_without(versions)

    newer = [line for line in requirements if not line.endswith(">=1000")]
    assert len(newer) == 1
    name, _, version = newer[0].partition(">=")
    assert not conflict.applies_to({**versions, name: version})
