"""G10: a tiny Llama loaded from disk in 4-bit onto the GPU, and trained there with QLoRA and gradient checkpointing.

The model and what is measured of its weights and logits are the cpu tier's (C10); the training is its own.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from validate.claims import Claim
from validate.contracts.cpu import LogitsEvidence
from validate.contracts.gpu import (
    GpuLogitsEvidence,
    GpuWeights,
    GpuWeightsEvidence,
    OnGpu,
    Qlora,
    QloraEvidence,
    Training,
)
from validate.harness.forked import attempt
from validate.kernels import runner
from validate.probes.cpu.quantized_llama import SEED, SavedLlama

_STEPS, _RATE = 12, 5e-3
_Evidence: TypeAlias = "GpuWeightsEvidence | GpuLogitsEvidence | QloraEvidence"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, _Evidence]]:
    """Yield the evidence of the subjects asked for: `nf4-weights`, `nf4-logits`, `qlora`, in this order."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS' sums may differ from run to run
    asked, before = {claim.subject for claim in claims}, runner.environment()
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        llama = _GpuLlama(Path(folder), "cuda")
        measures: Mapping[str, Callable[[], GpuWeights | LogitsEvidence | Qlora]] = {
            "nf4-weights": llama.weights,
            "nf4-logits": llama.logits,
            "qlora": llama.qlora,
        }
        for subject, evidence in measures.items():
            if subject in asked:
                device = attempt(partial(_device, llama.torch))
                yield subject, cast("_Evidence", {**attempt(evidence), **device, "environment": before})


def _device(torch: Any) -> OnGpu:
    return {"device": runner.device_facts(torch)}


class _GpuLlama(SavedLlama):
    def weights(self) -> GpuWeights:
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

    def qlora(self) -> Qlora:
        """The same training twice: losses, what moved, and whether both runs end in the same bits."""
        first, second = self._train(), self._train()
        return {
            **self._versions(),
            **first,
            "second_run": {"losses": second["losses"], "fingerprint": second["fingerprint"]},
        }

    def _train(self) -> Training:
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
        return {
            "losses": losses,
            "gradient_checkpointing": bool(model.is_gradient_checkpointing),
            "adapters": len(b_matrices),
            "b_before": before,
            "b_still": [name for name, parameter in b_matrices.items() if not bool(parameter.detach().abs().max() > 0)],
            "base_count": len(base),
            "base_changed": [name for name, mark in after.items() if mark != base.get(name)],
            "fingerprint": _fingerprint(torch, moving),
        }


def _fingerprint(torch: Any, parameters: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for _, parameter in sorted(parameters.items()):
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
