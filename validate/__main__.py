"""Starts the suite from any folder: `python3 -I -S /any/where/validate --claims FILE`.

In an image, `validate` and `doctor` on the PATH call it with a first argument of that name.
"""

import importlib
import sys
from pathlib import Path

# Command -> the module whose `main` runs it.
COMMANDS = {
    "validate": "validate.inside",
    "doctor": "validate.doctor.main",
    # doctor starts these two as processes of their own.
    "doctor-driver": "validate.doctor.ask_driver",
    "doctor-torch": "validate.doctor.ask_torch",
    "survey": "validate.survey.main",
    "packages": "validate.survey.packages",
}
_INTERRUPTED = 130
"""Exit status after an interrupt: 128 + SIGINT, as shells have it."""


def main() -> int:
    """Run the command that the first argument names, or else the suite, and return its exit status.

    COMMANDS maps the names of commands to their modules. A command gets the arguments after its
    name; the suite reads all of sys.argv itself.
    """
    put_parent_folder_on_path()
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in COMMANDS:
        code: int = importlib.import_module(COMMANDS[command]).main(sys.argv[2:])
        return code
    # Imported here: it can be found only after its parent folder was put on the path.
    from validate.suite import main as suite

    return suite()


def put_parent_folder_on_path() -> None:
    """Put the parent folder of `validate` first on the path, and take `validate` itself off it.

    Python puts the folder that it runs on the path. Modules of `validate` would then hide those of
    the standard library that have the same name.
    """
    here = Path(__file__).resolve().parent
    # An empty entry is the working folder.
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    sys.path[:] = [str(here.parent), *others]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        # Ctrl-C in `docker run -it IMAGE validate`: no traceback. Probes end with this process.
        sys.stderr.write("stopped\n")
        sys.exit(_INTERRUPTED)
