"""Labels of images: written by a build, and read back from an image. Also what a base has. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, get_args

from images.planning import silent
from images.planning.image import Image

LABELS = "dev.truetag"
"""The beginning of our own labels' names."""


Origin = Literal["digest", "tag", "bootstrapped", "custom", ""]
"""How a base was acquired; empty: not known. It is one of the image's labels."""


@dataclass(frozen=True, kw_only=True)
class BaseContext:
    """The base image of a build."""

    reference: str
    """The reference after FROM."""
    origin: Origin
    digest: str = ""
    """`sha256:...` of its manifest if a registry has it, else its image ID."""
    python: str = ""
    """The interpreter of a custom base that the image's environment is made with.

    Empty: the build installs Debian's."""
    has_apt: bool = True
    """Whether the base has apt-get. If not, a custom base's own packages are all that there are."""
    packages: bytes = b""
    """The Debian packages that the first layer installs (images/locking/debian.py).

    Empty: those that the mirror has on the day of the build."""

    environment: ClassVar[str] = "/opt/venv"
    """The folder of the Python environment that a build makes on every base."""
    executable: ClassVar[str] = "/opt/venv/bin/python"
    """The interpreter of that environment."""

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self:
        """Return the base image that an image was built on, as the image's labels name it.

        The origin says where the base came from, and is one of the texts of the type `Origin`. Any
        other origin becomes empty, and so does each text without a label.
        """
        # Each text -> itself, which tells mypy that it is an Origin.
        origins: dict[str, Origin] = {origin: origin for origin in get_args(Origin)}
        label = labels.get(f"{LABELS}.base-origin", "")
        return cls(
            reference=labels.get(f"{LABELS}.base", ""),
            origin=origins.get(label, ""),
            digest=labels.get(f"{LABELS}.base-digest", ""),
            python=labels.get(f"{LABELS}.base-python", ""),
            has_apt=f"{LABELS}.base-without-apt" not in labels,
        )


def labels(
    image: Image, base_context: BaseContext, missing: Mapping[str, str], recipe: str = ""
) -> dict[str, str]:
    """Return the labels of an image, OCI's own and ours, sorted by name. Empty ones are left out.

    `base_context` is the base that it is built on. `missing`: package -> why the image lacks it.
    `recipe`: the digest of what its layers are made of; empty: not known.
    """
    of_matrix = _labels_of_matrix(image, missing)
    silent_faults = sorted(fault.issue for fault in silent.find_faults(image.versions).values())
    own = {
        **of_matrix,
        "matrix-revision": image.revision,
        "silent-faults": " ".join(silent_faults),
        "base": base_context.reference,
        "base-origin": base_context.origin,
        "base-digest": base_context.digest,
        "base-python": base_context.python,
        "base-without-apt": "" if base_context.has_apt else "true",
        "recipe": recipe,
    }
    oci = {
        "org.opencontainers.image.title": str(image.name),
        "org.opencontainers.image.description": (
            f"CUDA training image: torch {of_matrix['torch']}, "
            f"CUDA {image.wheel_cuda} wheel, toolkit {image.toolkit_cuda}"
        ),
        "org.opencontainers.image.version": image.revision,
        "org.opencontainers.image.base.name": base_context.reference,
        "org.opencontainers.image.base.digest": base_context.digest,
    }
    everything = oci | {f"{LABELS}.{key}": value for key, value in own.items()}
    return {key: value for key, value in sorted(everything.items()) if value}


def _labels_of_matrix(image: Image, missing: Mapping[str, str]) -> dict[str, str]:
    """Return our labels that follow from matrix.yaml and facts.yaml, and from no build.

    Their names are returned without `dev.truetag.` in front. A value may be empty. `missing`:
    package -> why the image lacks it.
    """
    pins = {pin.name: pin.version for pin in image.pins if pin.name not in missing}
    # An image for one GPU architecture: `sm_90`, or `sm_90 nvidia` if code for other GPUs was taken
    # out of NVIDIA's libraries, too.
    pruned = ""
    if image.pruning:
        pruned = str(image.pruning.arch)
        if image.pruning.nvidia:
            pruned += " nvidia"
    return {
        "image": str(image.name),
        "platform": str(image.name.platform) if image.name.platform.suffix else "",
        "torch": pins["torch"],
        "python": str(image.python),
        "wheel-cuda": str(image.wheel_cuda),
        "toolkit-cuda": str(image.toolkit_cuda),
        "archs": " ".join(map(str, image.archs)),
        "pruned": pruned,
        "min-driver": image.min_driver,
        "pins": json.dumps(pins, sort_keys=True, separators=(",", ":")),
        "missing": json.dumps(dict(sorted(missing.items()))) if missing else "",
    }


def match_todays_build(labels: Mapping[str, str], image: Image) -> bool:
    """Return whether labels are those that a build of this image would write today.

    Only labels that follow from matrix and facts are compared. Those that name the base, the recipe
    and the matrix's revision may differ.
    """
    missing = declared_missing(image, labels)
    today = _labels_of_matrix(image, missing)
    return all(labels.get(f"{LABELS}.{key}", "") == value for key, value in today.items())


def declared_missing(image: Image, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the packages that an image lacks, as its own label says: name -> why.

    A name may also be `NAME extensions`, for the compiled extensions of a package. Only names that
    the matrix allows to be lacking are returned (`image` is the matrix's row). A damaged label
    counts as empty.
    """
    try:
        declared = json.loads(labels.get(f"{LABELS}.missing", "{}"))
    except ValueError:
        return {}
    if not isinstance(declared, dict):
        return {}

    may_be_missing = set()
    for pin in image.pins:
        if pin.optional:
            may_be_missing.add(pin.name)
        if pin.extension_source:
            may_be_missing.add(pin.name_of_extensions)
    return {name: str(declared[name]) for name in sorted(may_be_missing) if name in declared}


def on_custom_base(labels: Mapping[str, str]) -> bool:
    """Return whether labels say that an image stands on a custom base."""
    return labels.get(f"{LABELS}.base-origin") == "custom"
