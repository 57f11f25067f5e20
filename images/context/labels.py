"""What an image is built on, and its labels: written by a build, and read back from an existing image. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from images.planning import silent
from images.planning.image import Image

LABELS = "dev.truetag"


Origin = Literal["digest", "tag", "bootstrapped", "custom", ""]
"""Where a base came from. Stands in the image's labels."""


@dataclass(frozen=True, kw_only=True)
class BaseContext:
    """What the image is built on."""

    reference: str
    """What stands after FROM."""
    origin: Origin
    digest: str = ""
    """`sha256:...` of the registry's manifest where it came from one, else the image ID."""
    executable: str = "/opt/venv/bin/python"
    """The interpreter that packages are installed for."""
    environment: str = "/opt/venv"
    python: str = ""
    """The release of the Python that the base brings with packages of its own; empty: it brings none."""
    packages: bytes = b""
    """What the first layer installs of Debian, by hash (images/locking/debian.py); empty: what the mirror has."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Python package that the base has, and that stays as it is -> version. Canonical names."""
    torch_cuda: str | None = None
    """The CUDA that the base's torch was made for; None without torch, or for a CPU torch."""

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self:
        """Read what an image says of its base. What a custom base holds is in no label."""
        said = {
            key: labels.get(f"{LABELS}.{key}", "") for key in ("base", "base-origin", "base-digest")
        }
        known: dict[str, Origin] = {origin: origin for origin in get_args(Origin)}
        return cls(
            reference=said["base"],
            origin=known.get(said["base-origin"], ""),
            digest=said["base-digest"],
        )


def labels(
    image: Image, base_context: BaseContext, missing: Mapping[str, str], recipe: str = ""
) -> dict[str, str]:
    """What the image says of itself: OCI's own keys, and ours."""
    of_row = _of_row(image, missing, custom_base=base_context.origin == "custom")
    ours = {
        **of_row,
        "matrix-revision": image.revision,
        "silent-faults": " ".join(
            sorted(row.issue for row in silent.known(image.versions).values())
        ),
        "base": base_context.reference,
        "base-origin": base_context.origin,
        "base-digest": base_context.digest,
        "recipe": recipe,
    }
    oci = {
        "org.opencontainers.image.title": str(image.name),
        "org.opencontainers.image.description": (
            f"CUDA training image: torch {of_row['torch']}, CUDA {image.wheel_cuda} wheel, toolkit {image.toolkit_cuda}"
        ),
        "org.opencontainers.image.version": image.revision,
        "org.opencontainers.image.base.name": base_context.reference,
        "org.opencontainers.image.base.digest": base_context.digest,
    }
    own = {f"{LABELS}.{key}": value for key, value in ours.items()}
    return {key: value for key, value in sorted({**oci, **own}.items()) if value}


def _of_row(image: Image, missing: Mapping[str, str], *, custom_base: bool) -> dict[str, str]:
    """Those that change only with what the matrix and the facts say of this very image."""
    pins = {pin.name: pin.version for pin in image.pins if pin.name not in missing}
    # For which architecture alone it has device code; `nvidia` where that goes for NVIDIA's libraries, too.
    pruned = (
        f"{image.pruning.arch}{' nvidia' if image.pruning.nvidia else ''}" if image.pruning else ""
    )
    return {
        "image": str(image.name),
        "platform": str(image.name.platform) if image.name.platform.suffix else "",
        "torch": pins["torch"],
        "python": str(image.python),
        "wheel-cuda": str(image.wheel_cuda),
        "toolkit-cuda": str(image.toolkit_cuda),
        "archs": " ".join(map(str, image.archs)),
        "pruned": pruned if not custom_base else "",
        "min-driver": image.min_driver,
        "pins": json.dumps(pins, sort_keys=True, separators=(",", ":")),
        "missing": json.dumps(dict(sorted(missing.items()))) if missing else "",
    }


def describe(labels: Mapping[str, str], image: Image) -> bool:
    """Whether a build of this image would write the same labels, on whatever base and by whatever matrix revision."""
    today = _of_row(image, declared_missing(image, labels), custom_base=on_custom_base(labels))
    return all(labels.get(f"{LABELS}.{key}", "") == value for key, value in today.items())


def declared_missing(image: Image, labels: Mapping[str, str]) -> dict[str, str]:
    """What an image says it goes without. Only a pin that the matrix marks optional can be excused so, and compiled
    extensions that the profile would have."""
    try:
        said = json.loads(labels.get(f"{LABELS}.missing", "{}"))
    except ValueError:
        return {}
    if not isinstance(said, dict):
        return {}
    excused = {pin.name for pin in image.pins if pin.optional}
    excused |= {pin.lacking for pin in image.pins if pin.extensions}
    return {name: str(said[name]) for name in sorted(excused) if name in said}


def on_custom_base(labels: Mapping[str, str]) -> bool:
    """Whether an image says it stands on a custom base, whose other packages no lock knows."""
    return labels.get(f"{LABELS}.base-origin") == "custom"
