"""What every Python started by the tests imports first under `--pretend-memory` and `--pretend-cores`."""

import pretended

pretended.install()
