"""Parts of next steps: the sentences that say what to do about a claim that does not hold.

A next step is one sentence, printed once below the failed claims of a check. It has to be true for
whoever builds an image of the matrix, and for whoever built an image of their own on one of ours;
where they differ, it says both. NEXT_STEPS of a check's file has those of its claims. A finding can
bring one of its own, for a reason that needs another step.
"""

from validate.installation import command

LOCK = command("lock", "NAME")
BUILD = command("build", "NAME")
BUILD_ANEW = (
    f"build the image without cached steps (`{command('build', 'NAME', '--no-cache')}`, or "
    "`docker build --no-cache` for an image of your own)"
)
VALIDATE_AGAIN = f"`{command('validate', 'NAME')}`"
REPORT = "report it to truetag with evidence.json of this run (in out/NAME/ or out/validate/NAME/)"
RUN_AS_ASKED = (
    "validate with Docker's own engine on Linux, neither rootless nor with userns-remap, so that "
    f"containers run as they are asked to: {VALIDATE_AGAIN}"
)
MEASURE_AGAIN = f"measure the image again on this machine: {VALIDATE_AGAIN}"
FREE_THE_GPU = (
    "end the programs that `nvidia-smi` lists on this GPU, or take another GPU, then validate again"
)
MEASUREMENT_FAILED = (
    "nothing is known of the image, as the measurement itself failed: validate it again on another "
    f"machine, and if it says the same there, {REPORT}"
)
"""The next step if a result that is wrong on purpose passed as right."""
PROBE_ENDED = (
    f"run this check alone (`{command('validate', 'NAME', '--claim', 'CLAIM')}`) on a machine with "
    "free memory, and read its `log` in evidence.json of that run; if it ends early again, "
    f"{REPORT}"
)
"""The next step if a probe did not run to its end."""


def unset(names: str) -> str:
    """Return how variables that an image sets are unset. `names` is such as `OMP_NUM_THREADS`."""
    return (
        f"leave {names} unset, in your Dockerfile, in the base image and in the options of `docker "
        "run`, and validate again"
    )


def pin(release: str) -> str:
    """Return how another release of a package gets into an image, as the first half of a sentence.

    `release` says which one: `the torchvision release that was made for this torch`.
    """
    return (
        f"pin {release} in matrix.yaml, then run `{LOCK}` and `{BUILD}`; in an image of your own, "
        "install that with pip in your Dockerfile"
    )
