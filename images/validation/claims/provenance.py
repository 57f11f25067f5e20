"""Claims `origin`: what is in the image is what was to be put into it, as known from outside. Pure."""

import re
from collections.abc import Iterator

from images.config.paths import TEMPLATES
from images.context import pruner, render
from images.context.labels import BaseContext
from images.context.templates import EPOCH
from images.host.hashing import sha256
from images.locking.contents import FileContents
from images.locking.lock_file import Lock
from images.planning import expectations, user_overlay
from images.planning.image import Image
from images.validation.claims.context import ClaimContext, claim
from validate.claims import Claim
from validate.environment import wheel_contents

ENTRYPOINT = "/usr/local/bin/entrypoint"
"""Where templates/stages/image.j2 puts a profile's entrypoint."""
_COMMAND = '#!/bin/sh\nexec {python} -I -S /opt/truetag/validate {command} "$@"\n'
_OF_COMPILERS = re.compile(r"bin/(?!ptxas$)|nvvm/bin/|lib64/[^/]+\.a$")
_CUSTOM_BASE = "it stands on a custom base: what that holds is not in the lock"
_UNKNOWN_BASE = "it stands on {}: nothing is known of the files of that"
_NOT_HERE = "its wheel is not on this machine: what it brings is known where it was compiled or fetched"


def provenance_claims(context: ClaimContext) -> Iterator[Claim]:
    """origin of wheels, and of files, lookup and privileges, each with its owner."""
    # Pins of which the image has a wheel that is not the lock's, and of which nothing is known here.
    found = {*context.missing, *context.outside}
    pins = (pin for pin in context.image.pins if pin.name not in found)
    unknown = [pin.name for pin in pins if (pin.lacking not in found if pin.extensions else not pin.locked)]
    wheels = _wheels(context, {*context.outside, *unknown})
    count = len(wheels["wheels"]) + len(wheels["sources"])
    statement = f"the files of {count} distributions are those of the locked wheels"
    custom = base = context.unless_custom(_CUSTOM_BASE)
    if not context.custom_base and context.image.base.suite is None:  # known are Debian's own files, of a suite
        base = {"required": False, "unproven": _UNKNOWN_BASE.format(context.image.base.reference)}
    # A pruner that changed since its wheels were read would take their names from all images for one architecture.
    unmeasured = context.lock and pruner.unmeasured(context.image.pruning, context.lock)
    unproven = custom["unproven"]
    yield claim("origin", "wheels", "static.wheels", statement, wheels, required=not unmeasured, unproven=unproven)
    for name in unknown:
        statement = f"the files of {name}, which no lock has, are those of its wheel"
        nothing: dict[str, object] = {"versions": {}, "wheels": {}, "sources": {}, "unknown": {}}
        yield claim("origin", name, "static.wheels", statement, nothing, required=False, unproven=_NOT_HERE)
    lock = context.lock
    if lock is None:
        return
    image, expect = context.image, _owners(context, lock)
    toolkit = {digest for package in lock.layers.get("toolkit", ()) for digest in package.hashes}
    unread = any(digest not in lock.contents or not lock.contents[digest].paths for digest in toolkit)
    no_toolkit = f"`lock {context.image.name}` reads what the toolkit's wheels bring" if unread else ""
    packages = _debian(image)
    statement = "every Debian package is whole, and as its archive has it"
    yield claim("origin", "packages", "static.packages", statement, packages, **base)
    for subject, statement, reason in (
        ("files", "every file has an owner, and is as its owner has it", no_toolkit),
        ("lookup", "what the shell, the loader and loaders of plugins find first is the image's own", ""),
        ("privileges", "no program has more rights than Debian gives it, and nobody else is trusted", ""),
    ):
        unproven = base["unproven"] or reason
        yield claim("origin", subject, "static.owners", statement, expect, required=base["required"], unproven=unproven)


def _debian(image: Image) -> dict[str, object]:
    """What is asked of Debian's packages. A suite of which nothing is known is held to dpkg's own database."""
    found = expectations.debian().get(f"{image.base.suite}/{image.name.platform.architecture}", {})
    return {
        "known": found.get("packages", {}),
        "suite": image.base.suite,
        "held": list(expectations.HELD_FILES),
        "contents": found.get("generated", {}),
        "asked": [*expectations.DEBIAN_PYTHON, *expectations.DEBIAN_TOOLS],
        "absent": dict(expectations.ABSENT),
        "free": image.base.suite is None,
    }


def _owners(context: ClaimContext, lock: Lock) -> dict[str, object]:
    image, base = context.image, BaseContext(reference="", origin="")
    wheels = [
        [lock.contents[digest] for digest in package.hashes if digest in lock.contents]
        for package in lock.layers.get("toolkit", ())
    ]
    files = wheel_contents.joined(one.files for copies in wheels for one in copies)
    # Of several wheels of a package, one was installed.
    paths = {
        path for copies in wheels if copies for path in set.intersection(*(set(one.paths.split()) for one in copies))
    }
    if not image.name.devel or image.nvcc_suite:  # as templates/scripts/toolkit.sh lays out a toolkit without compilers
        paths = {path for path in paths if not _OF_COMPILERS.match(path)}
    generated = dict(expectations.GENERATED)
    if image.nvcc_suite:
        generated[f"{image.toolkit_home}/*"] = f"Debian {image.nvcc_suite}'s packages, whose files no lock has"
    # What the build's scripts write (templates/scripts/user.sh, suite.sh, stages/image.j2).
    python, folder = base.executable, user_overlay.python(image).rpartition("/")[0]
    added = render.overlay_files(image, base, lock.files, context.missing)
    key = render.overlay_key(image, lock.files)
    steps = {
        "/etc/profile.d/truetag.sh": f"PATH={python.rpartition('/')[0]}:$PATH\n".encode(),
        "/etc/profile.d/truetag_additions.sh": f"PATH={user_overlay.environment(image, key)}/bin:$PATH\n".encode(),
        f"{folder}/python": added["additions/python.sh"],
        f"{folder}/create.py": added["additions/create.py"],
        f"{folder}/settings": added["additions/settings"],
        f"{folder}/hints": added["additions/hints"],
        user_overlay.CONSTRAINTS: added["additions/constraints.txt"],
        **({ENTRYPOINT: (TEMPLATES / "entrypoints" / image.entrypoint).read_bytes()} if image.entrypoint else {}),
    }
    for command in ("validate", "doctor"):
        steps[f"/usr/local/bin/{command}"] = _COMMAND.format(python=python, command=command).encode()
    return {
        "toolkit": {"home": image.toolkit_home, "files": files, "paths": sorted(paths)},
        "steps": {path: sha256(content) for path, content in steps.items()},
        "copies": dict(expectations.COPIES),
        "links": dict(expectations.LINKS),
        "folders": dict(expectations.FOLDERS),
        "generated": generated,
        "path": list(render.search_path(image, base, key)),
        "plugins": dict(expectations.PLUGINS),
        "free": False,
        "made": EPOCH,
        "privileged": dict(expectations.PRIVILEGED),
    }


def _wheels(context: ClaimContext, not_locked: set[str]) -> dict[str, dict[str, object]]:
    """Digests and tags of the locked wheels' files. `not_locked`: whose wheels are not the lock's."""
    versions: dict[str, object] = {}
    wheels: dict[str, object] = {}
    sources: dict[str, object] = {}
    unknown: dict[str, object] = {}
    image, contents = context.image, context.lock.contents if context.lock else {}
    pins = {pin.name: pin.version for pin in image.pins}
    for name, brought in context.outside.items():
        versions[name] = pins[name].partition("+")[0]
        wheels[name] = [{"digest": brought.digest, "tags": brought.tags}]
    for package in context.lock.packages() if context.lock else ():
        name = package.name
        if name in not_locked:
            continue
        versions[name] = package.version.partition("+")[0]
        rows = [contents[digest] for digest in package.hashes if digest in contents]
        known = [one for row in rows if (one := _wheel(row, name, image))]
        if rows and name in image.from_source:
            sources[name] = {"files": rows[0].files, "made": list(expectations.MADE_BY_BUILDS.get(name, ()))}
        elif known and len(known) == len(rows):
            wheels[name] = known
        else:
            unknown[name] = f"`lock {image.name}` reads what its wheel brings"
    return {"versions": versions, "wheels": wheels, "sources": sources, "unknown": unknown}


def _wheel(row: FileContents, name: str, image: Image) -> dict[str, object] | None:
    """What is installed of a wheel; None: it is not known."""
    found = row.wheel
    if found and row.native and image.pruning and pruner.reads(image.pruning, name):
        pruned = row.pruned.get(pruner.key(image.pruning))
        found = pruned if pruned is None or pruned.tags else found
    return {"digest": found.digest, "tags": found.tags} if found else None
