"""A context on disk."""

from pathlib import Path

from images.building import records


def test_a_context_on_disk_is_whole_and_keeps_passwords_to_itself(tmp_path: Path) -> None:
    wheel, folder = tmp_path / "a.whl", tmp_path / "context"
    for content in (b"older", b"newer"):
        wheel.unlink(missing_ok=True)
        wheel.write_bytes(content)
        records.write_context({"Dockerfile": b"FROM x\n", "host/env": b"export A=b\n", "wheels/a.whl": wheel}, folder)
    placed = folder / "wheels" / "a.whl"
    assert placed.read_bytes() == b"newer" and not placed.is_symlink()
    assert (folder / "host" / "env").stat().st_mode & 0o077 == 0
    records.write_context({"Dockerfile": b"FROM y\n"}, folder)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"Dockerfile"}
