"""What the claims about an image are made from: the planned image, its lock, and the host's GPUs.

Nothing here reads a file or asks an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from images.config.facts import Facts, within
from images.engine.gpus import Attachment
from images.locking.lock_file import Lock
from images.planning import silent
from images.planning.image import Image, Pin
from images.planning.silent import SilentFault
from validate.claims import HOST_PROBES, Claim, ImageKind, Tier

if TYPE_CHECKING:
    from images.context.origin import Origin
    from images.hardware.inventory import Gpu, Inventory
    from validate.checks._silent import SilentExpect

LockedVersions = Mapping[str, Mapping[str, str]]
"""Layer of the image -> distribution -> version, as the lock has them."""
BOGUS_ARCH = 999
"""A compute capability that no GPU has. A compiler that accepts it did not check its target."""


@dataclass(frozen=True, kw_only=True)
class ClaimContext:
    """Everything that decides what an image is held to.

    Make it with `from_lock`; add the host's GPUs with `on_host`.
    """

    image: Image
    facts: Facts
    locked: LockedVersions = field(default_factory=dict)
    """The versions that the image must have installed, besides its pins."""
    lock: Lock | None = None
    """The lock with the RECORD digests of its wheels. None: claims about RECORDs are unproven."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Distributions whose wheels are in no lock -> digest of the wheel's RECORD, where it is
    known."""
    custom_base: bool = False
    """Whether the image's label says that it stands on a custom base, an image of the user's own.
    What such a base brings is measured, and not required (files.base_claims)."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Optional pin -> why no wheel of it could be had: claims about it are unproven, and not
    required. A package that is there without its compiled extensions stands as `NAME extensions`
    (Pin.name_of_extensions)."""
    origin: Origin | None = None
    """The recipe of the image's layers. None: no claim about it, as in the image's own copy of its
    claims."""
    inventory: Inventory | None = None
    """The host's GPUs. None: claims accept whatever GPUs the container reports."""
    no_gpu: str = ""
    """Why there is no GPU: then claims of the gpu tiers are unproven. Empty: there is one."""
    on_gpu: bool = False
    """Whether the gpu tier is measured: an example that runs there is not run on the CPU as
    well."""
    injected: Mapping[str, str] = field(default_factory=dict)
    """Variables that the validation run adds to the image's environment where it attaches GPUs. The
    judge of `transport` must not count them as the image's own."""

    @classmethod
    def from_lock(cls, image: Image, lock: Lock, facts: Facts, **fields: Any) -> ClaimContext:
        """Make the context of a built image, without a host.

        `fields`: further fields of the context, such as `missing` and `custom_base`.
        """
        locked = {layer: lock.versions([layer]) for layer in lock.inputs.layers}
        facts_of_platform = facts.on(image.name.platform)
        return cls(image=image, facts=facts_of_platform, lock=lock, locked=locked, **fields)

    def on_host(self, attachment: Attachment, tiers: Sequence[Tier]) -> ClaimContext:
        """Return a copy of this context for a validation run on a host with certain GPUs.

        `attachment` says how containers get the host's GPUs, or why they get none. `tiers` are
        those that the run measures; empty means all.
        """
        return replace(
            self,
            inventory=attachment.inventory,
            no_gpu="" if attachment.attached else attachment.reason,
            on_gpu=attachment.attached and (not tiers or Tier.GPU in tiers),
            injected=attachment.injected,
        )

    @property
    def image_kind(self) -> ImageKind:
        """Return whether the image stands on our base image or on a user's own.

        Never DERIVED: images/validation/derived_image.py makes the claims of such images.
        """
        return ImageKind.ON_CUSTOM_BASE if self.custom_base else ImageKind.OURS

    @property
    def no_second_gpu(self) -> str:
        """Return why the multigpu tier can't be measured; empty if the host has several GPUs.

        It is also empty if nobody knows how many it has (no inventory).
        """
        if self.no_gpu:
            return self.no_gpu
        if self.inventory and len(self.inventory.gpus) == 1:
            gpu = self.inventory.gpus[0].name
            return f"the host has one GPU ({gpu}): validate on a machine with several"
        return ""

    def reason_without_extensions(self, pin: Pin) -> str:
        """Return why the image lacks a package's compiled extensions; empty if it has them."""
        reason = self.missing.get(pin.name_of_extensions)
        return f"the image goes without {reason}" if reason else ""

    def reason_unknown(self, pin: Pin) -> str:
        """Return that nothing is known of a release; empty if facts.yaml has it."""
        if pin.version in self.facts.releases_of(pin.name):
            return ""
        return f"nothing is known of {pin.name} {pin.version}"


def silent_claims(context: ClaimContext, tier: Literal[Tier.CPU, Tier.GPU]) -> Iterator[Claim]:
    """Yield the claims of a tier that the image does not have known silent faults.

    A silent fault is a wrong result without an error; silent_faults.yaml lists those that were
    reported. There is a claim for each fault that a package of the image could have.
    """
    versions = versions_with_cudnn(context)
    for subject, fault in silent.faults().items():
        tier_of_fault = Tier.CPU if fault.cpu else Tier.GPU
        has_package = fault.package in versions and fault.package not in context.missing
        if tier_of_fault is not tier or not has_package:
            continue
        # `fault.torch` has the versions in which the operation runs at all. In others it raises an
        # error, so nothing can be silently wrong.
        if within(versions["torch"], fault.torch):
            yield silent_claim(context, subject, fault, has_fault=fault.is_in(versions))


def silent_claim(
    context: ClaimContext, subject: str, fault: SilentFault, *, has_fault: bool
) -> Claim:
    """Return the claim that an image does not have a fault that gives wrong numbers without error.

    `has_fault` says whether the versions of its packages are known to have it. If they are, the
    claim is not required, and a wrong result is reported as KNOWN instead of FAIL.
    """
    expect: SilentExpect = {
        "known": has_fault,
        "fault": str(fault),
        "tolerance": fault.tolerance,
        "times": fault.times,
        "gigabytes": fault.gigabytes,
        "alone": fault.alone,
    }
    # Most of these faults can only be seen on a GPU.
    if fault.cpu:
        probe = "cpu.silent"
        unproven = ""
    else:
        probe = "gpu.silent"
        unproven = context.no_gpu

    gpus = context.inventory.gpus if context.inventory else ()
    return claim(
        "silent-faults",
        subject,
        probe,
        f"{fault.issue} is not in it: {fault.what}",
        expect,
        required=not has_fault,
        unproven=unproven,
        not_applicable=reason_out_of_reach(fault, gpus),
    )


def versions_with_cudnn(context: ClaimContext) -> dict[str, str]:
    """Return the versions of the image's pins, and as `cudnn` the cuDNN that the lock installs."""
    versions = dict(context.image.versions)
    for distribution, version in context.locked.get("torch", {}).items():
        if "-cudnn-cu" in distribution:
            versions["cudnn"] = version
    return versions


def reason_out_of_reach(fault: SilentFault, gpus: Iterable[Gpu]) -> str:
    """Return why a silent fault can't occur on one of these GPUs; empty if it can on all."""
    least_capability = tuple(map(int, fault.capability.split(".")))
    for gpu in gpus:
        too_old = reason_too_old([gpu], least_capability)
        if too_old:
            return too_old
        if gpu.memory < fault.gigabytes * 1e9:
            has = f"{gpu.name} has {gpu.memory / 1e9:.0f}"
            return f"takes {fault.gigabytes:g} GB of GPU memory, {has}"
    return ""


def reason_too_old(gpus: Iterable[Gpu], least_capability: tuple[int, ...]) -> str:
    """Return a reason if one of the GPUs has less than this compute capability, else an empty text.

    For `(8, 0)` it reads `takes compute capability 8.0, Tesla T4 has 7.5`.
    """
    for gpu in gpus:
        if gpu.capability < least_capability:
            needed = ".".join(map(str, least_capability))
            actual = ".".join(map(str, gpu.capability))
            return f"takes compute capability {needed}, {gpu.name} has {actual}"
    return ""


def claim(
    check: str,
    subject: str,
    probe: str,
    statement: str,
    expect: Mapping[str, Any] | None = None,
    *,
    required: bool = True,
    unproven: str = "",
    not_applicable: str = "",
) -> Claim:
    """Make a claim: a statement about an image that a validation run tests.

    check, subject: the two halves of its name, `pins/torch`.
    probe: the function that tests it, `static.pins`: validate/checks/static/pins.py.
    statement: what is claimed, in words.
    expect: what the test's result is compared with, in the type that the check declares. (A test
        verifies that type for every image.)
    required: whether the image fails if the claim does not hold.
    unproven: why it can't be tested, if that is known beforehand; empty: it can.
    not_applicable: why the host's GPUs or the image's versions can't do what is claimed; empty:
        they can. This is no fault of the image, so the claim is neither tested nor required.
    """
    # A probe's name begins with its tier. Probes that run on the host look at files only.
    tier = Tier.STATIC
    if probe not in HOST_PROBES:
        tier = Tier(probe.partition(".")[0])
    expectation = dict(expect or {})
    if not_applicable:
        expectation["not_applicable"] = not_applicable
    return Claim(
        check=check,
        subject=subject,
        tier=tier,
        probe=probe,
        statement=statement,
        required=required and not not_applicable,
        expect=expectation,
        unproven=unproven,
    )
