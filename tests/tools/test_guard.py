"""Rows that a refresh must not lose, compared in plain dicts and in a real git repository."""

import subprocess
from pathlib import Path

import pytest

from images.errors import UserError
from tools import guard

YAML, TORCH, MONTH = (
    "images/data/facts.yaml",
    "locks/cu126-torch27/torch.txt",
    "results/nightly/2026-11.jsonl",
)
FACTS = b"""\
collected: '2026-11-20'
torch:
  "2.7.1":
    variants: {"12.6": {archs: ["7.5", "9.0"]}}
  "2.8.0":
    variants: {"12.8": {archs: ["9.0"]}}
prebuilt:
  - {version: "2.8.3", archs: ["9.0"]}
  - {version: "2.8.3", archs: ["9.0"]}
"""
LOCK = b"# made\ntorch==2.7.1 \\\n    --hash=sha256:0\ntriton==3.3.1 \\\n    --hash=sha256:1\n"
LINES = b'{"kind":"leg","n":1}\n{"kind":"leg","n":2}\n'
FILES = {
    YAML: FACTS,
    "locks/bases.yaml": b"debian:bookworm-slim: sha256:0\n",
    TORCH: LOCK,
    "locks/cu126-torch27/light.txt": b"# nothing\n",
    MONTH: LINES,
}


def lost(after: dict[str, bytes]) -> list[tuple[str, str]]:
    return [(table, row) for table, rows in guard.lost(FILES, after).items() for row in rows]


def test_nothing_is_lost_where_rows_are_added_or_values_change() -> None:
    grown = {
        **FILES,
        YAML: FACTS.replace(b"2026-11-20", b"2026-11-21").replace(
            b'["7.5", "9.0"]', b'["7.5", "9.0", "12.0"]'
        ),
        "locks/bases.yaml": b"debian:bookworm-slim: sha256:1\n",
        TORCH: LOCK.replace(b"3.3.1", b"3.3.2").replace(b"sha256:1", b"sha256:2"),
        MONTH: LINES + b'{"kind":"leg","n":3}\n',
        "locks/cu128-torch28/torch.txt": LOCK,
    }
    assert lost(grown) == []


@pytest.mark.parametrize(
    ("path", "content", "expected"),
    [
        (YAML, FACTS.replace(b'  "2.8.0":', b'  "2.7.2":'), (f"{YAML} torch", "2.8.0")),
        (
            YAML,
            FACTS.replace(b'["7.5", "9.0"]', b'["9.0"]'),
            (f"{YAML} torch", "2.7.1/variants/12.6/archs/7.5"),
        ),
        (YAML, b"collected: '2026-11-20'\n", (f"{YAML} torch", "all of it")),
        (
            YAML,
            FACTS.removesuffix(b'  - {version: "2.8.3", archs: ["9.0"]}\n'),
            (f"{YAML} prebuilt", "row 2"),
        ),
        (
            YAML,
            FACTS.replace(b'archs: ["9.0"]}\n', b"archs: []}\n"),
            (f"{YAML} prebuilt", "archs/9.0"),
        ),
        ("locks/bases.yaml", b"", ("locks/bases.yaml debian:bookworm-slim", "all of it")),
        (TORCH, b"# nothing\n", (TORCH, "all of it")),
        (MONTH, LINES.replace(b'"n":1', b'"n":9'), (MONTH, 'line 1: {"kind":"leg","n":1}')),
    ],
)
def test_a_lost_row_is_named(path: str, content: bytes, expected: tuple[str, str]) -> None:
    assert expected in lost({**FILES, path: content})


def test_a_lost_file_is_named() -> None:
    for path in (YAML, TORCH, MONTH):
        assert any(
            table.startswith(path)
            for table, _ in lost({key: FILES[key] for key in FILES if key != path})
        )
    without = {
        path: content for path, content in FILES.items() if path != "locks/cu126-torch27/light.txt"
    }
    assert lost(without) == [], "it named nothing"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x.test", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_checkout_is_compared_with_a_commit(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guard.main(root=checkout)
    assert capsys.readouterr().out == "22 rows before, 22 now, none lost\n"
    (checkout / "images" / "data" / "facts.yaml").write_bytes(
        FACTS.replace(b'["7.5", "9.0"]', b'["9.0"]')
    )
    with pytest.raises(
        UserError, match=r"facts.yaml torch: has lost 2.7.1/variants/12.6/archs/7.5"
    ) as told:
        guard.main(root=checkout)
    assert told.value.code == 1
    guard.main(root=checkout, allow=[f"{YAML} torch"])
    with pytest.raises(UserError, match="--before nothing"):
        guard.at_revision(checkout, "nothing")
