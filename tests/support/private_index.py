"""A private index: a second folder of the indexes on loopback, which asks for a login."""

import base64
from collections.abc import Mapping
from dataclasses import replace

from images.planning.image import Image, Pin, PrivateIndex
from tests.support.http_server import Reply
from tests.support.torch_index import DEFAULT, Indexes

FOLDER = "/private"
NAME = "acme-corp"
USER, PASSWORD = "me", "p@ss/w0rd-7f3a9c"
USER_VARIABLE, PASSWORD_VARIABLE = "UV_INDEX_ACME_CORP_USERNAME", "UV_INDEX_ACME_CORP_PASSWORD"


def add_public_packages(indexes: Indexes) -> None:
    """Put what any lock of these tests needs on the default index: installer, torch, toolkit."""
    indexes.add(DEFAULT, "installer", "1.0")
    indexes.add(DEFAULT, "torch", "2.5.1", "nvidia-cuda-runtime-cu12==12.4.127")
    indexes.add(DEFAULT, "nvidia-cuda-runtime-cu12", "12.4.127")
    indexes.add(DEFAULT, "nvidia-cuda-nvcc-cu12", "12.6.85")


def private_index(indexes: Indexes) -> PrivateIndex:
    """Return the private index of these indexes, which gives nothing without the login."""
    public_answer = indexes.server.answer
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if path.startswith(FOLDER) and headers.get("Authorization") != f"Basic {login}":
            return 401, {"WWW-Authenticate": 'Basic realm="acme"'}, b""
        return public_answer(method, path, headers, body)

    indexes.server.answer = answer
    return PrivateIndex(name=NAME, url=f"http://{indexes.server.host}{FOLDER}")


def with_private_pins(
    image: Image, index: PrivateIndex, pins: Mapping[str, str], layer: str = "libraries"
) -> Image:
    """Return an image with further pins, name -> version, that a private index alone has."""
    private_pins = []
    for name, version in pins.items():
        private_pins.append(Pin(name=name, version=version, layer=layer, index=index))
    return replace(image, pins=(*image.pins, *private_pins))
