"""The tables of the choose page: what `nox -s choose` answers for each GPU model, driver and profile."""

from collections.abc import Sequence
from dataclasses import dataclass

from images.config.names import Arch
from images.planning import chooser
from images.planning.chooser import ImageSummary, Machine, Options

OLDER_THAN_ALL = "0"
"""A driver that is older than every known one."""


@dataclass(frozen=True)
class Answers:
    """What `choose` takes on one machine."""

    images: tuple[str, ...]
    """The image for each profile, in the order of the table's columns; empty where none fits."""
    why_none: str
    """Why no image without a profile fits; empty if one does."""


@dataclass(frozen=True)
class GpuTable:
    """The rows of GPU models that get the same answers."""

    models: tuple[str, ...]
    arch: Arch
    arm: bool
    """Whether the host processor is ARM."""
    rows: tuple[tuple[str, Answers], ...]
    """(range of drivers, answers), newest drivers first."""


def gpu_tables(images: Sequence[ImageSummary], profiles: Sequence[str | None]) -> list[GpuTable]:
    """Return a table for each group of GPU models with the same answers, newest architecture first.

    Models differ by architecture, by the processor of their host, and by the images that passed on them.
    """
    groups: dict[tuple[Arch, bool, tuple[str, ...]], list[str]] = {}
    for model, row in chooser.models().items():
        passed = tuple(image.name for image in images if model in image.passed_on)
        groups.setdefault((Arch.parse(row.capability), row.arm, passed), []).append(model)

    tables = []
    for (arch, arm, _passed), models in sorted(groups.items(), reverse=True):
        # All models of a group get the same answers, so the first one stands for them.
        rows = _rows(models[0], arch, arm, images, profiles)
        tables.append(GpuTable(tuple(models), arch, arm, tuple(rows)))
    return tables


def _rows(
    model: str,
    arch: Arch,
    arm: bool,
    images: Sequence[ImageSummary],
    profiles: Sequence[str | None],
) -> list[tuple[str, Answers]]:
    """Return the answers for each range of drivers, newest first. Neighbours with the same answers are one range."""
    ranges: list[tuple[str, Answers]] = []  # (oldest driver, answers), ascending
    for driver in _driver_bounds(images):
        machine = Machine(gpus=(model,), archs=(arch,), driver=driver, arm=arm)
        answers = _answers(machine, images, profiles)
        if not ranges or ranges[-1][1] != answers:
            ranges.append((driver, answers))

    rows = []
    upper = ""
    for lower, answers in reversed(ranges):
        rows.append((_range(lower, upper), answers))
        upper = lower
    return rows


def _driver_bounds(images: Sequence[ImageSummary]) -> list[str]:
    """Return the drivers at which an answer can change, oldest first."""
    bounds = {OLDER_THAN_ALL}
    for image in images:
        bounds |= {image.min_driver, image.native_driver}
    for row in chooser.drivers().values():
        bounds.add(str(row.first))
        if row.last is not None:
            bounds.add(str(row.last + 1))
    return sorted(bounds, key=chooser.version_of)


def _range(lower: str, upper: str) -> str:
    """Return `550.54 or newer, older than 570`, or the half of it that says something."""
    older = f"older than {upper}" if upper else ""
    if lower == OLDER_THAN_ALL:
        return older or "any"
    return f"{lower} or newer, {older}" if older else f"{lower} or newer"


def _answers(
    machine: Machine, images: Sequence[ImageSummary], profiles: Sequence[str | None]
) -> Answers:
    best = []
    why_none = ""
    for profile in profiles:
        of_profile = [image for image in images if image.profile == profile]
        choice = chooser.rank(of_profile, machine, Options(profile=profile))
        best.append(choice.fitting[0].name if choice.fitting else "")

        if profile is None and not choice.fitting:
            faults = list(chooser.wrong_for_gpu(machine))
            if not faults and choice.others:
                # The reasons of the nearest image.
                faults = list(choice.others[0][1])
            why_none = "; ".join(faults)
    return Answers(tuple(best), why_none)
