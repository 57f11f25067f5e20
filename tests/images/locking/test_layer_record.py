"""The record of layers: a build is added once, other bytes are refused, and rows stand in a fixed order."""

from pathlib import Path

import pytest

from images.config.paths import CHECKOUT
from images.errors import UserError
from images.locking import layer_record
from images.locking.layer_record import Build, Measured

FIRST = Build(id="1", image="cu126-torch25", on="Docker 26.1.5", date="2026-11-28")
SECOND = Build(id="2", image="cu126-torch25", on="Docker 20.10.24", date="2026-11-28")


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def measured(diff_id: str, written_as: str) -> list[Measured]:
    return [Measured(layer="torch", recipe="r", diff_id=diff_id, written_as=written_as)]


def test_a_layer_stands_once_with_every_build_of_it(tmp_path: Path) -> None:
    record = layer_record.add({}, measured(digest("a"), digest("a")), FIRST)
    record = layer_record.add(record, measured(digest("a"), digest("b")), SECOND)
    record = layer_record.add(record, measured(digest("a"), digest("b")), SECOND)
    assert record["r"].builds == (FIRST, SECOND), "a build counts once"
    assert (record["r"].diff_id, record["r"].written_as) == (digest("a"), (digest("b"),))
    layer_record.write(record, tmp_path)
    assert layer_record.read(tmp_path) == record


def test_a_build_with_other_bytes_is_refused_and_both_are_named() -> None:
    record = layer_record.add({}, measured(digest("a"), digest("a")), FIRST)
    with pytest.raises(
        UserError,
        match="the layer torch of cu126-torch25: is cccccccccccc here, and was aaaaaaaaaaaa",
    ):
        layer_record.add(record, measured(digest("c"), digest("c")), SECOND)


def test_a_layer_that_another_store_wrote_is_known_by_what_it_changes() -> None:
    change = digest("e")
    first = Measured(
        layer="debian", recipe="r", diff_id=digest("a"), written_as=digest("a"), change=change
    )
    second = first._replace(diff_id=digest("c"), written_as=digest("c"))
    record = layer_record.add({}, [first], FIRST)
    record = layer_record.add(record, [second], SECOND)
    assert record["r"].diff_id == digest("a"), "the first build's stays"
    assert record["r"].written_as == (digest("c"), change)
    assert layer_record.known_forms(record) == dict.fromkeys(
        (digest("a"), digest("c"), change), digest("a")
    )
    with pytest.raises(UserError, match="is cccccccccccc here"):
        layer_record.add(record, [second._replace(change=digest("f"))], SECOND)


def test_a_damaged_record_is_a_problem_with_a_next_step(tmp_path: Path) -> None:
    assert layer_record.read(tmp_path) == {}
    (tmp_path / layer_record.FILE).write_text(
        '{"r": {"layer": "torch", "diff_id": "x", "builds": []}}'
    )
    with pytest.raises(UserError, match="restore it from git"):
        layer_record.read(tmp_path)


def test_the_committed_record_is_as_the_tool_writes_it(tmp_path: Path) -> None:
    record = layer_record.read(CHECKOUT.locks)
    layer_record.write(record, tmp_path)
    assert (tmp_path / layer_record.FILE).read_bytes() == (
        CHECKOUT.locks / layer_record.FILE
    ).read_bytes()
    assert record and all(len(row.builds) >= layer_record.BUILDS_NEEDED for row in record.values())
