"""Make small base images, for tests that weigh, push or export what they build.

Debian's own base would take seconds each time.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from images.config.paths import TEMPLATES
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import Engine

SCRIPTS = TEMPLATES / "scripts"
_NAME = "truetag-test-small-base"


def _dockerfile(name: str, base: BaseContext) -> bytes:
    """Return the Dockerfile NAME.Dockerfile beside this file, on a base."""
    text = Path(__file__).with_name(f"{name}.Dockerfile").read_text(encoding="utf-8")
    return text.replace("{base}", base.reference).encode()


@contextmanager
def small_base(engine: Engine, base: BaseContext) -> Iterator[BaseContext]:
    """Yield an image with the programs of a base that tests call, in one layer.

    Its name is removed afterwards.
    """
    # Several workers may have one at the same time.
    tag = f"{_NAME}:{uuid.uuid4().hex[:12]}"
    dockerfile = _dockerfile("small_base", base)
    engine.build({"Dockerfile": dockerfile}, tag, network="none")
    try:
        yield replace(base, reference=tag, digest=engine.inspect(tag).digest)
    finally:
        engine.untag(tag)


@contextmanager
def python_base(engine: Engine, base: BaseContext) -> Iterator[str]:
    """Yield an image with Debian's Python and its list of packages, without what no test reads.

    Its name is removed afterwards.
    """
    tag = f"{_NAME}:{uuid.uuid4().hex[:12]}"
    dockerfile = _dockerfile("python_base", base)
    context: dict[str, bytes | Path] = {"Dockerfile": dockerfile, **host_settings().files()}
    for path in SCRIPTS.iterdir():
        if path.is_file():
            context[f"scripts/{path.name}"] = path.read_bytes()
    engine.build(context, tag)
    try:
        yield tag
    finally:
        engine.untag(tag)
