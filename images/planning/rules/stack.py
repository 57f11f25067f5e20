"""Rules about torch's build, platform, toolkit, Python and GPU architectures of an image. Pure."""

from collections.abc import Iterator

from images.config.facts import TorchFacts
from images.config.names import ImageName, Minor
from images.config.platforms import Platform
from images.planning.candidate import Candidate, Finding, refuse, warn
from validate.compute_capability import ON_ARM_ALONE


def choose_variant(torch: TorchFacts, toolkit: Minor) -> Minor | None:
    """Return the CUDA of the torch wheel to install beside a toolkit; None if there is none.

    It is the toolkit's own CUDA, or the nearest lower minor of the same major. CUDA's minor version
    compatibility allows the difference, and torch's extension builder only warns about it.
    """
    fitting = []
    for text in torch.variants:
        cuda = Minor.parse(text)
        if cuda.major == toolkit.major and cuda <= toolkit:
            fitting.append(cuda)
    return max(fitting, default=None)


def check_torch_wheel(candidate: Candidate) -> Iterator[Finding]:
    """Warn if torch's wheel is for another CUDA than the toolkit, or its code was not measured."""
    toolkit, wheel = candidate.name.cuda, candidate.wheel_cuda
    if wheel != toolkit:
        yield warn(
            f"torch {candidate.torch} has no wheel for CUDA {toolkit}, so the image has the "
            f"cu{wheel.digits} wheel beside toolkit {toolkit} (CUDA minor version compatibility)"
        )
    # Why its architectures were not measured; empty: they were.
    unverified = candidate.variant.unverified
    if unverified:
        yield warn(
            f"the GPU architectures of torch {candidate.torch} cu{wheel.digits} "
            f"are not measured ({unverified})"
        )


def check_arm64(candidate: Candidate) -> Iterator[Finding]:
    """Refuse what does not exist, or was never tried, on linux/arm64.

    The plan has already left out optional packages without an aarch64 wheel. Profiles and -devel
    were not tried: nvcc would run emulated, or on a machine that we never had (docs/arm64.md).
    """
    if candidate.name.platform is not Platform.ARM64:
        return
    for name, reason in candidate.facts.arm64.lacking.items():
        if name in candidate.pins:
            package = f"{name} {candidate.pins[name]}"
            yield refuse(
                f"{package} has no wheel for aarch64 ({reason}): leave it out (`without: [{name}]`)"
            )
    if candidate.name.profile:
        yield refuse(
            f"the profile {candidate.name.profile} was resolved and tried on linux/amd64 only"
        )
    if candidate.name.devel:
        yield refuse("-devel images were tried on linux/amd64 only")


def check_toolkit(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a CUDA that `toolkits` in matrix.yaml lacks, and a -devel image without an nvcc."""
    cuda = candidate.name.cuda
    if candidate.toolkit is None or candidate.toolkit_facts is None:
        known = sorted(Minor.parse(text) for text in candidate.matrix.toolkits)
        shown = ", ".join(str(known_cuda) for known_cuda in known)
        yield refuse(f"matrix.yaml has no parts for a CUDA {cuda} toolkit (`toolkits` has {shown})")

    if candidate.name.devel:
        yield from _check_gcc(candidate)
        yield from _check_nvcc(candidate)


def _check_gcc(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a base whose gcc is newer than nvcc of the image's CUDA accepts."""
    gcc = candidate.matrix.bases[candidate.base.key].gcc
    facts = candidate.toolkit_facts
    if facts and gcc > facts.gcc_max:
        yield refuse(
            f"nvcc {candidate.name.cuda} accepts gcc up to {facts.gcc_max}, "
            f"but {candidate.base.key} has gcc {gcc}"
        )


def _check_nvcc(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a -devel image that can't have an nvcc.

    nvcc comes from wheels, or from a Debian suite that the base's apt reaches. NVIDIA's devel image
    has it, too, but is used only to compile wheels: an image that took nvcc from it would stand on
    a second base, which not every machine can pull.
    """
    toolkit, cuda = candidate.toolkit, candidate.name.cuda
    # A toolkit with `devel` has wheels of the compiler. An image without any toolkit is refused by
    # another rule.
    if toolkit is None or toolkit.devel:
        return

    if toolkit.compiler is None or not toolkit.compiler.debian:
        nearest = " or ".join(str(other) for other in _nearest_devel_images(candidate)[:2])
        instead = nearest or "a -devel image of CUDA 12.4 or 13"
        yield refuse(
            f"the nvcc of CUDA {cuda}, which a -devel image needs, is published neither as "
            "wheels (from 13.0 on) nor as packages of Debian (12.4): "
            f"take {instead}, or this image without -devel on a base that has nvcc (--base REF)"
        )
    # A base without a suite, such as Ubuntu's, can't install Debian's packages.
    elif not candidate.base.suite:
        yield refuse(
            f"nvcc {cuda} comes from Debian's packages, which {candidate.base.key} does not "
            "reach: take the image of the default Python, or a base that has nvcc (--base REF)"
        )


def _nearest_devel_images(candidate: Candidate) -> list[ImageName]:
    """Return the matrix's other -devel images without a profile, those of the nearest torch first.

    All torch releases are of one major, so the distance of the minors tells.
    """
    others = []
    for row in candidate.matrix.images:
        name = row.image_name
        if name.devel and not name.profile and name != candidate.name:
            others.append(name)

    def distance(other: ImageName) -> tuple[int, str]:
        return abs(other.torch.minor - candidate.name.torch.minor), str(other)

    return sorted(others, key=distance)


def check_python(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a Python that no base of the matrix has, or that torch has no wheel for."""
    # A name without a Python means that of the default base. If no base has the Python of the name,
    # the candidate stands on the default base, too.
    if candidate.name.python and candidate.base.python != candidate.name.python:
        yield refuse(f"no base in matrix.yaml has Python {candidate.name.python}")

    python = candidate.base.python
    pythons_of_torch = candidate.torch_facts.pythons
    if str(python) not in pythons_of_torch:
        yield refuse(
            f"torch {candidate.torch} has no wheel for Python {python} "
            f"(it has {', '.join(pythons_of_torch)})"
        )


def check_processor_and_compilers(candidate: Candidate) -> Iterator[Finding]:
    """Refuse requested GPU architectures of another processor's boards, or unknown to a compiler.

    Triton's ptxas and NVRTC compile while programs run, for the GPU that they find.
    """
    is_arm = candidate.name.platform is Platform.ARM64
    for arch in candidate.requested_archs:
        if not is_arm and arch in ON_ARM_ALONE:
            yield refuse(
                f"{arch} is a GPU of boards with ARM processors, but this image is for x86-64"
            )
        for program, known_capabilities in candidate.compilers.items():
            if arch.capability not in known_capabilities:
                yield refuse(
                    f"{program} does not know {arch}: what is compiled at run time would fail there"
                )
        # `unfit` says why images for linux/arm64 do not run on a board; None: they do.
        board = candidate.facts.arm64.boards.get(arch.capability)
        if is_arm and board and board.unfit:
            yield refuse(f"{arch} is the GPU of {' and '.join(board.names)}: {board.unfit}")


def check_device_code(candidate: Candidate) -> Iterator[Finding]:
    """Refuse requested GPU architectures that a part of the image has no code for.

    Parts are torch and the libraries of `Candidate.binaries`. A part that has only PTX for a GPU,
    which the driver compiles there, is a warning. An image of which no architecture was requested
    must have at least one that all its parts have code for.
    """
    # If architectures were requested, these are the supported ones: so it is empty only without a
    # request.
    if not candidate.supported_archs:
        parts = " and ".join(candidate.binaries)
        yield refuse(f"no GPU architecture is covered by {parts} together")

    for arch in candidate.requested_archs:
        for part, code in candidate.binaries.items():
            # How a GPU of `arch` runs it: `cubin` (machine code), `ptx` or `no`.
            fit = code.covers(arch)
            if fit == "no":
                archs = [*code.archs, *(f"PTX {text}" for text in code.ptx)]
                yield refuse(f"{part} has no code for {arch} (it has {', '.join(archs)})")
            elif fit == "ptx":
                yield warn(
                    f"{part} runs on {arch} only through PTX, which the driver compiles "
                    "at first use"
                )
        if candidate.toolkit_facts and arch.capability not in candidate.toolkit_facts.nvcc_archs:
            yield refuse(f"CUDA {candidate.name.cuda} cannot compile for {arch}")
