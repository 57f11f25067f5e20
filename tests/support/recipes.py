"""Recipes of the real matrix, for tests of what compiles wheels."""

from images.wheels.recipe import BaseCompilers, Recipe, recipe_for
from tests.support.sources import SOURCES, image

COMPILERS = BaseCompilers(digest="sha256:1", gcc=13, nvcc="Build cuda_13.0.r13.0/compiler.36424714_0")


def recipe_of(name: str = "cu130-torch211-sm90", package: str = "causal-conv1d") -> Recipe:
    return recipe_for(image(name), package, SOURCES.matrix)
