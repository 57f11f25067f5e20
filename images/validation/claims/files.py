"""Claims about installed files: they are whole, and users can read, find and trust them.

Nothing here reads a file or asks an engine.
"""

from collections.abc import Iterator

from images.context import pruner, render
from images.context.labels import BaseContext
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.locking.wheel_records import WheelRecord
from images.validation.claims.context import ClaimContext, claim
from validate.checks.static.modes import Part
from validate.checks.static.records import Expected, LockedWheel, without_local
from validate.claims import Claim

_DEBIAN_IS_WHOLE = "every Debian package is wholly installed, and its files are as it brought them"
_MODES_ARE_RIGHT = "users can read what they need, and root alone can change it"
_DEBIANS_ARE_TRUSTED = "Debian's certificate authorities are trusted"
_WHEEL_ELSEWHERE = (
    "its wheel was compiled or fetched on another machine, so its list of files (RECORD) is not "
    "known on this one: nothing needs to be done"
)


def file_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims about all installed files, Python's and Debian's."""
    image = context.image
    # Some judges expect less of an image on a custom base, and of a derived one.
    image_kind = {"image_kind": context.image_kind}
    yield locked_records_claim(context)
    yield from unknown_records_claims(context)

    statement = f"every installed wheel is for Python {image.python}"
    yield claim("wheel-tags", "python", "static.wheel_tags", statement)

    statement = "bytecode is of the image's Python, and of the sources beside it"
    yield claim("bytecode", "headers", "static.bytecode", statement)

    if context.custom_base:
        yield from custom_base_claims(context)
    else:
        yield claim("debian", "packages", "static.debian", _DEBIAN_IS_WHOLE, image_kind)
        yield claim("modes", "users", "static.modes", _MODES_ARE_RIGHT, image_kind)

    # PATH begins with the folder for users' own packages, which is named after the lock.
    if context.lock:
        statement = "nothing is found before what the image brings"
        base = BaseContext(reference="", origin="")
        overlay_key = render.overlay_key(image, context.lock.files)
        path = list(render.search_path(image, base, overlay_key))
        expect = {"path": path, **image_kind}
        yield claim("lookup", "paths", "static.lookup", statement, expect)

    if not context.custom_base:
        yield claim("authorities", "trusted", "static.authorities", _DEBIANS_ARE_TRUSTED)


def custom_base_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims about what a custom base brings, `base/...`, which are not required.

    They are measured as in any image, and reported. The only required one is `modes/users`: users
    must be able to read what they need of the base, such as its Python.
    """
    image_kind = {"image_kind": context.image_kind}
    statement = "users can read the environment, and root alone can change it"
    expect = {"part": Part.NEEDED, **image_kind}
    yield claim("modes", "users", "static.modes", statement, expect)

    expect = {"part": Part.OTHERS, **image_kind}
    yield claim("base", "modes", "static.modes", _MODES_ARE_RIGHT, expect, required=False)
    yield claim("base", "debian", "static.debian", _DEBIAN_IS_WHOLE, image_kind, required=False)
    yield claim("base", "authorities", "static.authorities", _DEBIANS_ARE_TRUSTED, required=False)


def locked_records_claim(context: ClaimContext) -> Claim:
    """Return the claim that each installed package has the RECORD of its locked wheel.

    RECORD is a wheel's list of its files and their hashes; the locks have a digest of each.
    """
    expect = expected_records(context)
    count = len(expect["wheels"])
    return claim(
        "records",
        "locked",
        "static.records",
        f"the RECORDs of {count} distributions are those of the locked wheels",
        expect,
    )


def unknown_records_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield an unproven claim for each package whose wheel is neither in the lock nor here.

    Such a wheel was compiled on another machine, so its RECORD is not known.
    """
    nothing_expected = Expected(wheels={}, built=[], unknown={})
    for name in wheels_elsewhere(context):
        yield claim(
            "records",
            name,
            "static.records",
            f"the RECORD of {name}, which no lock has, is that of its wheel",
            nothing_expected,
            required=False,
            unproven=_WHEEL_ELSEWHERE,
        )


def wheels_elsewhere(context: ClaimContext) -> list[str]:
    """Return the pinned packages whose wheels are neither in the lock nor on this machine.

    Such a wheel was compiled, or fetched by its hash, on the machine that built the image.
    """
    elsewhere = []
    for pin in context.image.pins:
        is_in_image = pin.name not in context.missing
        if pin.extension_source:
            # The lock has this package as pure Python. The image has it from the lock only if there
            # is no wheel with compiled extensions: then `missing` has the entry `NAME extensions`.
            is_from_lock = pin.name_of_extensions in context.missing
        else:
            is_from_lock = pin.locked
        # `outside` has the RECORDs of wheels that are in no lock, but lie on this machine.
        is_here = pin.name in context.outside
        if is_in_image and not is_from_lock and not is_here:
            elsewhere.append(pin.name)
    return elsewhere


def expected_records(context: ClaimContext) -> Expected:
    """Return which RECORD (list of files and hashes) each installed package must have.

    `wheels` has the version of a package, and the digests that its RECORD may have. Packages that
    the build makes or changes are in `built`: those that are installed from source, and in an image
    for one GPU architecture those whose libraries are pruned. If nobody has read the RECORD of a
    package's wheel yet, the package is in `unknown`, with the command that reads it. Wheels that
    are only on other machines are left out (unknown_records_claims).
    """
    image, lock = context.image, context.lock
    wheels: dict[str, LockedWheel] = {}
    built: list[str] = []
    unknown: dict[str, str] = {}

    # Wheels that are in no lock but lie on this machine: `outside` has digests of their RECORDs.
    pinned_versions = {pin.name: pin.version for pin in image.pins}
    for name, digest in context.outside.items():
        wheels[name] = {"version": without_local(pinned_versions[name]), "records": [digest]}

    if lock is None:
        return Expected(wheels=wheels, built=built, unknown=unknown)
    not_from_lock = {*context.outside, *wheels_elsewhere(context)}
    for package in lock.packages():
        if package.name in not_from_lock:
            continue
        records = wheel_records(lock, package)
        is_native = any(record.native for record in records or ())
        if package.name in image.from_source or (
            is_native and pruner.reads(image.pruning, package.name)
        ):
            built.append(package.name)
            continue
        if records:
            digests = [record.record for record in records]
            wheels[package.name] = {"version": without_local(package.version), "records": digests}
        else:
            unknown[package.name] = f"`lock {image.name}` reads the RECORD of its wheel"
    return Expected(wheels=wheels, built=built, unknown=unknown)


def wheel_records(lock: Lock, package: Package) -> list[WheelRecord] | None:
    """Return what the lock has of the RECORDs of a package's wheels; None if it lacks one of them.

    RECORD is a file with a package's list of files. The lock has several wheels of a package if an
    index has several for its version: any of them may be installed.
    """
    records = []
    for wheel_hash in package.hashes:
        record = lock.wheel_records.get(wheel_hash)
        if record is None:
            return None
        records.append(record)
    return records
