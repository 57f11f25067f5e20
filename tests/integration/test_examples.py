"""Examples in a real image, on the CPU.

Healthy ones pass, and each fault that their claims are for fails them.
"""

from collections.abc import Mapping

import pytest

from images.config.paths import EXAMPLES
from images.engine import ContainerSpec, Engine
from images.validation import containers
from images.validation.claims.examples import EXAMPLES as ROWS
from images.validation.claims.examples import expectation_of
from tests.support.broken_images import NAME
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Record
from validate.judge import judge
from validate.judging import Status

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("parent")]
"""The parent is not of the profile, but it has all that the profile's examples import."""
TRAINER, QLORA = "transformers/trainer.py", "transformers/qlora.py"
FROZEN = """for name, parameter in model.named_parameters():
    if "layers.1." in name:
        parameter.requires_grad_(False)
model.print_trainable_parameters()
"""
LEFT_OUT = """trainer.save_model(str(out / "model"))
from safetensors.torch import load_file, save_file
file = out / "model" / "model.safetensors"
lost = "model.layers.1.mlp.down_proj.weight"
kept = {name: weight for name, weight in load_file(file).items() if name != lost}
save_file(kept, file, metadata={"format": "pt"})
"""
FAULTS = {
    "frozen adapters": (
        "qlora",
        QLORA,
        "model.print_trainable_parameters()\n",
        FROZEN,
        "moved is 14, not 28",
    ),
    "tensor left out": (
        "trainer",
        TRAINER,
        'trainer.save_model(str(out / "model"))\n',
        LEFT_OUT,
        "lacking is model.layers.1.mlp.down_proj.weight",
    ),
}


def judged(engine: Engine, subject: str, changed: Mapping[str, bytes]) -> tuple[Status, str]:
    """The verdict of one example's cpu claim, with some of its files changed."""
    (row,) = (row for row in ROWS if row.subject == subject)
    expect = expectation_of(row, row.tiers["cpu"])
    probe = "cpu.examples"
    claim = Claim(
        check="cpu-examples",
        subject=subject,
        tier=Tier.CPU,
        probe=probe,
        statement=row.statement,
        expect=expect,
    )
    claims = ClaimSet(image=NAME, claims=(claim,))
    command = ["python3", "-I", "-S", "/judge/validate", "--claims", "/judge/claims.json"]
    tmpfs = dict.fromkeys(("/tmp", "/home/trainer"), "rw,exec,mode=1777")
    spec = ContainerSpec(NAME, command, tmpfs=tmpfs, volumes=["/judge"])
    files = {"/judge": {**containers.suite_files(claims), **changed}}
    records: list[Record] = []
    said, end, _ = containers.run_suite(
        engine, spec, files, timeout=2400, probes=[probe], on_record=records.append
    )
    assert records, f"nothing was measured: {end}, {said[-20:]}"
    evidence = Evidence(image=NAME, digest="", records=tuple(records), claims=claims.claims)
    (found,) = judge(claims, evidence).claims
    return found.status, found.reason


def test_a_healthy_example_passes(engine: Engine) -> None:
    status, reason = judged(engine, "trainer", {})
    assert status is Status.PASS, reason


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(engine: Engine, fault: str) -> None:
    subject, file, healthy, faulty, told = FAULTS[fault]
    changed = {}
    # What a fault leaves out it leaves out of any step, and the healthy example takes all of them.
    for path, before, after in (
        (file, healthy, faulty),
        (file.replace(".py", ".yaml"), "max_steps: 20", "max_steps: 2"),
    ):
        text = (EXAMPLES / path).read_text()
        assert before in text
        changed[f"examples/{path}"] = text.replace(before, after).encode()
    status, reason = judged(engine, subject, changed)
    assert status is Status.FAIL, reason
    assert told in reason
