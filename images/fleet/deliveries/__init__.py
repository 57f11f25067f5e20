"""Validated images that workers push for `publish`: what a worker is told, what it does, what its answer must be."""
