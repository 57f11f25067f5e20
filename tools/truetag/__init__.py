"""The installed package. `images` and `validate` lie inside it, as such names could be anyone's.

In a checkout they lie at its top, and this folder is of no use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line.

    This folder comes first on the path, because the code says `import images`, as in a checkout.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from images.__main__ import start

    start()
