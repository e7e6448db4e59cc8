"""Values reachable from an error: by its frames, its causes and its own attributes.

Tools that collect errors store local variables, those of generators and closures among them, and
some look into objects. `Key` and `Secret` are what may hold a secret: they don't show it.
"""

from __future__ import annotations

import contextlib
import io
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import fastavro

from modcrypt.keys import Key, Secret
from tests.support.paths import ROOT
from tests.support.secret_watch import spellings

OPAQUE = (Key, Secret, type, types.ModuleType, types.BuiltinFunctionType)
OURS = str(ROOT / "tests")
MAX_DEPTH = 12


def find_secrets(error: BaseException, *secrets: bytes) -> list[str]:
    """Name the places in which an error carries a secret."""
    forms = {form for secret in secrets for form in spellings(secret)}
    found = list(_Search().walk(error))
    everything = b"\n".join({data for _, data in found})
    forms = {form for form in forms if form in everything}
    return [where for where, data in found if any(form in data for form in forms)]


class _Search:
    """A walk over all that an error reaches; each object is looked at once."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}  # objects are kept, or another could have their id
        self._errors: list[BaseException] = []

    def walk(self, error: BaseException) -> Iterator[tuple[str, bytes]]:
        self._errors.append(error)
        for current in self._errors:  # which grows meanwhile
            if not self._is_new(current):
                continue
            name = type(current).__name__
            yield f"{name}: its text", str(current).encode("utf-8", "replace")
            for attribute, value in {**vars(current), "args": current.args}.items():
                yield from self._values(f"{name}.{attribute}", value, 0)
            trace = current.__traceback__
            while trace is not None:
                yield from self._frame(name, trace.tb_frame)
                trace = trace.tb_next
            more = (current.__cause__, current.__context__, *getattr(current, "exceptions", ()))
            self._errors += [nested for nested in more if nested is not None]

    def _is_new(self, value: object) -> bool:
        known = id(value) in self._seen
        self._seen[id(value)] = value
        return not known

    def _frame(self, name: str, frame: types.FrameType) -> Iterator[tuple[str, bytes]]:
        if not frame.f_code.co_filename.startswith(OURS):  # a test has the secret
            for variable, value in frame.f_locals.items():
                yield from self._values(f"{name}: {frame.f_code.co_qualname}, {variable}", value, 0)

    def _values(self, where: str, value: Any, depth: int) -> Iterator[tuple[str, bytes]]:
        if isinstance(value, str):
            yield where, value.encode("utf-8", "surrogatepass")
        elif isinstance(value, io.BytesIO) and not value.closed:
            yield where, value.getvalue()
        elif isinstance(value, bytes | bytearray | memoryview):
            with contextlib.suppress(ValueError):  # a memoryview that was released
                yield where, _searchable(bytes(value))
        elif isinstance(value, BaseException):
            self._errors.append(value)
        elif depth < MAX_DEPTH and not isinstance(value, int | None) and self._is_new(value):
            if _is_tests(value):
                return
            with contextlib.suppress(AttributeError):  # its `__init__` was interrupted
                yield f"repr of {where}", repr(value).encode("utf-8", "replace")
            if not isinstance(value, OPAQUE):
                for part, inner in _parts(value):
                    yield from self._values(f"{where}{part}", inner, depth + 1)


def _searchable(data: bytes) -> bytes:
    """Return the records of an Avro file spelt out, and other bytes without most trailing zeros."""
    if data.startswith(b"Obj\x01"):
        return repr(list(fastavro.reader(io.BytesIO(data)))).encode()
    return data[: len(data.rstrip(b"\0")) + 32]  # buffers have a mebibyte; keys may end in zeros


def _is_tests(value: object) -> bool:
    return str(getattr(type(value), "__module__", "")).startswith("tests.") or (
        isinstance(value, types.FunctionType | types.MethodType)
        and value.__code__.co_filename.startswith(OURS)
    )


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        yield from (
            (f"<{name}>", inner) for name, inner in (frame.f_locals if frame else {}).items()
        )
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    if isinstance(value, types.FunctionType):
        yield ".__defaults__", value.__defaults__
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                yield ".<cell>", cell.cell_contents
    if isinstance(value, dict | types.MappingProxyType):
        yield ".keys", list(value)
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{at}]", inner) for at, inner in enumerate(list(value)))
    if isinstance(value, types.FunctionType):
        return
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    for name in (*getattr(value, "__dict__", {}), *slots):
        if (inner := getattr(value, name, None)) is not None:
            yield f".{name}", inner
