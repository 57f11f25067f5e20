"""C10: a tiny Llama saved, loaded back in 4-bit through transformers and bitsandbytes, and trained for one LoRA step.

The whole stack runs without a GPU. Its results are compared with plain torch (`_reference`). Every comparison has
controls that must fail it: a result 1 % off, and the weights before quantisation.
"""

import contextlib
import hashlib
import importlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.harness import drawn, nf4
from validate.harness.forked import asked, attempt
from validate.harness.reference import Shape, llama_logits, relative
from validate.judging import (
    BACKWARD_FLOOR,
    Finding,
    failed,
    forward,
    is_beyond,
    is_within,
    joined,
    listed,
    passed,
    root_cause,
    scientific,
)

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

SEED = drawn.seed()
WEIGHT_DEVIATION = 0.07
"""About 1/sqrt(hidden), so that every projection matters to the logits. Weights are normal, as NF4's figures assume."""
CONTROL_SCALE = {"float32": 1.01, "bfloat16": 1.05}
"""A result scaled so must be told apart. bfloat16's own error through the whole model is 1.5 %."""
_LORA_RATE = 0.1


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of the subjects asked for: `fp32`, `nf4-weights`, `nf4-logits`, `lora-step`, in this order."""
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        llama = SavedLlama(Path(folder))
        measures: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            "fp32": llama.fp32,
            "nf4-weights": llama.weights,
            "nf4-logits": llama.logits,
            "lora-step": llama.lora_step,
        }
        yield from asked(claims, measures)


class SavedLlama:
    """One saved model and what is measured on it, on this device. References stay on the CPU."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.device = device
        self.torch = importlib.import_module("torch")
        self.transformers = importlib.import_module("transformers")
        self.shape = Shape()
        self.folder = folder
        seeded = self.torch.Generator().manual_seed(SEED)
        self.tokens = self.torch.randint(0, self.shape.vocabulary, (2, 29), generator=seeded)
        self.saved = self._save()

    def fp32(self) -> Mapping[str, Any]:
        """The plain model, read back in float32, against float64 arithmetic."""
        model = self._load("float32").eval()
        with self.torch.no_grad():
            logits = model(self.tokens.to(self.device)).logits.cpu()
        wanted = self._reference(self.saved, "float64")
        plain = self._reference(self.saved, "float32")
        return {**self._versions(), "comparisons": {"float32": self._compare("float32", logits, wanted, plain)}}

    def weights(self) -> Mapping[str, Any]:
        """Each projection as loading in 4-bit left it, read before a forward pass can repack it."""
        model = self._load("float32", quantised=True)
        projections = {name: self._projection(model, name) for name in self.shape.projections}
        return {**self._versions(), "projections": projections}

    def logits(self) -> Mapping[str, Any]:
        """The 4-bit model against its dequantised weights: float32 as in training, bfloat16 as in inference.

        bitsandbytes has two ways on a CPU: in training it dequantises, in inference on AVX512-BF16 it repacks and
        multiplies in bfloat16 whatever the model's dtype.
        """
        before = self._reference(self.saved, "float64")
        comparisons: dict[str, Mapping[str, Any]] = {}
        for dtype, training in (("float32", True), ("bfloat16", False)):
            model = self._load(dtype, quantised=True).train(training)
            dequantised = self._dequantised(model)
            with self.torch.no_grad():
                logits = model(self.tokens.to(self.device)).logits.cpu()
            wanted, plain = self._reference(dequantised, "float64"), self._reference(dequantised, dtype)
            comparisons[dtype] = self._compare(dtype, logits, wanted, plain, unquantised=before)
        return {**self._versions(), "comparisons": comparisons}

    def lora_step(self) -> Mapping[str, Any]:
        """One SGD step of LoRA: loss and B against the same step on the dequantised weights in plain float32."""
        model = self._load("float32", quantised=True)
        plain = self._load("float32")
        plain.load_state_dict(self._dequantised(model))
        base = self._fingerprints(model)
        loss, before, after = self._step(model, prepare=True)
        plain_loss, _, wanted = self._step(plain, prepare=False)
        adapters: dict[str, Mapping[str, float]] = {
            name: {
                "before": before[name],
                "after": float(found.abs().max()),
                "error": relative(found, wanted[name]),
                "control": relative(found * CONTROL_SCALE["float32"], wanted[name]),
            }
            for name, found in after.items()
        }
        return {
            **self._versions(),
            "loss": loss,
            "plain_loss": plain_loss,
            "adapters": adapters,
            "base_changed": [name for name, mark in self._fingerprints(model).items() if mark != base.get(name)],
            "base_count": len(base),
        }

    def _versions(self) -> dict[str, Any]:
        """Of the distributions that take part; None: not installed."""
        metadata = importlib.import_module("importlib.metadata")
        versions: dict[str, str | None] = dict.fromkeys(("torch", "transformers", "bitsandbytes", "peft"))
        for name in versions:
            with contextlib.suppress(ImportError):
                versions[name] = str(metadata.version(name))
        return {"versions": versions}

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
        generator = self.torch.Generator().manual_seed(SEED)
        with self.torch.no_grad():
            for name, parameter in sorted(model.named_parameters()):
                noise = self.torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.1 * noise if "norm" in name else WEIGHT_DEVIATION * noise)
        model.save_pretrained(self.folder, safe_serialization=True)
        return {name: parameter.detach().clone() for name, parameter in model.state_dict().items()}

    def _load(self, dtype: str, *, quantised: bool = False) -> Any:
        major, minor = (int(part) for part in self.transformers.__version__.split(".")[:2])
        name = "dtype" if (major, minor) >= (4, 56) else "torch_dtype"  # renamed by transformers 4.56
        options: dict[str, Any] = {name: getattr(self.torch, dtype), "attn_implementation": "sdpa"}
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

    def _projection(self, model: Any, name: str) -> Mapping[str, Any]:
        module = model.get_submodule(name)
        weight = module.weight
        state = getattr(weight, "quant_state", None)
        facts: Mapping[str, Any] = {
            "class": f"{type(module).__module__}.{type(module).__qualname__}",
            "weight_class": type(weight).__qualname__,
            "dtype": str(weight.dtype).removeprefix("torch."),
            "bytes": weight.numel() * weight.element_size(),
            "values": self.saved[f"{name}.weight"].numel(),
            "quant_type": getattr(state, "quant_type", None),
            "block_size": getattr(state, "blocksize", None),
        }
        return facts if state is None else {**facts, **attempt(lambda: self._decoded(name, weight, state))}

    def _decoded(self, name: str, weight: Any, state: Any) -> Mapping[str, Any]:
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

    def _compare(self, dtype: str, found: Any, wanted: Any, plain: Any, unquantised: Any = None) -> Mapping[str, Any]:
        """Relative errors: of what was found, of plain torch in the same dtype, and of each control."""
        scale = CONTROL_SCALE[dtype]
        controls = {f"scaled by {scale}": relative(found.double() * scale, wanted)}
        if unquantised is not None:
            controls["unquantised weights"] = relative(unquantised, wanted)
        return {"error": relative(found, wanted), "plain_error": relative(plain, wanted), "controls": controls}

    def _step(self, model: Any, *, prepare: bool) -> tuple[float, dict[str, float], dict[str, Any]]:
        """Loss; by name of each B its largest value before one step, and B itself after it. The same seed gives both
        models the same A."""
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
        return float(loss.detach()), before, after

    def _fingerprints(self, model: Any) -> dict[str, str]:
        """Bytes of every frozen weight. LoRA moves a projection to `base_layer` without touching it."""
        named = ((name.replace(".base_layer", ""), value) for name, value in model.named_parameters())
        return {
            name: hashlib.sha256(value.detach().cpu().contiguous().view(self.torch.uint8).numpy().tobytes()).hexdigest()
            for name, value in named
            if "lora_" not in name
        }


RATE = 1e-2


def trainer_of(model: Any, out: Path, rows: Sequence[Any], **settings: Any) -> Any:
    """transformers' Trainer on the CPU."""
    transformers = importlib.import_module("transformers")
    fixed = {"learning_rate": RATE, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(output_dir=str(out), **fixed, **settings)
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows)


QUANTISER_SIGMAS = 7.0
QUANTISER_SAMPLE = 1024 * 1024
"""bitsandbytes' own figures are means over 1024 x 1024 normal values; sigma shrinks with the root of the sample."""
DECODER_TOLERANCE = 1e-5
"""How far two float32 decoders of the same codes may differ, in units of the weights' deviation."""


def judge_logits(subject: str, _expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """evidence: {versions, comparisons: {dtype: SavedLlama._compare's}}."""
    problems: list[str] = []
    shown: list[str] = []
    for dtype in {"fp32": ("float32",), "nf4-logits": ("float32", "bfloat16")}[subject]:
        comparison = evidence["comparisons"][dtype]
        error, tolerance = comparison["error"], forward(float(comparison["plain_error"]))
        if not is_within(error, tolerance):
            allowed = f"at most {scientific(tolerance)} is allowed"
            problems.append(f"{dtype} logits are off by {scientific(error)}, {allowed}")
        else:
            shown.append(f"{dtype} {error:.1e} (at most {tolerance:.1e})")
        problems += _control_problems(dtype, tolerance, comparison["controls"])
    if problems:
        return failed(joined(problems))
    return passed(f"logits differ from plain torch's by {' and '.join(shown)}; controls are told apart")


def _control_problems(what: str, tolerance: float, controls: Mapping[str, float]) -> Iterator[str]:
    if not controls:
        yield f"{what} has no control"
    for name, error in controls.items():
        if not is_beyond(error, tolerance):
            found, allowed = scientific(error), scientific(tolerance)
            yield f"control: {what} {name} is off by {found}, within the {allowed} that is allowed"


def judge_weights(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: harness/nf4.py, EXPECTED. evidence: {versions, projections: {layer: {class, weight_class, dtype, bytes,
    values, quant_type, block_size, scale_bytes, and in units of the weights' deviation mean_error and
    decoder_difference, or `error`}}}: as loading in 4-bit left it."""
    projections = evidence["projections"]
    if not projections:
        return failed("no projection was looked at")
    wrong = {name: mismatch for name, facts in projections.items() if (mismatch := _mismatch(expect, facts))}
    if wrong:
        first, expected, found = min(wrong.values(), key=lambda mismatch: mismatch[0])
        names = listed([name for name, mismatch in wrong.items() if mismatch[0] == first], limit=1)
        return failed(
            f"expected {expected} in {len(projections)} of {len(projections)} projections, found {found} in {names}"
        )
    values = sum(facts["values"] for facts in projections.values())
    error = sum(facts["mean_error"] * facts["values"] for facts in projections.values()) / values
    bound = _error_bound(expect, values)
    if abs(error - expect["mean_error"]) > bound:
        return failed(f"over all projections the mean error is {error:.5f}, not {_expected_error(expect, values)}")
    each = sum(facts["bytes"] + facts["scale_bytes"] for facts in projections.values()) / values
    return passed(
        f"{len(projections)} projections are {expect['quant_type']}, {each:.4f} bytes a weight "
        f"({each / 2:.3f} of bfloat16), mean error {error:.5f} (expected {_expected_error(expect, values)})"
    )


def _mismatch(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[int, str, str] | None:
    """What is wrong with a projection, in the order in which a failure explains the ones after it: the number of the
    comparison, what was expected, what was found. None: nothing is wrong."""
    module, _, name = facts["class"].rpartition(".")
    if name != "Linear4bit" or not module.startswith("bitsandbytes."):
        return 0, "Linear4bit", facts["class"]
    if facts["dtype"] != "uint8" or facts["bytes"] * 2 != facts["values"]:
        return 1, "uint8 at half a byte a weight", f"{facts['dtype']} at {facts['bytes'] / facts['values']:.2f}"
    wanted, found = (expect["quant_type"], expect["block_size"]), (facts["quant_type"], facts["block_size"])
    if found != wanted:
        return 2, f"{wanted[0]} in blocks of {wanted[1]}", f"{found[0]} in blocks of {found[1]}"
    if "error" in facts:
        return 3, "weights that decode", root_cause(facts["error"])
    scales = math.ceil(facts["values"] / expect["block_size"]) * 4
    if facts["scale_bytes"] != scales:
        return 4, f"{scales} bytes of scales", str(facts["scale_bytes"])
    # Two-sided: no error at all means that nothing was quantised.
    distance = abs(facts["mean_error"] - expect["mean_error"]) if is_within(facts["mean_error"], 1.0) else math.inf
    if not distance <= _error_bound(expect, facts["values"]):
        return 5, f"a mean error of {_expected_error(expect, facts['values'])}", scientific(facts["mean_error"])
    if not is_within(facts["decoder_difference"], DECODER_TOLERANCE):
        return 6, "bitsandbytes to decode its own codes", f"a difference of {scientific(facts['decoder_difference'])}"
    return None


def _error_bound(expect: Mapping[str, Any], values: int) -> float:
    return QUANTISER_SIGMAS * float(expect["mean_error_sigma"]) * math.sqrt(QUANTISER_SAMPLE / values)


def _expected_error(expect: Mapping[str, Any], values: int) -> str:
    return f"{expect['mean_error']:.5f} +- {_error_bound(expect, values):.5f}"


def judge_lora_step(_subject: str, _expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """evidence: {versions, loss, plain_loss, base_changed, base_count, adapters: {name: {before, after: of B the
    largest value, error: relative, control}}}."""
    if problems := list(_lora_problems(evidence)):
        return failed(joined(problems))
    worst = max(adapter["error"] for adapter in evidence["adapters"].values())
    return passed(
        f"B moved from zero in {len(evidence['adapters'])} adapters as in plain torch (off by {worst:.1e}, at most "
        f"{BACKWARD_FLOOR:.0e}), loss {evidence['loss']:.4f}, {evidence['base_count']} base weights untouched"
    )


def _lora_problems(evidence: Mapping[str, Any]) -> Iterator[str]:
    loss, plain = evidence["loss"], evidence["plain_loss"]
    if not is_within(loss, math.inf) or not is_within(plain, math.inf):
        yield f"the loss is {loss}, plain torch's is {plain}"
    elif abs(loss - plain) > BACKWARD_FLOOR * plain:
        yield f"the loss is {loss:.5f}, plain torch's is {plain:.5f}"
    adapters = evidence["adapters"]
    if not adapters:
        yield "no adapter was attached"
    if still := [name for name, adapter in adapters.items() if not is_beyond(adapter["after"], 0.0)]:
        yield f"B did not move in {len(still)} of {len(adapters)} adapters: {listed(still, limit=1)}"
    if early := [name for name, adapter in adapters.items() if adapter["before"] != 0]:
        yield f"B was not zero before the step in {listed(early, limit=1)}"
    off = [name for name, adapter in adapters.items() if not is_within(adapter["error"], BACKWARD_FLOOR)]
    if off and not still:
        error = scientific(adapters[off[0]]["error"])
        yield f"B is off by {error} (at most {BACKWARD_FLOOR:.0e}) in {listed(off, limit=1)}"
    for name, adapter in adapters.items():
        if name not in still:
            yield from _control_problems(name, BACKWARD_FLOOR, {"scaled": adapter["control"]})
    if not evidence["base_count"]:
        yield "no base weight was looked at"
    if evidence["base_changed"]:
        yield f"the step changed frozen weights: {listed(evidence['base_changed'])}"


CLAIMS = {
    "C10 fp32": judge_logits,
    "C10 nf4-weights": judge_weights,
    "C10 nf4-logits": judge_logits,
    "C10 lora-step": judge_lora_step,
}
