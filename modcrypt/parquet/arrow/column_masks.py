"""Mask the values of columns as Iceberg's read restrictions say (REST catalog spec, `Action`).

    mask-alphanum          digits become n, ( ) , . - @ stay, and everything else becomes x
    show-first-4, -last-4  the same, but for four code points
    mask-to-fixed-value    a value of the type; nulls, too, so that they don't show
    replace-with-null      null
    truncate-to-year, -month
    sha-256-global         the digest in hex; of a number, its first bytes as a number
    sha-256-query-local    the same, after 16 random bytes that are new for each query

Nulls stay nulls, except under `mask-to-fixed-value`.
"""

from __future__ import annotations

import datetime
import hashlib
import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import urandom
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from modcrypt.errors import UnsupportedFormatError

Mask: TypeAlias = Callable[[pa.Array], pa.Array]

SALT_SIZE = 16  # size in bytes of the salt of `sha-256-query-local`


MEMBERS = {"required-row-filter", "required-column-projections"}
"""Members of read restrictions (REST catalog spec, `ReadRestrictions`)."""


def split_restrictions(document: Any) -> tuple[Any, list[tuple[int, str]]]:
    """Return the row filter of read restrictions as JSON, and the action on each field id.

    Raise UnsupportedFormatError if they cannot be applied: a reader must fail.
    """
    if not isinstance(document, Mapping) or document.keys() - MEMBERS:
        raise restriction_error("they are not an object, or have unknown members")
    actions = list(_list_actions(document.get("required-column-projections")))
    return document.get("required-row-filter"), actions


def find_actions(document: Any) -> dict[int, str]:
    """Return the action on each field id of read restrictions for a file with all of its rows.

    Raise UnsupportedFormatError if an action is unknown, or rows are restricted too.
    """
    row_filter, actions = split_restrictions(document)
    match row_filter:
        case None | True | {"type": "true"}:
            pass
        case _:
            raise restriction_error("a copy of a file has all rows, but they require a row filter")
    for _, action in actions:
        check_action(action)
    if len(dict(actions)) < len(actions):
        raise restriction_error("a field has two actions")
    return dict(actions)


def _list_actions(projections: Any) -> Iterator[tuple[int, str]]:
    if not isinstance(projections, list | None):
        raise restriction_error("required-column-projections is not a list")
    for projection in projections or ():
        match projection:
            case {"action": str(action), "field-id": id_, **rest} if type(id_) is int and not rest:
                yield id_, action
            case _:
                raise restriction_error("an action is malformed, or has members that are not known")


def restriction_error(what: str) -> UnsupportedFormatError:
    """Return the error of restrictions that cannot be applied."""
    return UnsupportedFormatError(f"the read restrictions cannot be applied: {what}")


def make_mask(action: str, kind: pa.DataType, *, nullable: bool, salt: bytes | None = None) -> Mask:
    """Return the function that applies an action to arrays of a type.

    `salt` is that of `sha-256-query-local`, if several masks serve one query; by default, the mask
    has its own. Raise UnsupportedFormatError if the action is unknown, or not for this type: a
    reader must fail.
    """
    if action == "mask-to-fixed-value":
        return partial(_repeat, _fixed_value(kind), kind)
    if action == "replace-with-null" and nullable:
        return lambda array: pa.nulls(len(array), kind)
    for is_of, mask in _MASKS.get(action, ()):
        if is_of(kind):
            made: Mask = mask
            return made
    for is_of, pack, read in _HASHES if action in _HASHING else ():
        if is_of(kind):
            own = urandom(SALT_SIZE) if salt is None else salt
            return _hash(own if action == _SALTED else b"", pack, read)
    check_action(action)
    raise UnsupportedFormatError(f"the read restriction {action!r} is not for {kind}")


def check_action(action: str) -> None:
    """Raise UnsupportedFormatError if an action is unknown."""
    others = ("mask-to-fixed-value", "replace-with-null", *_HASHING)
    if action not in _MASKS and action not in others:
        raise UnsupportedFormatError(f"the read restriction {action[:100]!r} is not known")


VISIBLE = 4  # number of code points that `show-first-4` and `show-last-4` leave


def _mask_alphanum(array: pa.Array) -> pa.Array:
    others = pc.replace_substring_regex(array, "[^0-9(),.@-]", "x")
    return pc.replace_substring_regex(others, "[0-9]", "n")


def _show_first(array: pa.Array) -> pa.Array:
    first = pc.utf8_slice_codeunits(array, 0, VISIBLE)
    rest = pc.utf8_slice_codeunits(array, VISIBLE)
    return pc.binary_join_element_wise(first, _mask_alphanum(rest), "")


def _show_last(array: pa.Array) -> pa.Array:
    rest = pc.utf8_slice_codeunits(array, 0, -VISIBLE)
    last = pc.utf8_slice_codeunits(array, -VISIBLE)
    return pc.binary_join_element_wise(_mask_alphanum(rest), last, "")


def _truncate(unit: str, array: pa.Array) -> pa.Array:
    """Set all below the unit to its minimum; times with a zone are in UTC."""
    return pc.floor_temporal(array, unit=unit).cast(array.type)


_SALTED = "sha-256-query-local"
_HASHING = ("sha-256-global", _SALTED)


def _hash(salt: bytes, pack: Callable[[Any], bytes], read: Any) -> Mask:
    salted = hashlib.sha256(salt)

    def mask(array: pa.Array) -> pa.Array:
        def digest(value: Any) -> Any:
            state = salted.copy()
            state.update(pack(value))
            return read(state)

        hashed = [None if value is None else digest(value) for value in array.to_pylist()]
        return pa.array(hashed, array.type)

    return mask


def _first_number(form: struct.Struct, state: Any) -> Any:
    return form.unpack_from(state.digest())[0]


_HASHES: tuple[tuple[Any, Any, Any], ...] = (
    (pa.types.is_string, str.encode, lambda state: state.hexdigest()),
    (pa.types.is_binary, bytes, lambda state: state.digest()),
    *(
        (partial(operator.eq, kind), form.pack, partial(_first_number, form))
        for kind, form in ((pa.int32(), struct.Struct("<i")), (pa.int64(), struct.Struct("<q")))
    ),
)
"""Types that can be hashed: a test of the type, the bytes of a value, and the value of a digest."""

_MASKS: dict[str, Any] = {
    "mask-alphanum": ((pa.types.is_string, _mask_alphanum),),
    "show-first-4": ((pa.types.is_string, _show_first),),
    "show-last-4": ((pa.types.is_string, _show_last),),
} | {
    f"truncate-to-{unit}": [
        (is_of, partial(_truncate, unit)) for is_of in (pa.types.is_timestamp, pa.types.is_date)
    ]
    for unit in ("year", "month")
}


def _repeat(value: Any, kind: pa.DataType, array: pa.Array) -> pa.Array:
    return pa.array([value], kind).take(pa.array([0] * len(array), pa.int64()))


def _fixed_value(kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return "XXXXXXXX"  # unlike an empty text, which could be a value
    if pa.types.is_struct(kind):
        return {field.name: _fixed_value(field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return []
    if isinstance(kind, pa.BaseExtensionType):  # a uuid
        return bytes(kind.storage_type.byte_width)
    if pa.types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if pa.types.is_binary(kind):
        return b""
    if pa.types.is_date(kind):
        return datetime.date(1970, 1, 1)
    if pa.types.is_boolean(kind):
        return False
    return 0
