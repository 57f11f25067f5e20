"""G10: a 4-bit model loaded and trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validate.claims import Claim
from validate.contracts.cpu import NothingExpected, QuantiserExpect
from validate.contracts.gpu import GpuWeightsEvidence, QloraEvidence
from validate.judging import Finding, Status, by_subject, failed, listed, passed, typed
from validate.judging.cpu import quantized_llama
from validate.judging.gpu._shared import suspects
from validate.judging.numbers import is_beyond, is_within
from validate.judging.text import cause, joined

QLORA_GAIN = 0.5
"""The loss on one batch must at least halve: twelve steps bring it to a twentieth (H100, torch 2.11)."""
MEMORY_SLACK = 1.1
"""Allocations are rounded up to 512 bytes, and 4-bit weights carry a float32 scale a block."""


def _weights(claim: Claim, evidence: Mapping[str, object]) -> Finding:
    """As C10 judges them, and what they take of the GPU's memory."""
    finding = quantized_llama.judge(claim, evidence)
    if finding.status is not Status.PASS:
        return finding
    memory = _memory(claim, evidence)
    return memory if memory.status is not Status.PASS else passed(f"{finding.reason}; {memory.reason}")


@typed
def _qlora(subject: str, _expect: NothingExpected, evidence: QloraEvidence) -> Finding:
    if "error" in evidence:
        return failed(f"{subject}: {cause(evidence['error'])}{suspects(evidence)}")
    problems = [*_training_problems(evidence), *_repetition_problems(evidence)]
    if problems:
        return failed(joined(problems))
    losses = evidence["losses"]
    return passed(
        f"{len(losses)} steps bring the loss from {losses[0]:.3f} to {losses[-1]:.3f}, B moved in "
        f"{evidence['adapters']} adapters, {evidence['base_count']} base weights untouched; a second run ends in the "
        "same bits"
    )


@typed
def _memory(_subject: str, _expect: QuantiserExpect, evidence: GpuWeightsEvidence) -> Finding:
    """NF4 takes half a byte and 1/16 of scales a weight where bfloat16 takes two."""
    memory = evidence["memory"]
    others = memory["parameters"] - memory["projections"]
    most = MEMORY_SLACK * (memory["projections"] * 0.5625 + others * 2)
    if not is_within(memory["quantised"], most):
        return failed(f"loading in 4-bit takes {memory['quantised']} bytes of GPU memory, at most {most:.0f} are right")
    if not is_beyond(memory["bfloat16"], most):
        return failed(f"control: bfloat16 takes {memory['bfloat16']} bytes, which passes as well")
    return passed(f"{memory['quantised'] / memory['bfloat16']:.2f} of bfloat16's GPU memory, embeddings included")


def _training_problems(evidence: QloraEvidence) -> Iterator[str]:
    losses = evidence["losses"]
    if not losses or not all(is_beyond(loss, 0.0) for loss in losses):
        yield f"losses are {listed([str(loss) for loss in losses])}"
    elif losses[-1] > QLORA_GAIN * losses[0]:
        yield f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"
    if evidence["gradient_checkpointing"] is not True:
        yield "gradient checkpointing is off"
    if not evidence["adapters"]:
        yield "no adapter was attached"
    if evidence["b_before"] != 0:
        yield f"B was {evidence['b_before']} before the first step"
    if evidence["b_still"]:
        yield f"B did not move in {listed(evidence['b_still'])}"
    if not evidence["base_count"]:
        yield "no base weight was looked at"
    if evidence["base_changed"]:
        yield f"training changed frozen weights: {listed(evidence['base_changed'])}"


def _repetition_problems(evidence: QloraEvidence) -> Iterator[str]:
    second = evidence["second_run"]
    if second["losses"] != evidence["losses"]:
        pairs = zip(evidence["losses"], second["losses"], strict=False)
        step = next((index for index, (one, other) in enumerate(pairs) if one != other), len(second["losses"]))
        yield f"a second run's losses differ from step {step + 1} on"
    elif second["fingerprint"] != evidence["fingerprint"]:
        yield "a second run ends in other bits"


judge = by_subject({"nf4-weights": _weights, "nf4-logits": quantized_llama.judge, "qlora": _qlora})
"""G10: weights and logits as C10 judges them, on this GPU; and QLoRA."""
