"""numerics: a singular value decomposition, which goes through cuSOLVER."""

import importlib
from typing import Any

from validate.kernels import Case, SeededRandom
from validate.kernels.gemm_fp32 import of_float32


def _decomposed(matrix: Any) -> dict[str, Any]:
    """Singular values, and the matrix put together again: single vectors may turn, their product may not.

    On a GPU by QR: torch's default there, Jacobi rotations, stops at 1e-5 itself.
    """
    algorithm = {"driver": "gesvd"} if matrix.is_cuda else {}
    left, values, right = importlib.import_module("torch.linalg").svd(
        matrix, full_matrices=False, **algorithm
    )
    return {"values": values, "matrix": (left * values) @ right}


def _case(rng: SeededRandom) -> Case:
    return Case(
        dtype="float32", inputs={"matrix": rng.normal(193, 71)}, run=_decomposed, plain=_decomposed
    )


KERNEL = of_float32(
    statement="a float32 singular value decomposition is within 1e-5 of float64",
    cases={"193x71": _case},
    libraries=(r"libcusolver\.so",),
)
