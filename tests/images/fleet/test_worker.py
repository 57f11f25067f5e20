"""A worker that is told to end tidies up, however often it is told."""

import os
import signal
import subprocess
import sys

from tests.support.checkout import ROOT

PROGRAM = """
import time
from images.fleet import worker
worker.end_on_sigterm()
try:
    print("ready", flush=True)
    time.sleep(600)
finally:
    print("tidying", flush=True)
    input()
    print("tidied", flush=True)
"""


def test_a_second_sigterm_does_not_end_the_tidying_up() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout and child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "tidying\n"
    child.send_signal(signal.SIGTERM)
    told, _ = child.communicate("go on\n")
    assert told == "tidied\n" and child.returncode != 0
