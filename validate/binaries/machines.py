"""The processors that images are made for: what an ELF file, the loader and wheel tags call them."""

from __future__ import annotations

from dataclasses import dataclass

from validate.binaries import elf


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One processor."""

    name: str
    """The kernel's word, and that of wheel tags."""
    spoken: str
    """For sentences."""
    number: int
    """e_machine (System V ABI, and its supplement for AArch64)."""
    triplet: str
    """Debian's multiarch folder."""
    cache_flags: int
    """Of ld.so.cache's entries for libraries of glibc (glibc, sysdeps/generic/ldconfig.h)."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The loader's default folders, Debian's and Red Hat's, in Debian's order."""
        return (f"/lib/{self.triplet}", f"/usr/lib/{self.triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")


X86_64 = Machine(name="x86_64", spoken="x86-64", number=elf.X86_64, triplet="x86_64-linux-gnu", cache_flags=0x0303)
AARCH64 = Machine(name="aarch64", spoken="AArch64", number=183, triplet="aarch64-linux-gnu", cache_flags=0x0A03)
_ALL = (X86_64, AARCH64)


def named(name: str) -> Machine:
    """The machine that `uname -m` calls so. Raises KeyError for one that no image is made for."""
    return {one.name: one for one in _ALL}[name]


def spoken(number: int) -> str:
    """What a file of this e_machine is built for."""
    return next((one.spoken for one in _ALL if one.number == number), f"machine {number}")
