"""The claims of the static tier: what can be read in an image's files and configuration.

Claims about device code and about whole files have modules of their own. Nothing here reads a file
or asks an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from images.config.platforms import Platform
from images.context import labels as image_labels
from images.context.labels import BaseContext
from images.planning import expectations, user_overlay
from images.planning.image import Image, Pin
from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.device_code import device_code_claims
from images.validation.claims.files import file_claims
from validate.claims import HOST_PROBE, Claim

if TYPE_CHECKING:
    from validate.checks.static.environment import EnvironmentExpect
    from validate.checks.static.files import FilesExpect
    from validate.checks.static.host_image import LabelsExpect, SettingsExpect
    from validate.checks.static.hygiene import HygieneExpect
    from validate.checks.static.libraries import LibrariesExpect, LinkException
    from validate.checks.static.pins import LockExpect, PinExpect
    from validate.checks.static.symbols import SymbolsExpect
    from validate.checks.static.system import VerbsExpect

ENTRYPOINT = "/usr/local/bin/entrypoint"
"""Where templates/stages/image.j2 puts a profile's entrypoint."""
_LABELS_OF_ONE_BUILD = (
    f"{image_labels.LABELS}.matrix-revision",
    f"{image_labels.LABELS}.silent-faults",
    "org.opencontainers.image.version",
)
"""Labels that differ from build to build of the same image, so that no claim can name their
values."""


def static_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield all claims of the static tier, in the order that reports show.

    A claim is a statement about the image that a check tests. Those of this tier are tested without
    running anything of the image. `context` has the image as it was planned, and its lock.
    """
    image = context.image
    for pin in image.pins:
        yield pin_claim(image, pin)
    yield lock_claim(context)
    yield recorded_files_claim()
    yield from library_claims(image)
    yield symbols_claim()
    yield from device_code_claims(context)
    yield toolkit_claim(image)
    yield environment_claim(context)
    yield from configuration_claims(context)
    yield from hygiene_claims(context)
    yield from system_claims(context)
    yield from file_claims(context)


def pin_claim(image: Image, pin: Pin) -> Claim:
    """Return the claim that a pinned package is installed and imported at its version."""
    modules = list(expectations.modules_of(pin.name))
    expect: PinExpect = {
        "version": pin.version,
        "locals": accepted_local_versions(image, pin),
        "modules": modules,
        "python": str(image.python),
        # Other distributions that put files into this package's folder by design.
        "shares": list(expectations.NAMESPACES.get(pin.name, ())),
    }
    # Without this key, the judge expects x86-64.
    if image.name.platform is not Platform.AMD64:
        expect["machine"] = image.name.platform.machine

    # A package without modules, such as a set of libraries, can't be imported.
    subject = f"`import {modules[0]}`" if modules else "what is installed"
    statement = f"{subject} is {pin.name} {pin.version}"
    if pin.name == "torch":
        expect["cuda"] = str(image.wheel_cuda)
        statement += f" for CUDA {image.wheel_cuda}"
    return claim("pins", pin.name, "static.pins", statement, expect)


def accepted_local_versions(image: Image, pin: Pin) -> list[str]:
    """Return the local versions that a pinned package may have: `cu126` for `2.7.1+cu126`.

    A pin with a local version accepts that one only. The empty text stands for a version without a
    local part.
    """
    if pin.local:
        return [pin.local]
    # PyTorch's index has the CUDA variant in the version. The default index has the same wheel
    # without it.
    accepted = ["", f"cu{image.wheel_cuda.digits}"]
    # An official wheel has a local version in its file name: `cu12torch2.7cxx11abitrue`.
    for wheel in image.prebuilt:
        if wheel.name == pin.name and wheel.local:
            accepted.append(wheel.local)
    return accepted


def lock_claim(context: ClaimContext) -> Claim:
    """Return the claim that the distributions of the lock are installed, and no others."""
    image = context.image
    versions = {pin.name: pin.version for pin in image.pins if pin.name not in context.missing}
    for layer in image.layers:
        versions.update(context.locked.get(layer, {}))
    # `closed`: no other Python package may be installed. A Debian suite has only Debian's packages;
    # any other base, such as Ubuntu's, may have further ones that are not in the lock.
    is_own_base = image.base.suite is not None
    expect: LockExpect = {"versions": versions, "closed": is_own_base}
    return claim(
        "pins",
        "lock",
        "static.pins",
        f"the {len(versions)} distributions of the lock are installed, and no others",
        expect,
    )


def recorded_files_claim() -> Claim:
    """Return the claim that installed files are as RECORD says, and that each has an owner."""
    expect: FilesExpect = {"unowned": expectations.START_FILES}
    statement = "every installed file is the one its wheel brought, and has one owner"
    return claim("files", "recorded", "static.files", statement, expect)


def library_claims(image: Image) -> Iterator[Claim]:
    """Yield the claims that shared libraries find the libraries that they need."""
    cuda = f"of CUDA {image.wheel_cuda.major} alone"
    yield library_claim(
        image,
        "environment",
        f"every library finds what it needs, {cuda}, from one owner",
        expectations.LINK_EXCEPTIONS,
    )
    yield library_claim(
        image,
        "toolkit",
        "the toolkit's own libraries and programs find what they need",
        [*expectations.LINK_EXCEPTIONS, *expectations.TOOLKIT_EXCEPTIONS],
    )


def library_claim(
    image: Image,
    subject: Literal["environment", "toolkit"],
    statement: str,
    exceptions: Sequence[LinkException],
) -> Claim:
    """Return the claim `libraries` about the Python environment or about the CUDA toolkit.

    `exceptions`: rows of expectations.yaml, with files that may lack some libraries.
    """
    expect: LibrariesExpect = {
        "of": subject,
        "home": image.toolkit_home,
        "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major),
        # Libraries that need not be in the image: the driver's, and those of AMD's GPUs and so on.
        "host": list(expectations.HOST_LIBRARIES),
        "other_platforms": list(expectations.OTHER_PLATFORMS),
        "exceptions": list(exceptions),
    }
    return claim("libraries", subject, "static.libraries", statement, expect)


def symbols_claim() -> Claim:
    """Return the claim that libraries find every symbol that they need."""
    expect: SymbolsExpect = {
        "host": list(expectations.HOST_LIBRARIES),
        "exceptions": list(expectations.SYMBOL_EXCEPTIONS),
    }
    statement = (
        "every symbol, and every version of one, that a library needs"
        " is exported by what it is linked with"
    )
    return claim("symbols", "resolved", "static.symbols", statement, expect)


def toolkit_claim(image: Image) -> Claim:
    """Return the claim that the CUDA toolkit is complete, and out of the loader's way."""
    parts = list(expectations.TOOLKIT_PARTS)
    if image.name.devel:
        parts += expectations.DEVEL_TOOLKIT_PARTS
    expect = {"home": image.toolkit_home, "version": str(image.toolkit_cuda), "parts": parts}
    statement = (
        f"the CUDA {image.toolkit_cuda} toolkit is in {image.toolkit_home}, off the loader's path"
    )
    return claim("toolkit", "cuda", "static.toolkit", statement, expect)


def environment_claim(context: ClaimContext) -> Claim:
    """Return the claim about the image's variables, and about files that shells and Python run."""
    image = context.image
    required = {**image.environment, **user_overlay.variables(image), **user_overlay.IDENTITY}
    expect: EnvironmentExpect = {
        "required": required,
        "denied": expectations.DENIED_VARIABLES,
        "start_files": expectations.START_FILES,
    }
    # A base image of an organisation may name its package index in these files. That is reported.
    if context.custom_base:
        expect["reported_files"] = list(expectations.INSTALLER_SETTINGS)
    statement = "the variables are as expected, and nothing changes what users run"
    return claim("environment", "variables", "static.environment", statement, expect)


def configuration_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims `image/...`, which the engine's host measures: labels, size and so on."""
    image = context.image
    yield claim("image", "labels", HOST_PROBE, "the labels are true", label_expectation(context))

    limit = size_limit(image)
    statement = f"the image is at most {limit // 1000**3} GB"
    # A custom base is as large as its owner made it.
    required = not context.custom_base
    yield claim("image", "size", HOST_PROBE, statement, {"bytes": limit}, required=required)

    entrypoint = "with entrypoint" if image.entrypoint else "without an entrypoint"
    statement = f"it runs as a user, {entrypoint}, and asks for the driver"
    yield claim("image", "settings", HOST_PROBE, statement, settings_expectation(context))

    statement = "no credential in variables, labels and build steps"
    yield claim("image", "history", HOST_PROBE, statement)

    statement = "no layer hides a file that travels with it"
    yield claim(
        "image",
        "layers",
        HOST_PROBE,
        statement,
        {"image_kind": context.image_kind},
        # The engine may run where its layers can't be read.
        required=False,
    )


def size_limit(image: Image) -> int:
    """Return the bytes that an image may have at most."""
    limit = expectations.MOST_BYTES
    if image.name.devel:
        limit += expectations.MORE_BYTES_DEVEL
    if image.name.profile:
        limit += expectations.MORE_BYTES_PROFILE
    return int(limit)


def label_expectation(context: ClaimContext) -> LabelsExpect:
    """Return the labels that an image must have, its known silent faults, and its architecture.

    Labels that differ from build to build are left out: the judge looks at them by itself. An image
    on a base of ours must also have the revision of the matrix that it is built from.
    """
    image = context.image
    # Only the build knows the base's reference and digest. They are left empty, so no such labels
    # are expected.
    base = BaseContext(reference="", origin="")
    if context.custom_base:
        base = BaseContext(reference="", origin="custom")
    labels = image_labels.labels(image, base, context.missing)
    silent_faults = labels.get(f"{image_labels.LABELS}.silent-faults", "").split()
    for name in _LABELS_OF_ONE_BUILD:
        labels.pop(name, None)
    expect: LabelsExpect = {"labels": labels, "silent": silent_faults}
    if not context.custom_base:
        expect["revision"] = image.revision
    # Without this key, the judge accepts any architecture.
    if image.name.platform is not Platform.AMD64:
        expect["architecture"] = image.name.platform.architecture
    return expect


def settings_expectation(context: ClaimContext) -> SettingsExpect:
    """Return the entrypoint, variables and driver capabilities that an image must declare."""
    image = context.image
    expect: SettingsExpect = {
        "capabilities": list(expectations.DRIVER_CAPABILITIES),
        "entrypoint": [ENTRYPOINT] if image.entrypoint else [],
        "image_kind": context.image_kind,
    }
    # A custom base may set variables of its own.
    if not context.custom_base:
        our_variables = {
            "PATH",
            *image.environment,
            *user_overlay.variables(image),
            *user_overlay.IDENTITY,
        }
        expect["variables"] = sorted(our_variables)
    return expect


def hygiene_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims that there are no leftovers and no credentials, and that users have a home.

    They are called `hygiene/...`. On a custom base, the one about leftovers is `base/leftovers`
    instead, and is not required.
    """
    # Each claim has the patterns of leftovers, also the two that are about something else: one walk
    # over the files measures all three, and it looks for the patterns of every claim.
    expect: HygieneExpect = {"leftovers": dict(expectations.LEFTOVERS)}
    if context.custom_base:
        # Our own build steps leave nothing there, because their caches are mounts. So whatever is
        # found came with the user's base, and does not speak against the image.
        statement = "no cache, package list or temporary file is left"
        yield claim("base", "leftovers", "static.hygiene", statement, expect, required=False)
    else:
        statement = "no cache, package list or temporary file of the build is left"
        yield claim("hygiene", "leftovers", "static.hygiene", statement, expect)

    statement = "no file holds a credential"
    yield claim("hygiene", "secrets", "static.hygiene", statement, expect)

    statement = "the home is for every user to write to"
    yield claim("hygiene", "home", "static.hygiene", statement, expect)


def system_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield claims about Debian's packages: programs that training jobs call, rdma-core for NCCL.

    They are not required on a custom base: without apt-get there, a build can't install them.
    """
    required = not context.custom_base
    # Program -> the arguments with which it prints its version.
    programs = {}
    for name in expectations.PROGRAMS:
        programs[name] = ["-V"] if name == "ssh" else ["--version"]
    statement = f"{', '.join(programs)} are there and run"
    yield claim(
        "system", "tools", "static.system", statement, {"programs": programs}, required=required
    )

    statement = (
        "NCCL's own loader finds rdma-core, with every function and version that it asks for"
    )
    expect: VerbsExpect = {
        # How NCCL and others open each library of rdma-core, and what they ask of it.
        "libraries": {name: expectations.OPENED[name] for name in expectations.RDMA},
        "providers": list(expectations.RDMA_PROVIDERS),
    }
    yield claim("system", "verbs", "static.system", statement, expect, required=required)
