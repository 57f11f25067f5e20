"""Claims about files: they are whole, and users can read, find and trust them. Pure."""

from collections.abc import Iterator

from images.context import pruner, render
from images.context.labels import BaseContext
from images.locking.lock_file import Lock
from images.locking.wheel_records import WheelRecord
from images.planning.image import Image
from images.validation.claims.context import ClaimContext, claim
from validate.checks.static.records import Expected, LockedWheel, without_local
from validate.claims import Claim

_CUSTOM_BASE = "it stands on a custom base: what that holds is not in the lock"
_NOT_HERE = "its wheel is not on this machine: its RECORD is known where it was compiled or fetched"


def file_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield claims about RECORDs, and about what else breaks files by accident."""
    yield from _record_claims(context)
    image, kind = context.image, {"image_kind": context.image_kind}

    statement = f"every installed wheel is for Python {image.python}"
    yield claim("wheel-tags", "python", "static.wheel_tags", statement)
    statement = "bytecode is of the image's Python, and of the sources beside it"
    yield claim("bytecode", "headers", "static.bytecode", statement)
    statement = "every Debian package is wholly installed, and its files are as it brought them"
    yield claim("debian", "packages", "static.debian", statement, kind)
    statement = "users can read what they need, and root alone can change it"
    yield claim("modes", "users", "static.modes", statement, kind)
    statement = "nothing is found before what the image brings"
    if context.lock:
        path = _our_folders_on_path(context, render.overlay_key(image, context.lock.files))
        yield claim("lookup", "paths", "static.lookup", statement, {"path": path, **kind})
    statement = "Debian's certificate authorities are trusted"
    yield claim("authorities", "trusted", "static.authorities", statement)


def _our_folders_on_path(context: ClaimContext, key: str) -> list[str]:
    """Return the folders of the PATH whose order and programs are ours to promise.

    Of a custom base, where its Python lies and what that hides is its own: conda's is before /usr/bin.
    """
    if context.custom_base:
        return list(render.own_folders(context.image, key))
    return list(render.search_path(context.image, BaseContext(reference="", origin=""), key))


def _record_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim about the wheels of the lock, and one for each other wheel that is not on this machine."""
    image, lock = context.image, context.lock
    found = {*context.missing, *context.outside}
    not_here = []
    for pin in image.pins:
        if pin.name in found:
            continue
        is_elsewhere = pin.lacking not in found if pin.extensions else not pin.locked
        if is_elsewhere:
            not_here.append(pin.name)

    expect = _expected(context, {*context.outside, *not_here})
    # A pruner that changed since its wheels were read would take their names from all images for one architecture.
    unmeasured = lock and pruner.unmeasured(image.pruning, lock)
    unproven = context.unless_custom(_CUSTOM_BASE)["unproven"]
    statement = (
        f"the RECORDs of {len(expect['wheels'])} distributions are those of the locked wheels"
    )
    yield claim(
        "records",
        "locked",
        "static.records",
        statement,
        {**expect},
        required=not unmeasured,
        unproven=unproven,
    )

    for name in not_here:
        statement = f"the RECORD of {name}, which no lock has, is that of its wheel"
        nothing = Expected(wheels={}, built=[], unknown={})
        yield claim(
            "records",
            name,
            "static.records",
            statement,
            {**nothing},
            required=False,
            unproven=_NOT_HERE,
        )


def _expected(context: ClaimContext, not_locked: set[str]) -> Expected:
    """Return the digests of the locked wheels' RECORDs. `not_locked`: distributions whose wheels are not the lock's."""
    image = context.image
    versions = {pin.name: pin.version for pin in image.pins}
    wheels: dict[str, LockedWheel] = {}
    for name, digest in context.outside.items():
        wheels[name] = {"version": without_local(versions[name]), "records": [digest]}

    built: list[str] = []
    unknown: dict[str, str] = {}
    for package in context.lock.packages() if context.lock else ():
        if package.name in not_locked:
            continue
        if package.name in image.from_source:
            built.append(package.name)
            continue
        records = (
            _records(context.lock, package.hashes, package.name, image) if context.lock else None
        )
        if records:
            wheels[package.name] = {"version": without_local(package.version), "records": records}
        else:
            unknown[package.name] = f"`lock {image.name}` reads the RECORD of its wheel"
    return {"wheels": wheels, "built": built, "unknown": unknown}


def _records(lock: Lock, hashes: tuple[str, ...], name: str, image: Image) -> list[str] | None:
    """Return the digests of a distribution's wheels, as they are installed; None: one of them is not known."""
    records = []
    for digest in hashes:
        row = lock.records.get(digest)
        record = _installed_record(row, name, image) if row else None
        if record is None:
            return None
        records.append(record)
    return records


def _installed_record(row: WheelRecord, name: str, image: Image) -> str | None:
    """Return the digest of a wheel's RECORD once it is installed, and pruned; None: it is not known."""
    if row.native and image.pruning and pruner.reads(image.pruning, name):
        return row.pruned.get(pruner.key(image.pruning))
    return row.record
