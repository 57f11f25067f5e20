"""Torch's build, platform, toolkit, Python and GPU architectures: what they need of each other. Pure."""

from collections.abc import Iterator

from images.config.facts import TorchFacts
from images.config.names import Minor
from images.config.platforms import Platform
from images.planning.candidate import Candidate, Finding, refuse, warn
from validate.compute_capability import ON_ARM_ALONE


def choose_variant(torch: TorchFacts, toolkit: Minor) -> Minor | None:
    """The CUDA build of torch to put beside a toolkit: its own, else the nearest lower minor of the same major.

    CUDA's minor version compatibility allows the difference; torch's extension builder only warns about it.
    """
    builds = map(Minor.parse, torch.variants)
    return max(
        (build for build in builds if build.major == toolkit.major and build <= toolkit),
        default=None,
    )


def wheel_is_torchs_best(candidate: Candidate) -> Iterator[Finding]:
    toolkit, wheel = candidate.name.cuda, candidate.wheel_cuda
    if wheel != toolkit:
        yield warn(
            f"torch {candidate.torch} has no cu{toolkit.digits} wheel: toolkit {toolkit} beside its "
            f"cu{wheel.digits} wheel (CUDA minor version compatibility)"
        )
    if unverified := candidate.variant.unverified:
        yield warn(
            f"archs of torch {candidate.torch} cu{wheel.digits} are not measured ({unverified})"
        )


def exists_on_arm64(candidate: Candidate) -> Iterator[Finding]:
    """Packages that must be there (the plan has left out optional ones already), and what somebody has tried there:
    nvcc would run emulated, or on a machine that nobody has tried (docs/arm64.md)."""
    if candidate.name.platform is not Platform.ARM64:
        return
    for name, reason in candidate.facts.arm64.lacking.items():
        if name in candidate.pins:
            lacking = f"{name} {candidate.pins[name]} has no wheel for aarch64 ({reason})"
            yield refuse(f"{lacking}: leave it out (`without: [{name}]`)")
    if candidate.name.profile:
        yield refuse(
            f"the profile {candidate.name.profile} was resolved and tried on linux/amd64 alone"
        )
    if candidate.name.devel:
        yield refuse("-devel was tried on linux/amd64 alone")


def toolkit_can_be_had(candidate: Candidate) -> Iterator[Finding]:
    """For -devel with its compiler: of wheels, or of a Debian suite that the base's apt reaches; and it takes the
    base's gcc. NVIDIA's devel image provides for `wheels` alone: it would make the image stand on a second one that not
    every machine can have."""
    name, toolkit, facts = candidate.name, candidate.toolkit, candidate.toolkit_facts
    if toolkit is None or facts is None:
        known = ", ".join(map(str, sorted(map(Minor.parse, candidate.matrix.toolkits))))
        yield refuse(
            f"no parts for a CUDA {name.cuda} toolkit in matrix.yaml (`toolkits` has {known})"
        )
    gcc = candidate.matrix.bases[candidate.base.key].gcc
    if not name.devel:
        return
    if facts and gcc > facts.gcc_max:
        yield refuse(
            f"nvcc {name.cuda} accepts gcc up to {facts.gcc_max}, {candidate.base.key} has gcc {gcc}"
        )
    if toolkit is None or toolkit.devel:
        return
    if not (toolkit.compiler and toolkit.compiler.debian):
        others = [
            one
            for row in candidate.matrix.images
            if (one := row.image_name).devel and not one.profile
        ]
        others = [one for one in others if one != name]
        others.sort(key=lambda one: (abs(one.torch.minor - name.torch.minor), str(one)))
        nearest = " or ".join(map(str, others[:2])) or "a -devel image of CUDA 12.4 or 13"
        yield refuse(
            f"-devel needs a devel CUDA {name.cuda} toolkit, and its nvcc is published neither as wheels (from 13.0 "
            f"on) nor as packages of Debian (12.4): take {nearest}, or this image without -devel on a base that has "
            "nvcc (--base REF)"
        )
    elif not candidate.base.suite:
        yield refuse(
            f"nvcc {name.cuda} comes from Debian's packages, which {candidate.base.key} does not reach: take the image "
            "of the default Python, or a base that has nvcc (--base REF)"
        )


def python_has_a_base_and_torch(candidate: Candidate) -> Iterator[Finding]:
    if candidate.name.python and candidate.base.python != candidate.name.python:
        yield refuse(f"no base in matrix.yaml has Python {candidate.name.python}")
    has, python = candidate.torch_facts.pythons, candidate.base.python
    if str(python) not in has:
        yield refuse(
            f"torch {candidate.torch} has no wheel for Python {python} (it has {', '.join(has)})"
        )


def archs_are_of_this_processor(candidate: Candidate) -> Iterator[Finding]:
    on_arm = candidate.name.platform is Platform.ARM64
    for arch in candidate.requested_archs:
        board = candidate.facts.arm64.boards.get(arch.capability)
        if not on_arm and arch in ON_ARM_ALONE:
            yield refuse(
                f"{arch} is a GPU of boards with ARM processors, and images are for x86-64"
            )
        for program, archs in candidate.compilers.items():
            if arch.capability not in archs:
                yield refuse(
                    f"{program} does not know {arch}: what is compiled at run time would fail there"
                )
        if on_arm and board and board.unfit:
            yield refuse(f"{arch} is the GPU of {' and '.join(board.names)}: {board.unfit}")


def archs_are_covered(candidate: Candidate) -> Iterator[Finding]:
    if not candidate.supported_archs:
        yield refuse(
            f"no GPU architecture is covered by {' and '.join(candidate.binaries)} together"
        )
    for arch in candidate.requested_archs:
        for what, code in candidate.binaries.items():
            covered = code.covers(arch)
            if covered == "no":
                has = ", ".join([*code.archs, *(f"PTX {text}" for text in code.ptx)])
                yield refuse(f"{what} has no code for {arch} (it has {has})")
            elif covered == "ptx":
                yield warn(
                    f"{what} runs on {arch} only through PTX, compiled by the driver at first use"
                )
        if candidate.toolkit_facts and arch.capability not in candidate.toolkit_facts.nvcc_archs:
            yield refuse(f"CUDA {candidate.name.cuda} cannot compile for {arch}")
