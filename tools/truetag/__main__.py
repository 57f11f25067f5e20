"""`python -m truetag`."""

from __future__ import annotations

from . import main

main()
