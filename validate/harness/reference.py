"""A Llama in plain torch, without transformers, to compare other implementations with."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a tiny Llama.

    They are multiples of 64, because the AVX512-BF16 path of bitsandbytes refuses anything else,
    and no powers of two.
    """

    vocabulary: int = 320
    hidden: int = 192
    intermediate: int = 448
    layers: int = 2
    heads: int = 6
    key_value_heads: int = 2
    positions: int = 64
    rope_theta: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_size(self) -> int:
        """Return the number of dimensions of one attention head."""
        return self.hidden // self.heads

    @property
    def projections(self) -> Mapping[str, tuple[int, int]]:
        """Return the name of each linear layer in the decoder, and the shape of its weight.

        A shape is (outputs, inputs). The embedding and the last linear layer (`lm_head`), which
        lie outside the decoder, are left out.
        """
        hidden, intermediate = self.hidden, self.intermediate
        key_value = self.key_value_heads * self.head_size
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (key_value, hidden),
            "self_attn.v_proj": (key_value, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (intermediate, hidden),
            "mlp.up_proj": (intermediate, hidden),
            "mlp.down_proj": (hidden, intermediate),
        }
        projections = {}
        for layer in range(self.layers):
            for name, shape in shapes.items():
                projections[f"model.layers.{layer}.{name}"] = shape
        return projections


def relative_error(measured: Any, exact: Any) -> float:
    """Return the 2-norm of the difference of two tensors, divided by the 2-norm of `exact`."""
    measured = measured.detach().cpu().double()
    exact = exact.detach().cpu().double()
    return float((measured - exact).norm() / exact.norm())


def llama_logits(weights: Mapping[str, Any], shape: Shape, tokens: Any, dtype: Any) -> Any:
    """Compute the logits of a Llama in plain torch, with every step in `dtype`.

    `weights` are named as transformers saves them. `shape` has the model's sizes, such as the
    number of layers. `tokens` is [batch, length]; the result is [batch, length, vocabulary].
    """
    torch = importlib.import_module("torch")
    weights = {name: weight.to(dtype) for name, weight in weights.items()}
    length = tokens.shape[-1]
    cosine, sine = rotation_factors(shape.head_size, length, shape.rope_theta)
    cosine, sine = cosine.to(dtype), sine.to(dtype)

    # [batch, length, hidden]; each layer adds to it twice.
    states = weights["model.embed_tokens.weight"][tokens]
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."

        # Attention.
        normed = _rms_norm(states, weights[prefix + "input_layernorm.weight"], shape.epsilon)
        states = states + _attention(weights, prefix + "self_attn.", shape, normed, cosine, sine)

        # The feed-forward network, SwiGLU: down(silu(gate(states)) * up(states)).
        norm_weight = weights[prefix + "post_attention_layernorm.weight"]
        normed = _rms_norm(states, norm_weight, shape.epsilon)
        gate = torch.nn.functional.silu(normed @ weights[prefix + "mlp.gate_proj.weight"].T)
        up = normed @ weights[prefix + "mlp.up_proj.weight"].T
        states = states + (gate * up) @ weights[prefix + "mlp.down_proj.weight"].T

    normed = _rms_norm(states, weights["model.norm.weight"], shape.epsilon)
    return normed @ weights["lm_head.weight"].T


def _attention(
    weights: Mapping[str, Any], prefix: str, shape: Shape, x: Any, cosine: Any, sine: Any
) -> Any:
    """Compute causal self-attention, where a group of query heads shares a key and a value head.

    `prefix` is the start of the names of its weights: `model.layers.0.self_attn.`. `x` and the
    result are [batch, length, hidden]; `cosine` and `sine` come from rotation_factors.
    """
    torch = importlib.import_module("torch")
    batch, length, _ = x.shape

    def project(name: str, heads: int) -> Any:
        """Multiply with a weight, and return the result as [batch, heads, length, head]."""
        projected = x @ weights[f"{prefix}{name}.weight"].T
        return projected.view(batch, length, heads, shape.head_size).transpose(1, 2)

    query = apply_rotation(project("q_proj", shape.heads), cosine, sine)
    key = apply_rotation(project("k_proj", shape.key_value_heads), cosine, sine)
    value = project("v_proj", shape.key_value_heads)

    # Each key and value head serves a group of query heads.
    group = shape.heads // shape.key_value_heads
    key = key.repeat_interleave(group, dim=1)
    value = value.repeat_interleave(group, dim=1)

    score = query @ key.transpose(-1, -2) / shape.head_size**0.5
    # The mask is True above the diagonal: a position does not see those after it.
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    attended = score.masked_fill(future, float("-inf")).softmax(-1) @ value
    attended = attended.transpose(1, 2).reshape(batch, length, shape.hidden)
    return attended @ weights[prefix + "o_proj.weight"].T


def rotation_factors(head: int, length: int, theta: float = 10000.0) -> tuple[Any, Any]:
    """Return the cosines and the sines of rotary position embeddings: [length, head], float64.

    The angle of the pair i of dimensions at a position is position * theta^(-2i / head).
    """
    torch = importlib.import_module("torch")
    frequency = theta ** -(torch.arange(0, head, 2, dtype=torch.float64) / head)
    # Both dimensions of a pair have its angle: those of the second half repeat those of the first.
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def apply_rotation(x: Any, cosine: Any, sine: Any) -> Any:
    """Rotate each pair of dimensions of `x` by the angle of its position (rotary embedding).

    A pair is a dimension of the first half of a head and the same one of the second half.
    """
    torch = importlib.import_module("torch")
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    """Divide `x` by its root mean square over the last dimension, and multiply by `weight`."""
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * (mean_square + epsilon).rsqrt() * weight
