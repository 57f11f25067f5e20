"""Tags of wheels that an image can install."""

import pytest
from packaging.tags import parse_tag

from images.config.names import Minor
from images.wheels.tags import supported_tags


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp311-cp311-manylinux_2_36_x86_64", True),
        ("cp311-cp311-manylinux_2_37_x86_64", False),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp311-cp311-manylinux2010_x86_64", True),
        ("cp311-cp311-manylinux1_x86_64", True),
        ("cp311-cp311-linux_x86_64", True),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp310-cp310-manylinux_2_28_x86_64", False),
        ("cp39-abi3-manylinux_2_28_x86_64", True),
        ("cp312-abi3-manylinux_2_28_x86_64", False),
        ("py3-none-any", True),
        ("py3-none-manylinux_2_28_x86_64", True),
        ("py2.py3-none-any", True),
        ("py311-none-any", True),
        ("py312-none-any", False),
    ],
)
def test_a_wheel_fits_by_its_python_abi_and_glibc(tag: str, fits: bool) -> None:
    assert parse_tag(tag).isdisjoint(supported_tags(Minor(3, 11), Minor(2, 36))) is not fits
