"""Build an image again without any cache, and compare what the builds gave.

Read `Reproduction.build` in `builds` first.
"""
