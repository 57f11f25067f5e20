"""What claims are written from: the resolved image, its lock, and the host of the validation run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

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

Closure = Mapping[str, Mapping[str, str]]
"""Layer -> distribution -> version."""
BOGUS_ARCH = 999
"""No GPU has it: what compiles for it did not look."""


@dataclass(frozen=True, kw_only=True)
class ClaimContext:
    """Everything that decides what an image is held to. Make it with `from_lock`, add the host with `on_host`."""

    image: Image
    facts: Facts
    locked: Closure = field(default_factory=dict)
    """What the lock has for each layer: with the pins, the closure that the image must hold."""
    lock: Lock | None = None
    """With the RECORDs of its wheels. None: claims about that are unproven."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> digest of its wheel's RECORD, of those that are in no lock and were found."""
    custom_base: bool = False
    """It stands on a custom base, by its own word. What that holds beside the pins is not in the lock, and stays as it
    is: claims about it are unproven, and required, as a label must not loosen what an image is held to."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Optional pin -> why no wheel of it could be had: claims about it are unproven, and not required."""
    origin: Origin | None = None
    """What its layers are made of. None: there is no claim about that, as in the image's own copy of its claims."""
    inventory: Inventory | None = None
    """The host's GPUs. None: what the container's own driver says is taken as it is."""
    no_gpu: str = ""
    """Why there is no GPU: then claims of the gpu tiers are unproven."""
    on_gpu: bool = False
    """The gpu tier is measured: an example that runs there does not run on the CPU as well."""
    injected: Mapping[str, str] = field(default_factory=dict)
    """Variables that the run adds to the image's environment where it attaches GPUs."""

    @property
    def image_kind(self) -> ImageKind:
        """Whose image it is. A derived one is held to its parent's claims (images/validation/child.py)."""
        return ImageKind.ON_CUSTOM_BASE if self.custom_base else ImageKind.OURS

    def without_extensions(self, pin: Pin) -> str:
        """Why the image goes without a package's compiled extensions; empty if it has them."""
        why = self.missing.get(pin.lacking, "")
        return f"the image goes without {why}" if why else ""

    def unless_custom(self, why: str) -> dict[str, Any]:
        """Of a claim that a custom base may break: there it is unproven for this reason."""
        return {"required": True, "unproven": why if self.custom_base else ""}

    @property
    def no_ranks(self) -> str:
        """Why there are no several GPUs: then claims of the multigpu tier are unproven."""
        found = self.inventory.gpus if self.inventory else ()
        return self.no_gpu or (
            f"the host has one GPU ({found[0].name}), several are needed" if len(found) == 1 else ""
        )

    @classmethod
    def from_lock(cls, image: Image, lock: Lock, facts: Facts, **more: Any) -> ClaimContext:
        """The context of a built image, without a host. `more`: fields: what is missing, on which base it stands."""
        locked = {layer: lock.versions([layer]) for layer in lock.inputs.layers}
        return cls(
            image=image, facts=facts.on(image.name.platform), lock=lock, locked=locked, **more
        )

    def on_host(self, attachment: Attachment, tiers: Sequence[Tier]) -> ClaimContext:
        """The same for a run of these tiers (none: all) with these GPUs, or with the reason why there are none."""
        return replace(
            self,
            inventory=attachment.inventory,
            no_gpu="" if attachment.attached else attachment.reason,
            on_gpu=attachment.attached and (not tiers or Tier.GPU in tiers),
            injected=attachment.injected,
        )


def silent_claims(context: ClaimContext, tier: Tier) -> Iterator[Claim]:
    """The silent faults that show in this tier. One that the versions are known to have is not required."""
    gpus = context.inventory.gpus if context.inventory else ()
    locked = [
        ("cudnn", version)
        for name, version in context.locked.get("torch", {}).items()
        if "-cudnn-cu" in name
    ]
    versions = {**context.image.versions, **dict(locked)}
    for subject, row in silent.faults().items():
        lacking = row.package not in versions or row.package in context.missing
        if lacking or row.cpu != (tier is Tier.CPU) or not within(versions["torch"], row.torch):
            continue
        known, gate = (
            row.of(versions),
            next(filter(None, (_too_small(row, gpu) for gpu in gpus)), ""),
        )
        expect: dict[str, Any] = {
            "known": known,
            "fault": str(row),
            **({"not_applicable": gate} if gate else {}),
        }
        expect |= {key: getattr(row, key) for key in ("tolerance", "times", "gigabytes", "alone")}
        statement = f"{row.issue} is not in it: {row.what}"
        unproven = "" if row.cpu else context.no_gpu
        probe = "cpu.silent" if row.cpu else "gpu.silent"
        yield claim(
            "silent-faults",
            subject,
            probe,
            statement,
            expect,
            required=not (known or gate),
            unproven=unproven,
        )


def _too_small(row: SilentFault, gpu: Gpu) -> str:
    """Why nobody reaches a fault on a GPU; empty: it can be reached."""
    if gate := below([gpu], tuple(map(int, row.capability.split(".")))):
        return gate
    if gpu.memory < row.gigabytes * 1e9:
        return f"takes {row.gigabytes:g} GB of GPU memory, {gpu.name} has {gpu.memory / 1e9:.0f}"
    return ""


def below(gpus: Iterable[Gpu], least: tuple[int, ...]) -> str:
    """Which of these GPUs has less than a compute capability; empty: none."""
    found = next((gpu for gpu in gpus if gpu.capability < least), None)
    if not found:
        return ""
    wanted, has = (".".join(map(str, one)) for one in (least, found.capability))
    return f"takes compute capability {wanted}, {found.name} has {has}"


def claim(
    check: str,
    subject: str,
    probe: str,
    statement: str,
    expect: Mapping[str, Any] | None = None,
    **more: Any,
) -> Claim:
    """A claim of its probe's tier; what the engine's host measures counts as static. `more`: as a Claim has it.

    `expect` keeps to the types of its check (validate/checks/), which a test sees to for every image.
    """
    tier = Tier.STATIC if probe in HOST_PROBES else Tier(probe.partition(".")[0])
    return Claim(
        check=check,
        subject=subject,
        tier=tier,
        probe=probe,
        statement=statement,
        expect=expect or {},
        **more,
    )
