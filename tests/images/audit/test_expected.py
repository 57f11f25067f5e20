"""Claims written from what is installed: no version is expected, what nobody knows is left out and said; how they are
judged: conda's and Debian's habits are no faults, the rest is.
"""

from typing import Any

import pytest

from images.audit import expected, survey
from images.audit.expected import AUDIT_JUDGES
from images.config.names import Arch
from images.planning import chooser, expectations
from tests.support.audit_samples import code, distribution, environment
from tests.support.sources import SOURCES
from validate.claims import Claim
from validate.judging import Status

FACTS = SOURCES.facts
TORCH = {"sm_80": 1000, "sm_90": 900, "sm_89": 10, "sm_90a": 500, "compute_90": 700}
CODE = [code("torch/lib/libtorch_cuda.so", "torch", **TORCH)]


def _claims(
    *distributions: dict[str, object], torch: tuple[str, str] = ("2.7.1+cu126", "12.6")
) -> tuple[Claim, ...]:
    return tuple(
        expected.environment_claims(environment(*distributions, torch=torch), CODE, FACTS)[0]
    )


def test_torchs_architectures_are_those_it_has_much_code_for() -> None:
    assert expected.torch_archs(environment(), CODE) == (Arch(8, 0), Arch(9, 0))
    assert expected.torch_archs(environment(), []) == ()


def test_an_environment_with_torch_is_held_to_what_needs_no_gpu() -> None:
    keys = {
        one.key for one in _claims(distribution("torch", "2.7.1"), distribution("triton", "3.3.1"))
    }
    assert {
        "files/recorded",
        "libraries/linked",
        "symbols/resolved",
        "device-code/torch",
        "imports/torch",
        "triton/sm_90",
    } <= keys
    assert not {one.partition("/")[0] for one in keys} & {"pins", "users", "additions", "device"}


def test_an_environment_without_torch_is_read_alone() -> None:
    for torch in (("", ""), ("2.7.1+cpu", "None"), ("2.7.1", "9.0"), ("odd", "12.6")):
        claims = _claims(distribution("numpy", "2.0"), torch=torch)
        assert {one.check for one in claims} == {"files", "libraries", "symbols", "environment"}


def test_packages_of_which_nothing_is_known_are_left_out_with_the_reason() -> None:
    odd = (
        distribution("torch", "2.7.1"),
        distribution("bitsandbytes", "99.0"),
        distribution("xformers", "odd!"),
    )
    claims, left_out = expected.environment_claims(environment(*odd), CODE, FACTS)
    assert left_out == {
        "bitsandbytes": "facts.yaml has no row of 99.0",
        "xformers": "odd! is no version that can be compared",
    }
    assert not [one for one in claims if one.subject in ("bitsandbytes", "xformers")]


def test_a_library_is_held_to_the_gpus_that_it_has_any_code_for() -> None:
    bitsandbytes = code("bitsandbytes/libbitsandbytes_cuda126.so", "bitsandbytes", sm_80=1000)
    both = environment(distribution("torch", "2.7.1"), distribution("bitsandbytes", "0.49.1"))
    found, _ = expected.environment_claims(both, [*CODE, bitsandbytes], FACTS)
    (claim,) = (one for one in found if (one.check, one.subject) == ("device-code", "bitsandbytes"))
    assert claim.expect["archs"] == {"80": "cubin"}


SITE = "/opt/venv/lib/python3.11/site-packages"
EMPTY = {
    "files": 10,
    "distributions": 1,
    "wrong": [],
    "in_conflict": [],
    "unowned": [],
    "without_record": [],
}


def _conflict(path: str) -> dict[str, object]:
    return {"path": path, "owners": ["a 1", "b 1"], "holds": ["a 1"]}


@pytest.mark.parametrize(
    ("subject", "found", "fault"),
    [
        ("recorded", {}, ""),
        (
            "recorded",
            {"wrong": [{"path": f"{SITE}/a.py", "owners": {"a 1": "altered"}}]},
            "a.py of a 1 is altered",
        ),
        (
            "recorded",
            {"wrong": [{"path": f"{SITE}/a.py", "owners": {"c 1": "altered"}}], "conda": ("c",)},
            "",
        ),
        (
            "recorded",
            {"in_conflict": [_conflict(f"{SITE}/a/x.so")]},
            "x.so is claimed by a 1 and b 1",
        ),
        ("recorded", {"in_conflict": [_conflict(f"{SITE}/tests/__init__.py")]}, ""),
        ("recorded", {"in_conflict": [_conflict(f"{SITE}/a/README.md")]}, ""),
        ("recorded", {"unowned": [f"{SITE}/x.py"]}, ""),
        ("strays", {"unowned": [f"{SITE}/x.py"]}, "x.py belongs to no distribution"),
        ("strays", {"unowned": [f"{SITE}/x.py"], "kind": "conda"}, ""),
        (
            "strays",
            {"in_conflict": [_conflict(f"{SITE}/tests/__init__.py")]},
            "tests/__init__.py is claimed by",
        ),
        ("strays", {}, ""),
        ("recorded", {"files": 0}, ""),
    ],
)
def test_files_and_strays(subject: str, found: dict[str, Any], fault: str) -> None:
    counts = {
        f"{name}_count": len(found.get(name, ())) for name in ("wrong", "in_conflict", "unowned")
    }
    expect = {
        "unowned": expectations.START_FILES,
        "conda": list(found.get("conda", ())),
        "kind": found.get("kind", "venv"),
    }
    finding = AUDIT_JUDGES[f"files/{subject}"](subject, expect, {**EMPTY, **counts, **found})
    assert finding.status is (Status.FAIL if fault else Status.PASS)
    assert fault in finding.reason


def test_what_is_left_out_is_unproven_and_never_green() -> None:
    (claim,) = expected.unaudited_claims({"xformers": "facts.yaml has no row of 9"})
    assert claim.subject == "of-xformers" and claim.unproven and not claim.required


@pytest.mark.parametrize(
    ("gpu", "driver", "told"),
    [
        ("RTX 5090", "570.86", "torch has no code for sm_120"),
        ("RTX 5090", "550.90", "sm_120 (Blackwell) needs driver 570 or newer"),
        ("RTX 4090", "470.57", "CUDA 12 needs driver 525.60.13 or newer"),
        ("H100", "550.90", "torchao has no code for sm_90"),
        ("A100", "550.90", ""),
    ],
)
def test_what_keeps_packages_from_a_machine_is_told(gpu: str, driver: str, told: str) -> None:
    libraries = [
        code("torch/lib/libtorch_cuda.so", "torch", sm_80=1 << 30, sm_86=1 << 30, sm_90=1 << 30),
        code("torchao/_C.abi3.so", "torchao", sm_80=1 << 20),
    ]
    machine = chooser.machine_from_options(gpu, "", driver)
    claim = expected.machine_claim(
        environment(distribution("torch", "2.7.1")), libraries, FACTS, machine
    )
    archs = [f"{arch.major}{arch.minor}" for arch in machine.archs]
    finding = survey.judge_machine(
        "machine", claim.expect, survey.machine_evidence(libraries, "12.6", archs)
    )
    assert finding.status is (Status.FAIL if told else Status.PASS) and told in finding.reason


@pytest.mark.parametrize(("peft", "fails"), [("0.17.1", True), ("0.18.0", False)])
def test_releases_that_fail_together_are_told(peft: str, fails: bool) -> None:
    found = environment(distribution("peft", peft), distribution("transformers", "5.0.0"))
    evidence = survey.environment_evidence(found, [])["conflicts"]
    finding = survey.judge_conflicts("conflicts", expected.conflicts_claim(FACTS).expect, evidence)
    assert finding.status is (Status.FAIL if fails else Status.PASS)
    assert ("peft 0.17.1 and transformers 5.0.0 fail together: " in finding.reason) is fails
