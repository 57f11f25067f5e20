"""matrix.yaml and facts.yaml into typed, validated objects. All errors at once, each with file and line."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from images.config import consistency, paths, yamlfile
from images.config.facts import Facts
from images.config.names import ImageName
from images.config.platforms import Platform
from images.config.schema import Defaults, Matrix
from images.config.validating import validated
from images.config.yamlfile import YamlFile
from images.errors import Problem, UserError

MATRIX = paths.RESOURCES / paths.MATRIX_NAME
"""The matrix of the checkout, for tests."""
FACTS = paths.DATA / "facts.yaml"


@dataclass(frozen=True, eq=False)
class Sources:
    """Both files, loaded: what every plan is made from. Compared and hashed by identity."""

    matrix: Matrix
    facts: Facts
    matrix_file: YamlFile
    problems: tuple[Problem, ...] = ()
    """What was wrong in the matrix and left out of it so that the rest could be checked in the same run."""
    left_out: frozenset[yamlfile.Path] = frozenset()

    @cached_property
    def revision(self) -> str:
        """Short hash of what images are made from, in matrix and facts; comments and order of keys do not change it.

        Of linux/amd64: what other platforms add stands in none of its images, and moves none of their digests.
        """
        left_out: dict[str, Any] = {"nightly": True, "xfail": True, "images": {"__all__": {"platforms"}}}
        if not self.matrix.library_layers:  # as before there was such a key: no digest moves
            left_out["library_layers"] = True
        content = json.dumps(
            [self.matrix.model_dump(exclude=left_out), self.facts.model_dump(exclude={"arm64"})], sort_keys=True
        )
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def revision_on(self, platform: Platform) -> str:
        """The same for the images of a platform."""
        if platform is Platform.AMD64:
            return self.revision
        content = json.dumps([self.revision, str(platform), self.facts.arm64.model_dump()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def facts_on(self, platform: Platform) -> Facts:
        """What the world ships for a platform; every plan of an image asks for it."""
        return self._arm64_facts if platform is Platform.ARM64 else self.facts

    @cached_property
    def _arm64_facts(self) -> Facts:
        return self.facts.on(Platform.ARM64)

    @cached_property
    def layers(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Layer -> the distributions it installs, bottom first, in a form that can be compared at once."""
        return tuple((layer, tuple(names)) for layer, names in self.matrix.layers.items())

    @cached_property
    def library_layers(self) -> tuple[tuple[str, ...], ...]:
        return tuple(map(tuple, self.matrix.library_layers))

    @cached_property
    def optional(self) -> frozenset[str]:
        return frozenset(self.matrix.optional)

    @cached_property
    def devel_images(self) -> tuple[ImageName, ...]:
        """The images of the matrix with a whole toolkit; every plan of an image asks for them."""
        return tuple(name for row in self.matrix.images if (name := ImageName.parse(row.name)).devel)


def load(matrix: Path | None = None, facts: Path = FACTS) -> Sources:
    """Read both files; without `matrix`, the workspace's. Raises UserError with every problem of both at once.

    A matrix with problems whose rest is sound is returned with them, so that `plan.check` can add what
    it finds (an alias to a refused image) before all are told together.
    """
    matrix = matrix or paths.workspace().matrix
    facts_file = yamlfile.parse(paths.shown(facts), _read(facts))
    known, facts_problems, _ = validated(Facts, facts_file)
    matrix_file = yamlfile.parse(paths.shown(matrix), _read(matrix))
    wanted, problems, left_out = validated(Matrix, matrix_file)
    if known is None or wanted is None or facts_problems:
        raise UserError([*facts_problems, *problems])
    problems += consistency.problems(wanted, matrix_file, left_out)
    return _plannable(Sources(wanted, known, matrix_file, tuple(problems), left_out))


def load_facts(facts: Path = FACTS) -> Facts:
    """The facts alone, which come with the code. Raises UserError."""
    known, problems, _ = validated(Facts, yamlfile.parse(paths.shown(facts), _read(facts)))
    if known is None or problems:
        raise UserError(problems)
    return known


def _plannable(sources: Sources) -> Sources:
    """The same without what no plan can be made of, all of it told in `problems` already."""
    wanted = sources.matrix
    torchless = {torch for torch, pins in wanted.stacks.items() if "torch" not in pins}
    base = wanted.defaults.base if wanted.defaults.base in wanted.bases else next(iter(wanted.bases))
    sound = {
        "stacks": {torch: pins for torch, pins in wanted.stacks.items() if torch not in torchless},
        "defaults": Defaults(base=base),
    }
    left_out = sources.left_out | {("stacks", torch) for torch in torchless}
    return replace(sources, matrix=wanted.model_copy(update=sound), left_out=left_out)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        here = f"`git checkout {path.name}`" if paths.is_checkout() else f"go to the folder that has your {path.name}"
        then = f"{here}, or name another one with --matrix"
        raise UserError(Problem(where=paths.shown(path), cause="is missing", then=then)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            Problem(where=paths.shown(path), cause=f"can't be read: {error}", then="fix the file")
        ) from None
