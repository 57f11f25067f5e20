"""Silent faults of torch's operators whose index ran over, beyond 2^31 or 2^32 elements.

The last rows are compared with the same operator on these rows alone.
"""

from typing import Any

from validate.kernels.silent import Comparison

_TAIL = 64
"""How many rows at the end are compared, where a whole result would take too much memory."""


def large_layer_norm(torch: Any, device: str, rows: int = 2**22 + 64) -> Comparison:
    """Compare layer_norm of more than 2^32 elements in float16 with its last rows in float32."""
    x = torch.randn(rows, 1024, device=device, dtype=torch.float16)
    computed = torch.layer_norm(x, (1024,))[-_TAIL:].clone()
    return Comparison(computed=computed, reference=torch.layer_norm(x[-_TAIL:].float(), (1024,)))


def large_cumsum(torch: Any, device: str, rows: int = 309504) -> Comparison:
    """Compare cumsum along a dimension of one element with its input: they are the same.

    The input has more than 2^32 elements. Each row is filled with one number from 1 to 97.
    """
    numbers = (torch.arange(rows, device=device) % 97 + 1).to(torch.bfloat16)
    x = numbers[:, None, None].expand(rows, 1, 16384).contiguous()
    return Comparison(computed=x.cumsum(1)[-_TAIL:].clone(), reference=x[-_TAIL:])


def large_stack(torch: Any, device: str, height: int = 8192) -> Comparison:
    """Compare a stack of 32 tensors, each filled with its number from 1 on, with the numbers.

    Only the last column of every 64th row is compared.
    """
    tensors = [torch.full((1, height, 5632), number + 1.0, device=device) for number in range(32)]
    computed = torch.stack(tensors)[:, 0, ::64, -1].clone()
    numbers = torch.arange(32.0, device=device) + 1
    return Comparison(computed=computed, reference=numbers[:, None].expand_as(computed))


def large_arange(torch: Any, device: str, count: int = 2**32) -> Comparison:
    """Compare the last numbers of an arange of `count` + 2^20 with a short arange plus `count`."""
    beyond = 2**20
    computed = torch.arange(count + beyond, device=device)[count:].clone()
    return Comparison(computed=computed, reference=torch.arange(beyond, device=device) + count)


def large_nearest(torch: Any, device: str, side: int = 512) -> Comparison:
    """Compare images that are enlarged to twice their side with the numbers that fill them.

    There are 17 images of 256 channels: the first is 1.0 everywhere, the second 2.0, and so on. To
    enlarge, `nearest` repeats pixels, so each must keep its number. The enlarged images have more
    than 2^31 elements (17 x 256 x 1024 x 1024). Their memory format is channels last.
    """
    numbers = torch.arange(1.0, 18.0, device=device, dtype=torch.bfloat16)
    images = numbers[:, None, None, None].expand(17, 256, side, side)
    images = images.contiguous(memory_format=torch.channels_last)
    enlarged = torch.nn.functional.interpolate(images, scale_factor=2, mode="nearest")
    # Compare a sample of each image: 2 channels, 16 rows, and in these rows the last column. Its
    # shape is [17, 2, 16].
    computed = enlarged[:, ::128, :: side // 8, -1].clone()
    expected = numbers[:, None, None].expand_as(computed)
    return Comparison(computed=computed, reference=expected)


def large_linear(torch: Any, device: str) -> Comparison:
    """Compare the last 32 points of a line, interpolated to over 2^23 points, with float64.

    The line has half as many points, 0 and 1 in turn, in float32. New point i lies between the old
    ones at (i + 0.5) / 2 - 0.5. The fault is to compute this place in float32, which cannot hold
    i + 0.5 beyond 2^23.
    """
    x = torch.tensor([0.0, 1.0], device=device).repeat(2**21 + 2)[None, None]
    exact_x = x.double()
    size = 2 * x.shape[-1]
    interpolate = torch.nn.functional.interpolate
    return Comparison(
        computed=interpolate(x, size=size, mode="linear")[..., -32:].clone(),
        reference=interpolate(exact_x, size=size, mode="linear")[..., -32:].clone(),
    )
