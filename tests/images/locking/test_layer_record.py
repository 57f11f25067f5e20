"""The record of layers: a build is added once, and one with other bytes is refused."""

from pathlib import Path

import pytest

from images.config.paths import CHECKOUT
from images.errors import UserError
from images.locking import layer_record
from images.locking.layer_record import Build, Measured

FIRST = Build(id="1", image="cu126-torch25", on="Docker 26.1.5", date="2026-11-28")
SECOND = Build(id="2", image="cu126-torch25", on="Docker 20.10.24", date="2026-11-28")


def digest(digit: str) -> str:
    return f"sha256:{digit * 64}"


def measured(diff_id: str, written_as: str) -> list[Measured]:
    """Return what one build gave: a layer of the recipe `r`."""
    return [Measured(layer="torch", recipe="r", diff_id=diff_id, written_as=written_as)]


def test_a_layer_has_one_row_with_each_build_once() -> None:
    record = layer_record.add({}, measured(digest("a"), digest("a")), FIRST)
    record = layer_record.add(record, measured(digest("a"), digest("b")), SECOND)
    record = layer_record.add(record, measured(digest("a"), digest("b")), SECOND)

    assert record["r"].builds == (FIRST, SECOND)
    assert record["r"].diff_id == digest("a")
    assert record["r"].written_as == (digest("b"),), "only forms other than the canonical one"


def test_a_build_with_other_bytes_is_refused_and_both_are_named() -> None:
    record = layer_record.add({}, measured(digest("a"), digest("a")), FIRST)

    with pytest.raises(UserError, match="the layer torch of cu126-torch25") as refusal:
        layer_record.add(record, measured(digest("c"), digest("c")), SECOND)
    assert "cccccccccccc" in str(refusal.value)
    assert "aaaaaaaaaaaa" in str(refusal.value)


def test_a_layer_that_another_store_wrote_is_known_by_what_it_changes() -> None:
    change = digest("e")
    first = Measured(
        layer="debian", recipe="r", diff_id=digest("a"), written_as=digest("a"), change=change
    )
    by_another_store = first._replace(diff_id=digest("c"), written_as=digest("c"))

    record = layer_record.add({}, [first], FIRST)
    record = layer_record.add(record, [by_another_store], SECOND)

    assert record["r"].diff_id == digest("a"), "the first build's stays"
    assert record["r"].written_as == (digest("c"), change)
    known_digests = (digest("a"), digest("c"), change)
    assert layer_record.known_forms(record) == dict.fromkeys(known_digests, digest("a"))
    with_another_change = by_another_store._replace(change=digest("f"))
    with pytest.raises(UserError, match="cccccccccccc"):
        layer_record.add(record, [with_another_change], SECOND)


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    assert layer_record.read(tmp_path) == {}, "there is no file yet"
    record = layer_record.add({}, measured(digest("a"), digest("b")), FIRST)

    layer_record.write(record, tmp_path)

    assert layer_record.read(tmp_path) == record


def test_a_damaged_record_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with_wrong_digest = '{"r": {"layer": "torch", "diff_id": "x", "builds": []}}'
    (tmp_path / layer_record.FILE).write_text(with_wrong_digest)

    with pytest.raises(UserError, match="restore it from git"):
        layer_record.read(tmp_path)


def test_the_committed_record_is_as_the_tool_writes_it(tmp_path: Path) -> None:
    record = layer_record.read(CHECKOUT.locks)

    layer_record.write(record, tmp_path)

    committed = (CHECKOUT.locks / layer_record.FILE).read_bytes()
    assert (tmp_path / layer_record.FILE).read_bytes() == committed


def test_each_committed_layer_was_built_often_enough() -> None:
    record = layer_record.read(CHECKOUT.locks)

    assert record
    for row in record.values():
        assert len(row.builds) >= layer_record.BUILDS_NEEDED, row.layer
