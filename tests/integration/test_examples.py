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

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]
"""The base image is not of the profile, but it has all that the profile's examples import."""
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
        "(moved) is 14, and 28 is expected",
    ),
    "tensor left out": (
        "trainer",
        TRAINER,
        'trainer.save_model(str(out / "model"))\n',
        LEFT_OUT,
        "(lacking) is model.layers.1.mlp.down_proj.weight",
    ),
}


def judged(engine: Engine, subject: str, changed: Mapping[str, bytes]) -> tuple[Status, str]:
    """Return status and reason of one example's cpu claim, with some of its files changed."""
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
    output, end, _ = containers.run_suite(
        engine, spec, files, timeout=2400, probes=[probe], on_record=records.append
    )
    assert records, f"nothing was measured: {end}, {output[-20:]}"
    evidence = Evidence(image=NAME, digest="", records=tuple(records), claims=claims.claims)
    (verdict,) = judge(claims, evidence).claims
    return verdict.status, verdict.reason


def test_a_healthy_example_passes(engine: Engine) -> None:
    status, reason = judged(engine, "trainer", {})
    assert status is Status.PASS, reason


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported(engine: Engine, fault: str) -> None:
    subject, file, healthy, faulty, phrase = FAULTS[fault]
    # A fault shows in any step, so two are enough.
    fewer_steps = (file.replace(".py", ".yaml"), "max_steps: 20", "max_steps: 2")
    changed = {}
    for path, before, after in ((file, healthy, faulty), fewer_steps):
        text = (EXAMPLES / path).read_text()
        assert before in text
        changed[f"examples/{path}"] = text.replace(before, after).encode()

    status, reason = judged(engine, subject, changed)

    assert status is Status.FAIL, reason
    assert phrase in reason
