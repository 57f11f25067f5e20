"""Llama in plain torch, independent of transformers, so that it is no judge of itself."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A tiny Llama. Multiples of 64 but no powers of two: bitsandbytes' AVX512-BF16 path refuses anything odder."""

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
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def projections(self) -> Mapping[str, tuple[int, int]]:
        """Each linear layer's weight shape, by parameter name, without the embedding and the head."""
        inner, narrow = self.hidden, self.key_value_heads * self.head
        attention = {"q_proj": (inner, inner), "k_proj": (narrow, inner), "v_proj": (narrow, inner)}
        attention["o_proj"] = (inner, inner)
        mlp = {"gate_proj": (self.intermediate, inner), "up_proj": (self.intermediate, inner)}
        mlp["down_proj"] = (inner, self.intermediate)
        return {
            f"model.layers.{layer}.{block}.{name}": shape
            for layer in range(self.layers)
            for block, parts in (("self_attn", attention), ("mlp", mlp))
            for name, shape in parts.items()
        }


def relative_error(found: Any, wanted: Any) -> float:
    """Error in the 2-norm, relative to what is wanted."""
    found, wanted = (one.detach().cpu().double() for one in (found, wanted))
    return float((found - wanted).norm() / wanted.norm())


def llama_logits(weights: Mapping[str, Any], shape: Shape, tokens: Any, dtype: Any) -> Any:
    """Logits of a Llama with these weights (named as transformers saves them), every step in `dtype`."""
    torch = importlib.import_module("torch")
    weights = {name: weight.to(dtype) for name, weight in weights.items()}
    x = weights["model.embed_tokens.weight"][tokens]
    cosine, sine = (
        part.to(dtype) for part in rotation_factors(shape.head, tokens.shape[-1], shape.rope_theta)
    )
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        normed = _rms_norm(x, weights[at + "input_layernorm.weight"], shape.epsilon)
        x = x + _attention(weights, at + "self_attn.", shape, normed, cosine, sine)
        normed = _rms_norm(x, weights[at + "post_attention_layernorm.weight"], shape.epsilon)
        gate = torch.nn.functional.silu(normed @ weights[at + "mlp.gate_proj.weight"].T)
        up = normed @ weights[at + "mlp.up_proj.weight"].T
        x = x + (gate * up) @ weights[at + "mlp.down_proj.weight"].T
    return _rms_norm(x, weights["model.norm.weight"], shape.epsilon) @ weights["lm_head.weight"].T


def _attention(
    weights: Mapping[str, Any], at: str, shape: Shape, x: Any, cosine: Any, sine: Any
) -> Any:
    torch = importlib.import_module("torch")
    batch, length, _ = x.shape

    def heads(name: str, count: int) -> Any:
        return (
            (x @ weights[f"{at}{name}.weight"].T)
            .view(batch, length, count, shape.head)
            .transpose(1, 2)
        )

    query = apply_rotation(heads("q_proj", shape.heads), cosine, sine)
    group = shape.heads // shape.key_value_heads
    key = apply_rotation(heads("k_proj", shape.key_value_heads), cosine, sine).repeat_interleave(
        group, dim=1
    )
    value = heads("v_proj", shape.key_value_heads).repeat_interleave(group, dim=1)
    score = query @ key.transpose(-1, -2) / shape.head**0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = score.masked_fill(future, float("-inf")).softmax(-1) @ value
    return (
        mixed.transpose(1, 2).reshape(batch, length, shape.hidden) @ weights[at + "o_proj.weight"].T
    )


def rotation_factors(dim: int, length: int, theta: float = 10000.0) -> tuple[Any, Any]:
    """Cosine and sine by position and dimension of a head, in float64."""
    torch = importlib.import_module("torch")
    frequency = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def apply_rotation(x: Any, cosine: Any, sine: Any) -> Any:
    """The first half of each head turned against the second."""
    torch = importlib.import_module("torch")
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight
