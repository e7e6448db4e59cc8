"""The checks that every plaintext Parquet file must pass, compared with PyArrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

import modcrypt as mc
import modcrypt.parquet as mpq

KEY: Final = mc.Key(bytes(range(16)))
OTHER: Final = mc.Key(bytes(range(1, 17)))
UNIFORM: Final = mc.FileEncryptionProperties(footer_key=KEY)
RENEWED: Final = mc.FileEncryptionProperties(footer_key=OTHER, plaintext_footer=True)
READER: Final = mc.FileDecryptionProperties(footer_key=KEY)
NEW_READER: Final = mc.FileDecryptionProperties(footer_key=OTHER)


def run(function: Callable[..., Any], data: bytes, *arguments: Any, **options: Any) -> bytes:
    """Return what a function writes."""
    out = io.BytesIO()
    function(data, out, *arguments, **options)
    return out.getvalue()


class Subject:
    """A plaintext file, encrypted; and its rows, if PyArrow reads it."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain
        self.file = run(mc.encrypt_parquet, plain, UNIFORM)
        self.rows: pa.Table | None = None
        self.unreadable = ""
        try:
            self.rows = pq.read_table(io.BytesIO(plain), use_threads=False)
        except Exception as error:  # whatever PyArrow raises is its answer
            self.unreadable = f"{type(error).__name__}: {error}"[:200]

    def same(self, rows: pa.Table) -> str:
        """Return how rows differ from PyArrow's; empty if they do not."""
        assert self.rows is not None
        if are_equal(rows, self.rows):
            return ""
        return f"{rows.num_rows} rows of {rows.schema.names[:5]}, PyArrow has {self.rows.num_rows}"


def are_equal(rows: pa.Table, others: pa.Table) -> bool:
    """Return whether tables have the same names and values; not-a-number equals itself."""
    if rows.schema.names != others.schema.names:
        return False
    return rows.equals(others) or _serialize(rows) == _serialize(others)


def _serialize(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema.remove_metadata()) as stream:
        stream.write_table(rows.replace_schema_metadata(None).combine_chunks())
    return bytes(out.getvalue().to_pybytes())


def verify(subject: Subject) -> str:
    """Verify the encrypted file: it has the faults of the plaintext file, and no other."""
    before = {finding.message for finding in mc.verify_parquet(subject.plain).findings}
    found = mc.verify_parquet(subject.file, READER).findings
    new = [f.message for f in found if f.severity == "fault" and f.message not in before]
    return new[0] if new else ""


def decrypt(subject: Subject) -> str:
    """Decrypt the file: every byte comes back."""
    back = run(mc.decrypt_parquet, subject.file, READER)
    return "" if back == subject.plain else f"{len(back)} bytes of {len(subject.plain)}, or others"


def rekey(subject: Subject) -> str:
    """Write the file with another key and footer mode, and decrypt that."""
    file = run(mc.rekey_parquet, subject.file, READER, RENEWED)
    back = run(mc.decrypt_parquet, file, NEW_READER)
    return "" if back == subject.plain else "decrypts to other bytes"


def mask(subject: Subject) -> str:
    """Drop a column; the others stay."""
    if subject.rows is None or not subject.rows.num_columns:
        return ""
    name, *others = subject.rows.schema.names
    if others.count(name) or "." in name:
        return ""
    kinds = [subject.rows.schema.field(other).type for other in set(others)]
    if all(pa.types.is_struct(kind) and not kind.num_fields for kind in kinds):
        return ""  # nothing that has values would stay
    rows = mc.read_table(run(mc.mask_parquet, subject.file, READER, drop=[name]), READER)
    return "" if are_equal(rows, subject.rows.select(others)) else "other rows"


def read(subject: Subject) -> str:
    """Read all rows."""
    return "" if subject.rows is None else subject.same(mc.read_table(subject.file, READER))


def filters(subject: Subject) -> str:
    """Read the rows with one value of the first column that can be compared."""
    if subject.rows is None or not subject.rows.num_rows:
        return ""
    for name in subject.rows.schema.names:
        kind = subject.rows.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind)) or "." in name:
            continue
        value = _read_value(subject.rows[name][subject.rows.num_rows // 2])
        if value is None or subject.rows.schema.names.count(name) > 1:
            continue
        wanted = subject.rows.filter(pa.compute.equal(subject.rows[name], value))
        found = mc.read_table(subject.file, READER, filters=[(name, "=", value)])
        if are_equal(found, wanted):
            return ""
        return f"{found.num_rows} of {wanted.num_rows} rows"
    return ""


def _read_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:  # of a string that is not valid UTF-8
        return None


def view(subject: Subject) -> str:
    """Have PyArrow read the file through a view."""
    if subject.rows is None:
        return ""
    with mc.open_parquet(subject.file, READER) as file:
        return subject.same(pq.read_table(file, use_threads=False))


def drop_in(subject: Subject) -> str:
    """Read the file by the drop-in for pyarrow.parquet."""
    if subject.rows is None:
        return ""
    source = pa.BufferReader(subject.file)
    return subject.same(mpq.read_table(source, decryption_properties=READER))


CHECKS: Final[Mapping[str, Callable[[Subject], str]]] = {
    "verify": verify, "decrypt": decrypt, "rekey": rekey, "mask": mask, "read": read,
    "filters": filters, "view": view, "drop-in": drop_in,
}  # fmt: skip
"""Checks by name; each returns what is wrong, or nothing."""
