"""Derived images: how they are recognised, what they must hold, and how their changes are named."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from images.engine import configuration
from images.planning import plan
from images.validation import derived_image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.cases import cases
from tests.support.sources import SOURCES
from validate.checks.static import environment, host_image, hygiene, libraries, pins
from validate.claims import ORIGIN_PROBE, Claim, ClaimSet
from validate.derived import derived_claims
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judging import Finding, Status

(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
LOCKED = {"torch": {"torch": "2.7.1", "sympy": "1.14.0"}, "libraries": {"fsspec": "2025.10.0"}}
BASE = image_claims(ClaimContext(image=PLANNED.image, facts=SOURCES.facts, locked=LOCKED))
"""The claims of the base image."""
DERIVED = derived_claims(BASE, derived_image.derived_rules(PLANNED.image, SOURCES))
"""The claims of an image that is derived from it."""


def find(key: str, claims: ClaimSet = DERIVED) -> Claim:
    """Return the claim of this name, by default of the derived image."""
    (claim,) = (claim for claim in claims.claims if claim.key == key)
    return claim


def requires_pass_or(finding: Finding, fault: str) -> None:
    """Require a finding with this fault in its reason; a PASS if the fault is empty."""
    assert (finding.status is Status.PASS) is (not fault), finding.reason
    assert fault in finding.reason, finding.reason


# --- recognised by build steps --------------------------------------------------------------------

OUR_HISTORY = ['CMD ["bash"]', "WORKDIR /workspace", "USER 1001", "LABEL a=b"]
"""How the history of an image of ours ends. The newest step comes first, as engines print it."""


@pytest.mark.parametrize(
    ("history", "steps_above"),
    [
        pytest.param(OUR_HISTORY, (), id="an image of ours"),
        pytest.param(
            ["USER 1001", "RUN pip install wandb", *OUR_HISTORY],
            ("RUN pip install wandb", "USER 1001"),
            id="steps above",
        ),
        pytest.param(
            [
                '/bin/sh -c #(nop)  CMD ["bash"]',
                "/bin/sh -c #(nop) WORKDIR /workspace",
                "USER 1001",
            ],
            (),
            id="as the older builder writes them",
        ),
        pytest.param(
            ['CMD ["sh"]', "RUN x", *OUR_HISTORY], ("RUN x", 'CMD ["sh"]'), id="another command"
        ),
        pytest.param(
            ['CMD ["bash"]', "WORKDIR /workspace", *OUR_HISTORY],
            ("WORKDIR /workspace", 'CMD ["bash"]'),
            id="steps that are like ours",
        ),
        pytest.param(["RUN x", "FROM somewhere"], (), id="not ours"),
        pytest.param([], (), id="no history"),
    ],
)
def test_the_steps_of_a_derived_image_are_those_above_our_last(
    history: list[str], steps_above: tuple[str, ...]
) -> None:
    oldest_first = history[::-1]

    assert configuration.steps_above(oldest_first) == steps_above


# --- packages and files ---------------------------------------------------------------------------


def test_a_derived_image_has_the_claims_of_its_base_and_some_about_what_it_adds() -> None:
    checks_of_base = {claim.check for claim in BASE.claims}

    assert {claim.check for claim in DERIVED.claims} == checks_of_base | {"added", "state"}


def test_a_derived_image_may_add_packages_and_move_no_pin() -> None:
    assert not find("pins/lock").required
    assert not find("pins/lock").expect["closed"]
    assert find("pins/torch").required
    assert find("pins/transformers").required


def test_a_derived_image_may_be_larger_and_keeps_its_settings() -> None:
    assert not find("image/size").required
    assert find("image/settings").required


def test_a_derived_image_keeps_our_labels_and_may_set_all_others() -> None:
    labels = find("image/labels").expect["labels"]

    assert labels["dev.truetag.torch"] == "2.7.1"
    assert all(name.startswith("dev.truetag.") for name in labels)


def test_a_derived_image_may_have_files_in_workspace_and_no_caches() -> None:
    leftovers = find("hygiene/leftovers").expect["leftovers"]

    assert "/workspace/*" not in leftovers
    assert "*/.cache/*" in leftovers


def test_apts_cache_in_a_derived_image_is_reported_and_no_fault() -> None:
    expect: Any = find("hygiene/leftovers").expect
    two_files = {"files": 2, "bytes": 8e7, "example": "/var/cache/apt/pkgcache.bin"}
    measured: Any = {"files": 9, "unreadable": [], "leftovers": {"/var/cache/apt/*": two_files}}

    finding = hygiene.judge_leftovers("leftovers", expect, measured)

    assert finding.status is Status.PASS
    assert "2 files (80.0 MB) of apt's cache are left" in finding.reason


def test_a_users_cache_in_a_derived_image_is_named() -> None:
    expect: Any = find("hygiene/leftovers").expect
    two_files = {"files": 2, "bytes": 8e7, "example": "/var/cache/apt/pkgcache.bin"}
    leftovers = {"/var/cache/apt/*": two_files, "*/.cache/*": two_files}
    measured: Any = {"files": 9, "unreadable": [], "leftovers": leftovers}

    finding = hygiene.judge_leftovers("leftovers", expect, measured)

    assert "80.0 MB) of a user's cache" in finding.reason


@pytest.mark.parametrize(("added", "variables", "has_nvcc", "fault"), cases(__file__, "added"))
def test_an_addition_that_is_known_to_fail_is_a_fault(
    added: dict[str, str], variables: list[str], has_nvcc: bool, fault: str
) -> None:
    assert PLANNED.image is not None
    base_image = replace(
        PLANNED.image,
        name=replace(PLANNED.image.name, devel=has_nvcc),
        unfit={"torchao": "none fits"},
    )
    claims = derived_claims(BASE, derived_image.derived_rules(base_image, SOURCES))
    claim = find("pins/additions", claims)
    # Here torchao is an addition, and not one of the base image's packages.
    pinned = [name for name in claim.expect["pinned"] if name != "torchao"]
    expect: Any = {**claim.expect, "pinned": pinned}
    installed = {name: [version] for name, version in added.items()}
    measured: Any = {"installed": installed, "variables": variables}

    finding = pins.judge_additions("additions", expect, measured)

    assert claim.required
    requires_pass_or(finding, fault)


# --- variables and settings -----------------------------------------------------------------------


def judge_variables(
    denied: Mapping[str, str], required: Mapping[str, str] | None = None
) -> Finding:
    """Judge the variables of a derived image.

    `denied`: those of it that match a denied pattern. `required`: its values of variables that ours
    must have.
    """
    expect: Any = find("environment/variables").expect
    measured: Any = {
        "required": required or {},
        "denied": denied,
        "in_files": [],
        "settings_files": {},
        "start": {"flags": {"optimize": 0}, "code": []},
    }
    return environment.judge("environment", expect, measured)


def test_a_derived_image_may_let_nccl_print_more() -> None:
    assert judge_variables({"NCCL_DEBUG": "INFO"}).status is Status.PASS


def test_a_derived_image_may_not_change_what_nccl_does() -> None:
    finding = judge_variables({"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1"})

    assert "NCCL_IB_DISABLE=1 is set" in finding.reason


def test_a_derived_image_may_have_caches_of_its_own_and_no_constraints_of_its_own() -> None:
    ours = find("environment/variables").expect["required"]

    finding = judge_variables(
        {"PIP_NO_CACHE_DIR": "1", "PYTHONPATH": "/app"},
        {**ours, "HF_HOME": "/data", "PIP_CONSTRAINT": ""},
    )

    assert (
        finding.reason
        == "the variable PIP_CONSTRAINT is '', and '/opt/truetag/constraints.txt' is expected"
    )


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        pytest.param(
            {
                "user": "",
                "entrypoint": ["python"],
                "further": {"Healthcheck": {}, "Volumes": {"/data": {}}},
            },
            "",
            id="its own entrypoint, health check and volume",
        ),
        pytest.param({"user": "1002:1002"}, "", id="its own user"),
        pytest.param(
            {"further": {"Volumes": {"/opt": {}}}},
            "/opt is a volume of the image, so each container keeps its own copy",
            id="a volume over ours",
        ),
        pytest.param(
            {"further": {"Volumes": {"/opt/venv/lib": {}}}},
            "/opt/venv/lib is a volume",
            id="a volume inside ours",
        ),
        pytest.param(
            {"driver": {"NVIDIA_VISIBLE_DEVICES": "none"}},
            "NVIDIA_VISIBLE_DEVICES is none, which hides every GPU",
            id="no GPU",
        ),
    ],
)
def test_a_derived_image_has_its_own_user_and_start_and_the_driver_of_its_base(
    changed: dict[str, Any], fault: str
) -> None:
    driver = {
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "NVIDIA_VISIBLE_DEVICES": "all",
        **changed.get("driver", {}),
    }
    expect: Any = find("image/settings").expect
    measured: Any = {"user": "1001", "entrypoint": [], **changed, "driver": driver}

    finding = host_image.judge_settings("settings", expect, measured)

    requires_pass_or(finding, fault)


# --- what changed ---------------------------------------------------------------------------------


def installed_versions(**changed: str) -> dict[str, list[str]]:
    """Return the versions of the lock, each in a list, with changes; empty: it was removed."""
    locked = find("pins/lock", BASE).expect["versions"]
    return {name: [version] for name, version in {**locked, **changed}.items() if version}


def evidence_with(installed: dict[str, list[str]], *records: Record) -> Evidence:
    """Return evidence of a derived image with these packages, and further records."""
    measured = Measurement(subject="lock", seconds=1, evidence={"installed": installed})
    pins_record = Record(
        probe="static.pins", outcome=Outcome.COMPLETED, seconds=1, measurements=(measured,)
    )
    return Evidence(
        image="cu126-torch27",
        digest="sha256:1",
        records=(pins_record, *records),
        claims=DERIVED.claims,
    )


def test_added_removed_and_moved_packages_are_named() -> None:
    evidence = evidence_with(installed_versions(wandb="0.31.0", fsspec="2026.1.0", sympy=""))

    changes = derived_image.find_changes(evidence, ["RUN pip install wandb"])

    assert changes is not None
    assert changes.added == {"wandb": "0.31.0"}
    assert changes.removed == {"sympy": "1.14.0"}
    assert changes.moved == {"fsspec": ("2025.10.0", "2026.1.0")}
    assert changes.lines() == [
        "steps above the base image: 1",
        "packages added: 1 (wandb 0.31.0)",
        "packages removed: 1 (sympy 1.14.0)",
        "packages moved: 1 (fsspec 2025.10.0 to 2026.1.0)",
    ]


def test_replaced_and_removed_files_are_counted_for_each_step() -> None:
    change = {"step": "RUN x", "replaced": {"/a.py": "content"}, "removed": ["/b"], "count": 2}
    layers = Measurement(
        subject="layers", seconds=1, evidence={"changes": [change], "canonical": True}
    )
    origin_record = Record(
        probe=ORIGIN_PROBE, outcome=Outcome.COMPLETED, seconds=1, measurements=(layers,)
    )
    evidence = evidence_with(installed_versions(), origin_record)

    changes = derived_image.find_changes(evidence, ["RUN x", "USER 1001"])

    assert changes is not None
    _, *lines = changes.lines()
    assert lines == ["files of the base image changed by `RUN x`: 2 (/b removed, /a.py: content)"]


def test_an_image_whose_packages_were_not_measured_is_not_called_unchanged() -> None:
    nothing_measured = Evidence(image="a", digest="", records=(), claims=DERIVED.claims)

    assert derived_image.find_changes(nothing_measured, ["RUN x"]) is None


def test_a_derived_image_that_changed_nothing_is_called_unchanged() -> None:
    changes = derived_image.find_changes(evidence_with(installed_versions()), ["RUN x"])

    assert changes is not None
    assert changes.lines()[1] == "no package or file of the base image differs"


# --- libraries of added packages ------------------------------------------------------------------


def linked(path: str, owner: str, *missing: str, cuda: str = "") -> dict[str, Any]:
    """Return what is measured of a library below site-packages.

    `missing`: the libraries that it needs and that are not found. `cuda`: a CUDA library that it
    needs.
    """
    return {
        "path": f"/s/{path}",
        "owners": [owner],
        "missing": list(missing),
        "assumed": {},
        "needs_cuda": [cuda] if cuda else [],
    }


def torchcodec(ffmpeg: int, *missing: str, cuda: str = "") -> dict[str, Any]:
    """Return torchcodec's library for a release of FFmpeg: it has an alternative for each."""
    path = f"torchcodec/libtorchcodec{ffmpeg}.so"
    return linked(path, "torchcodec", *missing, cuda=cuda)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        pytest.param(
            [torchcodec(4, "libavutil.so.56"), torchcodec(5)],
            "",
            id="one alternative works",
        ),
        pytest.param(
            [
                linked(
                    "mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so", "mpi4py", "libmpi.so.12"
                ),
                linked("mpi4py/MPI.openmpi.cpython-311-x86_64-linux-gnu.so", "mpi4py"),
            ],
            "",
            id="one MPI works",
        ),
        pytest.param(
            [torchcodec(4, "libavutil.so.56"), torchcodec(5, "libavutil.so.57")],
            "torchcodec, which was added, needs libavutil.so.56, libavutil.so.57, "
            "which the loader does not find",
            id="no alternative works",
        ),
        pytest.param(
            [torchcodec(4, "libavutil.so.56", "libc10.so", cuda="libnvrtc.so.13"), torchcodec(5)],
            "torchcodec, which was added, needs libnvrtc.so.13 of another CUDA major than torch's "
            "(libtorchcodec4.so)",
            id="an alternative for another CUDA",
        ),
        pytest.param(
            [
                linked(
                    "ort/libonnxruntime_providers_tensorrt.so",
                    "onnxruntime-gpu",
                    "libnvinfer.so.10",
                ),
                linked("ort/libonnxruntime_providers_shared.so", "onnxruntime-gpu"),
            ],
            "",
            id="one provider works",
        ),
        pytest.param(
            [
                linked("torchaudio/lib/libtorchaudio_sox.so", "torchaudio", "libsox.so"),
                linked("torchaudio/lib/libtorchaudio.so", "torchaudio", cuda="libcudart.so.12"),
            ],
            "",
            id="an optional plugin",
        ),
        pytest.param(
            [
                linked("cv2/cv2.abi3.so", "opencv-python", "libGL.so.1"),
                linked("x.so", "opencv-python"),
            ],
            "opencv-python, which was added, needs libGL.so.1, which the loader does not find "
            "(cv2.abi3.so)",
            id="no alternative of that library",
        ),
        pytest.param(
            [
                linked("torch/libtorch_a.so", "torch", "libx.so"),
                linked("torch/libtorch_b.so", "torch"),
            ],
            "/s/torch/libtorch_a.so of torch needs libx.so",
            id="a package of the base image",
        ),
    ],
)
def test_of_an_added_packages_alternatives_one_has_to_work(
    rows: list[dict[str, Any]], fault: str
) -> None:
    # gekko brings programs for several processors, and one of them runs here.
    foreign_program = {**FOREIGN_PROGRAM, "owners": ["gekko"], "beside": "apm"}

    finding = judge_libraries(rows, foreign_program)

    requires_pass_or(finding, fault)


FOREIGN_PROGRAM = {"path": "/s/gekko/bin/apm_arm", "error": "it is built for ARM"}


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param({"owners": ["torch"], "beside": "apm"}, id="of the base image"),
        pytest.param({"owners": ["gekko"]}, id="without one for this processor"),
    ],
)
def test_a_library_for_another_processor_is_a_fault(owner: dict[str, Any]) -> None:
    finding = judge_libraries([torchcodec(5)], {**FOREIGN_PROGRAM, **owner})

    assert "gekko/bin/apm_arm can't be loaded" in finding.reason


def judge_libraries(rows: list[dict[str, Any]], unreadable: dict[str, Any]) -> Finding:
    """Judge the libraries of a derived image: these, and one that can't be read."""
    expect: Any = find("libraries/environment").expect
    measured: Any = {
        "files": 9,
        "unreadable": [unreadable],
        "torch_holds": {},
        "linked": rows,
        "provided": [],
        "second_owners": [],
    }
    return libraries.judge("environment", expect, measured)
