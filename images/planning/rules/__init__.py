"""Why a combination can't exist, or what to warn about. Pure: one small function a rule, all of them run.

To add a rule: write a function from Candidate to findings in stack.py or packages.py, and name it in RULES.
"""

from collections.abc import Callable, Iterator

from images.planning.candidate import Candidate, Finding
from images.planning.rules import packages, stack

Rule = Callable[[Candidate], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    stack.wheel_is_torchs_best,
    stack.exists_on_arm64,
    stack.toolkit_can_be_had,
    stack.python_has_a_base_and_torch,
    packages.companions_fit,
    stack.archs_are_of_this_processor,
    stack.archs_are_covered,
    packages.xformers_covers_archs,
    packages.profile_pins_are_known_and_said,
    packages.requirements_agree,
    packages.releases_do_not_conflict,
    packages.waivers_and_overrides_are_said,
    packages.silent_faults_are_said,
    packages.wheels_of_no_index_are_said,
)
"""In the order of their findings."""
