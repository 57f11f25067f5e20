"""C10: a tiny Llama saved, loaded back in 4-bit through transformers and bitsandbytes, and trained for one LoRA step.

The whole stack runs without a GPU. Its results are compared with plain torch (`_reference`). Every comparison has
controls that must fail it: a result 1 % off, and the weights before quantisation.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validate.claims import Claim
from validate.contracts.cpu import (
    Adapter,
    Comparison,
    LogitsEvidence,
    LoraEvidence,
    Projection,
    Versions,
    WeightsEvidence,
)
from validate.harness import nf4
from validate.harness.forked import attempt
from validate.harness.reference import Shape, llama_logits

SEED = 20240229
WEIGHT_DEVIATION = 0.07
"""About 1/sqrt(hidden), so that every projection matters to the logits. Weights are normal, as NF4's figures assume."""
CONTROL_SCALE = {"float32": 1.01, "bfloat16": 1.05}
"""A result scaled so must be told apart. bfloat16's own error through the whole model is 1.5 %."""
_LORA_RATE = 0.1


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, LogitsEvidence | WeightsEvidence | LoraEvidence]]:
    """Yield the evidence of the subjects asked for: `fp32`, `nf4-weights`, `nf4-logits`, `lora-step`, in this order."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    asked = {claim.subject for claim in claims}
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        llama = SavedLlama(Path(folder))
        measures: Mapping[str, Callable[[], LogitsEvidence | WeightsEvidence | LoraEvidence]] = {
            "fp32": llama.fp32,
            "nf4-weights": llama.weights,
            "nf4-logits": llama.logits,
            "lora-step": llama.lora_step,
        }
        for subject, evidence in measures.items():
            if subject in asked:
                yield subject, attempt(evidence)


@dataclass(frozen=True)
class _LoraStep:
    loss: float
    before: Mapping[str, float]
    """By name of each B: its largest value."""
    after: Mapping[str, Any]
    """Each B itself."""


class SavedLlama:
    """One saved model and what is measured on it, on this device. References stay on the CPU."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.device = device
        self.torch = importlib.import_module("torch")
        self.transformers = importlib.import_module("transformers")
        self.shape = Shape()
        self.folder = folder
        self.tokens = self.torch.randint(0, self.shape.vocabulary, (2, 29), generator=self._generator())
        self.saved = self._save()

    def fp32(self) -> LogitsEvidence:
        """The plain model, read back in float32, against float64 arithmetic."""
        model = self._load("float32").eval()
        with self.torch.no_grad():
            logits = model(self.tokens.to(self.device)).logits.cpu()
        wanted = self._reference(self.saved, "float64")
        plain = self._reference(self.saved, "float32")
        return {**self._versions(), "comparisons": {"float32": self._compare("float32", logits, wanted, plain)}}

    def weights(self) -> WeightsEvidence:
        """Each projection as loading in 4-bit left it, read before a forward pass can repack it."""
        model = self._load("float32", quantised=True)
        projections = {name: self._projection(model, name) for name in self.shape.projections}
        return {**self._versions(), "projections": projections}

    def logits(self) -> LogitsEvidence:
        """The 4-bit model against its dequantised weights: float32 as in training, bfloat16 as in inference.

        bitsandbytes has two ways on a CPU: in training it dequantises, in inference on AVX512-BF16 it repacks and
        multiplies in bfloat16 whatever the model's dtype.
        """
        before = self._reference(self.saved, "float64")
        comparisons: dict[str, Comparison] = {}
        for dtype, training in (("float32", True), ("bfloat16", False)):
            model = self._load(dtype, quantised=True).train(training)
            dequantised = self._dequantised(model)
            with self.torch.no_grad():
                logits = model(self.tokens.to(self.device)).logits.cpu()
            wanted, plain = self._reference(dequantised, "float64"), self._reference(dequantised, dtype)
            comparisons[dtype] = self._compare(dtype, logits, wanted, plain, unquantised=before)
        return {**self._versions(), "comparisons": comparisons}

    def lora_step(self) -> LoraEvidence:
        """One SGD step of LoRA: loss and B against the same step on the dequantised weights in plain float32."""
        model = self._load("float32", quantised=True)
        plain = self._load("float32")
        plain.load_state_dict(self._dequantised(model))
        base = self._fingerprints(model)
        found, wanted = self._step(model, prepare=True), self._step(plain, prepare=False)
        adapters: dict[str, Adapter] = {
            name: {
                "before": found.before[name],
                "after": float(after.abs().max()),
                "error": _relative(after, wanted.after[name]),
                "control": _relative(after * CONTROL_SCALE["float32"], wanted.after[name]),
            }
            for name, after in found.after.items()
        }
        return {
            **self._versions(),
            "loss": found.loss,
            "plain_loss": wanted.loss,
            "adapters": adapters,
            "base_changed": [name for name, mark in self._fingerprints(model).items() if mark != base.get(name)],
            "base_count": len(base),
        }

    def _generator(self) -> Any:
        return self.torch.Generator().manual_seed(SEED)

    def _versions(self) -> Versions:
        return {"versions": {name: _version(name) for name in ("torch", "transformers", "bitsandbytes", "peft")}}

    def _save(self) -> dict[str, Any]:
        """Save a seeded model as safetensors; its weights in float32, by name."""
        shape = self.shape
        config = self.transformers.LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            max_position_embeddings=shape.positions,
            rms_norm_eps=shape.epsilon,
            tie_word_embeddings=False,
        )
        model = self.transformers.LlamaForCausalLM(config)
        generator = self._generator()
        with self.torch.no_grad():
            for name, parameter in sorted(model.named_parameters()):
                noise = self.torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.1 * noise if "norm" in name else WEIGHT_DEVIATION * noise)
        model.save_pretrained(self.folder, safe_serialization=True)
        return {name: parameter.detach().clone() for name, parameter in model.state_dict().items()}

    def _load(self, dtype: str, *, quantised: bool = False) -> Any:
        options: dict[str, Any] = {self._dtype_option(): getattr(self.torch, dtype), "attn_implementation": "sdpa"}
        if quantised:
            options["quantization_config"] = self.transformers.BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_compute_dtype=getattr(self.torch, dtype),
                bnb_4bit_use_double_quant=False,
            )
            options["device_map"] = {"": self.device}
        model = self.transformers.LlamaForCausalLM.from_pretrained(self.folder, **options)
        return model if quantised else model.to(self.device)

    def _dtype_option(self) -> str:
        """transformers 4.56 renamed `torch_dtype`."""
        major, minor = (int(part) for part in self.transformers.__version__.split(".")[:2])
        return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"

    def _projection(self, model: Any, name: str) -> Projection:
        module = model.get_submodule(name)
        weight = module.weight
        state = getattr(weight, "quant_state", None)
        facts: Projection = {
            "class": f"{type(module).__module__}.{type(module).__qualname__}",
            "weight_class": type(weight).__qualname__,
            "dtype": str(weight.dtype).removeprefix("torch."),
            "bytes": weight.numel() * weight.element_size(),
            "values": self.saved[f"{name}.weight"].numel(),
            "quant_type": getattr(state, "quant_type", None),
            "block_size": getattr(state, "blocksize", None),
        }
        return facts if state is None else {**facts, **attempt(lambda: self._decoded(name, weight, state))}

    def _decoded(self, name: str, weight: Any, state: Any) -> Projection:
        """The stored codes decoded by hand and by bitsandbytes; errors in units of the weights' deviation."""
        original = self.saved[f"{name}.weight"]
        decoded = nf4.dequantised(weight.data.cpu(), state.absmax.cpu(), tuple(original.shape), state.blocksize)
        theirs = importlib.import_module("bitsandbytes.functional").dequantize_4bit(weight.data, state).cpu()
        return {
            "scale_bytes": state.absmax.numel() * state.absmax.element_size(),
            "mean_error": float((decoded - original).abs().mean()) / WEIGHT_DEVIATION,
            "decoder_difference": float((theirs.float() - decoded).abs().max()) / WEIGHT_DEVIATION,
        }

    def _dequantised(self, model: Any) -> dict[str, Any]:
        """All weights of a 4-bit model, the projections decoded by hand."""
        weights = dict(self.saved)
        for name, shape in self.shape.projections.items():
            weight = model.get_submodule(name).weight
            state = getattr(weight, "quant_state", None)
            if state is None:
                raise TypeError(f"{name} holds no 4-bit weights but {weight.dtype}")
            codes, scales = weight.data.cpu(), state.absmax.cpu()
            weights[f"{name}.weight"] = nf4.dequantised(codes, scales, shape, state.blocksize)
        return weights

    def _reference(self, weights: Mapping[str, Any], dtype: str) -> Any:
        with self.torch.no_grad():
            return llama_logits(weights, self.shape, self.tokens, getattr(self.torch, dtype)).double()

    def _compare(self, dtype: str, found: Any, wanted: Any, plain: Any, unquantised: Any = None) -> Comparison:
        """Relative errors: of what was found, of plain torch in the same dtype, and of each control."""
        scale = CONTROL_SCALE[dtype]
        controls = {f"scaled by {scale}": _relative(found.double() * scale, wanted)}
        if unquantised is not None:
            controls["unquantised weights"] = _relative(unquantised, wanted)
        return {"error": _relative(found, wanted), "plain_error": _relative(plain, wanted), "controls": controls}

    def _step(self, model: Any, *, prepare: bool) -> _LoraStep:
        """B of each adapter before and after one step. The same seed gives both models the same A."""
        peft = importlib.import_module("peft")
        if prepare:
            model = peft.prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
        self.torch.manual_seed(SEED)
        lora = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
        tuned = peft.get_peft_model(model, lora).train()
        b_matrices = {name: parameter for name, parameter in tuned.named_parameters() if "lora_B" in name}
        before = {name: float(parameter.detach().abs().max()) for name, parameter in b_matrices.items()}
        optimizer = self.torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=_LORA_RATE)
        tokens = self.tokens.to(self.device)
        loss = tuned(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        after = {name: parameter.detach().cpu().clone() for name, parameter in b_matrices.items()}
        return _LoraStep(loss=float(loss.detach()), before=before, after=after)

    def _fingerprints(self, model: Any) -> dict[str, str]:
        """Bytes of every frozen weight. LoRA moves a projection to `base_layer` without touching it."""
        named = ((name.replace(".base_layer", ""), value) for name, value in model.named_parameters())
        return {
            name: hashlib.sha256(value.detach().cpu().contiguous().view(self.torch.uint8).numpy().tobytes()).hexdigest()
            for name, value in named
            if "lora_" not in name
        }


def _relative(found: Any, wanted: Any) -> float:
    """Error of `found` in the 2-norm, relative to `wanted`."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def _version(distribution: str) -> str | None:
    metadata = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version(distribution))
    except ImportError:
        return None
