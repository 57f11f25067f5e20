"""command: check that a program that a derived image declares ends with 0.

People know best what their image is for. A derived image names a program in derived.toml
(validate/derived.py), and it is run as its user would run it: in the working folder, with the
image's variables, without a network, and with the GPUs of the tier. Each is a claim `command/NAME`.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import Finding, failed, passed, telling_line

SETTINGS = Settings(time_limit=3600)

_MOST_PRINTED = 4000
"""Characters of what the program printed last that are kept."""


class CommandExpect(TypedDict):
    """What the claim about a command says."""

    run: str
    """A line for `sh -c`."""
    seconds: int
    """How long it may take."""


class CommandEvidence(TypedDict):
    """How the command ended."""

    exit_code: int | None
    """Negative: the number of the signal that ended it. None: it was ended for its time."""
    seconds: float
    printed: str
    """The end of what it printed."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, CommandEvidence]]:
    """Run each command, one after another, and yield how it ended.

    It starts in the image's working folder, as with `docker run IMAGE`.
    """
    working_folder = user_environment.recorded().directory
    for claim in claims:
        line = claim.expect["run"]
        seconds = claim.expect["seconds"]
        evidence = run(line, seconds, working_folder)
        yield claim.subject, evidence


def run(line: str, seconds: float, folder: str) -> CommandEvidence:
    """Run a line of a shell in a folder, for at most these seconds, and return how it ended.

    Returns the exit code, the seconds that it took, and the end of what it printed to stdout and
    stderr. The exit code is None if the time was up: the line was then killed, with all programs
    that it had started.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    exit_code: int | None
    try:
        output, _ = process.communicate(timeout=seconds)
        exit_code = process.returncode
    except subprocess.TimeoutExpired:
        # The shell may have started processes that hold the pipe: end all of them. They are one
        # group, because the shell was started in a session of its own.
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        exit_code = None
    return {
        "exit_code": exit_code,
        "seconds": round(time.monotonic() - started, 1),
        "printed": output.decode("utf-8", "replace")[-_MOST_PRINTED:],
    }


def judge(subject: str, expect: CommandExpect, evidence: CommandEvidence) -> Finding:
    """Pass if a command that an image declares ended with 0, and in time.

    `subject` is the command's name, `expect` has its line (`run`) and how many seconds it may take.
    `evidence` is what `run` returned.
    """
    line = expect["run"]
    exit_code = evidence["exit_code"]
    if exit_code == 0:
        seconds = evidence["seconds"]
        return passed(f"`{line}` ended with 0 after {seconds} s")

    # The status is None if it was stopped because it took too long.
    if exit_code is None:
        limit = expect["seconds"]
        return failed(f"your command {subject} (`{line}`) did not end within {limit} s")

    # A command of the user's own: the last line that it printed says most about the cause.
    last_line = telling_line(evidence["printed"])
    last_line = last_line or "it printed nothing"
    return failed(f"your command {subject} (`{line}`) ended with status {exit_code}: {last_line}")


CLAIMS = {"command": judge}
NEXT_STEPS = {
    "command": "run the command that the reason quotes in a container of this image (`docker run "
    "--rm -it IMAGE sh`); then correct the command, or raise its `seconds`, in the file that your "
    "Dockerfile copies to /opt/truetag/derived.toml, and build the image again and validate it"
}
