"""Small base images, for tests that weigh, push or export what they build: Debian's takes seconds each time."""

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
    text = Path(__file__).with_name(f"{name}.Dockerfile").read_text(encoding="utf-8")
    return text.replace("{base}", base.reference).encode()


@contextmanager
def small_base(engine: Engine, base: BaseContext) -> Iterator[BaseContext]:
    """The programs of a base that steps of tests call, in one layer; the name is gone afterwards."""
    tag = f"{_NAME}:{uuid.uuid4().hex[:12]}"  # several workers have one at a time
    dockerfile = _dockerfile("small_base", base)
    engine.build({"Dockerfile": dockerfile}, tag, network="none")
    try:
        yield replace(base, reference=tag, digest=engine.inspect(tag).id)
    finally:
        engine.untag(tag)


@contextmanager
def python_base(engine: Engine, base: BaseContext) -> Iterator[str]:
    """Debian's Python on a base with its list of packages, less what no test reads."""
    tag = f"{_NAME}:{uuid.uuid4().hex[:12]}"
    scripts = {
        f"scripts/{path.name}": path.read_bytes() for path in SCRIPTS.iterdir() if path.is_file()
    }
    dockerfile = _dockerfile("python_base", base)
    engine.build({"Dockerfile": dockerfile, **host_settings().files(), **scripts}, tag)
    try:
        yield tag
    finally:
        engine.untag(tag)
