"""What is judged of a new wheel."""

import io
import zipfile

from images.wheels.audit import libraries


def test_the_libraries_of_a_wheel_are_named() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("a/b.so", "c.cpython-311-x86_64-linux-gnu.so", "d.py", "e.so.12", "f.sonnet"):
            archive.writestr(name, b"")
    assert libraries(content.getvalue()) == ("a/b.so", "c.cpython-311-x86_64-linux-gnu.so", "e.so.12")
