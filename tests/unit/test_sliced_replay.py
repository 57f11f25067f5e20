"""What an H100 said of an image with a sliced torch: the gpu tier, the same bits, the clear error of another GPU."""

import json
from pathlib import Path

from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status

FOLDER = Path(__file__).parents[2] / "results" / "cu130-torch211-py312-sm90" / "h100-sliced"


def test_every_required_claim_of_the_gpu_tier_passes() -> None:
    evidence = Evidence.loads((FOLDER / "evidence.json").read_text())
    verdict = judge(evidence.promised, evidence, [Tier.GPU])
    assert verdict.overall is Status.PASS
    assert {row.claim.subject for row in verdict.claims if row.status is not Status.PASS} == {
        "flash-attn-dense",
        "flash-attn-varlen",
    }


def test_it_holds_code_for_its_arch_alone_and_every_file_is_as_recorded() -> None:
    evidence = Evidence.loads((FOLDER / "static.json").read_text())
    verdict = judge(evidence.promised, evidence, [Tier.STATIC])
    assert {(row.claim.id, row.claim.subject): row.status for row in verdict.claims} == {
        ("S2", "files"): Status.PASS,
        ("S5", "torch"): Status.PASS,
        ("S5", "cuda-libraries"): Status.PASS,
        ("S5", "sliced"): Status.PASS,
    }


def test_the_same_bits_come_out_and_a_missing_arch_is_named() -> None:
    found = json.loads((FOLDER / "bitwise.json").read_text())
    steady = [name for name, row in found["hashes"].items() if row["unsliced"] == row["again"]]
    assert len(steady) == found["deterministic"] > 100
    assert all(found["hashes"][name]["sliced"] == found["hashes"][name]["unsliced"] for name in steady)
    assert not [name for name in steady if found["hashes"][name]["unsliced"].startswith("error")]
    said = set(found["for_another_gpu"]["marked"].values())
    assert said == {"ran", "CUDA error: no kernel image is available for execution on the device"}
