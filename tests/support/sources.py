"""The checkout's own matrix and facts, read once for all tests of a process.

No test changes them.
"""

from images.config import matrix
from images.config.matrix import Sources
from images.planning import plan
from images.planning.image import Image

SOURCES = matrix.load()


def image(name: str, sources: Sources = SOURCES) -> Image:
    """Return an image of the matrix. Raises AssertionError if the plan refuses it."""
    (planned,) = plan.select([name], sources)
    assert planned.image is not None, planned.reasons
    return planned.image
