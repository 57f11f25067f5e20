"""G2 to G9, for every probe of the table of kernels that has no file of its own: a kernel is a row of that table."""

from validate.kernels.judge import judge
from validate.kernels.runner import measure

__all__ = ["CLAIMS", "measure"]

CLAIMS = dict.fromkeys(("G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9"), judge)
