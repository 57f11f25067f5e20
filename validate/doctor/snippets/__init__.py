"""Advice as commands to paste into a shell: they write a program or a configuration, and train with it. Pure.

Pasted as they are, they train a tiny model of the image on data of the image; `--model` and `--data` name others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from validate.doctor.snippets import axolotl, colossalai, transformers, unsloth
from validate.doctor.snippets.block import Block
from validate.doctor.terms import Advice, Framework, Stack

_BLOCKS: Mapping[Framework, Callable[[Advice, Stack], Block]] = {
    Framework.TRANSFORMERS: transformers.block,
    Framework.AXOLOTL: axolotl.block,
    Framework.UNSLOTH: unsloth.block,
    Framework.COLOSSALAI: colossalai.block,
}


def snippet(advice: Advice, stack: Stack) -> tuple[Framework, str]:
    """The text, and whose it is: unsloth needs a GPU, so without one it is transformers'."""
    framework = advice.goal.framework
    if framework is Framework.UNSLOTH and not advice.gpus:
        framework = Framework.TRANSFORMERS
    return framework, _BLOCKS[framework](advice, stack).text
