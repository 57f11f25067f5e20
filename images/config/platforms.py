"""The platforms that images are built for, and their names in Docker, Debian and wheels."""

from enum import StrEnum


class Platform(StrEnum):
    """A platform, under Docker's name for it."""

    AMD64 = "linux/amd64"
    ARM64 = "linux/arm64"

    @property
    def architecture(self) -> str:
        """The architecture as Docker and Debian call it: `arm64`."""
        return self.value.rpartition("/")[2]

    @property
    def machine(self) -> str:
        """The machine as the kernel and wheel tags call it: `aarch64`."""
        return {Platform.AMD64: "x86_64", Platform.ARM64: "aarch64"}[self]

    @property
    def spoken(self) -> str:
        """The machine in sentences: `x86-64`."""
        return self.machine.replace("_", "-")

    @property
    def suffix(self) -> str:
        """The last part of an image's name: `arm64`, or nothing for the default platform."""
        return "" if self is Platform.AMD64 else self.architecture


def of_machine(machine: str) -> Platform | None:
    """Return the platform of a machine, as `uname -m` (`aarch64`) or Docker (`arm64`) names it.

    None: images are built for no such machine.
    """
    for platform in Platform:
        if machine in (platform.machine, platform.architecture):
            return platform
    return None
