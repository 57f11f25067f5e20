"""The platforms that images are built for, and what each is called where."""

from enum import StrEnum


class Platform(StrEnum):
    """As Docker writes it."""

    AMD64 = "linux/amd64"
    ARM64 = "linux/arm64"

    @property
    def architecture(self) -> str:
        """Docker's and Debian's word: `arm64`."""
        return self.value.rpartition("/")[2]

    @property
    def machine(self) -> str:
        """The kernel's word, and that of wheel tags: `aarch64`."""
        return {Platform.AMD64: "x86_64", Platform.ARM64: "aarch64"}[self]

    @property
    def spoken(self) -> str:
        """For sentences."""
        return self.machine.replace("_", "-")

    @property
    def suffix(self) -> str:
        """The last part of an image's name; empty for the default platform."""
        return "" if self is Platform.AMD64 else self.architecture


def of_machine(machine: str) -> Platform | None:
    """The platform of a machine as `uname -m` and engines name it (`x86_64`, `aarch64`, `arm64`); None: another."""
    names = {
        name: platform
        for platform in Platform
        for name in (platform.machine, platform.architecture)
    }
    return names.get(machine)
