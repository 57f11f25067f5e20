"""Profiles: environments that people train in, as pins of their own over a stack, in a layer of their own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from images.config.names import Minor
from images.config.schema import Matrix

LAYER = "profile"
"""Where packages go that no layer of the matrix installs: above all that images share, below what moves most."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A profile for one torch, with all that it inherits."""

    name: str
    pins: Mapping[str, str]
    optional: Mapping[str, str]
    """Optional package -> version: taken where it fits."""
    waived: Mapping[str, str]
    """Distribution that is required and left out -> why."""
    unproven: Mapping[str, str]
    """`C10` or `C10 subject` -> why it stays UNPROVEN."""
    extensions: tuple[str, ...]
    """Rows of `sources` that make its packages with their compiled extensions."""
    environment: Mapping[str, str]
    entrypoint: str


def resolve(matrix: Matrix, name: str, minor: Minor) -> Resolved:
    """A profile that is pinned for this torch, with what it inherits: its own rows count over those it extends."""
    torch, line = str(minor), matrix.line(name)
    optional = {key: text for one in line for key, text in one.optional.items()}
    for_torch = {key: text if isinstance(text, str) else text.get(torch, "") for key, text in optional.items()}
    return Resolved(
        name=name,
        pins={pin: version for one in line for pin, version in one.stacks.get(torch, {}).items()},
        optional={key: version for key, version in for_torch.items() if version},
        waived={key: why for one in line for key, why in one.waived.get(torch, {}).items()},
        unproven={key: why for one in line for key, why in one.unproven.get(torch, {}).items()},
        extensions=tuple(dict.fromkeys(row for one in line for row in one.extensions)),
        environment={key: value for one in line for key, value in one.environment.items()},
        entrypoint=next((one.entrypoint for one in reversed(line) if one.entrypoint), ""),
    )


def layers(matrix: Matrix, profile: Resolved | None) -> tuple[str, ...]:
    """An image's layers, bottom first: a profile's own comes below the last, which moves most."""
    shared = tuple(matrix.layers)
    return (*shared[:-1], LAYER, shared[-1]) if profile else shared
