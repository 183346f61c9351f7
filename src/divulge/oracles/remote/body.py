"""Reading the body of an answer, with a limit on what it takes once it is unpacked."""

from __future__ import annotations

import zlib

import httpx

from divulge.core.errors import BadAnswer

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def read_body(response: httpx.Response, most: int, server: str) -> bytes:
    """The body, unpacked where it is packed once by gzip or deflate; BadAnswer if it is longer than ``most`` bytes."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return b"".join(_limited(response, most, server))
    if encoding not in _WINDOW_BITS:
        raise BadAnswer(
            f"{server} sent an answer in the encoding {encoding[:40]!r}, which was not asked for; identity, gzip and "
            "deflate are read."
        )
    unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
    parts: list[bytes] = []
    size = 0
    try:
        for chunk in _limited(response, most, server):
            part = unpacker.decompress(chunk, most - size + 1)
            size += len(part)
            if size > most:
                raise _too_long(server, most)
            parts.append(part)
    except zlib.error as error:
        raise BadAnswer(f"{server} sent an answer that does not unpack: {error}.") from error
    if not unpacker.eof or unpacker.unused_data:
        raise BadAnswer(f"{server} sent an answer that does not unpack: it is cut short or followed by more.")
    return b"".join(parts)


def _limited(response: httpx.Response, most: int, server: str) -> list[bytes]:
    """The chunks as they came over the network."""
    chunks: list[bytes] = []
    size = 0
    for chunk in response.iter_raw():
        size += len(chunk)
        if size > most:
            raise _too_long(server, most)
        chunks.append(chunk)
    return chunks


def _too_long(server: str, most: int) -> BadAnswer:
    return BadAnswer(f"{server} sent more than {most:,} bytes, more than the asked-for answer can take.")
