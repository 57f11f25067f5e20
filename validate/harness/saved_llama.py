"""A tiny Llama with random weights: save it as transformers does, load it back, train it.

The checks of 4-bit loading (cpu and gpu), of a resumed run and of profiles use this model. What it
must compute is computed by plain torch on the CPU (`reference.py`), so that transformers is not
compared with itself.
"""

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validate.harness import nf4, seeding
from validate.harness.reference import Shape, llama_logits

Weights = Mapping[str, Any]
"""The name of each parameter, as transformers saves it -> its tensor."""

SEED = seeding.seed_of_run()
WEIGHT_DEVIATION = 0.07
"""The standard deviation of the weights: about 1/sqrt(hidden), so that every projection matters to
the logits. The weights are normally distributed, as the published error of NF4 assumes."""

FIRST_TO_LOAD_4BIT_ON_CPU = (4, 52)
"""Earlier releases of transformers refuse bitsandbytes' 4-bit weights without a GPU."""
FIRST_WITH_DTYPE = (4, 56)
"""From this release of transformers on, `torch_dtype` is called `dtype`."""

# Names of the two ways to load in 4-bit, as evidence holds them.
FROM_PRETRAINED = "from_pretrained"
CONVERTED = "replace_with_bnb_linear"


class SavedLlama:
    """A model that is saved in a folder, its weights, and one batch of tokens.

    `shape` are its sizes, `saved` its weights (name -> float32 tensor on the CPU), and `tokens` the
    batch: random token IDs, [2, 29].
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Make a small Llama with random weights, and save it to a folder as transformers does.

        `device` is where `load` and `load_in_4bit` put the model. The same seed gives every run the
        same weights and the same input tokens.
        """
        self.folder = folder
        self.device = device
        self.torch = importlib.import_module("torch")
        self.transformers = importlib.import_module("transformers")
        self.shape = Shape()
        generator = self.torch.Generator().manual_seed(SEED)
        batch_and_length = (2, 29)
        self.tokens = self.torch.randint(
            0, self.shape.vocabulary, batch_and_length, generator=generator
        )
        self.saved = self._save()

    def _save(self) -> dict[str, Any]:
        """Save a model with random weights as safetensors, and return the weights in float32.

        They are named as in the model's state_dict. The same seed gives the same weights.
        """
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
            # Sorted, so that a release with another order of its parameters gets the same weights.
            for name, parameter in sorted(model.named_parameters()):
                noise = self.torch.randn(parameter.shape, generator=generator)
                if "norm" in name:
                    parameter.copy_(1 + 0.1 * noise)
                else:
                    parameter.copy_(WEIGHT_DEVIATION * noise)
        model.save_pretrained(self.folder, safe_serialization=True)

        return {name: weight.detach().clone() for name, weight in model.state_dict().items()}

    def load(self, dtype: str) -> Any:
        """Load the model without quantisation. `dtype` is a name, such as `float32`."""
        options = self._loading_options(dtype)
        model = self.transformers.LlamaForCausalLM.from_pretrained(self.folder, **options)
        return model.to(self.device)

    @property
    def way_to_load_in_4bit(self) -> str:
        """Return which function `load_in_4bit` uses: FROM_PRETRAINED or CONVERTED."""
        is_too_old = self._transformers_release() < FIRST_TO_LOAD_4BIT_ON_CPU
        if is_too_old and self.device == "cpu":
            return CONVERTED
        return FROM_PRETRAINED

    def load_in_4bit(self, dtype: str) -> Any:
        """Load the saved model with its linear layers quantised to 4 bits (NF4), as QLoRA does.

        `dtype` is the name of the type that the layers compute in: `bfloat16`.
        """
        quantisation = self.transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=getattr(self.torch, dtype),
            bnb_4bit_use_double_quant=False,
        )
        # On a CPU, from_pretrained of old releases of transformers refuses to quantise. Then its
        # steps are taken here.
        if self.way_to_load_in_4bit == CONVERTED:
            return self._convert_to_4bit(dtype, quantisation)

        return self.transformers.LlamaForCausalLM.from_pretrained(
            self.folder,
            quantization_config=quantisation,
            device_map={"": self.device},
            **self._loading_options(dtype),
        )

    def _convert_to_4bit(self, dtype: str, quantisation: Any) -> Any:
        """Load the saved model unquantised, and convert its linear layers to 4-bit ones.

        These are the steps of `from_pretrained`, which refuses without a GPU: Bnb4BitHfQuantizer in
        transformers 4.50.3 (quantizers/quantizer_bnb_4bit.py). `quantisation` is a
        BitsAndBytesConfig.
        """
        integrations = importlib.import_module("transformers.integrations.bitsandbytes")
        params_4bit = importlib.import_module("bitsandbytes").nn.Params4bit
        safetensors = importlib.import_module("safetensors.torch")
        saved = safetensors.load_file(self.folder / "model.safetensors")

        # Linear layers become bitsandbytes' own, still empty. All others stay as they were loaded.
        model = integrations.replace_with_bnb_linear(
            self.load(dtype), modules_to_not_convert=["lm_head"], quantization_config=quantisation
        )
        for name, parameter in list(model.named_parameters()):
            if not isinstance(parameter, params_4bit):
                continue
            weight = saved[name].to(getattr(self.torch, dtype))
            # The attributes of the empty parameter are the settings of its quantisation, by the
            # names of Params4bit's arguments.
            settings = parameter.__dict__
            unquantised = params_4bit(weight, requires_grad=False, **settings)
            # bitsandbytes quantises when such a parameter is moved to a device, the CPU included.
            quantised = unquantised.to(self.device)
            layer, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(layer), attribute, quantised)

        # peft adapts 4-bit layers only of models that have this attribute.
        model.is_loaded_in_4bit = True
        model.config.quantization_config = quantisation
        return model.eval()

    def dequantise(self, model: Any) -> dict[str, Any]:
        """Return all weights of a 4-bit model by name, with the 4-bit ones decoded by our own NF4.

        Raises TypeError if a linear layer was not quantised.
        """
        # All others, such as the embedding, are still as they were saved.
        weights = dict(self.saved)
        for name, shape in self.shape.projections.items():
            weight = model.get_submodule(name).weight
            # bitsandbytes' QuantState: `absmax` are the scales of blocks of `blocksize` values.
            state = getattr(weight, "quant_state", None)
            if state is None:
                raise TypeError(f"{name} holds no 4-bit weights but {weight.dtype}")
            codes, scales = weight.data.cpu(), state.absmax.cpu()
            weights[f"{name}.weight"] = nf4.dequantise(codes, scales, shape, state.blocksize)
        return weights

    def logits_of(self, model: Any) -> Any:
        """Return the logits that a model computes for `self.tokens`."""
        with self.torch.no_grad():
            return model(self.tokens.to(self.device)).logits.cpu()

    def reference_logits(self, weights: Weights, dtype: str) -> Any:
        """Compute the logits of `self.tokens` by plain torch in this dtype; return float64."""
        with self.torch.no_grad():
            logits = llama_logits(weights, self.shape, self.tokens, getattr(self.torch, dtype))
        return logits.double()

    def hash_frozen_weights(self, model: Any) -> dict[str, str]:
        """Return the name of every weight that LoRA must not change, and a hash of its bytes."""
        hashes = {}
        for name, parameter in model.named_parameters():
            if "lora_" not in name:
                # LoRA moves a layer that it adapts to `base_layer`, which changes the name only.
                hashes[name.replace(".base_layer", "")] = self.hash_tensors([parameter])
        return hashes

    def hash_tensors(self, tensors: list[Any]) -> str:
        """Return the SHA-256 of the bytes of these tensors, one after another."""
        digest = hashlib.sha256()
        for tensor in tensors:
            as_bytes = tensor.detach().cpu().contiguous().view(self.torch.uint8)
            digest.update(as_bytes.numpy().tobytes())
        return digest.hexdigest()

    def _loading_options(self, dtype: str) -> dict[str, Any]:
        """Return the keyword arguments of `from_pretrained` to load in this dtype."""
        name = "torch_dtype" if self._transformers_release() < FIRST_WITH_DTYPE else "dtype"
        return {name: getattr(self.torch, dtype), "attn_implementation": "sdpa"}

    def _transformers_release(self) -> tuple[int, int]:
        """Return the major and minor version of the transformers that is imported."""
        major, minor = self.transformers.__version__.split(".")[:2]
        return int(major), int(minor)


LEARNING_RATE = 1e-2
"""The learning rate of make_trainer's Trainer."""


def make_trainer(model: Any, out: Path, rows: list[Any], **settings: Any) -> Any:
    """Return a Trainer of transformers that trains a model on these rows, on the CPU.

    `rows` is the data set, in the form that the Trainer takes. `out` is the folder for checkpoints.
    `settings` are further TrainingArguments.
    """
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
