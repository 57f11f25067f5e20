"""Claims S10: what is in the image is what was to be put into it, as known from outside. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from images.config.paths import TEMPLATES
from images.context import additions, pruner, render
from images.context.base_context import BaseContext
from images.host.hashing import sha256
from images.locking.contents import FileContents
from images.locking.lock_file import Lock
from images.planning import expectations, home, owners
from images.planning.image import Image, Pin
from images.validation.claims.context import ClaimContext
from images.validation.claims.profile import ENTRYPOINT
from validate.claims import Claim, Tier
from validate.environment import wheel_contents

if TYPE_CHECKING:
    from validate.checks.static.owners import OwnersExpect
    from validate.checks.static.wheels import LockedWheel, WheelsExpect

_COMMAND = '#!/bin/sh\nexec {python} -I -S /opt/truetag/validate {command} "$@"\n'
_CUSTOM_BASE = "it stands on a custom base: what that holds is not in the lock"


def provenance_claims(context: ClaimContext) -> Iterator[Claim]:
    """S10."""
    wheels = _wheels(context)
    yield _of_wheels(
        "wheels",
        f"the files of {len(wheels['wheels']) + len(wheels['sources'])} distributions are those of the locked wheels",
        wheels,
        _CUSTOM_BASE if context.custom_base else "",
        required=not _unmeasured(context),
    )
    for name in _outside(context):
        yield _of_wheels(
            name,
            f"the files of {name}, which no lock has, are those of its wheel",
            {"versions": {}, "wheels": {}, "sources": {}, "unknown": {}},
            "its wheel is not on this machine: what it brings is known where it was compiled or fetched",
        )

    if context.lock:
        yield from _of_owners(context, context.lock)


def _of_owners(context: ClaimContext, lock: Lock) -> Iterator[Claim]:
    expect, unknown = _owners(context, lock), _unknown_toolkit(context, lock)
    statements = {
        "files": "every file has an owner, and is as its owner has it",
        "lookup": "what the shell, the loader and loaders of plugins find first is the image's own",
        "privileges": "no program has more rights than Debian gives it, and nobody else is trusted",
    }
    for subject, statement in statements.items():
        yield Claim(
            id="S10",
            subject=subject,
            tier=Tier.STATIC,
            probe="static.owners",
            statement=statement,
            required=not context.custom_base,
            expect=expect,
            unproven=_CUSTOM_BASE if context.custom_base else unknown if subject == "files" else "",
        )


def _unknown_toolkit(context: ClaimContext, lock: Lock) -> str:
    """Why it is not known what the toolkit's wheels bring; empty: it is."""
    files = {digest for package in lock.layers.get("toolkit", ()) for digest in package.hashes}
    if all(digest in lock.contents and lock.contents[digest].files for digest in files):
        return ""
    return f"`nox -s contents -- {context.image.name}` reads what the toolkit's wheels bring"


def _owners(context: ClaimContext, lock: Lock) -> OwnersExpect:
    image = context.image
    base = BaseContext(reference="", origin="")
    toolkit = [
        lock.contents[digest]
        for package in lock.layers.get("toolkit", ())
        for digest in package.hashes
        if digest in lock.contents
    ]
    generated = dict(owners.GENERATED)
    if image.nvcc_suite:
        generated[f"{image.toolkit_home}/*"] = f"Debian {image.nvcc_suite}'s packages, whose files no lock has"
    return {
        "toolkit": {"home": image.toolkit_home, "files": wheel_contents.joined(row.files for row in toolkit)},
        "steps": {path: sha256(content) for path, content in written_by_steps(image, base, lock).items()},
        "copies": dict(owners.COPIES),
        "links": dict(owners.LINKS),
        "generated": generated,
        "path": list(render.search_path(image, base, additions.key(image, lock.files))),
        "plugins": dict(owners.PLUGINS),
        "free": False,
        "privileged": dict(owners.PRIVILEGED),
    }


def written_by_steps(image: Image, base: BaseContext, lock: Lock) -> dict[str, bytes]:
    """Path -> content of what the build's scripts write (templates/scripts/user.sh, suite.sh, stages/image.j2)."""
    python, folder = base.executable, home.python(image).rpartition("/")[0]
    added = additions.files(image, base, lock.files, ())
    environment = home.environment(image, additions.key(image, lock.files))
    return {
        "/etc/profile.d/truetag.sh": f"PATH={python.rpartition('/')[0]}:$PATH\n".encode(),
        "/etc/profile.d/truetag_additions.sh": f"PATH={environment}/bin:$PATH\n".encode(),
        f"{folder}/python": added["additions/python.sh"],
        f"{folder}/create.py": added["additions/create.py"],
        f"{folder}/settings": added["additions/settings"],
        **{
            f"/usr/local/bin/{command}": _COMMAND.format(python=python, command=command).encode()
            for command in ("validate", "doctor")
        },
        **({ENTRYPOINT: (TEMPLATES / "entrypoints" / image.entrypoint).read_bytes()} if image.entrypoint else {}),
    }


def _unmeasured(context: ClaimContext) -> bool:
    """Whether nobody has read yet what today's pruner leaves of a wheel. Then the claim is UNPROVEN, and required of no
    build: a changed pruner would otherwise take their names from all images for one GPU architecture.
    """
    pruning = context.image.pruning
    if not pruning or not context.lock:
        return False
    key = pruner.key(pruning)
    return any(
        key not in context.lock.contents[digest].pruned
        for package in context.lock.packages()
        if pruner.reads(pruning, package.name)
        for digest in package.hashes
        if digest in context.lock.contents and context.lock.contents[digest].native
    )


def _of_wheels(subject: str, statement: str, expect: WheelsExpect, unproven: str, *, required: bool = True) -> Claim:
    return Claim(
        id="S10",
        subject=subject,
        tier=Tier.STATIC,
        probe="static.wheels",
        statement=statement,
        required=required and not unproven,
        expect=expect,
        unproven=unproven,
    )


def _outside(context: ClaimContext) -> list[str]:
    """Pins in no lock that the image has, and of whose wheels nothing is known here."""
    return [
        pin.name
        for pin in context.image.pins
        if pin.name not in context.missing and pin.name not in context.outside and _is_outside(context, pin)
    ]


def _is_outside(context: ClaimContext, pin: Pin) -> bool:
    """Whether the image has a wheel of a pin that is not the lock's."""
    return pin.lacking not in context.missing if pin.extensions else not pin.locked


def _wheels(context: ClaimContext) -> WheelsExpect:
    expect: WheelsExpect = {"versions": {}, "wheels": {}, "sources": {}, "unknown": {}}
    lock, image = context.lock, context.image
    pins = {pin.name: pin.version for pin in image.pins}
    for name, brought in context.outside.items():
        expect["versions"][name] = _public(pins[name])
        expect["wheels"][name] = [{"digest": brought.digest, "tags": brought.tags}]
    unheld = {*context.outside, *_outside(context)}
    for package in lock.packages() if lock else ():
        if package.name in unheld:
            continue
        expect["versions"][package.name] = _public(package.version)
        rows = [lock.contents[digest] for digest in package.hashes if digest in lock.contents] if lock else []
        wheels = [one for row in rows if (one := _wheel(row, package.name, image))]
        if rows and package.name in image.from_source:
            made = list(expectations.MADE_BY_BUILDS.get(package.name, ()))
            expect["sources"][package.name] = {"files": rows[0].files, "made": made}
        elif wheels and len(wheels) == len(rows):
            expect["wheels"][package.name] = wheels
        else:
            expect["unknown"][package.name] = f"`nox -s contents -- {image.name}` reads what its wheel brings"
    return expect


def _public(version: str) -> str:
    return version.partition("+")[0]


def _wheel(row: FileContents, name: str, image: Image) -> LockedWheel | None:
    """What is installed of a wheel; None: it is not known."""
    found = row.wheel
    if found and row.native and image.pruning and pruner.reads(image.pruning, name):
        pruned = row.pruned.get(pruner.key(image.pruning))
        found = pruned if pruned is None or pruned.tags else found
    return {"digest": found.digest, "tags": found.tags} if found else None
