"""`python -m images VERB`: what the nox sessions call."""

import signal
from typing import NoReturn


def start() -> NoReturn:
    """Import the command line, which takes a moment, and run it.

    While modules are imported there is nothing to clean up, so that Ctrl-C ends the process at
    once, in place of a traceback. The command line has a handler of its own.
    """
    # Leave the signal alone if it is ignored, as in what a script starts in the background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from images.cli import main

    main()


if __name__ == "__main__":
    start()
