"""Which containers a trial has, and what is measured in which. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from images.engine.gpus import NO_GPU, Attachment
from images.validation import foreign
from images.validation.foreign import Foreign
from validate.claims import ARBITRARY_UID, AS_ARBITRARY_UID, AS_ROOT, IN_OWN_CONTAINER, Claim, ClaimSet, Tier
from validate.contracts.home import HomeExpect

INSIDE = foreign.ROOT
"""A volume of its own: the container's root is read-only."""
_HOME = "/root"
"""Where an image sets HOME to nothing."""


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """A container and what is measured in it."""

    name: str = ""
    """Unique among the containers of a trial."""
    claims: ClaimSet
    writable: Sequence[str] = ("/tmp",)
    """Folders that are empty and writable there, whatever the image has in them."""
    user: str | None = None
    """None: the image's own."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folder -> a key of validate.claims.MOUNTS."""
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: Attachment = NO_GPU
    ranks: bool = False
    """Probes start a process a GPU."""
    reader: Foreign | None = None
    """What reads the files of an image of another processor in place of its own Python."""


def planned(home: str, claims: ClaimSet, gpus: Attachment) -> Iterator[ContainerPlan]:
    """The container that takes longest first. `home`: of the image's user. Containers without a claim are among them.

    Files are read with the image's home as it is, some by root, as users may
    not see all; what runs the image's code gets an empty, writable home. Only the gpu tiers' container gets GPUs: what
    attaches them (the driver's libraries, LD_LIBRARY_PATH) is never taken for the image's.
    """
    run_in = list(dict.fromkeys(["/tmp", posixpath.normpath(home or _HOME)]))
    special = {*AS_ROOT, *AS_ARBITRARY_UID, *IN_OWN_CONTAINER}
    static, cpu = claims.of([Tier.STATIC]), claims.of([Tier.CPU])
    uid = f"{ARBITRARY_UID}:{ARBITRARY_UID}"
    yield ContainerPlan(name="cpu", claims=cpu.less(special), writable=run_in)
    yield ContainerPlan(name="static", claims=static.less(special))
    # Where NVIDIA's runtime is the default, `all` of the image would bring the driver's files, which have no owner.
    alone = {"TMPDIR": INSIDE, "NVIDIA_VISIBLE_DEVICES": "void"}
    yield ContainerPlan(name="root", claims=static.only(AS_ROOT), writable=(), user="0", environment=alone)
    yield ContainerPlan(name="any-user", claims=cpu.only(AS_ARBITRARY_UID), writable=run_in, user=uid)
    for number, claim in enumerate(cpu.only(IN_OWN_CONTAINER).claims):
        yield _of_one_claim(f"mount-{number}", claim)
    if gpus.attached:
        yield ContainerPlan(name="gpu", claims=claims.of([Tier.GPU]), writable=run_in, gpus=gpus)
        yield ContainerPlan(name="multigpu", claims=claims.of([Tier.MULTIGPU]), writable=run_in, gpus=gpus, ranks=True)


def _of_one_claim(name: str, claim: Claim) -> ContainerPlan:
    """A container as the claim asks for it: whose user it has, and what is mounted where."""
    expect = cast("HomeExpect", claim.expect)
    return ContainerPlan(
        name=name,
        claims=ClaimSet(image="", claims=(claim,)),
        user=f"{expect['uid']}:{expect['gid']}",
        mounts={expect["folder"]: expect["mount"]},
    )
