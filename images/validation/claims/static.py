"""Claims about installed files: all but device-code and origin, which have modules of their own. Pure."""

from collections.abc import Iterator

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


def static_claims(context: ClaimContext) -> Iterator[Claim]:
    image = context.image
    yield from (_pinned(image, pin) for pin in image.pins)
    yield _locked(context)
    statement = "every installed file is the one its wheel brought, and has one owner"
    yield claim(
        "files", "recorded", "static.files", statement, {"unowned": expectations.START_FILES}
    )
    yield from _linked(image)
    yield from device_code_claims(context)
    parts = [
        *expectations.TOOLKIT_PARTS,
        *(expectations.DEVEL_TOOLKIT_PARTS if image.name.devel else ()),
    ]
    toolkit = {"home": image.toolkit_home, "version": str(image.toolkit_cuda), "parts": parts}
    statement = (
        f"the CUDA {image.toolkit_cuda} toolkit is in {image.toolkit_home}, off the loader's path"
    )
    yield claim("toolkit", "cuda", "static.toolkit", statement, toolkit)
    yield from _assemblers(context)
    environment = {
        "required": {**image.environment, **user_overlay.variables(image), **user_overlay.IDENTITY},
        "denied": expectations.DENIED_VARIABLES,
        "start_files": expectations.START_FILES,
    }
    statement = "the variables are as expected, and nothing changes what users run"
    yield claim("environment", "variables", "static.environment", statement, environment)
    yield from _hygiene(context)
    # `system`: programs that a training job calls, and rdma-core's user space as NCCL opens it. A custom base that has
    # no apt-get may go without: there, the claims are not required, and others are unproven.
    tools = {name: ["-V"] if name == "ssh" else ["--version"] for name in expectations.PROGRAMS}
    libraries = {name: expectations.OPENED[name] for name in expectations.RDMA}
    required, statement = not context.custom_base, f"{', '.join(tools)} are there and run"
    yield claim(
        "system", "tools", "static.system", statement, {"programs": tools}, required=required
    )
    statement = (
        "NCCL's own loader finds rdma-core, with every function and version that it asks for"
    )
    expect = {"libraries": libraries, "providers": list(expectations.RDMA_PROVIDERS)}
    yield claim("system", "verbs", "static.system", statement, expect, required=required)
    yield from file_claims(context)


def _assemblers(context: ClaimContext) -> Iterator[Claim]:
    """toolkit of each ptxas: it knows the GPUs that the facts say its release knows, more than torch has code for."""
    image, facts = context.image, context.facts
    cuda, triton = facts.cuda.get(str(image.toolkit_cuda)), image.versions.get("triton", "")
    of_triton = facts.compilers.get("triton", {}).get(triton)
    for subject, folder, archs in (
        ("ptxas", f"{image.toolkit_home}/bin", cuda.nvcc_archs if cuda else ()),
        ("triton-ptxas", "triton/backends/nvidia/bin", of_triton.archs if of_triton else ()),
    ):
        if archs:
            numbers = [int(arch.replace(".", "")) for arch in archs]
            statement = f"{folder}/ptxas knows {', '.join(archs)}"
            expect = {"folder": folder, "archs": numbers}
            yield claim("toolkit", subject, "static.assemblers", statement, expect)


def _pinned(image: Image, pin: Pin) -> Claim:
    """pins. An official wheel's file name says what it was built for; its metadata may say so, too."""
    official = [wheel.local for wheel in image.prebuilt if wheel.name == pin.name and wheel.local]
    modules, is_torch = expectations.modules_of(pin.name), pin.name == "torch"
    what = f"`import {modules[0]}`" if modules else "what is installed"
    statement = f"{what} is {pin.name} {pin.version}" + (
        f" for CUDA {image.wheel_cuda}" if is_torch else ""
    )
    expect = {
        "version": pin.version,
        # PyTorch's index names the variant in the version, the default index does not: the same wheel.
        "locals": [pin.local] if pin.local else ["", f"cu{image.wheel_cuda.digits}", *official],
        "modules": list(modules),
        "python": str(image.python),
        "shares": list(expectations.NAMESPACES.get(pin.name, ())),
        **(
            {}
            if image.name.platform is Platform.AMD64
            else {"machine": image.name.platform.machine}
        ),
        **({"cuda": str(image.wheel_cuda)} if is_torch else {}),
    }
    return claim("pins", pin.name, "static.pins", statement, expect)


def _locked(context: ClaimContext) -> Claim:
    """pins. A base from a registry may hold more than the lock; ours may not. Of a custom base the lock says
    nothing."""
    image = context.image
    versions = {pin.name: pin.version for pin in image.pins if pin.name not in context.missing}
    for layer in () if context.custom_base else image.layers:
        versions.update(context.locked.get(layer, {}))
    statement = f"the {len(versions)} distributions of the lock are installed, and no others"
    expect = {"versions": versions, "closed": image.base.suite is not None}
    custom = context.unless_custom(
        "it stands on a custom base: what that holds beside the pins is not in the lock"
    )
    return claim("pins", "lock", "static.pins", statement, expect, **custom)


def _linked(image: Image) -> Iterator[Claim]:
    """libraries and symbols."""
    cuda = f"of CUDA {image.wheel_cuda.major} alone"
    for subject, statement, more in (
        ("environment", f"every library finds what it needs, {cuda}, from one owner", ()),
        (
            "toolkit",
            "the toolkit's own libraries and programs find what they need",
            expectations.TOOLKIT_EXCEPTIONS,
        ),
    ):
        expect = {
            "of": subject,
            "home": image.toolkit_home,
            "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major),
            "host": list(expectations.HOST_LIBRARIES),
            "other_platforms": list(expectations.OTHER_PLATFORMS),
            "exceptions": [*expectations.LINK_EXCEPTIONS, *more],
        }
        yield claim("libraries", subject, "static.libraries", statement, expect)
    statement = "every symbol, and every version of one, that a library needs is exported by what it is linked with"
    expect = {
        "host": list(expectations.HOST_LIBRARIES),
        "exceptions": list(expectations.SYMBOL_EXCEPTIONS),
    }
    yield claim("symbols", "resolved", "static.symbols", statement, expect)


def _hygiene(context: ClaimContext) -> Iterator[Claim]:
    """image: what the engine's host measures (labels, size, settings, history), and what root finds in the files."""
    image = context.image
    most = expectations.MOST_BYTES
    most += expectations.MORE_BYTES_DEVEL if image.name.devel else 0
    most += expectations.MORE_BYTES_PROFILE if image.name.profile else 0
    without = "" if image.entrypoint else "out an"
    entrypoint = [ENTRYPOINT] if image.entrypoint else []
    set_by_us = ["PATH", *image.environment, *user_overlay.variables(image), *user_overlay.IDENTITY]
    settings = {
        "capabilities": list(expectations.DRIVER_CAPABILITIES),
        "entrypoint": entrypoint,
        "image_kind": context.image_kind,
        **({} if context.custom_base else {"variables": sorted(set_by_us)}),
    }
    leftovers = {"leftovers": dict(expectations.LEFTOVERS)}
    # Labels that say what the image is. What it was built from and what was known differ from build to build.
    base = BaseContext(reference="", origin="custom" if context.custom_base else "")
    ours = image_labels.LABELS
    of_a_build = (
        f"{ours}.matrix-revision",
        f"{ours}.silent-faults",
        "org.opencontainers.image.version",
    )
    everything, platform = image_labels.labels(image, base, context.missing), image.name.platform
    labels = {
        "labels": {name: value for name, value in everything.items() if name not in of_a_build},
        "silent": everything.get(f"{ours}.silent-faults", "").split(),
        **({} if context.custom_base else {"revision": image.revision}),
        **({} if platform is Platform.AMD64 else {"architecture": platform.architecture}),
    }
    for subject, probe, statement, expect in (
        ("labels", HOST_PROBE, "the labels are true", labels),
        ("size", HOST_PROBE, f"the image is at most {most // 1000**3} GB", {"bytes": most}),
        (
            "settings",
            HOST_PROBE,
            f"it runs as a user, with{without} entrypoint, and asks for the driver",
            settings,
        ),
        ("history", HOST_PROBE, "no credential in variables, labels and build steps", {}),
        (
            "layers",
            HOST_PROBE,
            "no layer hides a file that travels with it",
            {"image_kind": context.image_kind},
        ),
        (
            "leftovers",
            "static.hygiene",
            "no cache, package list or temporary file of the build is left",
            leftovers,
        ),
        ("secrets", "static.hygiene", "no file holds a credential", leftovers),
        ("home", "static.hygiene", "the home is for every user to write to", leftovers),
    ):
        check = "image" if probe == HOST_PROBE else "hygiene"
        yield claim(check, subject, probe, statement, expect, required=subject != "layers")
