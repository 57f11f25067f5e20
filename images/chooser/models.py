"""GPU models by the names that drivers and people give them. Pure, but for reading gpu_models.yaml."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from typing import Any

import yaml
from pydantic import Field

from images.config import paths
from images.config.facts import Capability, Row, Sentence
from images.errors import Problem, UserError
from validate.compute_capability import ON_ARM_ALONE

MODELS = paths.DATA / "gpu_models.yaml"
_BRANDS = frozenset({"nvidia", "geforce", "tesla"})
"""Words that drivers and people put in front or leave out: `NVIDIA A100-SXM4-80GB`, `Tesla T4`, `RTX 4090`. Not Quadro:
a Quadro RTX 6000 is no RTX 6000 Ada."""
_VARIANTS = re.compile(
    r"\d+gb|\d+g|sxm\d?|pcie?|pg\d+|nvl|hbm\d\w?|laptop|gpu|notebook|mobile|max|q|super|generation|edition|server|"
    r"workstation|sff|d|oam|cnx|mig|dgx|spark"
)
"""Words of a model's variants, which all have its capability."""
_WORDS = re.compile(r"[a-z0-9]+")


class ModelRow(Row):
    """GPU models of one compute capability."""

    capability: Capability
    names: list[Sentence] = Field(min_length=1)
    arm: bool = False
    """Their host processor is ARM."""
    source: Sentence


class Models(Row):
    """gpu_models.yaml."""

    current: Sentence
    older: Sentence
    models: list[ModelRow] = Field(min_length=1)


def find(text: str) -> tuple[str, ModelRow]:
    """The model that a driver's or a person's name means, and its row. Raises UserError naming near ones.

    All words of the model must be there; what else is there must name a brand or a variant. The longest model wins.
    """
    asked = _words(text)
    fitting = [
        (name, row)
        for name, row in by_name().items()
        if (own := _words(name)) and own <= asked and all(map(_VARIANTS.fullmatch, asked - own))
    ]
    if not fitting:
        raise UserError(
            Problem(where=f"--gpu {text!r}", cause="is no GPU of images/data/gpu_models.yaml", then=_near(text))
        )
    return max(fitting, key=lambda item: len(_words(item[0])))


def _near(text: str) -> str:
    short = {" ".join(sorted(_words(name))): name for name in by_name()}
    close = [short[key] for key in get_close_matches(" ".join(sorted(_words(text))), short, n=3, cutoff=0.6)]
    near = f"nearest: {', '.join(close)}; " if close else ""
    return f"{near}or name its architecture: --arch sm89 (`nvidia-smi --query-gpu=compute_cap --format=csv` prints 8.9)"


def _words(text: str) -> frozenset[str]:
    """Lower case, without brands, and with `RTX4090`, `RTX 4090` and `4090Ti` taken apart alike."""
    spaced = re.sub(r"(?<=rtx|gtx)(?=\d)|(?<=\d)(?=ti\b)", " ", text.lower())
    return frozenset(_WORDS.findall(spaced)) - _BRANDS


def vocabulary() -> dict[str, Any]:
    """What `find` and `machine.parse` read names by, as plain data: the site's chooser reads them by the same."""
    models = [{"name": name, "capability": row.capability, "arm": row.arm} for name, row in by_name().items()]
    return {
        "brands": sorted(_BRANDS),
        "variants": _VARIANTS.pattern,
        "arm_alone": sorted(f"sm_{major}{minor}" for major, minor in ON_ARM_ALONE),
        "models": models,
    }


@cache
def by_name() -> dict[str, ModelRow]:
    """Model -> its row of gpu_models.yaml."""
    rows = Models.model_validate(yaml.safe_load(MODELS.read_text(encoding="utf-8"))).models
    return {name: row for row in rows for name in row.names}
