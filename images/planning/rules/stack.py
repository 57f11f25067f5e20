"""Rules about torch's build, platform, toolkit, Python and GPU architectures of an image. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from packaging.version import Version

from images.config.facts import DeviceCode, Facts, TorchFacts
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.config.schema import BaseRow, Matrix
from images.planning.candidate import Candidate, Finding, Topic, refuse, warn
from validate.compute_capability import ON_ARM_ALONE


def choose_variant(torch: TorchFacts, toolkit: Minor) -> Minor | None:
    """Return the CUDA of the torch wheel to install beside a toolkit; None if there is none.

    `toolkit` is the CUDA version of the toolkit. The wheel's is the same, or the nearest lower
    minor of the same major. CUDA's minor version compatibility allows the difference, and torch's
    extension builder only warns about it.
    """
    fitting = []
    for text in torch.variants:
        cuda = Minor.parse(text)
        if cuda.major == toolkit.major and cuda <= toolkit:
            fitting.append(cuda)
    return max(fitting, default=None)


def check_torch_wheel(candidate: Candidate) -> Iterator[Finding]:
    """Warn if torch's wheel is for another CUDA than the toolkit of the image's name.

    Warn also if nobody has measured for which GPU architectures the wheel has code. `unverified`
    then says why.
    """
    toolkit, wheel = candidate.name.cuda, candidate.wheel_cuda
    if wheel != toolkit:
        text = (
            f"torch {candidate.torch} has no wheel for CUDA {toolkit}, so the image has the "
            f"cu{wheel.digits} wheel beside toolkit {toolkit}: CUDA's minor version compatibility "
            "allows this, and nothing needs to be done"
        )
        yield warn(Topic.CUDA, text)
    unverified = candidate.variant.unverified
    if unverified:
        yield warn(
            Topic.GPU_CODE,
            f"for which GPUs torch {candidate.torch} cu{wheel.digits} has code was not read in its "
            f"wheel, but taken from another source ({unverified}): validate the image on your GPU",
        )


def check_arm64(candidate: Candidate) -> Iterator[Finding]:
    """Refuse what does not exist, or was never tried, on linux/arm64.

    The plan has already left out optional packages without an aarch64 wheel. Profiles (sets of
    packages for a framework) and -devel images were not tried: nvcc would run emulated, or on a
    machine that we never had (docs/arm64.md).
    """
    image = candidate.name
    if image.platform is not Platform.ARM64:
        return
    # A row of the matrix has the name for linux/amd64.
    on_amd64 = replace(image, platform=Platform.AMD64)
    # `lacking`: package without an aarch64 wheel -> how that was found out.
    for package, reason in candidate.facts.arm64.lacking.items():
        if package in candidate.pins:
            yield refuse(
                f"{package} {candidate.pins[package]} has no wheel for aarch64 ({reason}): "
                f"`without: [{package}]` in the row of {on_amd64} in matrix.yaml leaves it out of "
                "that image on both platforms"
            )
    if image.profile:
        yield refuse(
            f"the profile {image.profile} was resolved and tried on linux/amd64 only, and this "
            f"image is for linux/arm64: take the profile out of the name "
            f"({replace(image, profile=None)}), or the platform ({on_amd64})"
        )
    if image.devel:
        yield refuse(
            "-devel images were tried on linux/amd64 only, and this image is for linux/arm64: "
            f"take -devel out of the name ({replace(image, devel=False)}), or the platform "
            f"({on_amd64})"
        )


def check_toolkit(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a CUDA toolkit that truetag can't install, or about which it knows too little.

    matrix.yaml must list the wheels of the toolkit, and facts.yaml the drivers and GPUs of its
    CUDA. A -devel image also has nvcc, the CUDA compiler: that must be installable on the image's
    base, and accept the base's gcc.
    """
    cuda = candidate.name.cuda
    # `toolkit` is the row of this CUDA in matrix.yaml, `toolkit_facts` that in facts.yaml.
    if candidate.toolkit is None:
        toolkits = _join_ascending(candidate.matrix.toolkits)
        step = "name an image of one of these"
        # Listing its wheels is of use only where the facts know this CUDA: else they refuse it.
        if candidate.toolkit_facts:
            step += f", or list the wheels of CUDA {cuda} there"
        yield refuse(f"`toolkits` in matrix.yaml has no CUDA {cuda}, only {toolkits}: {step}")
    elif candidate.toolkit_facts is None:
        known = _join_ascending(candidate.facts.cuda)
        yield refuse(
            f"`toolkits` in matrix.yaml has CUDA {cuda}, of which truetag knows neither drivers "
            f"nor GPUs; it knows CUDA {known}: name an image of one of these, or add a row for "
            f"CUDA {cuda} to `cuda` in images/data/facts.yaml"
        )

    if candidate.name.devel:
        yield from _check_gcc(candidate)
        yield from _check_nvcc(candidate)


def _check_gcc(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a base whose gcc is newer than nvcc of the image's CUDA accepts.

    A custom base need not say which gcc it has: 0 is never too new.
    """
    gcc = candidate.matrix.bases[candidate.base.key].gcc
    # If nothing is known of this CUDA (None), check_toolkit refuses it.
    facts = candidate.toolkit_facts
    if facts and gcc > facts.gcc_max:
        cause = (
            f"nvcc {candidate.name.cuda} accepts gcc up to {facts.gcc_max}, "
            f"but the base {candidate.base.key} has gcc {gcc}"
        )
        on_other_bases = _name_on_other_bases(candidate, partial(_can_have_nvcc, candidate))
        if on_other_bases:
            yield refuse(f"{cause}: build {on_other_bases}, whose base has an older gcc")
        else:
            yield refuse(
                f"{cause}: name a -devel image of a newer CUDA, or add a base with gcc "
                f"{facts.gcc_max} or older to `bases` in matrix.yaml"
            )


def _can_have_nvcc(candidate: Candidate, base: BaseRow) -> bool:
    """Return whether the nvcc of the image's CUDA can be installed on a base, and accepts its gcc.

    nvcc comes from wheels, or from Debian's packages, which only a base with a suite can install.
    """
    toolkit, facts = candidate.toolkit, candidate.toolkit_facts
    if toolkit is None or facts is None or base.gcc > facts.gcc_max:
        return False
    # `devel` lists the wheels of nvcc. `compiler` says where nvcc comes from if there are none.
    has_debian_packages = toolkit.compiler is not None and bool(toolkit.compiler.debian)
    return bool(toolkit.devel) or (has_debian_packages and bool(base.suite))


def _check_nvcc(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a -devel image that can't have an nvcc.

    nvcc comes from wheels, or from a Debian suite that the base's apt reaches. NVIDIA's devel image
    has it, too, but is used only to compile wheels: an image that took nvcc from it would stand on
    a second base, which not every machine can pull.
    """
    image, toolkit, cuda = candidate.name, candidate.toolkit, candidate.name.cuda
    # A toolkit with `devel` has wheels of the compiler. An image without any toolkit is refused by
    # another rule.
    if toolkit is None or toolkit.devel:
        return

    if toolkit.compiler is None or not toolkit.compiler.debian:
        nearest = " or ".join(str(other) for other in _nearest_devel_images(candidate)[:2])
        devel_images = nearest or "a -devel image of CUDA 12.4 or 13"
        without_devel = replace(image, devel=False)
        yield refuse(
            f"a -devel image needs nvcc, and that of CUDA {cuda} is published neither as wheels "
            "(CUDA 13.0 and later) nor as packages of Debian (CUDA 12.4 only): "
            f"build {devel_images}; or build {without_devel} on a base image that has this nvcc "
            "(--base REF)"
        )
    # A base without a suite, such as Ubuntu's, can't install Debian's packages.
    elif not candidate.base.suite:
        on_debian = _name_on_other_bases(candidate, partial(_can_have_nvcc, candidate))
        without_devel = replace(image, devel=False)
        yield refuse(
            f"nvcc {cuda} is installed from packages of Debian, but the base {candidate.base.key} "
            f"({candidate.base.reference}) is not Debian: build {on_debian or 'another image'}, "
            "whose base is Debian; or build "
            f"{without_devel} on a base image that has this nvcc (--base REF)"
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


def _name_on_other_bases(candidate: Candidate, fits: Callable[[BaseRow], bool]) -> str:
    """Return the names that this image would have on other bases, for a message.

    For example `cu124-torch26-devel or cu124-torch26-py313-devel`; empty if there is none. `fits`
    says which bases are meant. Bases with a Python that torch has no wheel for are left out.
    """
    default = candidate.matrix.defaults.base
    names = []
    for key, base in candidate.matrix.bases.items():
        if key == candidate.base.key or base.python not in candidate.torch_facts.pythons:
            continue
        if fits(base):
            # The name of an image with the default Python does not say it.
            python = None if key == default else Minor.parse(base.python)
            names.append(str(replace(candidate.name, python=python)))
    return " or ".join(names)


def _join_ascending(versions: Iterable[str]) -> str:
    """Return versions as a text, the oldest first: `12.6, 12.8, 13.0`."""
    return ", ".join(sorted(versions, key=Version))


def check_python(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a Python that no base of the matrix has, or that torch has no wheel for."""
    # None means that the image's name has no Python: the default base decides. If the name has one
    # that no base has, the candidate was given the default base, whose Python is another.
    python_of_name = candidate.name.python
    if python_of_name and candidate.base.python != python_of_name:
        pythons = {base.python for base in candidate.matrix.bases.values()}
        yield refuse(
            f"no base in matrix.yaml has Python {python_of_name}: name an image of Python "
            f"{_join_ascending(pythons)}, or add a base with Python {python_of_name} to `bases`"
        )

    python = candidate.base.python
    pythons_of_torch = candidate.torch_facts.pythons
    if str(python) not in pythons_of_torch:
        fitting_names = _name_on_other_bases(candidate, lambda _base: True)
        yield refuse(
            f"torch {candidate.torch} has no wheel for Python {python} (it has "
            f"{', '.join(pythons_of_torch)}): build {fitting_names or 'an image of another torch'}"
        )


def check_processor_and_compilers(candidate: Candidate) -> Iterator[Finding]:
    """Refuse requested GPU architectures of another processor's boards, or unknown to a compiler.

    Boards are GPUs built in beside an ARM processor. The compilers are Triton's ptxas and NVRTC,
    which compile while programs run, for the GPU that they find.
    """
    is_arm = candidate.name.platform is Platform.ARM64
    for arch in candidate.requested_archs:
        # `unfit` says why images for linux/arm64 do not run on a board; None: they do.
        board = candidate.facts.arm64.boards.get(arch.capability)
        if board and board.unfit:
            yield refuse(
                f"{arch} is the GPU of {' and '.join(board.names)}, where no image runs "
                f"({board.unfit}): {_say_how_to_drop(arch, candidate)}"
            )
        elif not is_arm and arch in ON_ARM_ALONE:
            on_arm64 = replace(candidate.name, platform=Platform.ARM64)
            yield refuse(
                f"{arch} is a GPU of boards with ARM processors, but this image is for x86-64: "
                f"name the image for linux/arm64 ({on_arm64})"
            )
        # `the ptxas of Triton 3.6.0` -> the GPUs that it knows, as capabilities: `9.0`.
        for program, known_capabilities in candidate.compilers.items():
            if arch.capability not in known_capabilities:
                yield _refuse_unknown_arch(arch, program, candidate)


def _refuse_unknown_arch(arch: Arch, program: str, candidate: Candidate) -> Finding:
    """Return the refusal for a GPU architecture that a run-time compiler does not know.

    `program` is the compiler, for the message: `the ptxas of Triton 3.6.0`.
    """
    cause = (
        f"{program} does not know {arch}, so what torch.compile or Triton compiles on such a GPU "
        "would fail"
    )
    stack = find_first_stack_that_compiles_for(arch, candidate.matrix, candidate.facts)
    if stack:
        return refuse(f"{cause}: name an image of {stack}, the oldest here that knows {arch}")
    return refuse(
        f"{cause}, and no torch in matrix.yaml has compilers that know {arch}: "
        f"{_say_how_to_drop(arch, candidate)}"
    )


def find_first_stack_that_compiles_for(arch: Arch, matrix: Matrix, facts: Facts) -> str:
    """Return the oldest torch of the matrix, with its CUDA, whose run-time compilers know a GPU.

    The result reads `torch 2.12 with CUDA 13.0`; empty if there is none. The compilers are Triton's
    ptxas, and NVRTC of the CUDA.
    """
    # A stack is the set of pins for one torch minor: package -> version.
    for minor in sorted(matrix.stacks, key=Version):
        stack = matrix.stacks[minor]
        torch = facts.torch.get(stack.get("torch", ""))
        triton = facts.compilers.get("triton", {}).get(stack.get("triton", ""))
        if torch is None or triton is None or arch.capability not in triton.archs:
            continue
        for cuda in sorted(torch.variants, key=Version):
            # NVRTC knows the GPUs that the nvcc of its CUDA knows.
            if cuda in facts.cuda and arch.capability in facts.cuda[cuda].nvcc_archs:
                return f"torch {minor} with CUDA {cuda}"
    return ""


def _say_how_to_drop(arch: Arch, candidate: Candidate) -> str:
    """Return where to take a requested GPU architecture out, as the end of a sentence."""
    if candidate.name.arch:
        return f"take {arch} out of the name ({replace(candidate.name, arch=None)})"
    return f"take {arch.capability} out of `archs` in the row of this image in matrix.yaml"


def check_device_code(candidate: Candidate) -> Iterator[Finding]:
    """Refuse requested GPU architectures that a part of the image has no code for.

    Parts are torch and the libraries of `Candidate.binaries`. Warn if a part has only PTX for a
    GPU, which the driver compiles when a program starts. If no architecture was requested, there
    must be at least one that all parts have code for.
    """
    # This can only be empty if no architecture was requested.
    if not candidate.supported_archs:
        parts = " and ".join(candidate.binaries)
        codes = []
        for part, code in candidate.binaries.items():
            codes.append(f"{part} has code for {', '.join(code.archs) or 'none'}")
        yield refuse(
            f"no GPU architecture is covered by {parts} together ({'; '.join(codes)}): pin "
            f"releases that share one at `stacks.{candidate.name.torch}` in matrix.yaml, or name "
            "an image of another CUDA"
        )

    for arch in candidate.requested_archs:
        for part, code in candidate.binaries.items():
            # How a GPU of `arch` runs it: `cubin` (machine code), `ptx` or `no`.
            fit = code.covers(arch)
            if fit == "no":
                archs = [*code.archs, *(f"PTX {text}" for text in code.ptx)]
                yield refuse(
                    f"{part} has no code for {arch} (it has {', '.join(archs)}): "
                    f"{_say_where_code_is(arch, code)}, or "
                    f"{_say_how_to_drop(arch, candidate)}"
                )
            elif fit == "ptx":
                yield warn(
                    Topic.GPU_CODE,
                    f"{part} runs on {arch} only through PTX, which the driver compiles at first "
                    "use: the first start takes minutes longer, and nothing needs to be done",
                )
        if candidate.toolkit_facts and arch.capability not in candidate.toolkit_facts.nvcc_archs:
            yield _refuse_arch_of_nvcc(arch, candidate)


def _say_where_code_is(arch: Arch, code: DeviceCode) -> str:
    """Return whether images of a newer or an older CUDA or torch may have code for a GPU.

    `code` is that of a part which has none. `plan` adds the nearest images of the matrix that have.
    """
    known = sorted(Arch.parse(text) for text in code.archs)
    direction = "another"
    if known and arch > known[-1]:
        direction = "a newer"
    elif known and arch < known[0]:
        direction = "an older"
    return f"name an image of {direction} CUDA or torch"


def _refuse_arch_of_nvcc(arch: Arch, candidate: Candidate) -> Finding:
    """Return the refusal for a GPU architecture that the nvcc of the image's CUDA does not know.

    It says what to do: name an image of a CUDA that knows it, or else leave the architecture out.
    """
    others = []
    for cuda, facts in candidate.facts.cuda.items():
        if arch.capability in facts.nvcc_archs:
            others.append(cuda)
    cause = f"nvcc of CUDA {candidate.name.cuda} cannot compile for {arch}"
    if others:
        return refuse(f"{cause}: name an image of a CUDA that can ({_join_ascending(others)})")
    return refuse(
        f"{cause}, nor can that of any CUDA that truetag knows: {_say_how_to_drop(arch, candidate)}"
    )
