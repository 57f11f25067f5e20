"""No machine is recommended what a hint calls broken: all machines, images and goals against all hints."""

import re
from collections.abc import Callable, Mapping
from itertools import product

import pytest

from tests.support import machines
from tools import hints
from tools.hints import HintRow
from validate.doctor.advice import STRATEGIES, Advice, Goal, Stack, advise, runs_on
from validate.doctor.snippets import snippet

ROWS = hints.load()
_SETTINGS = re.compile(
    r"[48]-?bit|reentrant|fsdp|zero|deepspeed|flash|xformers|sdpa|fp8|bf16|dtype|batch|checkpoint|shm|nccl_|adamw|archs",
    re.IGNORECASE,
)


_SPECIAL: Mapping[str, Callable[[str | bool, Advice, Stack, str], bool]] = {
    "capability": lambda wanted, advice, _, __: any(gpu.capability < below(str(wanted)) for gpu in advice.gpus),
    "without": lambda wanted, _, stack, __: wanted not in stack.packages,
    "gpu_code": lambda wanted, advice, stack, _: serves(stack.archs, advice) is wanted,
    "flash_code": lambda wanted, advice, stack, _: serves(stack.code["flash-attn"], advice) is wanted,
    "snippet": lambda wanted, _, __, text: re.search(str(wanted), text) is not None,
}
"""What a condition may name beside settings."""


def serves(targets: tuple[str, ...], advice: Advice) -> bool:
    return all(runs_on(targets, gpu.capability) for gpu in advice.gpus)


def met(condition: Mapping[str, str | bool], advice: Advice, stack: Stack, text: str) -> bool:
    """Whether an advice is one that a hint's `avoid` names."""
    return all(
        _SPECIAL[name](wanted, advice, stack, text) if name in _SPECIAL else advice[name] == wanted
        for name, wanted in condition.items()
    )


def below(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"<(\d+)\.(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


@pytest.mark.parametrize(
    "stack", list(machines.stacks()), ids=lambda stack: f"{len(stack.packages)} packages, {len(stack.archs)} targets"
)
def test_no_machine_is_recommended_what_a_hint_calls_broken(stack: Stack) -> None:
    conditions = [(row.id, condition) for row in ROWS for condition in row.avoid]
    for machine, goal in product(machines.machines(), machines.goals()):
        advice = advise(machine, stack, goal)
        _, text = snippet(advice, stack)
        broken = [name for name, condition in conditions if met(condition, advice, stack, text)]
        assert not broken, (broken, goal, machine.gpus[:1], text)


@pytest.mark.parametrize("row", [row for row in ROWS if row.avoid], ids=lambda row: row.id)
def test_each_condition_can_be_met(row: HintRow) -> None:
    """A condition of a setting that is never named so would hold whatever is recommended."""
    advice = advise(machines.machine(machines.gpu()), machines.stack(), Goal())
    names = {setting.name for setting in advice.settings} | set(_SPECIAL)
    values = {
        "attention": {"flash_attention_2", "flash_attention_4", "xformers", "sdpa"},
        "fp8": {"available", "inference only", "no"},
        "dtype": {"bfloat16", "float16", "float32"},
        "strategy": set(STRATEGIES),
        "optimizer": {"adamw_8bit", "adamw_torch_fused", "adamw_torch"},
        "without": set(machines.PACKAGES),
    }
    for name, wanted in (item for condition in row.avoid for item in condition.items()):
        assert name in names
        if name == "capability":
            below(str(wanted))
        elif name != "snippet":
            assert wanted in values[name] if name in values else isinstance(wanted, bool)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_hint_that_speaks_of_a_setting_says_which_to_avoid(row: HintRow) -> None:
    speaks = _SETTINGS.search(f"{row.pattern} {row.cause} {row.fix}") is not None
    assert not speaks or row.avoid or row.no_setting, "add `avoid` or `no_setting`"
    assert not row.no_setting or (speaks and not row.avoid), "the reason is for nothing"
