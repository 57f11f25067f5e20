"""Describes how a container gets the host's GPUs. host_gpus.py finds the GPUs, and chooses.

The inventory goes into the claims, so that an image can't skip its own GPU tier by hiding a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from images.hardware.inventory import GpuMode, Inventory


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """How a container gets GPUs: the fields of its ContainerSpec, and words for the report."""

    mode: GpuMode
    reason: str
    """Why this mode was chosen; for `none`, why there is no GPU."""
    inventory: Inventory | None = None
    """The GPUs; None if they are not known."""
    device_requests: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[str, ...] = ()
    binds: Mapping[str, str] = field(default_factory=dict)
    library_path: str = ""
    """A folder to put before those of the image's LD_LIBRARY_PATH; empty: none."""
    injected: Mapping[str, str] = field(default_factory=dict)
    """Variables of the host that the container gets, too."""

    @property
    def attached(self) -> bool:
        """Return whether the container gets GPUs."""
        return self.mode is not GpuMode.NONE

    def environment(self, image: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to set in a container. `image`: those that its image sets."""
        variables = dict(self.injected)
        if self.library_path:
            folders = [self.library_path]
            if image.get("LD_LIBRARY_PATH"):
                folders.append(image["LD_LIBRARY_PATH"])
            variables["LD_LIBRARY_PATH"] = ":".join(folders)
        return variables

    def __str__(self) -> str:
        if not self.attached:
            return f"no GPU: {self.reason}"
        return f"{self.inventory or 'GPUs'}, attached by {self.mode} ({self.reason})"

    def as_json(self) -> dict[str, Any]:
        """Return what evidence records: what the validation run added to the container."""
        return {
            "mode": str(self.mode),
            "reason": self.reason,
            "devices": list(self.devices),
            "library_path": self.library_path,
            "environment": dict(self.injected),
        }


NO_GPU = Attachment(mode=GpuMode.NONE, reason="no GPU was asked for")
