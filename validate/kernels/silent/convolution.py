"""Convolutions that cuDNN and oneDNN computed wrong."""

import time
from typing import Any


def conv3d_bfloat16(
    t: Any, d: str, depth: int = 124, height: int = 1282, width: int = 722
) -> tuple[Any, ...]:
    """Right: plane by plane in two dimensions and float32, every eighth line of each."""
    x = t.randn(1, 16, depth, height, width, device=d, dtype=t.bfloat16)
    weight = t.randn(16, 16, 1, 3, 3, device=d, dtype=t.bfloat16) / 12
    found = t.nn.functional.conv3d(x, weight)
    with t.backends.cudnn.flags(enabled=True, allow_tf32=False):
        planes = [
            t.nn.functional.conv2d(x[:, :, one].float(), weight[:, :, 0].float())[:, :, ::8]
            for one in range(depth)
        ]
    return [found[:, :, one, ::8] for one in range(depth)], planes


def conv3d_patches(t: Any, d: str, count: int = 8192) -> tuple[Any, ...]:
    """The patch embedding of Qwen's vision models. Right: the matrix product that it is, in float32, and in its time:
    a fallback goes patch by patch."""
    x = t.randn(count, 3, 2, 14, 14, device=d, dtype=t.bfloat16)
    weight = t.randn(1280, 3, 2, 14, 14, device=d, dtype=t.bfloat16) / 34
    found, seconds = _clocked(t, d, lambda: t.nn.functional.conv3d(x, weight, stride=(2, 14, 14)))
    product, least = _clocked(t, d, lambda: x.flatten(1).float() @ weight.flatten(1).float().T)
    return found.flatten(1), product, None, {"times": seconds / least}


def _clocked(t: Any, d: str, run: Any) -> tuple[Any, float]:
    """What a call gives, and the seconds of a second one."""
    wait = t.cuda.synchronize if d == "cuda" else bool
    run()
    wait()
    begun = time.perf_counter()
    found = run()
    wait()
    return found, time.perf_counter() - begun


def cpu_conv3d_strided(t: Any, d: str) -> tuple[Any, ...]:
    x = t.randn(4, 64, 12, 14, 4, dtype=t.bfloat16, device=d).to(memory_format=t.channels_last_3d)
    weight = (
        t.randn(32, 64, 3, 3, 3, dtype=t.bfloat16, device=d).to(memory_format=t.channels_last_3d)
        / 42
    )
    conv3d = t.nn.functional.conv3d
    return conv3d(x, weight, stride=3), conv3d(x.float(), weight.float(), stride=3)


def cpu_conv2d_2x2(t: Any, d: str) -> tuple[Any, ...]:
    ones = t.ones(1, 1, 2, 2, dtype=t.bfloat16, device=d)
    found = t.nn.functional.conv2d(ones, ones)
    return found, t.full_like(found, 4), t.ones_like(found)
