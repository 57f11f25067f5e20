"""G10: a tiny Llama loaded from disk in 4-bit onto the GPU, and trained there with QLoRA and gradient checkpointing.

The model and what is measured of its weights and logits are the cpu tier's (C10); the training is its own.
"""

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.checks.cpu import quantized_llama
from validate.checks.cpu.quantized_llama import SEED, SavedLlama
from validate.claims import Claim
from validate.harness.forked import asked, attempt
from validate.judging import Finding, Status, failed, is_beyond, is_within, joined, listed, passed
from validate.kernels import runner

_STEPS, _RATE = 12, 5e-3


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of the subjects asked for: `nf4-weights`, `nf4-logits`, `qlora`, in this order."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS' sums may differ from run to run
    before = runner.environment()
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        llama = _GpuLlama(Path(folder), "cuda")
        measures: Mapping[str, Callable[[], Any]] = {
            "nf4-weights": llama.weights,
            "nf4-logits": llama.logits,
            "qlora": llama.qlora,
        }
        for subject, found in asked(claims, measures):
            device = attempt(lambda: {"device": runner.device_facts(llama.torch)})
            yield subject, {**found, **device, "environment": before}


class _GpuLlama(SavedLlama):
    def weights(self) -> Any:
        """The cpu tier's facts, and the bytes of GPU memory that the loaded projections really take."""
        found = super().weights()
        torch = self.torch
        before = torch.cuda.memory_allocated()
        model = self._load("bfloat16", quantised=True)
        quantised = torch.cuda.memory_allocated() - before
        del model
        full = self._load("bfloat16")
        return {
            **found,
            "memory": {
                "quantised": quantised,
                "bfloat16": torch.cuda.memory_allocated() - before,
                "parameters": sum(parameter.numel() for parameter in full.parameters()),
                "projections": sum(self.saved[f"{name}.weight"].numel() for name in self.shape.projections),
            },
        }

    def qlora(self) -> dict[str, Any]:
        """The same training twice: losses, what moved, and whether both runs end in the same bits."""
        first, second = self._train(), self._train()
        return {
            **self._versions(),
            **first,
            "second_run": {"losses": second["losses"], "fingerprint": second["fingerprint"]},
        }

    def _train(self) -> dict[str, Any]:
        """QLoRA: bf16 compute over NF4 weights, 8-bit paged AdamW, recomputed activations."""
        torch, peft = self.torch, importlib.import_module("peft")
        torch.use_deterministic_algorithms(True, warn_only=True)
        model = self._load("bfloat16", quantised=True)
        model = peft.prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(SEED)
        lora = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
        tuned = peft.get_peft_model(model, lora).train()
        base = self._fingerprints(tuned)
        moving = {name: parameter for name, parameter in tuned.named_parameters() if parameter.requires_grad}
        b_matrices = {name: parameter for name, parameter in moving.items() if "lora_B" in name}
        before = max(float(parameter.detach().abs().max()) for parameter in b_matrices.values())
        optimizer = importlib.import_module("bitsandbytes.optim").PagedAdamW8bit(moving.values(), lr=_RATE)
        tokens, losses = self.tokens.to(self.device), []
        for _ in range(_STEPS):
            loss = tuned(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        after = self._fingerprints(tuned)
        digest = hashlib.sha256()
        for _, parameter in sorted(moving.items()):
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return {
            "losses": losses,
            "gradient_checkpointing": bool(model.is_gradient_checkpointing),
            "adapters": len(b_matrices),
            "b_before": before,
            "b_still": [name for name, parameter in b_matrices.items() if not bool(parameter.detach().abs().max() > 0)],
            "base_count": len(base),
            "base_changed": [name for name, mark in after.items() if mark != base.get(name)],
            "fingerprint": digest.hexdigest(),
        }


QLORA_GAIN = 0.5
"""The loss on one batch must at least halve: twelve steps bring it to a twentieth (H100, torch 2.11)."""
MEMORY_SLACK = 1.1
"""Allocations are rounded up to 512 bytes, and 4-bit weights carry a float32 scale a block."""


def judge_weights(subject: str, expect: Any, evidence: Any) -> Finding:
    """As C10 judges them, and what they take of the GPU's memory.

    evidence: as C10's, and `memory`: {quantised, bfloat16: bytes; parameters, projections: numbers of weights}.
    """
    finding = quantized_llama.judge_weights(subject, expect, evidence)
    if finding.status is not Status.PASS:
        return finding
    memory = evidence["memory"]
    # NF4 takes half a byte and 1/16 of scales a weight where bfloat16 takes two.
    others = memory["parameters"] - memory["projections"]
    most = MEMORY_SLACK * (memory["projections"] * 0.5625 + others * 2)
    if not is_within(memory["quantised"], most):
        return failed(f"loading in 4-bit takes {memory['quantised']} bytes of GPU memory, at most {most:.0f} are right")
    if not is_beyond(memory["bfloat16"], most):
        return failed(f"control: bfloat16 takes {memory['bfloat16']} bytes, which passes as well")
    share = f"{memory['quantised'] / memory['bfloat16']:.2f} of bfloat16's GPU memory, embeddings included"
    return passed(f"{finding.reason}; {share}")


def judge_qlora(_subject: str, _expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """evidence: what _GpuLlama.qlora gives."""
    if problems := list(_training_problems(evidence)):
        return failed(joined(problems))
    losses = evidence["losses"]
    return passed(
        f"{len(losses)} steps bring the loss from {losses[0]:.3f} to {losses[-1]:.3f}, B moved in "
        f"{evidence['adapters']} adapters, {evidence['base_count']} base weights untouched; a second run ends in the "
        "same bits"
    )


def _training_problems(evidence: Mapping[str, Any]) -> Iterator[str]:
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
    second = evidence["second_run"]
    if second["losses"] != evidence["losses"]:
        pairs = zip(evidence["losses"], second["losses"], strict=False)
        step = next((index for index, (one, other) in enumerate(pairs) if one != other), len(second["losses"]))
        yield f"a second run's losses differ from step {step + 1} on"
    elif second["fingerprint"] != evidence["fingerprint"]:
        yield "a second run ends in other bits"


CLAIMS = {"G10 nf4-weights": judge_weights, "G10 nf4-logits": quantized_llama.judge_logits, "G10 qlora": judge_qlora}
