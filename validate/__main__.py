"""Entry point that needs nothing of the environment it judges: `python3 -I -S /any/where/validate --claims FILE`."""

import sys
from pathlib import Path


def main() -> int:
    """Put the folder that holds `validate` first on the path, in place of `validate` itself, and run the suite."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != here)]
    from validate.suite import main as suite

    return suite()


if __name__ == "__main__":
    sys.exit(main())
