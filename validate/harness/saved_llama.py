"""A tiny Llama with seeded weights, saved as transformers saves models, and the ways to load it back.

The checks of 4-bit loading (cpu and gpu), of a resumed run and of profiles train or load this model. References are
computed by plain torch on the CPU (`reference.py`), so that transformers is no judge of itself.
"""

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validate.harness import nf4, seeding
from validate.harness.reference import Shape, llama_logits

Weights = Mapping[str, Any]
"""Parameter name, as transformers saves it -> tensor."""

SEED = seeding.seed_of_run()
WEIGHT_DEVIATION = 0.07
"""About 1/sqrt(hidden), so that every projection matters to the logits. The weights are normally distributed, as the
published error of NF4 assumes."""

FIRST_TO_LOAD_4BIT_ON_CPU = (4, 52)
"""Earlier releases of transformers refuse bitsandbytes' 4-bit weights without a GPU."""
FIRST_WITH_DTYPE = (4, 56)
"""From this release of transformers on, `torch_dtype` is called `dtype`."""

FROM_PRETRAINED = "from_pretrained"
CONVERTED = "replace_with_bnb_linear"


class SavedLlama:
    """The saved model, with its weights and one batch of tokens."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Save the model to a folder. `device` is where it is loaded to."""
        self.folder = folder
        self.device = device
        self.torch = importlib.import_module("torch")
        self.transformers = importlib.import_module("transformers")
        self.shape = Shape()
        generator = self.torch.Generator().manual_seed(SEED)
        size = (2, 29)
        self.tokens = self.torch.randint(0, self.shape.vocabulary, size, generator=generator)
        self.saved = self._save()

    def _save(self) -> dict[str, Any]:
        """Save a seeded model as safetensors, and return its weights in float32."""
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

        return {name: weight.detach().clone() for name, weight in model.state_dict().items()}

    def load(self, dtype: str) -> Any:
        """Load the model unquantised."""
        options = self._loading_options(dtype)
        model = self.transformers.LlamaForCausalLM.from_pretrained(self.folder, **options)
        return model.to(self.device)

    @property
    def way_to_load_in_4bit(self) -> str:
        """Name the function of transformers that `load_in_4bit` uses here."""
        refuses = self._transformers_release() < FIRST_TO_LOAD_4BIT_ON_CPU
        return CONVERTED if refuses and self.device == "cpu" else FROM_PRETRAINED

    def load_in_4bit(self, dtype: str) -> Any:
        """Load the model with its projections quantised to NF4, as a user who trains with QLoRA does."""
        quantisation = self.transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=getattr(self.torch, dtype),
            bnb_4bit_use_double_quant=False,
        )
        if self.way_to_load_in_4bit == CONVERTED:
            return self._convert_to_4bit(dtype, quantisation)

        return self.transformers.LlamaForCausalLM.from_pretrained(
            self.folder,
            quantization_config=quantisation,
            device_map={"": self.device},
            **self._loading_options(dtype),
        )

    def _convert_to_4bit(self, dtype: str, quantisation: Any) -> Any:
        """Take the steps of `from_pretrained` for 4-bit weights, without its question for a GPU.

        These are the steps of Bnb4BitHfQuantizer in transformers 4.50.3 (quantizers/quantizer_bnb_4bit.py).
        """
        integrations = importlib.import_module("transformers.integrations.bitsandbytes")
        params_4bit = importlib.import_module("bitsandbytes").nn.Params4bit
        saved = importlib.import_module("safetensors.torch").load_file(
            self.folder / "model.safetensors"
        )

        # Linear layers become bitsandbytes' own, without weights. All others stay as they were loaded.
        model = integrations.replace_with_bnb_linear(
            self.load(dtype), modules_to_not_convert=["lm_head"], quantization_config=quantisation
        )
        for name, parameter in list(model.named_parameters()):
            if isinstance(parameter, params_4bit):
                weight = saved[name].to(getattr(self.torch, dtype))
                # The empty parameter holds the settings of the quantisation, which `to` carries out.
                quantised = params_4bit(weight, requires_grad=False, **parameter.__dict__).to(
                    self.device
                )
                layer, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(layer), attribute, quantised)

        # peft adapts 4-bit layers of models that say so.
        model.is_loaded_in_4bit = True
        model.config.quantization_config = quantisation
        return model.eval()

    def dequantise(self, model: Any) -> dict[str, Any]:
        """Return all weights of a 4-bit model, its projections decoded by our own NF4.

        Raises TypeError if a projection was not quantised.
        """
        weights = dict(self.saved)
        for name, shape in self.shape.projections.items():
            weight = model.get_submodule(name).weight
            state = getattr(weight, "quant_state", None)
            if state is None:
                raise TypeError(f"{name} holds no 4-bit weights but {weight.dtype}")
            codes, scales = weight.data.cpu(), state.absmax.cpu()
            weights[f"{name}.weight"] = nf4.dequantise(codes, scales, shape, state.blocksize)
        return weights

    def logits_of(self, model: Any) -> Any:
        """Return the logits that a model computes for the batch."""
        with self.torch.no_grad():
            return model(self.tokens.to(self.device)).logits.cpu()

    def reference_logits(self, weights: Weights, dtype: str) -> Any:
        """Return the logits that plain torch computes in this dtype, in float64."""
        with self.torch.no_grad():
            logits = llama_logits(weights, self.shape, self.tokens, getattr(self.torch, dtype))
        return logits.double()

    def hash_frozen_weights(self, model: Any) -> dict[str, str]:
        """Return a hash of every weight that LoRA must leave alone, by its name in the saved model."""
        hashes = {}
        for name, parameter in model.named_parameters():
            if "lora_" not in name:
                # LoRA moves a projection to `base_layer` without touching it.
                hashes[name.replace(".base_layer", "")] = self.hash_tensors([parameter])
        return hashes

    def hash_tensors(self, tensors: list[Any]) -> str:
        """Return the hash of the bytes of these tensors."""
        digest = hashlib.sha256()
        for tensor in tensors:
            as_bytes = tensor.detach().cpu().contiguous().view(self.torch.uint8)
            digest.update(as_bytes.numpy().tobytes())
        return digest.hexdigest()

    def _loading_options(self, dtype: str) -> dict[str, Any]:
        """Return the arguments of `from_pretrained` for a dtype."""
        name = "torch_dtype" if self._transformers_release() < FIRST_WITH_DTYPE else "dtype"
        return {name: getattr(self.torch, dtype), "attn_implementation": "sdpa"}

    def _transformers_release(self) -> tuple[int, int]:
        """Return major and minor of the transformers that is imported."""
        major, minor = self.transformers.__version__.split(".")[:2]
        return int(major), int(minor)


LEARNING_RATE = 1e-2


def make_trainer(model: Any, out: Path, rows: list[Any], **settings: Any) -> Any:
    """Return transformers' Trainer for these rows, on the CPU."""
    transformers = importlib.import_module("transformers")
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        learning_rate=LEARNING_RATE,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows)
