"""Claims about where users write: C8 of the caches, C11 of packages that are added. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from images.planning import home
from images.planning.home import USER
from images.validation.claims.context import ClaimContext
from validate.claims import ARBITRARY_UID, Claim, Tier

if TYPE_CHECKING:
    from validate.checks.cpu.additions import AdditionsExpect
    from validate.checks.cpu.home import HomeExpect

_HOMES: Mapping[str, tuple[int, int, str, bool, str]] = {
    "named volume": (USER, USER, "volume", True, "its own user writes caches and packages to a fresh volume"),
    "named volume, any uid:gid": (
        ARBITRARY_UID,
        ARBITRARY_UID,
        "volume",
        True,
        "so does a user whom it does not know, of a group that it does not know",
    ),
    "named volume, group 0": (ARBITRARY_UID, 0, "volume", True, "so does a user of group 0, as OpenShift has it"),
    "own folder": (
        ARBITRARY_UID,
        ARBITRARY_UID,
        "own",
        True,
        "so does a user to whom an empty folder belongs that is mounted there",
    ),
    "foreign folder": (USER, USER, "foreign", False, "who may not write to what is mounted there is told what to do"),
}
"""Subject of C8 -> uid, gid, what is mounted on the caches' folder, whether that can be written to; the statement."""


def home_claims(context: ClaimContext) -> Iterator[Claim]:
    """C8 for each kind of mount on the caches' folder, and C11 for packages that are added there."""
    image = context.image
    values = home.variables(image)
    caches = {name: value for name, value in values.items() if value.startswith(home.CACHE)}
    for subject, (uid, gid, mount, writable, statement) in _HOMES.items():
        expect: HomeExpect = {
            "uid": uid,
            "gid": gid,
            "folder": home.CACHE,
            "mount": mount,
            "caches": caches,
            "writable": writable,
        }
        yield Claim(id="C8", subject=subject, tier=Tier.CPU, probe="cpu.home", statement=statement, expect=expect)
    additions: AdditionsExpect = {
        "uid": ARBITRARY_UID,
        "gid": ARBITRARY_UID,
        "folder": home.CACHE,
        "mount": "volume",
        "held": home.held(image, context.locked.get(image.layers[0], {}), context.missing),
    }
    yield Claim(
        id="C11",
        subject="pip",
        tier=Tier.CPU,
        probe="cpu.additions",
        statement="a user without root adds a package with pip, and none that wants another torch moves it",
        expect=additions,
    )
