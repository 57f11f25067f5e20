"""Selectors on the command line and in matrix.yaml: names, globs, and conditions (`torch>=2.8`)."""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from images.config.facts import within
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.errors import UserError, command, wrong

_VERSIONED = ("torch", "cuda", "wheel", "python")
"""Keys whose values are versions, and can be compared with < and >."""
KEYS = (*_VERSIONED, "arch", "profile", "platform")
"""What a condition can be about."""
NO_PROFILE = "none"
"""The value of `profile` for the images without one."""
_CONDITION = re.compile(r"(?P<key>[a-z]+)(?P<op>>=|<=|!=|==|=|>|<)(?P<value>.*)")
_LEAST_PART = 3
"""A shorter text is not looked for as a part of names."""
_MOST_SIMILAR = 3
"""How many names are proposed in place of one that matches nothing."""


HELP = (
    "a name, a glob ('cu12*'), an alias, torch>=2.8, cuda=12.6, wheel=12.4, python=3.13, "
    "arch=sm90, profile=axolotl or platform=arm64"
)


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A condition such as `torch>=2.8`; or, without a `key`, an image name or a glob of names.

    An image is selected if it matches one of the names that are given, and all conditions.
    """

    key: str = ""
    """`torch`, `arch` and the like; empty: `value` is a name or a glob."""
    op: str = ""
    """`=`, `!=`, `<`, `>`, `<=` or `>=`; empty without a key."""
    value: str

    @property
    def is_of_version(self) -> bool:
        """Return whether it is about a version, which can also be compared with < and >."""
        return self.key in _VERSIONED

    @property
    def wanted(self) -> str:
        """Return the value as images have it: `sm_90` for an architecture, however it is given."""
        return str(Arch.parse(self.value)) if self.key == "arch" else self.value

    def __str__(self) -> str:
        return f"{self.key}{self.op}{self.value}"

    def __call__(self, image: Any) -> bool:
        """Return whether an image of the plan matches this selector.

        A selector is a name, a glob (`cu126-*`) or a condition (`torch>=2.8`, `profile!=trl`). A
        condition on a version that is not known does not match. `image` is a `Planned` of
        images/planning/plan.py.
        """
        if not self.key:
            return fnmatch.fnmatchcase(image.name, self.value)

        if self.is_of_version:
            # The version is None if the plan does not know it, for example for an unknown torch.
            version = image.versions[self.key]
            operator = "==" if self.op == "=" else self.op
            return version is not None and within(str(version), f"{operator}{self.value}")

        # The other keys are compared with = or != only (`parse`). An image has several
        # architectures: it is enough that one of them is meant.
        has_value = self.wanted in values_of(self.key, image)
        return has_value if self.op == "=" else not has_value


def values_of(key: str, image: Any) -> list[str]:
    """Return the values with which a condition KEY=VALUE selects an image of the plan.

    For example `["2.8"]` for the key `torch`, and `["sm_80", "sm_90"]` for `arch`, because an image
    is for several architectures. Empty for a version that the plan does not know.

    `key` is one of _VERSIONED or _OTHER_KEYS; `image` is a `Planned` of images/planning/plan.py.
    """
    if key in _VERSIONED:
        version = image.versions[key]
        return [] if version is None else [str(version)]
    if key == "profile":
        return [image.profile or NO_PROFILE]
    if key == "platform":
        return names_of_platform(image.image_name.platform)
    # The last key is `arch`.
    return [str(arch) for arch in image.archs]


def names_of_platform(platform: Platform) -> list[str]:
    """Return the values of `platform` that mean a platform: `arm64` and `linux/arm64`, say."""
    return [platform.architecture, str(platform)]


def parse(text: str) -> Selector:
    """Read a selector of images: a name, a glob (`cu126-*`) or a condition (`torch>=2.8`).

    A name or a glob becomes a selector without a key. Raises UserError, with examples, for any
    other text. Whether there is such a profile or platform is not looked at: `plan.select` does so
    for the command line, and `matrix.load` for matrix.yaml.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        # No name or glob has spaces or comparisons: this is a condition with a mistake.
        if not text or re.search(r"[\s<>=!]", text):
            raise wrong(repr(text), "is neither a name, a glob nor a condition", f"write {HELP}")
        return Selector(value=text)

    operator = "=" if match["op"] == "==" else match["op"]
    condition = Selector(key=match["key"], op=operator, value=match["value"])
    cause = _why_wrong(condition)
    if cause:
        raise wrong(text, cause, f"write {HELP}")
    return condition


def _why_wrong(condition: Selector) -> str:
    """Return why a condition such as `torch>=2.8` makes no sense; empty if it does.

    Its key, its operator or its value may be wrong.
    """
    key, value = condition.key, condition.value
    if key not in KEYS:
        return f"{key!r} is nothing that images are selected by"
    if not condition.is_of_version and condition.op not in ("=", "!="):
        return f"{key} can be compared with = or != only"

    try:
        if condition.is_of_version:
            # `parse` also reads `2.7.1`, and drops its last part.
            minor = Minor.parse(value)
            if str(minor) != value:
                return f"images differ in major and minor version only: write {minor}, not {value}"
        if key == "arch":
            Arch.parse(value)
    except ValueError as error:
        return str(error)

    return ""


def unmatched_condition(condition: Selector, images: Iterable[Any]) -> UserError:
    """Return the error to raise for a condition that holds for no image: with the values that do.

    `images` are all planned images.
    """
    # A dict, as a set that keeps the order of the matrix.
    values: dict[str, None] = {}
    for image in images:
        values.update(dict.fromkeys(values_of(condition.key, image)))
    then = f"{condition.key} is one of: {', '.join(values)}"
    return wrong(str(condition), "matches no image of the matrix", then)


def unmatched(selector: str, names: Sequence[str]) -> UserError:
    """Return the error to raise for a name or glob that matches no image.

    It shows the most similar of `names`, those of images and aliases.
    """
    then = f"`{command('plan')}` lists all images"
    similar = most_similar(selector, names)
    if similar:
        then = f"nearest: {', '.join(similar)}; {then}"
    return wrong(selector, "matches no image of the matrix", then)


def most_similar(text: str, names: Sequence[str]) -> list[str]:
    """Return up to three names that have a text in them, the shortest first; then similar ones.

    `cu130-torch21` is the beginning of cu130-torch211, and `torch21` a part of it.
    """
    lower = text.lower()
    longer = sorted((name for name in names if lower in name), key=len)
    close = get_close_matches(lower, names, n=_MOST_SIMILAR, cutoff=0.5)
    # A word of one or two letters is in many names, and means none of them.
    similar = close if len(text) < _LEAST_PART else [*longer, *close]
    return list(dict.fromkeys(similar))[:_MOST_SIMILAR]


def image_name(text: str) -> ImageName | None:
    """Return the image that a text names, whether or not the matrix has it; None: it is no name."""
    try:
        return ImageName.parse(text)
    except UserError:
        return None
