"""How a container gets the host's GPUs; what there is, and the choice, are of host_gpus.py.

The inventory goes into the claims, so that an image can't skip its own GPU tier by hiding a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from images.hardware.inventory import GpuMode, Inventory


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """How a container gets GPUs: fields of a ContainerSpec, and what they are called in the
    report.
    """

    mode: GpuMode
    reason: str
    """Why this mode; for `none` why there is no GPU."""
    inventory: Inventory | None = None
    device_requests: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[str, ...] = ()
    binds: Mapping[str, str] = field(default_factory=dict)
    library_path: str = ""
    """A folder that goes in front of the image's own LD_LIBRARY_PATH."""
    injected: Mapping[str, str] = field(default_factory=dict)

    @property
    def attached(self) -> bool:
        return self.mode is not GpuMode.NONE

    def environment(self, image: Mapping[str, str]) -> dict[str, str]:
        """Variables of the container, given the image's."""
        if not self.library_path:
            return dict(self.injected)
        folders = [self.library_path, *filter(None, [image.get("LD_LIBRARY_PATH")])]
        return {**self.injected, "LD_LIBRARY_PATH": ":".join(folders)}

    def __str__(self) -> str:
        if not self.attached:
            return f"no GPU: {self.reason}"
        return f"{self.inventory or 'GPUs'}, attached by {self.mode} ({self.reason})"

    def as_json(self) -> dict[str, Any]:
        """For the evidence: what the validation run itself added to the container."""
        return {
            "mode": str(self.mode),
            "reason": self.reason,
            "devices": list(self.devices),
            "library_path": self.library_path,
            "environment": dict(self.injected),
        }


NO_GPU = Attachment(mode=GpuMode.NONE, reason="no GPU was asked for")
