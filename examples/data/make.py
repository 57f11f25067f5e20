"""Make the data of the examples: `python3 make.py` writes it.

`python3 make.py --check` says whether it is current.
"""

import json
import random
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROWS = 400
WORDS = (
    "apple bread cloud drum eagle field grape house iron jar kite lamp moon nest oak pear quill "
    "river tree"
).split()


def questions() -> list[dict[str, str]]:
    """Rows as Alpaca has them: an instruction, an input that may be empty, and the answer."""
    chance = random.Random(1)
    return [_question(chance, number % 4) for number in range(ROWS)]


def _question(chance: random.Random, kind: int) -> dict[str, str]:
    first, second = chance.sample(WORDS, 2)
    left, right = chance.randint(1, 50), chance.randint(1, 50)
    if kind == 0:
        return _row(f"What is {left} plus {right}?", "", f"{left} plus {right} is {left + right}.")
    if kind == 1:
        return _row("Write the word backwards.", first, f"{first} backwards is {first[::-1]}.")
    if kind == 2:
        return _row(
            f"Which word comes first, {first} or {second}?",
            "",
            f"{min(first, second)} comes first.",
        )
    return _row("Count the letters of the word.", second, f"{second} has {len(second)} letters.")


def _row(instruction: str, given: str, output: str) -> dict[str, str]:
    return {"instruction": instruction, "input": given, "output": output}


def preferences() -> list[dict[str, str]]:
    """Return the questions with the answer to prefer, and that of another question to reject."""
    rows = questions()
    others = [*rows[1:], rows[0]]
    return [_preference(row, other["output"]) for row, other in zip(rows, others, strict=True)]


def _preference(row: dict[str, str], other: str) -> dict[str, str]:
    prompt = " ".join(part for part in (row["instruction"], row["input"]) if part) + "\n"
    return {"prompt": prompt, "chosen": row["output"], "rejected": other}


FILES = {"questions.jsonl": questions, "preferences.jsonl": preferences}


def contents() -> dict[str, str]:
    return {name: "".join(json.dumps(row) + "\n" for row in make()) for name, make in FILES.items()}


if __name__ == "__main__":
    made = contents()
    if "--check" in sys.argv[1:]:
        old = [
            name
            for name, text in made.items()
            if not (file := FOLDER / name).exists() or file.read_text() != text
        ]
        sys.exit(f"not current: {', '.join(old)}; `python3 make.py` makes them" if old else 0)
    for name, text in made.items():
        (FOLDER / name).write_text(text)
