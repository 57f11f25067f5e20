"""A child of an image: told from its parent, held to its parent's claims, and its changes named."""

from dataclasses import replace
from typing import Any

import pytest

from images.engine import configuration
from images.planning import plan
from images.validation import child
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.cases import cases
from tests.support.sources import SOURCES
from validate.checks.static import environment, host_image, hygiene, libraries, pins
from validate.claims import ORIGIN_PROBE
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judging import Status

(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
LOCKED = {"torch": {"torch": "2.7.1", "sympy": "1.14.0"}, "libraries": {"fsspec": "2025.10.0"}}
PARENT = image_claims(ClaimContext(image=PLANNED.image, facts=SOURCES.facts, locked=LOCKED))
OURS = ['CMD ["bash"]', "WORKDIR /workspace", "USER 1001", "LABEL a=b"]


@pytest.mark.parametrize(
    ("history", "steps"),
    [
        (OURS, ()),
        (["USER 1001", "RUN pip install wandb", *OURS], ("RUN pip install wandb", "USER 1001")),
        (
            [
                '/bin/sh -c #(nop)  CMD ["bash"]',
                "/bin/sh -c #(nop) WORKDIR /workspace",
                "USER 1001",
            ],
            (),
        ),
        (['CMD ["sh"]', "RUN x", *OURS], ("RUN x", 'CMD ["sh"]')),
        (['CMD ["bash"]', "WORKDIR /workspace", *OURS], ("WORKDIR /workspace", 'CMD ["bash"]')),
        (["RUN x", "FROM somewhere"], ()),
        ([], ()),
    ],
)
def test_the_steps_of_a_child_are_those_above_our_last(
    history: list[str], steps: tuple[str, ...]
) -> None:
    """Histories are given as engines print them, the newest step first."""
    assert configuration.steps_above(history[::-1]) == steps


def of_child(id: str, subject: str) -> Any:  # noqa: A002
    return next(
        one
        for one in child.derived_claims(PARENT).claims
        if (one.check, one.subject) == (id, subject)
    )


def test_a_child_may_add_packages_and_code_but_not_move_a_pin_or_lie_in_our_labels() -> None:
    assert not of_child("pins", "lock").required and not of_child("pins", "lock").expect["closed"]
    assert of_child("pins", "torch").required and of_child("pins", "transformers").required
    assert "/workspace/*" not in of_child("hygiene", "leftovers").expect["leftovers"]
    leftovers = of_child("hygiene", "leftovers").expect
    assert "*/.cache/*" in leftovers["leftovers"]
    left = {"files": 2, "bytes": 8e7, "example": "/var/cache/apt/pkgcache.bin"}
    measured: Any = {"files": 9, "unreadable": [], "leftovers": {"/var/cache/apt/*": left}}
    found = hygiene.judge_leftovers("leftovers", leftovers, measured)
    assert (
        found.status is Status.PASS and "2 files (80.0 MB) of apt's cache are left" in found.reason
    )
    measured["leftovers"]["*/.cache/*"] = left
    assert (
        "80.0 MB) of a user's cache"
        in hygiene.judge_leftovers("leftovers", leftovers, measured).reason
    )
    assert of_child("image", "labels").expect["labels"].keys() == {
        name
        for name in of_child("image", "labels").expect["labels"]
        if name.startswith("dev.truetag.")
    }
    assert of_child("image", "labels").expect["labels"]["dev.truetag.torch"] == "2.7.1"
    assert not of_child("image", "size").required and of_child("image", "settings").required
    assert {one.check for one in child.derived_claims(PARENT).claims} == {
        one.check for one in PARENT.claims
    } | {"state"}


@pytest.mark.parametrize(("added", "variables", "nvcc", "told"), cases(__file__, "added"))
def test_what_is_known_of_packages_and_variables_is_held_against_what_a_child_added(
    added: dict[str, str], variables: list[str], nvcc: bool, told: str
) -> None:
    facts = SOURCES.facts
    claims = child.derived_claims(
        PARENT,
        {"torchao": "none fits"},
        failing=facts.failing_additions,
        conflicts=facts.conflicts,
        has_nvcc=nvcc,
    ).claims
    (claim,) = [one for one in claims if (one.check, one.subject) == ("pins", "additions")]
    measured: Any = {
        "installed": {name: [version] for name, version in added.items()},
        "variables": variables,
    }
    pinned = [name for name in claim.expect["pinned"] if name != "torchao"]
    found = pins.judge_additions("additions", {**claim.expect, "pinned": pinned}, measured)
    assert (
        claim.required and (found.status is Status.PASS) is (not told) and told in found.reason
    ), found.reason


def test_a_child_may_say_more_of_nccl_and_not_bend_it() -> None:
    expect = of_child("environment", "variables").expect
    start = {"flags": {"optimize": 0}, "code": []}
    measured: Any = {
        "required": {},
        "in_files": [],
        "settings_files": {},
        "start": start,
        "denied": {"NCCL_DEBUG": "INFO"},
    }
    assert environment.judge("environment", expect, measured).status is Status.PASS
    measured["denied"]["NCCL_IB_DISABLE"] = "1"
    assert "NCCL_IB_DISABLE=1 is set" in environment.judge("environment", expect, measured).reason


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {
                "user": "",
                "entrypoint": ["python"],
                "further": {"Healthcheck": {}, "Volumes": {"/data": {}}},
            },
            "",
        ),
        ({"user": "1002:1002"}, ""),
        (
            {"further": {"Volumes": {"/opt": {}}}},
            "/opt is a volume: a container keeps its own copy",
        ),
        ({"further": {"Volumes": {"/opt/venv/lib": {}}}}, "/opt/venv/lib is a volume"),
        (
            {"driver": {"NVIDIA_VISIBLE_DEVICES": "none"}},
            "NVIDIA_VISIBLE_DEVICES=none hides every GPU",
        ),
    ],
)
def test_a_child_has_its_own_user_and_start_and_the_parents_driver(
    more: dict[str, Any], told: str
) -> None:
    driver = {
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "NVIDIA_VISIBLE_DEVICES": "all",
        **more.get("driver", {}),
    }
    measured: Any = {"user": "1001", "entrypoint": [], **more, "driver": driver}
    found = host_image.judge_settings("settings", of_child("image", "settings").expect, measured)
    assert (found.status is Status.PASS) is (not told) and told in found.reason, found.reason


def test_a_child_has_its_own_caches_and_not_its_own_constraints() -> None:
    expect = of_child("environment", "variables").expect
    measured: Any = {
        "required": {**expect["required"], "HF_HOME": "/data", "PIP_CONSTRAINT": ""},
        "in_files": [],
        "settings_files": {},
        "start": {"flags": {"optimize": 0}, "code": []},
        "denied": {"PIP_NO_CACHE_DIR": "1", "PYTHONPATH": "/app"},
    }
    reason = environment.judge("environment", expect, measured).reason
    assert reason == "PIP_CONSTRAINT is '', '/opt/truetag/constraints.txt' is expected"


def evidence(installed: dict[str, list[str]]) -> Evidence:
    claims = child.derived_claims(PARENT).claims
    measured = Measurement(subject="lock", seconds=1, evidence={"installed": installed})
    record = Record(
        probe="static.pins", outcome=Outcome.COMPLETED, seconds=1, measurements=(measured,)
    )
    return Evidence(image="cu126-torch27", digest="sha256:1", records=(record,), claims=claims)


def installed(**changed: str) -> dict[str, list[str]]:
    lock = next(one for one in PARENT.claims if (one.check, one.subject) == ("pins", "lock"))
    return {
        name: [version]
        for name, version in {**lock.expect["versions"], **changed}.items()
        if version
    }


def test_added_removed_and_moved_packages_are_named() -> None:
    found = child.find_changes(
        evidence(installed(wandb="0.31.0", fsspec="2026.1.0", sympy="")), ["RUN pip install wandb"]
    )
    assert found is not None
    assert (found.added, found.removed) == ({"wandb": "0.31.0"}, {"sympy": "1.14.0"})
    assert found.moved == {"fsspec": ("2025.10.0", "2026.1.0")}
    assert found.lines() == [
        "steps above the base image: 1",
        "packages added: 1 (wandb 0.31.0)",
        "packages removed: 1 (sympy 1.14.0)",
        "packages moved: 1 (fsspec 2025.10.0 to 2026.1.0)",
    ]


def test_altered_files_are_counted() -> None:
    change = {"step": "RUN x", "replaced": {"/a.py": "content"}, "removed": ["/b"], "count": 2}
    files = Measurement(
        subject="layers", seconds=1, evidence={"changes": [change], "canonical": True}
    )
    seen = evidence(installed())
    more = Record(probe=ORIGIN_PROBE, outcome=Outcome.COMPLETED, seconds=1, measurements=(files,))
    found = child.find_changes(replace(seen, records=(*seen.records, more)), ["RUN x", "USER 1001"])
    assert found is not None and found.lines()[1:] == [
        "files of the base image changed by `RUN x`: 2 (/b removed, /a.py: content)",
    ]


_FFMPEG = "/s/torchcodec/libtorchcodec{}.so"


def linked(
    path: str, owner: str, missing: list[str], cuda: list[str] | None = None
) -> dict[str, Any]:
    return {
        "path": path,
        "owners": [owner],
        "missing": missing,
        "assumed": {},
        "needs_cuda": cuda or [],
    }


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [
                linked(_FFMPEG.format(4), "torchcodec", ["libavutil.so.56"]),
                linked(_FFMPEG.format(5), "torchcodec", []),
            ],
            None,
        ),
        (
            [
                linked("/s/mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so", "mpi4py", ["libmpi.so.12"]),
                linked("/s/mpi4py/MPI.openmpi.cpython-311-x86_64-linux-gnu.so", "mpi4py", []),
            ],
            None,
        ),
        (
            [linked(_FFMPEG.format(n), "torchcodec", [f"libavutil.so.{52 + n}"]) for n in (4, 5)],
            "torchcodec, which was added, needs libavutil.so.56, libavutil.so.57, which the loader does not find",
        ),
        (
            [
                linked(_FFMPEG.format(4), "torchcodec", ["libavutil.so.56", "libc10.so"], ["libnvrtc.so.13"]),
                linked(_FFMPEG.format(5), "torchcodec", []),
            ],
            "torchcodec, which was added, needs libnvrtc.so.13 of another CUDA major than torch's (libtorchcodec4.so)",
        ),
        (
            [linked("/s/ort/libonnxruntime_providers_tensorrt.so", "onnxruntime-gpu", ["libnvinfer.so.10"]),
             linked("/s/ort/libonnxruntime_providers_shared.so", "onnxruntime-gpu", [])],
            None,
        ),
        (
            [
                linked("/s/torchaudio/lib/libtorchaudio_sox.so", "torchaudio", ["libsox.so"]),
                linked("/s/torchaudio/lib/libtorchaudio.so", "torchaudio", [], ["libcudart.so.12"]),
            ],
            None,
        ),
        (
            [linked("/s/cv2/cv2.abi3.so", "opencv-python", ["libGL.so.1"]), linked("/s/x.so", "opencv-python", [])],
            "opencv-python, which was added, needs libGL.so.1, which the loader does not find (cv2.abi3.so)",
        ),
        (
            [linked("/s/torch/libtorch_a.so", "torch", ["libx.so"]), linked("/s/torch/libtorch_b.so", "torch", [])],
            "/s/torch/libtorch_a.so of torch needs libx.so",
        ),
    ],
)  # fmt: skip
def test_of_an_added_packages_alternatives_one_has_to_work(
    rows: list[dict[str, Any]], told: str | None
) -> None:
    expect = of_child("libraries", "environment").expect
    foreign = {
        "path": "/s/gekko/bin/apm_arm",
        "error": "it is built for ARM",
        "owners": ["gekko"],
        "beside": "apm",
    }
    measured: Any = {
        "files": 9,
        "unreadable": [foreign],
        "torch_holds": {},
        "linked": rows,
        "provided": [],
        "second_owners": [],
    }
    found = libraries.judge("environment", expect, measured)
    assert (found.status is Status.PASS) is (told is None) and (told or "") in found.reason, (
        found.reason
    )
    alone = {key: value for key, value in foreign.items() if key != "beside"}
    for one in (
        {**foreign, "owners": ["torch"]},
        alone,
    ):  # of the parent's; of a package of which nothing works
        measured["unreadable"] = [one]
        assert (
            "gekko/bin/apm_arm can't be loaded"
            in libraries.judge("environment", expect, measured).reason
        )


def test_what_was_not_measured_is_not_called_unchanged() -> None:
    nothing = Evidence(image="a", digest="", records=(), claims=child.derived_claims(PARENT).claims)
    assert child.find_changes(nothing, ["RUN x"]) is None
    same = child.find_changes(evidence(installed()), ["RUN x"])
    assert same is not None and same.lines()[1] == "no package or file of the base image differs"
