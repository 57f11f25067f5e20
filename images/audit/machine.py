"""The claim of an audit that an environment runs on a machine, with its GPUs and driver. Pure.

It passes only where something was looked at: code for the GPUs, in libraries that were read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from images.audit.device_code import LibraryCode, kinds_by_package, lacking_libraries
from images.audit.survey import SurveyedEnvironment, platform_of
from images.config.facts import Facts
from images.config.platforms import Platform
from images.planning import chooser
from images.planning.chooser import Machine
from images.planning.image import Image
from images.validation.claims.context import claim
from validate.claims import HOST_PROBE, Claim
from validate.environment.installed import canonical
from validate.judging import Finding, Status, conclude, listed, unproven

SUBJECT = "machine"
_RUNTIME = "nvidia-cuda-runtime"
"""NVIDIA's package of CUDA's runtime: `nvidia-cuda-runtime-cu12`, from CUDA 13 on without the
number. Its version is that of CUDA."""
_FIX = (
    "`truetag choose` with the same --gpu (or --arch) and --driver names a set of versions that "
    "runs there: install that in place of this one"
)


def machine_claim(
    environment: SurveyedEnvironment, image: Image | None, facts: Facts, machine: Machine
) -> Claim:
    """Return the claim that an environment runs on a machine with these GPUs and this driver.

    `image` is the environment as an image of the matrix (describe_as_image); None: it has no torch
    for a CUDA that we know. The claim itself holds what is known to speak against the environment,
    as sentences (`against`). For an image, these are the obstacles that `truetag choose` names for
    one like it.
    """
    against: list[str] = []
    if image:
        summary = chooser.summarize(image, facts)
        for obstacle in chooser.answer(summary, machine, chooser.Options()).against:
            # The chooser speaks of an image: it `has no code for sm_120`. Here that is torch.
            is_about_torch = obstacle.startswith(("has no code", "is for"))
            against.append(f"torch {obstacle}" if is_about_torch else obstacle)
    else:
        against += _obstacles_of_processor(environment, machine)
        against += _obstacles_without_torch(environment, facts, machine)

    return claim(
        "audit",
        SUBJECT,
        HOST_PROBE,
        f"it runs on {machine}",
        {
            "machine": str(machine),
            "against": against,
            # The chooser knows more of torch than what code it has: what Triton compiles, say.
            "judged": ["torch"] if image else [],
        },
    )


def _obstacles_of_processor(environment: SurveyedEnvironment, machine: Machine) -> Iterator[str]:
    """Yield why libraries of an environment can't run on the machine's processor."""
    platform = platform_of(environment)
    if platform is Platform.AMD64 and machine.arm:
        yield "its libraries are for x86-64, and this GPU's host processor is ARM"
    if platform is Platform.ARM64 and not machine.arm:
        yield "its libraries are for ARM processors, and this GPU's host processor is x86-64"


def _obstacles_without_torch(
    environment: SurveyedEnvironment, facts: Facts, machine: Machine
) -> Iterator[str]:
    """Yield what speaks against an environment that has no torch for a CUDA that we know.

    It is a torch for the CPU, and a driver that is too old for the machine's GPUs or for the CUDA
    runtime that is installed.
    """
    torch = environment["torch"]
    if torch and not torch["cuda"]:
        yield (
            f"torch {torch['version']} is built without CUDA, and uses no NVIDIA GPU: "
            "remove it (`pip uninstall torch`) and install a build for CUDA, by its index "
            "(`--index-url https://download.pytorch.org/whl/cu130`, or cu128, cu126 for older "
            "drivers), because the default index may have this one again"
        )
    yield from chooser.wrong_for_gpu(machine)

    cuda_major = _runtime_major(environment)
    minimum = facts.minimum_drivers.get(cuda_major)
    # Nothing is known without a driver or a runtime.
    if not machine.driver or not minimum:
        return
    if chooser.version_of(machine.driver) < chooser.version_of(minimum.driver):
        yield (
            f"CUDA {cuda_major} needs driver {minimum.driver} or newer, and --driver is "
            f"{machine.driver}"
        )


def _runtime_major(environment: SurveyedEnvironment) -> str:
    """Return the major of the installed CUDA runtime, such as `12`; empty if there is none."""
    for distribution in environment["distributions"]:
        name = canonical(str(distribution["name"]))
        if name == _RUNTIME or name.startswith(f"{_RUNTIME}-cu"):
            return str(distribution["version"]).partition(".")[0]
    return ""


def machine_evidence(
    environment: SurveyedEnvironment, code: Sequence[LibraryCode], machine: Machine
) -> dict[str, Any]:
    """Return the evidence of the claim that an environment runs on a machine.

    `code`: the device code of its libraries.
    """
    # The CUDA that torch was built for; empty without torch, or if it is built for the CPU.
    cuda = str(environment["torch"].get("cuda", ""))
    # `90` for sm_90.
    archs = [f"{arch.major}{arch.minor}" for arch in machine.archs]
    return {
        "packages": kinds_by_package(code, cuda, archs),
        "lacking": lacking_libraries(code, cuda, archs),
    }


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """Pass if an environment runs on a machine: on its processor, GPUs and driver.

    `expect`: `machine` is its description; `against` is what facts about the driver and about torch
    say against it; `judged` are packages whose code `against` covers. `evidence`: `packages` says
    for each package and architecture which code it has, `lacking` names libraries without code that
    a package may work without (machine_evidence). UNPROVEN if nothing has code for GPUs.
    """
    # Evidence of old runs has no `judged`: there, torch was always left to `against`.
    judged_packages = expect.get("judged", ["torch"])
    faults = list(expect["against"])
    for package, kind_by_arch in evidence["packages"].items():
        if package in judged_packages:
            continue
        lacking = [f"sm_{arch}" for arch, kind in kind_by_arch.items() if kind == "no"]
        if lacking:
            faults.append(f"{package} has no code for {', '.join(lacking)}")
    if faults:
        return conclude(faults, "")._replace(next_step=_FIX)

    if not evidence["packages"]:
        return unproven(
            "no library here has code for GPUs that could be read, so it is not known whether this "
            f"environment runs on {expect['machine']}",
            "install torch for CUDA there and audit again; or, if it is not meant for a GPU, leave "
            "out --gpu, --arch and --driver",
        )
    good = f"it runs on {expect['machine']}"
    libraries = evidence.get("lacking", [])
    if libraries:
        # Below site-packages, as faults name them.
        libraries = [re.sub(r"^/\S*-packages/", "", path) for path in libraries]
        good += (
            f"; its packages may work without these, which have no code for it: {listed(libraries)}"
        )
    return Finding(Status.PASS, good)
