"""The kernels of transformers with `attn_implementation="flash_attention_4"`.

Without the package flash-attn-4 transformers would download a kernel.
"""

import importlib
from typing import Any

from validate.kernels import RULE_T, Case, SeededRandom
from validate.kernels._flash4 import of_flash_attn_4

_LAYERS, _HIDDEN = 2, 256


def _last_hidden_state(embedded: Any, attention: str) -> Any:
    """Run embedded tokens through a small Llama, and return the output of its last layer.

    Its weights are the same in each call. It has _LAYERS layers, in which two query heads share a
    key head, and the dtype and device of the tokens.

    embedded: (batch, tokens, _HIDDEN), as is the result.
    attention: transformers' `attn_implementation`, the name of what computes attention.
    """
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        hidden_size=_HIDDEN,
        intermediate_size=512,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=32,
        attn_implementation=attention,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = transformers.LlamaModel(config).to(device=embedded.device, dtype=embedded.dtype)
    # transformers starts with weights so small that attention hardly matters. With a factor of 4,
    # bfloat16's own error would hide the control.
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.dim() > 1 else 1)
    return model(inputs_embeds=embedded, use_cache=False).last_hidden_state


def _case(rng: SeededRandom) -> Case:
    """Return a case that compares a Llama with flash-attn-4 with one with plain attention."""
    return Case(
        dtype="bfloat16",
        inputs={"embedded": rng.normal(2, 131, _HIDDEN)},
        run=lambda embedded: _last_hidden_state(embedded, "flash_attention_4"),
        plain=lambda embedded: _last_hidden_state(embedded, "eager"),
        grad_inputs=("embedded",),
        controls={"tokens shifted": lambda result: result.roll(1, dims=1)},
    )


KERNEL = of_flash_attn_4(
    probe="gpu.transformers_flash_attn_4",
    statement=(
        "a Llama with attn_implementation=flash_attention_4 computes what its eager attention does"
    ),
    cases={"bfloat16": _case},
    tolerance={"bfloat16": RULE_T},
    needs=("transformers",),
)
