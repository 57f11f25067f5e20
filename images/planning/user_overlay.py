"""The user overlay: where an image's users write and install, what their packages may not move, and what fits them.

Their home has every cache below it, and the environment that they install into: one folder, so that one volume keeps
it all. The image makes it for everybody to write to (templates/scripts/user.sh).
"""

from collections.abc import Collection, Mapping

from images.config import yamlfile
from images.config.facts import Row
from images.planning import expectations
from images.planning.image import Image

USER = 1001
"""A number, so that Kubernetes can tell that it is not root; 1000 is taken in Ubuntu's images."""
HOME = "/home/trainer"
CACHE = f"{HOME}/.cache"
# torch.compile asks who the user is, and an unknown uid has no name (pytorch#140765).
IDENTITY: Mapping[str, str] = {"HOME": HOME, "USER": "trainer", "LANG": "C.UTF-8"}
SUITE = "/opt/truetag"
"""What an image has of its own: the suite, the constraints, the environment of the user overlay."""
CONSTRAINTS = f"{SUITE}/constraints.txt"


def python(image: Image) -> str:
    """What pip and uv install for (templates/additions/python.sh). A path an image: uv remembers what is at one."""
    return f"{SUITE}/additions/{image.lock_name}/python"


def environment(image: Image, key: str) -> str:
    """Where users' packages go. `key` tells one lock from another: packages chosen for one don't fit the next."""
    return f"{CACHE}/venvs/{image.lock_name}-{key}"


def variables(image: Image) -> Mapping[str, str]:
    """What the image sets so that caches lie in the home, and so that nothing that is added moves torch."""
    meant = {
        "cache": CACHE,
        "image": image.lock_name,
        "constraints": CONSTRAINTS,
        "python": python(image),
    }
    return {name: value.format(**meant) for name, value in expectations.USER_VARIABLES.items()}


NONE_FITS = "0+none.fits.this.torch"
"""A release that no package has: pip and uv show it where they refuse one."""


def held(image: Image, locked: Mapping[str, str], missing: Collection[str]) -> dict[str, str]:
    """What users' packages may not move: torch, all with kernels for it, and `locked`, of which CUDA's libraries.

    A package with kernels of which no release is made for this torch is held at NONE_FITS.
    """
    pins = {
        pin.name: pin.requirement.partition("==")[2]
        for pin in image.pins
        if pin.name not in missing
        and (pin.name in expectations.HELD or pin.name in expectations.NATIVE or pin.compiled)
    }
    return {
        **dict.fromkeys(image.unfit, NONE_FITS),
        **pins,
        **{name: version for name, version in locked.items() if name.startswith("nvidia-")},
    }


class Package(Row):
    """A package that people add: additions.yaml says what fits which torch, and what to take instead."""

    requirement: str = ""
    """What is typed after `pip install`; default: its name."""
    module: str = ""
    """What is imported of it; default: its name."""
    torch: dict[str, str] = {}
    """Minor version of torch -> the release that is built for it: pip looks at no other, of dozens."""
    instead: str = ""
    """What to take where it is refused: `pip` in the image says so, too."""


def packages() -> Mapping[str, Package]:
    """Name -> row of additions.yaml, with the defaults filled in."""
    data = yamlfile.table("additions.yaml")
    return {
        name: Package(**{"requirement": name, "module": name.replace("-", "_"), **(row or {})})
        for name, row in data.items()
    }
