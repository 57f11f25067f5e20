"""Claims about installed files: S1 to S4, S6, S7; S8 to S10 have modules of their own. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from images.config.platforms import Platform
from images.planning import expectations, home
from images.planning.image import Image, Pin
from images.validation.claims.context import ClaimContext
from images.validation.claims.device_code import device_code_claims
from images.validation.claims.hygiene import hygiene_claims
from images.validation.claims.provenance import provenance_claims
from images.validation.claims.system import system_claims
from validate.claims import Claim, Tier

if TYPE_CHECKING:
    from validate.checks.static.pins import PinExpect


def static_claims(context: ClaimContext) -> Iterator[Claim]:
    image = context.image
    yield from (_pinned(image, pin) for pin in image.pins)
    yield _locked(context)
    yield Claim(
        id="S2",
        subject="files",
        tier=Tier.STATIC,
        probe="static.files",
        statement="every installed file is the one its wheel brought, and has one owner",
        expect={"unowned": expectations.START_FILES},
    )
    yield from _linked(image)
    yield Claim(
        id="S4",
        subject="symbols",
        tier=Tier.STATIC,
        probe="static.symbols",
        statement="every symbol, and every version of one, that a library needs is exported by what it is linked with",
        expect={
            "host": list(expectations.HOST_LIBRARIES),
            "exceptions": [dict(row) for row in expectations.SYMBOL_EXCEPTIONS],
        },
    )
    yield from device_code_claims(context)
    yield Claim(
        id="S6",
        subject="toolkit",
        tier=Tier.STATIC,
        probe="static.toolkit",
        statement=f"the CUDA {image.toolkit_cuda} toolkit is in {image.toolkit_home}, off the loader's path",
        expect={
            "home": image.toolkit_home,
            "version": str(image.toolkit_cuda),
            "parts": [*expectations.TOOLKIT_PARTS, *(expectations.DEVEL_TOOLKIT_PARTS if image.devel else ())],
        },
    )
    yield Claim(
        id="S7",
        subject="environment",
        tier=Tier.STATIC,
        probe="static.environment",
        statement="the variables are as expected, and nothing changes what users run",
        expect={
            "required": {**image.environment, **home.variables(image)},
            "denied": expectations.DENIED_VARIABLES,
            "start_files": expectations.START_FILES,
        },
    )
    yield from hygiene_claims(context)
    yield from system_claims(context)
    yield from provenance_claims(context)


def _pinned(image: Image, pin: Pin) -> Claim:
    variant = f"cu{image.wheel_cuda.digits}"
    expect: PinExpect = {
        "version": pin.version,
        # PyTorch's index names the variant in the version, the default index does not: the same wheel.
        "locals": [pin.local] if pin.local else ["", variant, *_official_locals(image, pin)],
        "modules": list(expectations.modules_of(pin.name)),
        "python": str(image.python),
        "shares": list(expectations.NAMESPACES.get(pin.name, ())),
    }
    if image.platform is not Platform.AMD64:
        expect["machine"] = image.platform.machine
    if pin.name == "torch":
        expect["cuda"] = str(image.wheel_cuda)
    return Claim(
        id="S1",
        subject=pin.name,
        tier=Tier.STATIC,
        probe="static.pins",
        statement=f"`import {expectations.modules_of(pin.name)[0]}` is {pin.name} {pin.version}"
        + (f" for CUDA {image.wheel_cuda}" if pin.name == "torch" else ""),
        expect=expect,
    )


def _official_locals(image: Image, pin: Pin) -> list[str]:
    """An official wheel's file name says what it was built for; whether its metadata does is the release's affair."""
    return [wheel.local for wheel in image.prebuilt if wheel.name == pin.name and wheel.local]


def _locked(context: ClaimContext) -> Claim:
    """A base from a registry may hold more than the lock; ours may not. Of a custom base the lock says nothing."""
    image = context.image
    versions = {pin.name: pin.version for pin in image.pins if pin.name not in context.missing}
    for layer in () if context.custom_base else image.layers:
        versions.update(context.locked.get(layer, {}))
    return Claim(
        id="S1",
        subject="lock",
        tier=Tier.STATIC,
        probe="static.pins",
        statement=f"the {len(versions)} distributions of the lock are installed, and no others",
        expect={"versions": versions, "closed": image.base.suite is not None},
        required=not context.custom_base,
        unproven="it stands on a custom base: what that holds beside the pins is not in the lock"
        if context.custom_base
        else "",
    )


def _linked(image: Image) -> Iterator[Claim]:
    common = {
        "home": image.toolkit_home,
        "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major),
        "host": list(expectations.HOST_LIBRARIES),
        "other_platforms": list(expectations.OTHER_PLATFORMS),
    }
    exceptions = {
        "environment": expectations.LINK_EXCEPTIONS,
        "toolkit": (*expectations.LINK_EXCEPTIONS, *expectations.TOOLKIT_EXCEPTIONS),
    }
    texts = {
        "environment": f"every library finds what it needs, of CUDA {image.wheel_cuda.major} alone, from one owner",
        "toolkit": "the toolkit's own libraries and programs find what they need",
    }
    for subject, statement in texts.items():
        yield Claim(
            id="S3",
            subject=subject,
            tier=Tier.STATIC,
            probe="static.libraries",
            statement=statement,
            expect={"of": subject, **common, "exceptions": list(exceptions[subject])},
        )
