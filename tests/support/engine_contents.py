"""What an engine holds of our runs, asked from the SDK."""

from types import SimpleNamespace

from images.engine import RUN_LABEL, Engine


def containers(engine: Engine, label: str = RUN_LABEL) -> list[SimpleNamespace]:
    """Containers that bear a label, ended ones included."""
    found = engine.sdk.containers(all=True, filters={"label": label})
    return [
        SimpleNamespace(id=one["Id"], image=one["Image"], state=one["State"], labels=one["Labels"] or {})
        for one in found
    ]


def volumes(engine: Engine, label: str = RUN_LABEL) -> list[str]:
    """Names of the volumes that bear a label."""
    return [one["Name"] for one in engine.sdk.volumes(filters={"label": label})["Volumes"] or ()]
