"""The user overlay: where users of an image install packages, and what these may not replace.

Users have one home folder. Every cache lies in it, and so does the environment that they install
into, so that one volume keeps all of it. The image makes it writable for everybody
(templates/scripts/user.sh).
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
"""The image's own folder: the suite, the constraints, the commands of the user overlay."""
CONSTRAINTS = f"{SUITE}/constraints.txt"
UV_OVERRIDE = "UV_OVERRIDE"
"""The variable that names a file of requirements which uv takes whatever packages require."""
INSTALLERS_ONLY = frozenset({UV_OVERRIDE})
"""Variables that uv alone reads, while users install: no other file of the image and nothing that
was measured depends on them. They are left out of recipes and of the digest of settings, so that
those recorded before there were such variables stay true."""
NO_FITTING_RELEASE = "0+none.fits.this.torch"
"""A version that no package has. pip and uv show it where they refuse a package held at it."""


def python(image: Image) -> str:
    """Return the path of the interpreter that pip and uv install for.

    It is a script (templates/additions/python.sh). Its path differs
    between images, because uv remembers what it found at a path.
    """
    return f"{SUITE}/additions/{image.lock_name}/python"


def environment(image: Image, key: str) -> str:
    """Return the folder of the environment that users install packages into.

    `key` identifies the image's lock: packages that were chosen for one lock don't fit the next.
    """
    return f"{CACHE}/venvs/{image.lock_name}-{key}"


def variables(image: Image) -> dict[str, str]:
    """Return the variables that put caches into the home and keep torch from being replaced.

    They are environment variables of the image: name -> value.
    """
    # Values of the table have these names in braces: `HF_HOME: "{cache}/huggingface"`.
    values = {
        "cache": CACHE,
        "image": image.lock_name,
        "constraints": CONSTRAINTS,
        "python": python(image),
    }
    variables = {
        name: template.format(**values) for name, template in expectations.USER_VARIABLES.items()
    }
    # A file of exact requirements that replace what packages require, beside the script that
    # `python` names. uv reads it itself; the script does the same for pip, which has no overrides.
    if image.overrides:
        variables[UV_OVERRIDE] = f"{python(image).rpartition('/')[0]}/overrides.txt"
    return variables


def held_versions(
    image: Image, locked: Mapping[str, str], missing: Collection[str]
) -> dict[str, str]:
    """Return the versions of packages that users may not replace: name -> version.

    These are torch and what is held with it (`held` in expectations.yaml), packages with kernels
    for it, and NVIDIA's libraries.

    `locked` has the versions of the layer with torch (distribution -> version), and `missing` the
    packages that this image goes without.
    """
    # No release of these packages has kernels for this torch. At a version that does not exist, pip
    # and uv refuse to install any.
    versions = dict.fromkeys(image.unfit, NO_FITTING_RELEASE)
    for pin in image.pins:
        if pin.name in missing:
            continue
        # `NATIVE`: the packages that have compiled CUDA code, by expectations.yaml.
        has_kernels = pin.name in expectations.NATIVE or pin.compiled
        if has_kernels or pin.name in expectations.HELD:
            # Keep the local version: `2.7.1+cu128`.
            versions[pin.name] = pin.requirement.partition("==")[2]
    for name, version in locked.items():
        if name.startswith("nvidia-"):
            versions[name] = version
    return versions


class Package(Row):
    """A package that people add. additions.yaml says which torch it fits, and what else to take."""

    requirement: str = ""
    """What stands after `pip install`; default: its name."""
    module: str = ""
    """The module that is imported; default: its name."""
    torch: dict[str, str] = {}
    """Torch minor -> the release built for it, so that pip does not try dozens of others."""
    instead: str = ""
    """What to take where it is refused. `pip` in the image prints it."""


def packages() -> dict[str, Package]:
    """Return the rows of additions.yaml by package, with their defaults filled in."""
    packages_by_name = {}
    for name, row in yamlfile.table("additions.yaml").items():
        defaults = {"requirement": name, "module": name.replace("-", "_")}
        packages_by_name[name] = Package(**{**defaults, **(row or {})})
    return packages_by_name
