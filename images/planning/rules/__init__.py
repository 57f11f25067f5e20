"""Why a combination can't exist, or what to warn about. Pure: one small function a rule, all of them run.

To add a rule: write a function from Candidate to findings in stack.py or packages.py, and name it in RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from images.planning.candidate import Candidate, Finding
from images.planning.rules import packages, stack

Rule = Callable[[Candidate], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    stack.wheel_is_older_than_toolkit,
    stack.variant_is_verified,
    stack.packages_exist_on_arm64,
    stack.tried_on_amd64_alone,
    stack.toolkit_is_known,
    stack.devel_has_a_provider,
    stack.devel_compiler_fits,
    stack.default_python_is_not_spelled_out,
    stack.torch_supports_python,
    packages.triton_is_torchs,
    packages.companions_are_known,
    packages.xformers_fits,
    packages.torchao_fits,
    packages.bitsandbytes_fits,
    stack.archs_are_of_this_processor,
    stack.archs_are_covered,
    packages.xformers_covers_archs,
    stack.some_arch_is_left,
    packages.profile_overrides_are_said,
    packages.profile_packages_are_known,
    packages.requirements_agree,
    packages.nothing_dead_is_pinned,
    packages.waivers_are_said,
    packages.declined_packages_are_said,
    packages.wheels_of_no_index_are_said,
    packages.extensions_are_said,
)
"""In the order of their findings."""
