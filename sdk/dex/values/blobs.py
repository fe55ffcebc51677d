"""Large payloads, kept apart under the hash of their content, with a small reference in their place.

>>> blobs: dict[str, bytes] = {}
>>> payload = bytes(20_000)
>>> small = detach(payload, blobs)
>>> len(small), reference_of(small) in blobs, attach(small, blobs) == payload
(43, True, True)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from dex.errors import ValueMappingError
from dex.values import _format

BLOB_THRESHOLD: Final = 16 * 1024

# An extension of type BLOB with 32 bytes of SHA-256 and 8 bytes of size. No value encodes to an extension of that type.
_PREFIX: Final = bytes((0xC7, 40, _format.BLOB))
_LENGTH: Final = 3 + 40


def detach(payload: bytes, blobs: dict[str, bytes]) -> bytes:
    """A payload over BLOB_THRESHOLD is put into `blobs`, and a reference to it is returned; any other as it is."""
    if len(payload) <= BLOB_THRESHOLD:
        return payload
    digest = hashlib.sha256(payload).digest()
    blobs[digest.hex()] = payload
    return _PREFIX + digest + len(payload).to_bytes(8, "big")


def attach(payload: bytes, blobs: Mapping[str, bytes]) -> bytes:
    """The payload that a reference stands for; any other as it is. ValueMappingError when `blobs` has it not."""
    name = reference_of(payload)
    if name is None:
        return payload
    try:
        return blobs[name]
    except KeyError:
        raise ValueMappingError(
            "decode",
            f"the blob {name} of a value of {referenced_size(payload)} bytes is not among the {len(blobs)} at hand",
        ) from None


def reference_of(payload: bytes) -> str | None:
    """The content hash (SHA-256, hexadecimal) that a reference names; None for a payload that is no reference."""
    if len(payload) != _LENGTH or payload[:3] != _PREFIX:
        return None
    return payload[3:35].hex()


def referenced_size(payload: bytes) -> int:
    """The size in bytes of the payload that a reference stands for."""
    return int.from_bytes(payload[35:], "big")
