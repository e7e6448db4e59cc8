"""Sources of every kind to read a stream from."""

from __future__ import annotations

import contextlib
import io
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec


class Store:
    """A file system of one object, that notes which bytes each request asked for.

    It is called as pyarrow's are, and each request is one of a `RangeSource`.
    """

    type_name = "counted"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.requests: list[tuple[int, int]] = []

    def open_input_file(self, path: str) -> Any:
        return contextlib.nullcontext(self)

    def size(self) -> int:
        return len(self.data)

    def read_at(self, length: int, start: int) -> bytes:
        self.requests.append((start, start + length))
        return self.data[start : start + length]


@contextlib.contextmanager
def as_memory_url(stream: bytes) -> Iterator[str]:
    url = f"memory://modcrypt-{uuid.uuid4()}"
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe(url, stream)
    try:
        yield url
    finally:
        filesystem.rm(url)


@contextlib.contextmanager
def source_of(kind: str, stream: bytes) -> Iterator[dict[str, Any]]:
    """Yield the arguments that name a source of one kind."""
    if kind in ("path", "open file"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stream"
            path.write_bytes(stream)
            with path.open("rb", buffering=0) as file:
                yield {"source": path if kind == "path" else file}
    elif kind == "memory":
        with as_memory_url(stream) as url:
            yield {"source": url}
    elif kind == "store":
        yield {"source": "any", "filesystem": Store(stream)}
    else:
        in_memory: dict[str, Callable[[bytes], Any]] = {
            "bytes": bytes,
            "memoryview": memoryview,
            "object": io.BytesIO,
        }
        yield {"source": in_memory[kind](stream)}


KINDS = ["bytes", "memoryview", "object", "open file", "path", "memory", "store"]
