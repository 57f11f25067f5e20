"""The tables of the site's page on choosing an image.

They show which image `nox -s choose` takes for each GPU model, driver and profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from images.config.names import Arch
from images.planning import chooser
from images.planning.chooser import ImageSummary, Machine, Options

OLDER_THAN_ALL = "0.0"
"""A driver that is older than every known one."""


@dataclass(frozen=True)
class Answers:
    """The images that `choose` takes on one machine."""

    images: tuple[str, ...]
    """The image for each profile, in the order of the table's columns; empty where none fits."""
    why_none: str
    """Why no image without a profile fits; empty if one does."""


class DriverAnswers(NamedTuple):
    """The answers for a range of drivers: a line of a table."""

    drivers: str
    """`550.54 or newer, older than 570`."""
    answers: Answers


@dataclass(frozen=True)
class GpuTable:
    """The answers for GPU models that get the same ones."""

    models: tuple[str, ...]
    arch: Arch
    arm: bool
    """Whether the host processor is ARM."""
    rows: tuple[DriverAnswers, ...]
    """Newest drivers first."""


def gpu_tables(images: Sequence[ImageSummary], profiles: Sequence[str | None]) -> list[GpuTable]:
    """Return tables of the images to choose on each GPU model, newest architecture first.

    Models that get the same images share a table. It has a column for each of `profiles`: a
    training framework such as axolotl, or None for images without one.
    """
    # The choice for a model depends on three things: its architecture, whether its host's processor
    # is ARM, and which images passed on it. The three -> the models that have them in common.
    groups: dict[tuple[Arch, bool, tuple[str, ...]], list[str]] = {}
    for model, facts in chooser.models().items():
        passed_images = tuple(image.name for image in images if model in image.passed_on)
        group = (Arch.parse(facts.capability), facts.arm, passed_images)
        groups.setdefault(group, []).append(model)

    tables = []
    for (arch, arm, _passed), models in sorted(groups.items(), reverse=True):
        # All models of a group get the same answers, so the first one stands for them.
        rows = _driver_rows(models[0], arch, arm, images, profiles)
        tables.append(GpuTable(tuple(models), arch, arm, tuple(rows)))
    return tables


def _driver_rows(
    model: str,
    arch: Arch,
    arm: bool,
    images: Sequence[ImageSummary],
    profiles: Sequence[str | None],
) -> list[DriverAnswers]:
    """Return a GPU model's answers for each range of drivers, newest drivers first.

    An answer is the image to choose for each profile. Neighbouring ranges with the same answers are
    merged. `arm`: whether the host processor is ARM. `profiles`: see `gpu_tables`.
    """
    # (oldest driver of a range, answers), oldest range first.
    ranges: list[tuple[str, Answers]] = []
    for driver in _driver_bounds(images):
        machine = Machine(gpus=(model,), archs=(arch,), driver=driver, arm=arm)
        answers = _answers(machine, images, profiles)
        if not ranges or ranges[-1][1] != answers:
            ranges.append((driver, answers))

    # The newest range has no upper end. Each other one ends where the next newer one begins.
    rows = []
    upper = ""
    for lower, answers in reversed(ranges):
        rows.append(DriverAnswers(_range_text(lower, upper), answers))
        upper = lower
    return rows


def _driver_bounds(images: Sequence[ImageSummary]) -> list[str]:
    """Return the driver versions at which an answer can change, oldest first.

    They are the versions that an image needs, the first branch of drivers that knows a GPU
    architecture, and the first one after the last that does.
    """
    bounds = {OLDER_THAN_ALL}
    for image in images:
        bounds |= {image.min_driver, image.native_driver}
    for branches in chooser.drivers().values():
        bounds.add(str(branches.first))
        if branches.last is not None:
            bounds.add(str(branches.last + 1))
    # A branch alone, such as 580, would stand for all its releases: a range begins with the first.
    releases = {bound if "." in bound else f"{bound}.0" for bound in bounds}
    return sorted(releases, key=chooser.version_of)


def _range_text(lower: str, upper: str) -> str:
    """Return a range of drivers in words: `550.54 or newer, older than 570`.

    `lower` is the oldest driver of the range; OLDER_THAN_ALL: the range has no lower end. `upper`
    is the first driver that is too new for it; empty: it has no upper end. `any`: it has no ends.
    """
    ends = []
    if lower != OLDER_THAN_ALL:
        ends.append(f"{lower.removesuffix('.0')} or newer")
    if upper:
        ends.append(f"older than {upper.removesuffix('.0')}")
    return ", ".join(ends) or "any"


def _answers(
    machine: Machine, images: Sequence[ImageSummary], profiles: Sequence[str | None]
) -> Answers:
    """Return the name of the best image for each profile on a machine; empty where none fits.

    `machine` has the GPU and the driver. The profile None means images without a profile. If none
    of these fits, the answer also has the reason.
    """
    best_images = []
    why_none = ""
    for profile in profiles:
        images_of_profile = [image for image in images if image.profile == profile]
        choice = chooser.choose(images_of_profile, machine, Options(profile=profile))
        if choice.fitting:
            best_images.append(choice.fitting[0].name)
            continue

        best_images.append("")
        if profile is None:
            # The reason is that this driver does not run this GPU at all, or else what speaks
            # against the nearest image (`others` has the nearest first).
            reasons = list(chooser.wrong_for_gpu(machine))
            if not reasons and choice.others:
                reasons = list(choice.others[0].reasons)
            why_none = "; ".join(reasons)
    return Answers(tuple(best_images), why_none)
