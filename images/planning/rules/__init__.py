"""The rules: why an image can't exist, or what its user should know. Pure; `plan` runs all of them.

A rule is one small function from a candidate to findings. To add one, write it in stack.py or
packages.py and name it in RULES.
"""

from collections.abc import Callable, Iterator

from images.planning.candidate import Candidate, Finding
from images.planning.rules import packages, stack

Rule = Callable[[Candidate], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    stack.check_torch_wheel,
    stack.check_arm64,
    stack.check_toolkit,
    stack.check_python,
    packages.check_companions,
    stack.check_processor_and_compilers,
    stack.check_device_code,
    packages.warn_about_xformers_archs,
    packages.warn_about_unknown_packages,
    packages.check_requirements,
    packages.check_conflicts,
    packages.check_undeclared_requirements,
    packages.warn_about_private_packages,
    packages.warn_about_waivers_and_overrides,
    packages.warn_about_silent_faults,
    packages.warn_about_missing_wheels,
)
"""In the order in which their findings are shown."""
