"""Parts of next steps: the sentences that say what to do about a claim that does not hold.

A next step is one sentence, printed once below the failed claims of a check. NEXT_STEPS of a
check's file has those of its claims. A finding can bring one of its own, for a reason that needs
another step. Steps are written for whoever builds an image of the matrix: in a report about such an
image its name stands in place of NAME. In a report about any other image FOR_OWN_IMAGES replaces
the words that are only for the matrix, and NAME is the image that the user's own stands on. In an
audit FOR_AUDITS follows, and FOR_FOLDERS comes first if a folder was audited (validate/judge.py).
"""

from validate.installation import command

LOCK = command("lock", "NAME")
BUILD = command("build", "NAME")
_BUILD_UNCACHED = f"`{command('build', 'NAME', '--no-cache')}`"
BUILD_ANEW = f"build the image without cached steps ({_BUILD_UNCACHED})"
AS_LOCKED = f"to bring the locked packages back, {BUILD_ANEW}"
_OUT_OF_DOCKERFILE = (
    " out of your Dockerfile, or of that of the base image, and build the image again; if neither "
    f"has it, {BUILD_ANEW}"
)
_THIS_CHECK_ALONE = (
    f"run this check alone (`{command('validate', 'NAME', '--claim', 'CLAIM')}`, with the name "
    "behind FAIL or UNPROVEN above for CLAIM)"
)
_VALIDATE_OWN = command("validate", "NAME", "--image", "IMAGE")
_OWN_CHECK_ALONE = _THIS_CHECK_ALONE.replace(command("validate", "NAME"), _VALIDATE_OWN)
COMPILE_EXTENSIONS = f"compile the package's extensions (`{command('wheels', 'NAME')}`)"
_LOCK_AND_BUILD = f", then run `{LOCK}` and `{BUILD}`"
FOR_OWN_IMAGES = {
    AS_LOCKED: (
        "take `--upgrade` out of your `pip install`, and every line that changes PIP_CONSTRAINT "
        "out of your Dockerfile, so that pip moves none of the base image's packages, and build "
        "the image again (or declare a change that you want in /opt/truetag/derived.toml, under "
        "[replaces])"
    ),
    _BUILD_UNCACHED: "`docker build --no-cache`",
    "pin in matrix.yaml ": "install with pip in your Dockerfile ",
    _LOCK_AND_BUILD: ", then build the image again and validate it",
    COMPILE_EXTENSIONS: (
        "in your Dockerfile, install the package with its extensions compiled ahead (BUILD_EXT=1 "
        "for colossalai, DS_BUILD_OPS=1 for deepspeed), or leave it as the base image has it"
    ),
    f" from this matrix.yaml: `{BUILD}`": "",
    f" with this checkout: `{BUILD}`": " on a base image of this release of truetag",
    f", by this release of truetag: `{BUILD}`": " on a base image of this release of truetag",
    ", or in the image that --base names,": ", or in that of the base image,",
    "`--base`, or FROM": "FROM",
    " or of the pins of matrix.yaml": "",
    command("validate", "NAME"): _VALIDATE_OWN,
    "out/NAME/ or out/validate/NAME/": "out/validate/IMAGE/",
}
"""Words of steps for an image of the matrix -> those for an image that a user builds themselves.

The first row contains the second one's words, so it stands above it."""
FOR_AUDITS = {
    _OWN_CHECK_ALONE: f"audit it again (`{command('audit', 'IMAGE')}`)",
    _VALIDATE_OWN: command("audit", "IMAGE"),
    "in out/validate/IMAGE/": "`--out FOLDER` writes it",
    "validate": "audit",
}
"""Words of FOR_OWN_IMAGES -> those for what was audited, which IMAGE stands for."""
FOR_FOLDERS = {
    "take the step that brings ": "remove ",
    _OUT_OF_DOCKERFILE: "",
    "`RUN pip": "`pip",
    " below all steps of your Dockerfile that change its files, and build the image again; if your "
    f"Dockerfile changes none of them, {BUILD_ANEW}": "",
    "if a step of your Dockerfile changes it (`strip`, another pruner), remove that step and build "
    f"the image again; if none does, {BUILD_ANEW}": "install its package again (`pip install "
    "--force-reinstall --no-deps PACKAGE==VERSION`)",
    "if a step of your Dockerfile takes code out of the package (`rm`, `strip`, another pruner), "
    "remove that step and build the image again; if none does, ": "",
    "pin in matrix.yaml ": "install with pip ",
    _LOCK_AND_BUILD: "",
    ", in your Dockerfile or base image, and build the image again": "",
    " in your Dockerfile or base image": "",
    " in the step that brings it; then build the image again": "",
    "take a base image with a newer Debian or Ubuntu (`--base`, or FROM of your Dockerfile)": (
        "use the environment on a newer Debian or Ubuntu"
    ),
    ", or an older release of the package, and build the image again": (
        ", or install an older release of the package"
    ),
    ", and build the image again": "",
    BUILD_ANEW: "make the environment anew",
    "the image": "the environment",
}
"""Words of steps -> those for a Python environment's folder, which has no Dockerfile.

The longer of two rows stands above the one that it contains."""
VALIDATE_AGAIN = f"`{command('validate', 'NAME')}`"
_OPEN_ISSUE = (
    "open an issue where you got truetag from (in a checkout `git remote -v` shows the address)"
)
REPORT = f"{_OPEN_ISSUE}, and attach evidence.json of this run (in out/NAME/ or out/validate/NAME/)"
CHECK_FAILED = f"this is a fault of truetag's check, and shows none of the image: {REPORT}"
"""The next step if a check had nothing to judge."""
RUN_AS_ASKED = (
    "validate with Docker's own engine on Linux, neither rootless nor with userns-remap, so that "
    f"containers run as they are asked to: {VALIDATE_AGAIN}"
)
READ_LAYERS = (
    "validate as root on the machine where Docker runs, whose store must be overlay2 or "
    "containerd's (`docker info` shows it; with another one this stays UNPROVEN): "
    f"{VALIDATE_AGAIN}"
)
MEASURE_AGAIN = f"measure the image again on this machine: {VALIDATE_AGAIN}"
FREE_THE_GPU = (
    "end the programs that `nvidia-smi` lists on this GPU, or take another GPU, then validate again"
)
_SPEED_UP_THE_GPU = (
    "see in `nvidia-smi -q -d PERFORMANCE,POWER` what slows this GPU down (heat, a limit of power, "
    "other programs), mend that, or take another GPU, then validate again"
)
MEASUREMENT_FAILED = (
    "nothing is known of the image, as the measurement itself failed: validate the image again on "
    f"another machine; if this check says the same on that machine, {REPORT}"
)
"""The next step if a result that is wrong on purpose passed as right."""
PROBE_ENDED = (
    f"{_THIS_CHECK_ALONE} on a machine with free memory; if the check ends "
    "early again, its `log` in evidence.json of that run may tell why; if not, "
    f"{_OPEN_ISSUE}, and attach that file"
)
"""The next step if a probe did not run to its end."""


def calm_gpu(reason: str) -> str:
    """Return what to do if something on a GPU disturbed a measurement, as a reason says."""
    is_slowed_down = "clocks" in reason or " power " in reason or " MHz" in reason
    return _SPEED_UP_THE_GPU if is_slowed_down else FREE_THE_GPU


def remove_variables(names: str) -> str:
    """Return how variables that a reason names are taken away, such as `OMP_NUM_THREADS`."""
    return (
        f"take {names} out of the ENV lines of your Dockerfile and of the base image's, and out of "
        "the options of `docker run` (`docker run --rm IMAGE env` shows what the image sets), then "
        "build the image again and validate it"
    )


def if_image_sets(names: str) -> str:
    """Return how variables that may be to blame are looked for and taken away.

    It is the first half of a sentence. The second one says what to do if the image sets none of
    them, and begins with `; if not, `. `names` is such as `TRITON_CACHE_DIR or CC`.
    """
    return (
        f"if `docker run --rm IMAGE env` shows {names}, remove the ENV line that sets it from your "
        "Dockerfile or from that of the base image, and build again"
    )


def take_out(line: str) -> str:
    """Return how a line or file that the build does not bring is taken away: `the USER line`."""
    return f"take {line}{_OUT_OF_DOCKERFILE}"


def pin(release: str) -> str:
    """Return how another release of a package gets into an image, as the first half of a sentence.

    `release` says which one: `the torchvision release that was made for this torch`.
    """
    return f"pin in matrix.yaml {release}{_LOCK_AND_BUILD}"


def pin_together(packages: str) -> str:
    """Return how releases that fit each other get into an image, as the first half of a sentence.

    `packages` names them: `trl, vllm and transformers`.
    """
    return pin(
        f"the releases of {packages} of another image that passes this check (`docker run --rm "
        "IMAGE python -m pip list` prints those of an image)"
    )
