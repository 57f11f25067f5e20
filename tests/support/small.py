"""A small frozen matrix with facts of its own.

Tests of rules use it, so that a moved pin of the real matrix breaks none of them.
"""

from pathlib import Path

from images.config import matrix

MATRIX = Path(__file__).with_name("small_matrix.yaml")
FACTS = Path(__file__).with_name("small_facts.yaml")
SOURCES = matrix.load(MATRIX, FACTS)
