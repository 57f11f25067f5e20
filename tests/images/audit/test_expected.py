"""The claims of an audit, and how they are judged.

They name no versions. What nobody knows of a package is left out and reported. Habits of conda and
of Debian are no faults; all else is.
"""

from typing import Any

import pytest

from images.audit import expected, survey
from images.audit.expected import AUDIT_JUDGES
from images.config.names import Arch
from images.planning import chooser, expectations
from tests.support.audit_samples import SITE, code, distribution, environment
from tests.support.sources import SOURCES
from validate.claims import Claim
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


def claims_of(
    *distributions: dict[str, Any], torch: tuple[str, str] = ("2.7.1+cu126", "12.6")
) -> list[Claim]:
    """Return the claims about an environment. `torch`: its version and its CUDA."""
    surveyed = environment(*distributions, torch=torch)
    return expected.environment_claims(surveyed, CODE_OF_TORCH, FACTS).claims


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

    claims, left_out = expected.environment_claims(surveyed, CODE_OF_TORCH, FACTS)

    assert left_out == {
        "bitsandbytes": "facts.yaml has no row of 99.0",
        "xformers": "odd! is no version that can be compared",
    }
    assert not {claim.subject for claim in claims} & left_out.keys()


def test_what_is_left_out_is_unproven_and_not_required() -> None:
    (claim,) = expected.unaudited_claims({"xformers": "facts.yaml has no row of 9"})

    assert claim.subject == "of-xformers"
    assert claim.unproven
    assert not claim.required


def test_a_library_is_held_to_the_gpus_that_it_has_any_code_for() -> None:
    bitsandbytes = code("bitsandbytes/libbitsandbytes_cuda126.so", "bitsandbytes", sm_80=1000)
    surveyed = environment(distribution("torch", "2.7.1"), distribution("bitsandbytes", "0.49.1"))

    claims, _ = expected.environment_claims(surveyed, [*CODE_OF_TORCH, bitsandbytes], FACTS)

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
            "strays", FILE_WITHOUT_OWNER, "x.py belongs to no distribution", id="no owner"
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


# --- machines and releases ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "driver", "obstacle"),
    [
        ("RTX 5090", "570.86", "torch has no code for sm_120"),
        ("RTX 5090", "550.90", "sm_120 (Blackwell) needs driver 570 or newer"),
        ("RTX 4090", "470.57", "CUDA 12 needs driver 525.60.13 or newer"),
        ("H100", "550.90", "torchao has no code for sm_90"),
        ("A100", "550.90", ""),
    ],
)
def test_what_keeps_an_environment_from_a_machine_is_a_fault(
    gpu: str, driver: str, obstacle: str
) -> None:
    gigabyte, megabyte = 1 << 30, 1 << 20
    libraries = [
        code("torch/lib/libtorch_cuda.so", "torch", sm_80=gigabyte, sm_86=gigabyte, sm_90=gigabyte),
        code("torchao/_C.abi3.so", "torchao", sm_80=megabyte),
    ]
    surveyed = environment(distribution("torch", "2.7.1"))
    machine = chooser.machine_from_options(gpu, "", driver)
    archs = [f"{arch.major}{arch.minor}" for arch in machine.archs]

    claim = expected.machine_claim(surveyed, libraries, FACTS, machine)
    evidence = survey.machine_evidence(libraries, "12.6", archs)
    finding = survey.judge_machine("machine", claim.expect, evidence)

    assert finding.status is (Status.FAIL if obstacle else Status.PASS)
    assert obstacle in finding.reason


@pytest.mark.parametrize(("peft", "is_fault"), [("0.17.1", True), ("0.18.0", False)])
def test_releases_that_are_known_to_fail_together_are_a_fault(peft: str, is_fault: bool) -> None:
    surveyed = environment(distribution("peft", peft), distribution("transformers", "5.0.0"))
    evidence = survey.environment_evidence(surveyed, [])["conflicts"]

    finding = survey.judge_conflicts("conflicts", expected.conflicts_claim(FACTS).expect, evidence)

    assert finding.status is (Status.FAIL if is_fault else Status.PASS)
    assert ("peft 0.17.1 and transformers 5.0.0 fail together: " in finding.reason) is is_fault
