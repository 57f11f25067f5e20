"""Judges of the gpu tier: G0 the device, G1 to G9 the table of kernels, G10 a 4-bit model loaded and trained."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging
from validate.judging.gpu import device, kernel, llama, numerics

JUDGES: Mapping[str, Judging] = {
    "G0": device.judge,
    "G1": numerics.judge,
    **dict.fromkeys(("G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9"), kernel.judge),
    "G10": llama.judge,
}
