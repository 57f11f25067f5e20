"""The kernels of a singular value decomposition, which goes through cuSOLVER."""

import importlib
from typing import Any

from validate.kernels import Case, SeededRandom
from validate.kernels.gemm_fp32 import of_float32


def _decomposed(matrix: Any) -> dict[str, Any]:
    """Return the singular values, and the matrix multiplied together again.

    Singular vectors are not compared: they may turn, but their product may not.
    """
    linalg = importlib.import_module("torch.linalg")
    # On a GPU by QR: torch's default there, Jacobi rotations, stops at an error of 1e-5.
    driver = {"driver": "gesvd"} if matrix.is_cuda else {}
    left, values, right = linalg.svd(matrix, full_matrices=False, **driver)
    return {"values": values, "matrix": (left * values) @ right}


def _case(rng: SeededRandom) -> Case:
    """Return a decomposition of a high matrix."""
    return Case(
        dtype="float32", inputs={"matrix": rng.normal(193, 71)}, run=_decomposed, plain=_decomposed
    )


KERNEL = of_float32(
    statement="a float32 singular value decomposition is within 1e-5 of float64",
    cases={"193x71": _case},
    libraries=(r"libcusolver\.so",),
)
