"""wheel-tags/python: every installed wheel was built for the image's Python and processor.

A wheel of another Python or processor is copied in like any other, and fails when it is imported.
`pip install --python-version 3.10 --target`, `uv pip install --python-platform` and a COPY from
another image do that.
"""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.wheel_tags import Target, fits
from validate.judging import Finding, conclude, failed, listed
from validate.next_steps import BUILD_ANEW

SETTINGS = Settings(reads_files_only=True)


class MisfittingWheel(TypedDict):
    """A wheel that does not fit."""

    name: str
    location: str
    """The folder of sys.path that holds it."""
    tags: list[str]
    """What it was built for: `cp311-cp311-manylinux_2_28_x86_64`."""


class Measured(TypedDict):
    """Wheels on the Python path of the image's user."""

    python: str
    """`3.11`."""
    machine: str
    """`x86_64`."""
    wheels: int
    """How many have tags, which say what they were built for."""
    misfits: list[MisfittingWheel]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Compare the tags of each installed wheel with the image's Python and processor.

    A wheel fits if any of its tags does. Distributions without tags are not from wheels, and are
    left out.
    """
    user, start, distributions = installed.read_user_python()
    target = Target(python=start.version, machine=user.machine)
    wheels = 0
    misfits: list[MisfittingWheel] = []
    for distribution in distributions:
        if not distribution.tags:
            continue
        wheels += 1
        if not any(fits(tag, target) for tag in distribution.tags):
            misfits.append(
                {
                    "name": distribution.name,
                    "location": distribution.location,
                    "tags": list(distribution.tags),
                }
            )

    evidence: Measured = {
        "python": target.python,
        "machine": target.machine,
        "wheels": wheels,
        "misfits": misfits,
    }
    for claim in claims:
        yield claim.subject, evidence


def judge(_subject: str, _expect: object, evidence: Measured) -> Finding:
    """Pass if every installed wheel was built for the image's Python and processor.

    A wheel is the file that a package was installed from. Its tags say what it was built for:
    `cp311-cp311-linux_x86_64`. Also fails if no installed wheel has any.
    """
    if not evidence["wheels"]:
        return failed(
            f"no installed package of Python {evidence['python']} has a WHEEL file with a `Tag:` "
            "line, so it can't be checked which Python and processor they were built for",
            "take the step that removes packages or their `*.dist-info/WHEEL` files out of your "
            "Dockerfile (`docker run --rm IMAGE python -m pip list` shows which packages are "
            f"left), and build the image again; if you have no such step, {BUILD_ANEW}",
        )
    image = f"Python {evidence['python']} on {evidence['machine']}"
    faults = []
    for wheel in evidence["misfits"]:
        tags = listed(wheel["tags"])
        faults.append(
            f"{wheel['name']} in {wheel['location']} is built for {tags}, not for {image}"
        )
    return conclude(faults, f"{evidence['wheels']} wheels are for {image}")


CLAIMS = {"wheel-tags": judge}
NEXT_STEPS = {
    "wheel-tags": "install the package that the reason names again by the image's own pip, without "
    "`--platform`, `--python-version` and `--target`, copy no site-packages from another image, "
    f"and build the image again; if your Dockerfile did none of this, {BUILD_ANEW}"
}
