"""Silent faults of convolutions in cuDNN and oneDNN."""

import time
from collections.abc import Callable
from typing import Any

from validate.kernels.silent import Comparison


def conv3d_bfloat16(
    torch: Any, device: str, depth: int = 124, height: int = 1282, width: int = 722
) -> Comparison:
    """Compute a convolution of a large volume in bfloat16, and the right result in float32.

    The fault is about large volumes: by default this one has 1.8 * 10^9 elements. The convolution
    mixes no planes (its size in depth is 1), so the right result is computed plane by plane, as a
    two-dimensional convolution. Every eighth line of each plane is compared. `depth`, `height` and
    `width` are smaller in tests.
    """
    # Each result is a sum of 16 * 1 * 3 * 3 = 144 products. Weights are divided by the root of
    # that, 12, so that results are near 1.
    x = torch.randn(1, 16, depth, height, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(16, 16, 1, 3, 3, device=device, dtype=torch.bfloat16) / 12
    output = torch.nn.functional.conv3d(x, weight)

    reference = []
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for number in range(depth):
            plane = x[:, :, number].float()
            convolved = torch.nn.functional.conv2d(plane, weight[:, :, 0].float())
            reference.append(convolved[:, :, ::8])
    computed = [output[:, :, number, ::8] for number in range(depth)]
    return Comparison(computed=computed, reference=reference)


def conv3d_patches(torch: Any, device: str, count: int = 8192) -> Comparison:
    """Compare the convolution by which Qwen's vision models embed patches with a matrix product.

    Each patch is as large as the kernel, so both compute the same. Times are measured as well: a
    fallback, which convolves patch by patch, takes many times as long.

    count: how many patches there are. Each has 3 channels, 2 frames and 14 x 14 pixels.
    """
    # Each result is a sum of 3 * 2 * 14 * 14 = 1176 products. Weights are divided by the root of
    # that, about 34, so that results are near 1.
    x = torch.randn(count, 3, 2, 14, 14, device=device, dtype=torch.bfloat16)
    weight = torch.randn(1280, 3, 2, 14, 14, device=device, dtype=torch.bfloat16) / 34

    def convolve() -> Any:
        return torch.nn.functional.conv3d(x, weight, stride=(2, 14, 14))

    def multiply() -> Any:
        return x.flatten(1).float() @ weight.flatten(1).float().T

    computed, seconds = _run_and_time(torch, device, convolve)
    reference, reference_seconds = _run_and_time(torch, device, multiply)
    return Comparison(
        computed=computed.flatten(1),
        reference=reference,
        figures={"times": seconds / reference_seconds},
    )


def _run_and_time(torch: Any, device: str, run: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function twice, and return the result and the seconds of the second call.

    The first call may choose an algorithm, which takes time of its own.
    """
    run()
    _wait(torch, device)
    started = time.perf_counter()
    result = run()
    _wait(torch, device)
    return result, time.perf_counter() - started


def _wait(torch: Any, device: str) -> None:
    """Wait until a GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def cpu_conv3d_strided(torch: Any, device: str) -> Comparison:
    """Compute a convolution with a stride in bfloat16, and the same in float32 as the right result.

    The fault is about CPUs with AMX, and volumes whose last extent becomes 1.
    """
    # Each result is a sum of 64 * 3 * 3 * 3 = 1728 products. Weights are divided by the root of
    # that, about 42, so that results are near 1.
    channels_last = torch.channels_last_3d
    x = torch.randn(4, 64, 12, 14, 4, dtype=torch.bfloat16, device=device)
    x = x.to(memory_format=channels_last)
    weight = torch.randn(32, 64, 3, 3, 3, dtype=torch.bfloat16, device=device)
    weight = weight.to(memory_format=channels_last) / 42
    conv3d = torch.nn.functional.conv3d
    return Comparison(
        computed=conv3d(x, weight, stride=3),
        reference=conv3d(x.float(), weight.float(), stride=3),
    )


def cpu_conv2d_2x2(torch: Any, device: str) -> Comparison:
    """Compare a convolution of four ones with four ones in bfloat16 with the sum, 4."""
    ones = torch.ones(1, 1, 2, 2, dtype=torch.bfloat16, device=device)
    output = torch.nn.functional.conv2d(ones, ones)
    return Comparison(
        computed=output, reference=torch.full_like(output, 4), wrong=torch.ones_like(output)
    )
