"""Which images a person means: names, globs, aliases and conditions such as `torch>=2.8`, several at once."""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from images.config.facts import within
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.errors import UserError, command, wrong

_VERSIONED = ("torch", "cuda", "wheel", "python")
_CONDITION = re.compile(r"(?P<key>[a-z]+)(?P<op>>=|<=|!=|==|=|>|<)(?P<value>.*)")
_PLATFORMS = tuple(name for platform in Platform for name in (platform.architecture, str(platform)))
HELP = (
    "a name, a glob ('cu12*'), an alias, torch>=2.8, cuda=12.6, wheel=12.4, python=3.13, arch=sm90, profile=axolotl "
    "or platform=arm64"
)


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A name, or a shell pattern over names (no `key`): an image must match one of those that are given.

    Or a condition, `torch>=2.8`: every planned image must satisfy all of them.
    """

    key: str = ""
    op: str = ""
    value: str

    def __str__(self) -> str:
        return f"{self.key}{self.op}{self.value}"

    def __call__(self, image: Any) -> bool:
        if not self.key:
            return fnmatch.fnmatchcase(image.name, self.value)
        if self.key in _VERSIONED:
            own = image.versions[self.key]
            return own is not None and within(
                str(own), f"{'==' if self.op == '=' else self.op}{self.value}"
            )
        if self.key == "profile":
            holds = self.value == (image.profile or "none")
        elif self.key == "platform":
            platform = image.image_name.platform
            holds = self.value in (platform, platform.architecture)
        else:
            holds = Arch.parse(self.value) in image.archs
        return holds is (self.op == "=")


def parse(text: str) -> Selector:
    """Read one selector. Raises UserError saying what selectors there are."""
    match = _CONDITION.fullmatch(text)
    if not match:
        if not text or re.search(r"[\s<>=!]", text):
            raise wrong(repr(text), "is no selector", f"write {HELP}")
        return Selector(value=text)
    condition = Selector(
        key=match["key"], op="=" if match["op"] == "==" else match["op"], value=match["value"]
    )
    if cause := _wrong(condition):
        raise wrong(text, cause, f"write {HELP}")
    return condition


def _wrong(condition: Selector) -> str:
    if condition.key not in (*_VERSIONED, "arch", "profile", "platform"):
        return f"there is nothing called {condition.key!r} to select by"
    if condition.key not in _VERSIONED and condition.op not in ("=", "!="):
        return f"{condition.key} is compared with = or != only"
    try:
        if condition.key in _VERSIONED and str(Minor.parse(condition.value)) != condition.value:
            minor = Minor.parse(condition.value)
            return (
                f"images are told apart by X.Y alone, and {condition.value} is more: write {minor}"
            )
        if condition.key == "arch":
            Arch.parse(condition.value)
        if condition.key == "profile" and not re.fullmatch(r"[a-z][a-z0-9-]*", condition.value):
            return f"{condition.value!r} is no profile name"
        if condition.key == "platform" and condition.value not in _PLATFORMS:
            return f"{condition.value!r} is no platform: there are {', '.join(_PLATFORMS)}"
    except ValueError as error:
        return str(error)
    return ""


def unmatched(selector: Selector | str, near: Sequence[str]) -> UserError:
    """The error for a selector that selects nothing."""
    close = get_close_matches(str(selector), near, n=3, cutoff=0.5)
    then = f"{'nearest: ' if close else ''}{', '.join(close)}{'; ' if close else ''}`{command('plan')}` lists all"
    return wrong(str(selector), "matches no image of the matrix", then)


def image_name(text: str) -> ImageName | None:
    """The image that it could name, to be planned ad hoc; None: it is no name of an image."""
    try:
        return ImageName.parse(text)
    except UserError:
        return None
