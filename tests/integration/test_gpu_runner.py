"""The kernels' runner in a real image, on the CPU.

One tiny kernel is right, and the others are each wrong in one way.
"""

import json
from typing import Any

import pytest

from images.engine import ContainerSpec, Engine, ImageInfo
from images.planning.silent import faults
from images.validation import containers
from validate.checks.gpu import step
from validate.claims import ClaimSet

pytestmark = pytest.mark.engine

SCRIPT = """
import json, sys
sys.path.insert(0, "/judge")
from validate.kernels import Case, Kernel
from validate.kernels.runner import examine

def case(run, dtype="float32"):
    def make(rng):
        inputs = {"x": rng.normal(7, 5), "w": rng.normal(5, 3)}
        return Case(
            dtype=dtype, inputs=inputs, run=run, plain=lambda x, w: x @ w, grad_inputs=("x", "w")
        )
    return make

def whole(rng):
    inputs = {"x": rng.integers(-9, 9, 7, 5, dtype="int32")}
    return Case(dtype="int32", inputs=inputs, run=lambda x: x * 3, plain=lambda x: x * 3)

def missing(x, w):
    raise RuntimeError("no kernel image is available")

kernel = Kernel(
    check="numerics", probe="gpu.numerics", package="torch", statement="x @ w",
    cases={
        "right": case(lambda x, w: x @ w),
        "bfloat16": case(lambda x, w: x @ w, "bfloat16"),
        "wrong": case(lambda x, w: x @ w * 1.001),
        "nan": case(lambda x, w: (x @ w) / 0 * 0),
        "raises": case(missing),
        "whole": whole,
    },
    tolerance={"float32": 1e-5, "bfloat16": "T", "int32": 0.0},
    observe=lambda rng: {"figures": {}, "facts": {"shape": list(rng.normal(2, 3).shape)}},
)
import torch
from torch.utils.flop_counter import FlopCounterMode
from validate.checks import _silent
from validate.checks.gpu import speed, step
from validate.kernels._sdpa import force_backend
from validate.kernels.silent import measure_error

# Of silent faults that need neither a GPU nor a package that asks for one. torch.compile takes too
# long.
SIZES = {
    "cudnn-attention-mask": dict(length=192), "large-linear": {},
    "efficient-attention-long-mask": dict(length=256), "flash-attention-large": dict(batch=3),
    "conv3d-bfloat16": dict(depth=3, height=20, width=20),
    "conv3d-patches": dict(count=9),
    "large-layer-norm": dict(rows=80), "large-cumsum": dict(rows=80),
    "large-stack": dict(height=128), "large-arange": dict(count=1000),
    "large-nearest": dict(side=16),
    "bnb-quantise-strided": {},
}
def counted(work, amount):
    with FlopCounterMode(display=False) as counter:
        work()
    return amount / counter.get_total_flops()

one, nan = torch.ones(2), torch.ones(2) * torch.nan
floors = ("matmul-bf16", "convolution-bf16", "copy", "attention")
print(json.dumps({
    **examine("tiny", kernel, device="cpu"),
    "silent": {name: _silent.examine(name, "cpu", **sizes) for name, sizes in SIZES.items()},
    "nan": [
        str(measure_error(torch, [one, left], [one, right]))
        for left, right in ((one, nan), (nan, one))
    ],
    "speed": {name: speed.measure_subject(name, torch, "cpu", dict) for name in floors},
    "counted": [counted(*speed.WORKS[name](torch, "cpu")) for name in floors[:2]],
    "attention": counted(*speed.prepare_attention(force_backend("MATH"), torch, "cpu")),
    "step": step.train("eager", torch, "cpu", 2, dict),
}))
"""


@pytest.fixture(scope="module")
def evidence(engine: Engine, base_image: ImageInfo) -> dict[str, Any]:
    """Run SCRIPT in the base image, and return what it prints."""
    suite = containers.suite_files(ClaimSet(image="tiny", claims=()))
    command = ["python3", "/judge/tiny.py"]
    spec = ContainerSpec(base_image.handle, command, tmpfs={"/tmp": "rw,exec"}, volumes=["/judge"])
    with engine.container(spec) as container:
        container.put({**suite, "tiny.py": SCRIPT.encode()}, "/judge")
        output = container.run(timeout=600)
    assert output.code == 0, output.stderr
    measured: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return measured


def test_a_right_kernel_is_within_its_tolerance_and_its_control_is_not(
    evidence: dict[str, Any],
) -> None:
    facts = evidence["cases"]["right"]
    assert facts["finite"]
    assert set(facts["outputs"]) == {"output", "gradient x", "gradient w"}
    assert all(output["error"] < 1e-6 for output in facts["outputs"].values())
    for error in facts["controls"]["scaled by 1.01"].values():
        assert error == pytest.approx(0.01, rel=0.01)


def test_wrong_kernels_stand_out_by_plain_torch_in_the_same_dtype_and_whole_numbers_exactly(
    evidence: dict[str, Any],
) -> None:
    cases = evidence["cases"]
    output = cases["bfloat16"]["outputs"]["output"]
    assert 1e-4 < output["plain_error"] < 1e-2 and output["error"] == output["plain_error"]
    assert cases["wrong"]["outputs"]["output"]["error"] == pytest.approx(1e-3, rel=0.01)
    assert not cases["nan"]["finite"] and cases["whole"]["outputs"]["output"]["error"] == 0.0
    assert cases["raises"]["error"]["message"] == "no kernel image is available"
    assert evidence["observed"]["facts"] == {"shape": [2, 3]}


def test_the_corpus_of_silent_faults_tells_right_from_wrong(evidence: dict[str, Any]) -> None:
    """Sizes are small, so that nothing overflows; only large-linear is wrong at every size.

    NaN counts as off on either side.
    """
    for name, measured in evidence["silent"].items():
        tolerance = faults()[name].tolerance
        is_right = measured["off"] <= tolerance
        assert is_right is (name != "large-linear"), (name, measured)
        assert measured["control"] > tolerance, (name, measured)
    assert evidence["nan"] == ["inf", "inf"]


def test_floors_are_timed_and_a_step_learns_as_float32_does(evidence: dict[str, Any]) -> None:
    """torch's counter knows neither masks nor the products that fused attention does again.

    So it counts 7 of 12 parts.
    """
    trained, reference = evidence["step"]["trained"], evidence["step"]["reference"]
    losses = trained["losses"]

    assert all(floor["figure"] > 0 for floor in evidence["speed"].values())
    assert evidence["counted"] == [1.0, 1.0]
    assert evidence["attention"] == pytest.approx(7 / 12, rel=0.01)
    assert len(losses) == step.STEPS
    assert losses[-1] < losses[0] - step.LEAST_FALL
    assert reference["bfloat16"] == pytest.approx(reference["float32"], abs=step.REFERENCE_SLACK)
