"""Parts of next steps: the sentences that say what to do about a claim that does not hold.

A next step is one sentence, printed once below the failed claims of a check. NEXT_STEPS of a
check's file has those of its claims. A finding can bring one of its own, for a reason that needs
another step. Steps are written for whoever builds an image of the matrix: in a report about such an
image its name stands in place of NAME. In a report about any other image FOR_OWN_IMAGES replaces
the words that are only for the matrix, and NAME is the image that the user's own stands on
(validate/judge.py).
"""

from validate.installation import command

LOCK = command("lock", "NAME")
BUILD = command("build", "NAME")
_BUILD_UNCACHED = f"`{command('build', 'NAME', '--no-cache')}`"
BUILD_ANEW = f"build the image without cached steps ({_BUILD_UNCACHED})"
AS_LOCKED = f"to bring the locked packages back, {BUILD_ANEW}"
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
    f" from this matrix.yaml: `{BUILD}`": "",
    " or of the pins of matrix.yaml": "",
    command("validate", "NAME"): command("validate", "NAME", "--image", "IMAGE"),
    "out/NAME/ or out/validate/NAME/": "out/validate/IMAGE/",
}
"""Words of steps for an image of the matrix -> those for an image that a user builds themselves.

The first row contains the second one's words, so it stands above it."""
VALIDATE_AGAIN = f"`{command('validate', 'NAME')}`"
REPORT = "report it to truetag with evidence.json of this run (in out/NAME/ or out/validate/NAME/)"
RUN_AS_ASKED = (
    "validate with Docker's own engine on Linux, neither rootless nor with userns-remap, so that "
    f"containers run as they are asked to: {VALIDATE_AGAIN}"
)
READ_LAYERS = (
    "validate as root on the machine where Docker runs, whose store must be overlay2 or "
    f"containerd's (`docker info` shows it): {VALIDATE_AGAIN}"
)
MEASURE_AGAIN = f"measure the image again on this machine: {VALIDATE_AGAIN}"
FREE_THE_GPU = (
    "end the programs that `nvidia-smi` lists on this GPU (if the reason names its power, clock or "
    "heat, mend that: `nvidia-smi -q -d PERFORMANCE,POWER`), or take another GPU, then validate "
    "again"
)
MEASUREMENT_FAILED = (
    "nothing is known of the image, as the measurement itself failed: validate the image again on "
    f"another machine; if this check says the same on that machine, {REPORT}"
)
"""The next step if a result that is wrong on purpose passed as right."""
PROBE_ENDED = (
    f"run this check alone (`{command('validate', 'NAME', '--claim', 'CLAIM')}`, with the name "
    "behind FAIL or UNPROVEN above for CLAIM) on a machine with free memory; if the check ends "
    "early again, its `log` in evidence.json of that run may tell why; if not, report it to "
    "truetag with that file"
)
"""The next step if a probe did not run to its end."""


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
    return (
        f"take {line} out of your Dockerfile, or of that of the base image, and build the image "
        f"again; if neither has it, {BUILD_ANEW}"
    )


def pin(release: str) -> str:
    """Return how another release of a package gets into an image, as the first half of a sentence.

    `release` says which one: `the torchvision release that was made for this torch`.
    """
    return f"pin in matrix.yaml {release}{_LOCK_AND_BUILD}"
