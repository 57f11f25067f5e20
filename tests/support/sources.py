"""The checkout's own matrix and facts, read once for all tests of a process: nothing changes them."""

from images.config import matrix

SOURCES = matrix.load()
