"""The claims of the static tier: what can be read in an image's files and configuration.

Claims about device code and about whole files have modules of their own. Nothing here reads a file
or asks an engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from images.config.platforms import Platform
from images.context import labels as image_labels
from images.context.labels import BaseContext
from images.planning import expectations, user_overlay
from images.planning.image import Image, Pin
from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.device_code import device_code_claims
from images.validation.claims.files import file_claims
from validate.claims import HOST_PROBE, Claim

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
    """Yield all claims of the static tier, in the order that reports show."""
    image = context.image
    for pin in image.pins:
        yield pin_claim(image, pin)
    yield lock_claim(context)
    yield claim(
        "files",
        "recorded",
        "static.files",
        "every installed file is the one its wheel brought, and has one owner",
        {"unowned": expectations.START_FILES},
    )
    yield from library_claims(image)
    yield symbols_claim()
    yield from device_code_claims(context)
    yield toolkit_claim(image)
    yield from assembler_claims(context)
    yield environment_claim(image)
    yield from configuration_claims(context)
    yield from hygiene_claims()
    yield from system_claims(context)
    yield from file_claims(context)


def pin_claim(image: Image, pin: Pin) -> Claim:
    """Return the claim that a pinned package is installed and imported at its version."""
    expect: dict[str, Any] = {
        "version": pin.version,
        "locals": accepted_local_versions(image, pin),
        "modules": list(expectations.modules_of(pin.name)),
        "python": str(image.python),
        "shares": list(expectations.NAMESPACES.get(pin.name, ())),
    }
    if image.name.platform is not Platform.AMD64:
        expect["machine"] = image.name.platform.machine

    subject = f"`import {expect['modules'][0]}`" if expect["modules"] else "what is installed"
    statement = f"{subject} is {pin.name} {pin.version}"
    if pin.name == "torch":
        expect["cuda"] = str(image.wheel_cuda)
        statement += f" for CUDA {image.wheel_cuda}"
    return claim("pins", pin.name, "static.pins", statement, expect)


def accepted_local_versions(image: Image, pin: Pin) -> list[str]:
    """Return the local versions (`cu126` of `2.7.1+cu126`) that a pinned package may have.

    Without a pinned one, it may have none, that of the image's CUDA (PyTorch's index names the
    variant in the version, the default index has the same wheel without it), or that of an
    official wheel's file name.
    """
    if pin.local:
        return [pin.local]
    accepted = ["", f"cu{image.wheel_cuda.digits}"]
    for wheel in image.prebuilt:
        if wheel.name == pin.name and wheel.local:
            accepted.append(wheel.local)
    return accepted


def lock_claim(context: ClaimContext) -> Claim:
    """Return the claim that the distributions of the lock are installed, and no others."""
    image = context.image
    versions = {pin.name: pin.version for pin in image.pins if pin.name not in context.missing}
    if not context.custom_base:
        for layer in image.layers:
            versions.update(context.locked.get(layer, {}))
    return claim(
        "pins",
        "lock",
        "static.pins",
        f"the {len(versions)} distributions of the lock are installed, and no others",
        # A base from a registry, which has no Debian suite here, may hold more than the lock.
        {"versions": versions, "closed": image.base.suite is not None},
        unproven=context.unproven_on_custom_base(
            "it stands on a custom base: what that holds beside the pins is not in the lock"
        ),
    )


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
    image: Image, subject: str, statement: str, exceptions: Sequence[Mapping[str, Any]]
) -> Claim:
    """Return the claim `libraries` about the Python environment or about the CUDA toolkit.

    `subject`: `environment` or `toolkit`. `exceptions`: rows of expectations.yaml for libraries
    that need not be found.
    """
    expect = {
        "of": subject,
        "home": image.toolkit_home,
        "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major),
        "host": list(expectations.HOST_LIBRARIES),
        "other_platforms": list(expectations.OTHER_PLATFORMS),
        "exceptions": list(exceptions),
    }
    return claim("libraries", subject, "static.libraries", statement, expect)


def symbols_claim() -> Claim:
    """Return the claim that libraries find every symbol that they need."""
    expect = {
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


def assembler_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim for each ptxas: it knows the GPUs that facts.yaml says its release knows.

    These can be more GPUs than torch has code for. There is no claim about a release that
    facts.yaml does not list.
    """
    image, facts = context.image, context.facts
    toolkit = facts.cuda.get(str(image.toolkit_cuda))
    if toolkit:
        yield from assembler_claim("ptxas", f"{image.toolkit_home}/bin", toolkit.nvcc_archs)

    triton = facts.compilers.get("triton", {}).get(image.versions.get("triton", ""))
    if triton:
        yield from assembler_claim("triton-ptxas", "triton/backends/nvidia/bin", triton.archs)


def assembler_claim(subject: str, folder: str, archs: Sequence[str]) -> Iterator[Claim]:
    """Yield the claim that the ptxas of a folder knows these GPUs (`9.0`); nothing without any."""
    if archs:
        expect = {"folder": folder, "archs": [int(arch.replace(".", "")) for arch in archs]}
        statement = f"{folder}/ptxas knows {', '.join(archs)}"
        yield claim("toolkit", subject, "static.assemblers", statement, expect)


def environment_claim(image: Image) -> Claim:
    """Return the claim about the image's variables, and about files that shells and Python run."""
    required = {**image.environment, **user_overlay.variables(image), **user_overlay.IDENTITY}
    expect = {
        "required": required,
        "denied": expectations.DENIED_VARIABLES,
        "start_files": expectations.START_FILES,
    }
    statement = "the variables are as expected, and nothing changes what users run"
    return claim("environment", "variables", "static.environment", statement, expect)


def configuration_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims `image/...`, which the engine's host measures: labels, size and so on."""
    image = context.image
    yield claim("image", "labels", HOST_PROBE, "the labels are true", label_expectation(context))

    limit = size_limit(image)
    statement = f"the image is at most {limit // 1000**3} GB"
    yield claim("image", "size", HOST_PROBE, statement, {"bytes": limit})

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
        required=False,  # the engine may run where its layers can't be read
    )


def size_limit(image: Image) -> int:
    """Return the bytes that an image may have at most."""
    limit = expectations.MOST_BYTES
    if image.name.devel:
        limit += expectations.MORE_BYTES_DEVEL
    if image.name.profile:
        limit += expectations.MORE_BYTES_PROFILE
    return int(limit)


def label_expectation(context: ClaimContext) -> dict[str, Any]:
    """Return the labels that an image must have, and what is known of it besides.

    Labels that say what the image was built from are left out: they differ from build to build.
    """
    image = context.image
    base = BaseContext(reference="", origin="custom" if context.custom_base else "")
    labels = image_labels.labels(image, base, context.missing)
    expect: dict[str, Any] = {
        "labels": {
            name: value for name, value in labels.items() if name not in _LABELS_OF_ONE_BUILD
        },
        "silent": labels.get(f"{image_labels.LABELS}.silent-faults", "").split(),
    }
    if not context.custom_base:
        expect["revision"] = image.revision
    if image.name.platform is not Platform.AMD64:
        expect["architecture"] = image.name.platform.architecture
    return expect


def settings_expectation(context: ClaimContext) -> dict[str, Any]:
    """Return the entrypoint, variables and driver capabilities that an image must declare."""
    image = context.image
    expect: dict[str, Any] = {
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


def hygiene_claims() -> Iterator[Claim]:
    """Yield the claims `hygiene/...`: what root finds in the files that should not be there."""
    leftovers = {"leftovers": dict(expectations.LEFTOVERS)}
    statement = "no cache, package list or temporary file of the build is left"
    yield claim("hygiene", "leftovers", "static.hygiene", statement, leftovers)

    statement = "no file holds a credential"
    yield claim("hygiene", "secrets", "static.hygiene", statement, leftovers)

    statement = "the home is for every user to write to"
    yield claim("hygiene", "home", "static.hygiene", statement, leftovers)


def system_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield claims about Debian's packages: programs that training jobs call, rdma-core for NCCL.

    They are not required on a custom base: without apt-get there, a build can't install them.
    """
    required = not context.custom_base
    tools = {}
    for name in expectations.PROGRAMS:
        tools[name] = ["-V"] if name == "ssh" else ["--version"]
    statement = f"{', '.join(tools)} are there and run"
    yield claim(
        "system", "tools", "static.system", statement, {"programs": tools}, required=required
    )

    statement = (
        "NCCL's own loader finds rdma-core, with every function and version that it asks for"
    )
    expect = {
        "libraries": {name: expectations.OPENED[name] for name in expectations.RDMA},
        "providers": list(expectations.RDMA_PROVIDERS),
    }
    yield claim("system", "verbs", "static.system", statement, expect, required=required)
