"""Which silent faults versions are known to have, before a GPU is there: images/data/silent_faults.yaml. Pure."""

from collections.abc import Mapping
from functools import cache

from images.config import yamlfile
from images.config.facts import Capability, RangeText, Row, Sentence, within


class SilentFault(Row):
    """A row of silent_faults.yaml; validate/kernels/silent/ has its function."""

    issue: Sentence
    what: Sentence
    """What is wrong, as the subject of a sentence."""
    package: str = "torch"
    """An image that pins it is held to the row."""
    torch: RangeText = ""
    """The versions of torch that can do it at all: others refuse it aloud."""
    affected: dict[str, RangeText] = {}
    """Distribution, or `cudnn` -> the versions that have it: all must hold. Empty: mended before any that we pin."""
    remedy: str = ""
    tolerance: float
    """Largest difference, as a part of the largest right value."""
    times: float = 0
    """As long as the right way it may take; 0: nobody looks."""
    capability: Capability = "0.0"
    gigabytes: float = 0
    """Of GPU memory that it takes, about: on a smaller GPU nobody reaches the fault."""
    cpu: bool = False
    """It shows without a GPU, in the cpu tier."""
    alone: bool = False
    """It may end its process: it runs in a fork."""
    ordinary: RangeText | None = None
    """The versions of torch with which plain training meets it, not just shapes or programs that few have: aliases
    avoid such images. None: no version."""

    def __str__(self) -> str:
        return f"silently wrong: {self.what} ({self.issue})" + (
            f"; {self.remedy}" if self.remedy else ""
        )

    def is_ordinary(self, torch: str) -> bool:
        return self.ordinary is not None and within(torch, self.ordinary)

    def of(self, versions: Mapping[str, str]) -> bool:
        """Whether these versions are known to have it. A cuDNN that is not known excludes nothing."""
        ranges = self.affected.items()
        return bool(ranges) and all(
            within(versions[name], wanted) for name, wanted in ranges if name in versions
        )


@cache
def faults() -> Mapping[str, SilentFault]:
    """Subject -> row."""
    return {
        name: SilentFault.model_validate(row)
        for name, row in yamlfile.table("silent_faults.yaml").items()
    }


def known(versions: Mapping[str, str]) -> dict[str, SilentFault]:
    """The faults that these versions (of distributions, and of `cudnn`) are known to have."""
    return {
        name: row for name, row in faults().items() if row.package in versions and row.of(versions)
    }


def ordinary(label: str, torch: str) -> list[str]:
    """The sentences of those that an image's label names (`ISSUE ISSUE`) and plain training meets: aliases avoid it."""
    return [
        str(row)
        for row in faults().values()
        if row.is_ordinary(torch) and row.issue in label.split()
    ]
