"""Map the arguments of `pyarrow.parquet` to those of modcrypt."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from modcrypt.keys import hide_keys
from modcrypt.parquet.arrow.arrow_streams import as_table
from modcrypt.parquet.crypto.properties import AnyDecryption, AnyEncryption

EncryptionProperties: TypeAlias = "AnyEncryption | pq.FileEncryptionProperties | None"
"""Properties of modcrypt or of PyArrow; None for plaintext."""

DecryptionProperties: TypeAlias = "AnyDecryption | pq.FileDecryptionProperties | None"
"""Properties of modcrypt or of PyArrow; None for plaintext."""

_PYARROW = (type(None), pq.FileEncryptionProperties, pq.FileDecryptionProperties)

_DECODING = {
    "read_dictionary", "binary_type", "list_type", "coerce_int96_timestamp_unit",
    "page_checksum_verification", "arrow_extensions_enabled", "thrift_string_size_limit",
    "thrift_container_size_limit", "schema_depth_limit",
}  # fmt: skip

_IRRELEVANT = {"memory_map", "buffer_size", "pre_buffer"}
"""Options that choose how PyArrow reads bytes, and do not change what it returns."""


_R = TypeVar("_R")
_C = TypeVar("_C", bound=type)


def take_arguments_of(
    original: Callable[..., Any], *, after: int = 0
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Decorate a function to take the arguments of a function of PyArrow, by position or name.

    PyArrow's own function serves plaintext, and properties of PyArrow. `inspect.signature` returns
    PyArrow's signature. The first arguments, `after` in number, are the function's own, such as
    `self`. The properties need no name in the signature.
    """
    signature = inspect.signature(original)
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind in _BY_POSITION]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)

    def decorate(function: Callable[..., _R]) -> Callable[..., _R]:
        @wraps(function)
        def call(*given: Any, **named: Any) -> _R:
            values = given[after:]
            if len(values) > len(positional):
                raise TypeError(
                    f"{original.__name__} takes {len(positional)} arguments by position, not "
                    f"{len(values)}"
                )
            if twice := sorted(named.keys() & set(positional[: len(values)])):
                raise TypeError(f"{original.__name__}: {twice[0]} is given twice")
            for name in named.keys() & {"decryption", "encryption"}:
                raise TypeError(f"{original.__name__} takes {name}_properties, as PyArrow calls it")
            for name in () if takes_any else sorted(named.keys() - signature.parameters.keys()):
                raise TypeError(f"{name} is not supported by {original.__name__}; remove it")
            arguments = dict(zip(positional, values, strict=False)) | named
            if _is_for_pyarrow(arguments):
                result: _R = _call_pyarrow(original, arguments)
                return result
            return function(*given[:after], **arguments)

        call.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
        return hide_keys(call, skip=after)

    return decorate


def stand_in_for(original: type) -> Callable[[_C], _C]:
    """Decorate a class whose constructor makes an object of PyArrow's class where that serves."""

    def decorate(cls: _C) -> _C:
        make = take_arguments_of(original, after=1)(lambda cls, *_, **__: object.__new__(cls))
        cls.__new__ = staticmethod(make)  # type: ignore[method-assign]
        cls.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return cls

    return decorate


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


_PROPERTIES = ("encryption_properties", "decryption_properties")


def _is_for_pyarrow(arguments: Mapping[str, Any]) -> bool:
    return all(isinstance(arguments.get(name), _PYARROW) for name in _PROPERTIES)


def _call_pyarrow(original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function of PyArrow, some of which take no properties, and none a frame."""
    given = {n: v for n, v in arguments.items() if not (n in _PROPERTIES and v is None)}
    return original(**given | ({"table": as_table(given["table"])} if "table" in given else {}))


def map_decoding_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of PyArrow's readers that modcrypt passes to PyArrow's decoder."""
    if (options.get("buffer_size") or 0) < 0:
        raise ValueError("buffer_size must not be negative")
    if options.get("binary_type") not in (None, pa.binary(), pa.large_binary(), pa.binary_view()):
        raise TypeError("binary_type must be a type of variable-length binary values")
    for name in sorted(options.keys() - _DECODING - _IRRELEVANT):
        if options[name] is not None:
            raise TypeError(f"{name} is not supported for encrypted files; remove it")
    return {
        name: value for name, value in options.items() if name in _DECODING and value is not None
    }


def map_source(source: Any) -> Any:
    """Return the source or destination; PyArrow marks the URLs of fsspec by a prefix."""
    return source.removeprefix("fsspec+") if isinstance(source, str) else source


def map_row_group_size(size: float | None) -> int | None:
    """Return the number of rows of a row group; PyArrow takes -1 for its default, and fractions."""
    return None if size is None or size == -1 else int(size)


def map_filesystem(filesystem: Any, where: Any) -> Any:
    """Return the file system of a path; PyArrow also accepts one as a URI."""
    if filesystem is not None and not isinstance(where, str | os.PathLike | list | tuple):
        raise ValueError("the specified path is file-like; remove filesystem")
    if not isinstance(filesystem, str):
        return filesystem
    found, path = pafs.FileSystem.from_uri(filesystem)
    return pafs.SubTreeFileSystem(path, found) if path else found


def add_index_columns(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return the columns, and those that contain the index of a pandas frame."""
    notes = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    index = [name for name in notes.get("index_columns", []) if isinstance(name, str)]
    return [*columns, *(name for name in index if name not in columns)]
