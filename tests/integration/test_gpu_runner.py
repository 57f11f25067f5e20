"""The kernels' runner in a real image, on the CPU: a tiny kernel that is right, and others, each wrong in one way."""

import json
from typing import Any

import pytest

from images.engine import ContainerSpec, Engine, ImageInfo
from images.validation import containers
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
        return Case(dtype=dtype, inputs=inputs, run=run, plain=lambda x, w: x @ w, grad_inputs=("x", "w"))
    return make

def whole(rng):
    inputs = {"x": rng.integers(-9, 9, 7, 5, dtype="int32")}
    return Case(dtype="int32", inputs=inputs, run=lambda x: x * 3, plain=lambda x: x * 3)

def missing(x, w):
    raise RuntimeError("no kernel image is available")

kernel = Kernel(
    claim="G1", probe="gpu.numerics", package="torch", statement="x @ w",
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
print(json.dumps(examine("tiny", kernel, device="cpu")))
"""


@pytest.fixture(scope="module")
def evidence(engine: Engine, parent: ImageInfo) -> dict[str, Any]:
    files = {**containers.suite_files(ClaimSet(image="tiny", claims=())), "tiny.py": SCRIPT.encode()}
    spec = ContainerSpec(parent.id, ["python3", "/judge/tiny.py"], tmpfs={"/tmp": "rw,exec"}, volumes=["/judge"])
    with engine.container(spec) as container:
        container.put(files, "/judge")
        done = container.run(timeout=600)
    assert done.exit.code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_right_kernel_is_within_its_tolerance_and_its_control_is_not(evidence: dict[str, Any]) -> None:
    facts = evidence["cases"]["right"]
    assert facts["finite"]
    assert set(facts["outputs"]) == {"output", "gradient x", "gradient w"}
    assert all(one["error"] < 1e-6 for one in facts["outputs"].values())
    assert all(error == pytest.approx(0.01, rel=0.01) for error in facts["controls"]["scaled by 1.01"].values())


def test_plain_torch_in_the_same_dtype_is_the_yardstick(evidence: dict[str, Any]) -> None:
    output = evidence["cases"]["bfloat16"]["outputs"]["output"]
    assert 1e-4 < output["plain_error"] < 1e-2
    assert output["error"] == output["plain_error"]


def test_wrong_kernels_stand_out_and_take_no_other_case_with_them(evidence: dict[str, Any]) -> None:
    cases = evidence["cases"]
    assert cases["wrong"]["outputs"]["output"]["error"] == pytest.approx(1e-3, rel=0.01)
    assert not cases["nan"]["finite"]
    assert cases["raises"]["error"]["message"] == "no kernel image is available"


def test_whole_numbers_are_compared_exactly(evidence: dict[str, Any]) -> None:
    assert evidence["cases"]["whole"]["outputs"]["output"]["error"] == 0.0
    assert evidence["observed"]["facts"] == {"shape": [2, 3]}
