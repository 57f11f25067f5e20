"""Silent faults: which versions are known to compute wrong numbers without an error. Pure.

The rows stand in images/data/silent_faults.yaml. The plan needs no GPU to warn about them.
"""

from collections.abc import Mapping
from functools import cache

from images.config import yamlfile
from images.config.facts import Capability, RangeText, Row, Sentence, within

OWNERS = {
    "bitsandbytes": "bitsandbytes-foundation",
    "flash-attention": "Dao-AILab",
    "Liger-Kernel": "linkedin",
    "pytorch": "pytorch",
    "xformers": "facebookresearch",
}
"""Repository on GitHub -> its owner. Facts name an issue of these without the owner."""


class SilentFault(Row):
    """A row of silent_faults.yaml. A function in validate/kernels/silent/ measures each fault."""

    issue: Sentence
    what: Sentence
    """What is wrong, as the subject of a sentence."""
    package: str = "torch"
    """The fault is looked for in images that pin this package."""
    torch: RangeText = ""
    """The torch versions that can meet it; others raise an error instead."""
    affected: dict[str, RangeText] = {}
    """Distribution, or `cudnn` -> the versions with the fault; all of them must match.

    Empty: the fault was mended before any version that we pin."""
    mended: dict[str, RangeText] = {}
    """Versions without the fault among those that `affected` names; all of them must match."""
    remedy: str = ""
    tolerance: float
    """The largest allowed error, as a part of the largest right value."""
    times: float = 0
    """How many times as long as the right way it may take; 0: the time is not measured."""
    capability: Capability = "0.0"
    """The oldest GPU that can show it."""
    gigabytes: float = 0
    """About how much GPU memory it takes to reach the fault. A smaller GPU can't show it."""
    processor: str = ""
    """The only machine whose processors have it, as the kernel calls it; empty: any may."""
    cpu: bool = False
    """Whether it shows without a GPU, and is measured in the cpu tier."""
    alone: bool = False
    """Whether it may end its process, and so is measured in a fork."""
    ordinary: RangeText | None = None
    """The torch versions with which plain training meets it; None: none.

    Aliases avoid such images. With other versions, only rare shapes or programs meet it."""

    def __str__(self) -> str:
        sentence = f"silently wrong: {self.what} ({self.issue})"
        return f"{sentence}; {self.remedy}" if self.remedy else sentence

    @property
    def address(self) -> str:
        """Return where its issue is found, as other messages write it: `pytorch/pytorch#196678`."""
        repository = self.issue.partition("#")[0]
        return f"{OWNERS[repository]}/{self.issue}"

    def is_ordinary(self, torch: str) -> bool:
        """Return whether plain training with this torch version meets the fault."""
        return self.ordinary is not None and within(torch, self.ordinary)

    def is_in(self, versions: Mapping[str, str]) -> bool:
        """Return whether an image with these versions has the fault.

        `versions`: distribution -> version, `cudnn` -> version, and `processor` -> the machine. A
        distribution whose version is not known, such as cuDNN before it is locked, rules nothing
        out; nor does a processor that is not known.
        """
        if self.processor and versions.get("processor", self.processor) != self.processor:
            return False
        # `affected`: distribution -> the versions with the fault.
        for name, affected in self.affected.items():
            if name in versions and not within(versions[name], affected):
                return False
        # An empty `affected`: the fault was mended before any version that we pin.
        return bool(self.affected) and not self._is_mended_in(versions)

    def _is_mended_in(self, versions: Mapping[str, str]) -> bool:
        """Return whether these versions are among those of `mended`. An unknown version is not."""
        if not self.mended:
            return False
        for name, mended in self.mended.items():
            if name not in versions or not within(versions[name], mended):
                return False
        return True


@cache
def faults() -> Mapping[str, SilentFault]:
    """Return all rows of silent_faults.yaml, by the subject of their claim."""
    rows = yamlfile.table("silent_faults.yaml")
    return {subject: SilentFault.model_validate(row) for subject, row in rows.items()}


def find_faults(versions: Mapping[str, str]) -> dict[str, SilentFault]:
    """Return the silent faults of an image with these versions: name -> fault.

    A silent fault gives wrong numbers without an error. Its name (`cudnn-attention-mask`) is its
    key in silent_faults.yaml. `versions`: see `SilentFault.is_in`.
    """
    faults_found = {}
    for subject, fault in faults().items():
        # Other torch versions raise an error in the same place: that is not silent.
        is_met_by_torch = "torch" not in versions or within(versions["torch"], fault.torch)
        # Images that do not pin `package` can't meet the fault.
        if fault.package in versions and is_met_by_torch and fault.is_in(versions):
            faults_found[subject] = fault
    return faults_found


def describe_faults_of_plain_training(label: str, torch: str) -> list[str]:
    """Return a sentence for each silent fault of an image that plain training runs into.

    A silent fault gives wrong numbers without an error. Most only show with rare shapes or
    programs: these are left out.

    `label` is the image's label `silent-faults`, which lists the issues of its faults:
    `pytorch#166643 flash-attention#2260`. `torch` is the version of its torch.
    """
    issues = label.split()
    sentences = []
    for fault in faults().values():
        if fault.is_ordinary(torch) and fault.issue in issues:
            sentences.append(str(fault))
    return sentences
