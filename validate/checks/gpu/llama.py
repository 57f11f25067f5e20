"""qlora: a tiny Llama must load in 4-bit onto the GPU and learn there by QLoRA.

The model, and the measurements of its weights and logits, are those of the check `4bit-llama` of
the cpu tier; the training is this check's own. Unlike a CPU, a GPU shows whether 4-bit weights save
memory, and whether a run can be repeated bit by bit.
"""

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from validate.checks.cpu import quantized_llama
from validate.checks.cpu.quantized_llama import LogitsEvidence, WeightsEvidence
from validate.claims import Claim
from validate.harness.forked import attempt, measure_claimed_subjects
from validate.harness.nf4 import ExpectedError
from validate.harness.saved_llama import SEED, SavedLlama
from validate.judging import (
    PROVES_NOTHING,
    Finding,
    Status,
    failed,
    is_beyond,
    is_within,
    joined,
    listed,
    passed,
)
from validate.kernels import runner

STEPS = 12
LEARNING_RATE = 5e-3
LARGEST_LAST_LOSS = 0.5
"""The loss on one batch must at least halve. On an H100 (torch 2.11) it falls to a twentieth."""
MEMORY_SLACK = 1.1
"""Allocations are rounded up to 512 bytes, and 4-bit weights carry a float32 scale a block."""
NF4_BYTES = 0.5625
"""Half a byte for each weight, and 1/16 of a byte for its block's scale."""
BFLOAT16_BYTES = 2


class Memory(TypedDict):
    """The GPU memory that the loaded model takes, and how many weights it has."""

    quantised: int  # bytes in 4-bit
    bfloat16: int  # bytes not quantised
    parameters: int  # all weights
    projections: int  # the weights of the linear layers that are quantised


class GpuWeightsEvidence(WeightsEvidence):
    """The evidence of `4bit-llama`, and the memory."""

    memory: Memory


class Run(TypedDict):
    """The part of a run that must be the same in a second run."""

    losses: list[float]
    fingerprint: str  # the hash of everything that was trained


class FirstRun(Run):
    """A run of QLoRA."""

    gradient_checkpointing: bool
    adapters: int
    b_before: float  # the largest value of all B before the first step
    b_still: list[str]  # the B that did not move
    base_count: int  # how many frozen weights were hashed before and after
    base_changed: list[str]  # those that training changed


class QloraEvidence(FirstRun):
    """The first run, and the part of a second run that must be the same."""

    second_run: Run


Evidence = GpuWeightsEvidence | LogitsEvidence | QloraEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Measure a small Llama whose weights bitsandbytes quantised to 4 bits, on the GPU.

    Yields what was measured of each subject that has a claim: `weights`, `logits` (the outputs) and
    `training` (two runs of QLoRA). With it go the GPU, and environment variables that may explain a
    fault.
    """
    # Without this variable, sums of cuBLAS may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    environment = runner.environment()
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        llama = SavedLlama(Path(folder), "cuda")
        measures: Mapping[str, Callable[[], Evidence]] = {
            "weights": lambda: measure_weights_and_memory(llama),
            "logits": lambda: quantized_llama.measure_logits(llama),
            "training": lambda: measure_two_runs(llama),
        }
        for subject, evidence in measure_claimed_subjects(claims, measures):
            # If the GPU no longer answers, `attempt` returns {"error": ...} in place of the device.
            # The claim fails with this error, even if the evidence has another one.
            device = attempt(lambda: {"device": runner.device_facts(llama.torch)})
            yield subject, {**evidence, **device, "environment": environment}


def measure_weights_and_memory(llama: SavedLlama) -> GpuWeightsEvidence:
    """Measure how a model's linear layers are quantised, and how much GPU memory the model takes.

    The memory is measured in bytes, for the model in 4-bit and in bfloat16. With it are returned
    the numbers of all parameters, and of those in linear layers (`projections`).
    """
    weights = quantized_llama.measure_weights(llama)
    cuda = llama.torch.cuda

    before = cuda.memory_allocated()
    model = llama.load_in_4bit("bfloat16")
    quantised_bytes = cuda.memory_allocated() - before
    # Free its memory.
    del model
    unquantised_model = llama.load("bfloat16")
    unquantised_bytes = cuda.memory_allocated() - before

    parameters = sum(parameter.numel() for parameter in unquantised_model.parameters())
    projections = 0
    for name in llama.shape.projections:
        projections += llama.saved[f"{name}.weight"].numel()
    return {
        **weights,
        "memory": {
            "quantised": quantised_bytes,
            "bfloat16": unquantised_bytes,
            "parameters": parameters,
            "projections": projections,
        },
    }


def measure_two_runs(llama: SavedLlama) -> QloraEvidence:
    """Train twice, and return the first run with the losses and the final hash of the second."""
    first = train(llama)
    second = train(llama)
    return {
        **first,
        "second_run": {"losses": second["losses"], "fingerprint": second["fingerprint"]},
    }


def train(llama: SavedLlama) -> FirstRun:
    """Train a small Llama by QLoRA for STEPS steps, and return its losses and what changed.

    QLoRA freezes the model's weights in 4 bits (NF4) and trains adapters: two small matrices A and
    B for each linear layer, whose product is added to the layer's weight. B is 0 at first. AdamW is
    8-bit and paged, and activations are recomputed. Switches torch to deterministic algorithms for
    the whole process.
    """
    torch = llama.torch
    peft = importlib.import_module("peft")
    torch.use_deterministic_algorithms(True, warn_only=True)

    model = quantized_llama.prepare_for_4bit_training(llama.load_in_4bit("bfloat16"))
    torch.manual_seed(SEED)
    settings = peft.LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    tuned = peft.get_peft_model(model, settings).train()

    # Only the adapters are trained. Remember what the others and the matrices B are before that.
    trained, b_matrices = {}, {}
    for name, parameter in tuned.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter
            if "lora_B" in name:
                b_matrices[name] = parameter.detach()
    b_before = max(float(matrix.abs().max()) for matrix in b_matrices.values())
    frozen_before = llama.hash_frozen_weights(tuned)

    optimizer = importlib.import_module("bitsandbytes.optim").PagedAdamW8bit(
        trained.values(), lr=LEARNING_RATE
    )
    tokens = llama.tokens.to(llama.device)
    losses = []
    for _ in range(STEPS):
        loss = tuned(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))

    # Find the matrices B that did not move: they are still 0, or not a number. And find the frozen
    # weights that did.
    unmoved_matrices = []
    for name, matrix in b_matrices.items():
        has_moved = bool(matrix.abs().max() > 0)
        if not has_moved:
            unmoved_matrices.append(name)
    changed_weights = []
    for name, digest in llama.hash_frozen_weights(tuned).items():
        if digest != frozen_before.get(name):
            changed_weights.append(name)
    return {
        "losses": losses,
        "gradient_checkpointing": bool(model.is_gradient_checkpointing),
        "adapters": len(b_matrices),
        "b_before": b_before,
        "b_still": unmoved_matrices,
        "base_count": len(frozen_before),
        "base_changed": changed_weights,
        "fingerprint": llama.hash_tensors([trained[name] for name in sorted(trained)]),
    }


def judge_weights(subject: str, expect: ExpectedError, evidence: GpuWeightsEvidence) -> Finding:
    """Pass if a model's linear layers are quantised to 4 bits, and take the GPU memory of 4 bits.

    The layers are judged as on a CPU (quantized_llama.judge_weights). Then the model must take at
    most MEMORY_SLACK times the bytes that its weights need: those of the linear layers in NF4, all
    others in bfloat16. As a control, the model that is wholly in bfloat16 must take more than that.
    """
    finding = quantized_llama.judge_weights(subject, expect, evidence)
    if finding.status is not Status.PASS:
        return finding

    # Bytes of GPU memory, and numbers of weights. `projections` are the linear layers.
    memory = evidence["memory"]
    unquantised_weights = memory["parameters"] - memory["projections"]
    needed = memory["projections"] * NF4_BYTES + unquantised_weights * BFLOAT16_BYTES
    most = MEMORY_SLACK * needed
    # `is_within` and `is_beyond` are false for NaN.
    if not is_within(memory["quantised"], most):
        taken = f"the model that was loaded in 4 bits takes {memory['quantised']} bytes"
        return failed(
            f"{taken} of GPU memory, and should take at most {most:.0f}: its weights were not put "
            "into 4 bits"
        )
    if not is_beyond(memory["bfloat16"], most):
        return failed(
            f"{PROVES_NOTHING}the same model in bfloat16 takes {memory['bfloat16']} bytes of GPU "
            "memory, and passes as one in 4 bits"
        )

    share = memory["quantised"] / memory["bfloat16"]
    return passed(f"{finding.reason}; {share:.2f} of bfloat16's GPU memory, embeddings included")


def judge_qlora(_subject: str, _expect: object, evidence: QloraEvidence) -> Finding:
    """Pass if training by QLoRA lowers the loss, changes only the adapters, and can be repeated.

    A second run must end in the same bits.
    """
    problems = list(find_training_problems(evidence))
    if problems:
        return failed(joined(problems))

    losses = evidence["losses"]
    fall = f"{len(losses)} steps bring the loss from {losses[0]:.3f} to {losses[-1]:.3f}"
    moved = f"B moved in {evidence['adapters']} adapters"
    untouched = f"{evidence['base_count']} base weights untouched"
    return passed(f"{fall}, {moved}, {untouched}; a second run ends in the same bits")


def find_training_problems(evidence: QloraEvidence) -> Iterator[str]:
    """Yield what is wrong with a training by QLoRA, or why it was no QLoRA at all.

    Its losses must fall, gradient checkpointing must be on, and a second training with the same
    seed must give the same bits: its losses, and a fingerprint of its weights.
    """
    losses = evidence["losses"]
    # A loss must be a number above 0; NaN is not.
    if not losses or not all(is_beyond(loss, 0.0) for loss in losses):
        yield f"losses are {listed([str(loss) for loss in losses])}, and must be numbers above 0"
    elif losses[-1] > LARGEST_LAST_LOSS * losses[0]:
        fall = f"{len(losses)} steps bring the loss from {losses[0]:.3f} to {losses[-1]:.3f} only"
        yield f"{fall}, and at most {LARGEST_LAST_LOSS * losses[0]:.3f} is allowed"

    if evidence["gradient_checkpointing"] is not True:
        yield "gradient checkpointing is off, although it was switched on"
    yield from find_weight_problems(evidence)

    second = evidence["second_run"]
    if second["losses"] != losses:
        step = find_first_difference(losses, second["losses"])
        yield f"a second run with the same seed has other losses from step {step} on"
    elif second["fingerprint"] != evidence["fingerprint"]:
        yield "a second run with the same seed ends with weights of other bits"


def find_weight_problems(evidence: FirstRun) -> Iterator[str]:
    """Yield a problem if adapters were not trained, or if other weights than adapters were.

    B is the second matrix of an adapter: it must be 0 at the start, and move in training. Base
    weights are all others; they are frozen.
    """
    if not evidence["adapters"]:
        yield "no LoRA adapter was attached to the model"
    if evidence["b_before"] != 0:
        yield f"adapters' matrix B was {evidence['b_before']} before the first step, and not 0"
    if evidence["b_still"]:
        yield f"training did not change the matrix B of adapters: {listed(evidence['b_still'])}"
    if not evidence["base_count"]:
        yield "the model has no frozen weight, and LoRA freezes all but those of its adapters"
    if evidence["base_changed"]:
        yield f"training changed frozen weights: {listed(evidence['base_changed'])}"


def find_first_difference(losses: Sequence[float], others: Sequence[float]) -> int:
    """Return the number of the first step whose losses differ, counted from 1.

    If one series is longer, that is at the latest the step after the end of the other.
    """
    for index, (loss, other) in enumerate(zip(losses, others, strict=False)):
        if loss != other:
            return index + 1
    return min(len(losses), len(others)) + 1


CLAIMS = {
    "qlora/weights": judge_weights,
    "qlora/logits": quantized_llama.judge_logits,
    "qlora/training": judge_qlora,
}
NEXT_STEPS = dict.fromkeys(CLAIMS, quantized_llama.NEXT_STEP)
