"""A read-only file object that acts as a plaintext Parquet file and decrypts only what is read.

Each part has the size and position of its encrypted form (see `padded_pages`). So offsets and sizes
in the footer and in offset indexes stay valid, nothing needs to be decrypted to locate a part, and
a page can be read without those after it. Values of cells are the exception, see `cell_values`:
they follow the body.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from modcrypt.io.seekable import SeekableFile
from modcrypt.io.sources import Source, SourceLike, open_source
from modcrypt.io.threads import SharedResources, ThreadPool, usable_cores
from modcrypt.keys import hide_keys
from modcrypt.parquet.arrow.padded_pages import overlay
from modcrypt.parquet.arrow.plaintext_parts import make_part_readers
from modcrypt.parquet.convert.plaintext_footer import plain_metadata
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.index_checks import has_doubtful_bounds, is_of_polars
from modcrypt.parquet.crypto.properties import AnyDecryption, SubjectKeys
from modcrypt.parquet.format.chunk_notes import hide_bounds
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, encode
from modcrypt.parquet.format.modules import Part, Span, drop_part
from modcrypt.parquet.format.schema import leaf_elements, leaves_of

if TYPE_CHECKING:
    from modcrypt.parquet.arrow.cell_values import CellValues

_GAP = 64 << 10
"""Number of zeros before the footer. Readers begin with the last 64 KiB (PyArrow). Without a gap,
that would decrypt pages, perhaps of an unwanted column, and all pages before them in the chunk."""


_WORTH_THREADS = 4 << 20  # smallest size in bytes of a read whose parts several threads decrypt

_MAX_THREADS = 8  # most threads of one read; each has a buffer of at least a page


@hide_keys
def open_parquet(
    source: SourceLike,
    decryption: AnyDecryption,
    *,
    columns: Sequence[str] | None = None,
    filesystem: Any = None,
    subjects: SubjectKeys | None = None,
) -> PlaintextView:
    """Open an encrypted Parquet file as a plaintext one that any Parquet reader can read.

    This reads only the footer; pages, indexes and bloom filters are decrypted when they are read,
    and authenticated before any of their bytes is returned. The file that readers see has the rows,
    encodings and statistics of the encrypted one, but not the bytes that `decrypt_parquet` writes.

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object.
        decryption: Keys, and the caller's requirements, as for `decrypt_parquet`.
        columns: Names of columns or groups that the file shows; None for all. The keys of other
            columns are not retrieved.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.
        subjects: `modcrypt.subjects.Subjects`, to show values that are encrypted one by one: these
            columns are decrypted now, and kept in memory, at most 1 GiB. None for those of the
            properties, if any.

    Returns:
        A seekable, read-only binary file object, safe to use from several threads; close it, or use
            it in a `with` block.

    Raises:
        ValueError: The file does not have one of `columns`.
        ModcryptError: As `decrypt_parquet`, for the footer now and for the rest on reading.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(open_source(source, filesystem=filesystem))
        file, values = OpenFile(opened, decryption), None
        plan = file.select(None if columns is None else leaves_of(file.leaves, columns))
        if (subjects := subjects or file.properties.subjects) is not None:
            from modcrypt.parquet.arrow.cell_values import encode_values  # imports PyArrow

            values = encode_values(file, plan, subjects)
        return PlaintextView(file.source, plan, stack.pop_all(), values)


def _hide_doubtful_claims(metadata: ThriftStruct, plan: ReadPlan) -> list[Span]:
    """Return the parts that readers see: no index and no bounds by which they would lose rows."""
    # Encryption hides those that it finds; those of Polars are never shown.
    doubtful = is_of_polars(metadata.created_by)
    leaves = leaf_elements(metadata.schema) if doubtful else []
    for row_group in metadata.row_groups if doubtful else ():
        for leaf, chunk in zip(leaves, row_group.columns, strict=True):
            drop_part(chunk, Part.COLUMN_INDEX)
            if has_doubtful_bounds(metadata.created_by, metadata.schema[leaf.element]):
                hide_bounds(chunk.meta_data, keep=False)
    return [
        span
        for span in plan.spans
        if span.part is not Part.COLUMN_INDEX
        or not (doubtful or plan.chunks[span[3:]].column_index_offset is None)
    ]


class PlaintextView(SeekableFile):
    """The file object that `open_parquet` returns.

    `read_at` ignores the cursor and may be called from any thread.
    """

    def __init__(
        self, source: Source, plan: ReadPlan, resources: ExitStack | None = None,
        values: CellValues | None = None,
    ) -> None:  # fmt: skip
        self._threads = ThreadPool(_MAX_THREADS, "modcrypt-view", of_cores=True)
        resources = resources or ExitStack()
        resources.callback(self._threads.close)
        self._shared = SharedResources(resources)
        start = plan.footer.body_end
        body_end = start if values is None else start + len(values.data)
        metadata, nulls = plain_metadata(plan, None, body_end + _GAP)
        spans = _hide_doubtful_claims(metadata, plan)
        self._values, self._values_at = memoryview(b""), start
        if values is not None:
            self._values = values.data
            values.put_into(metadata, start)
            spans = [span for span in spans if span[3:] not in values.chunks]
        tail = bytes(_GAP) + nulls + close_tail(encode(metadata), MAGIC_PLAINTEXT)
        self.size = body_end + len(tail)
        self._body_end, self._tail = body_end, tail
        self._parts = make_part_readers(source, plan, spans)  # in file order, disjoint
        self._starts = [span.start for span in spans]

    def _fill(self, offset: int, out: memoryview) -> None:
        end = offset + len(out)
        first = max(0, bisect_right(self._starts, offset) - 1)
        parts = self._parts[first : bisect_left(self._starts, end)]
        if parts and parts[0].span.end <= offset:
            del parts[0]
        reached = offset
        for part in parts:  # Gaps between parts are filled with zeros.
            overlay(out, offset, reached, bytes(max(0, part.span.start - reached)))
            reached = max(reached, part.span.end)
        overlay(out, offset, reached, bytes(max(0, min(end, self._body_end) - reached)))
        overlay(out, offset, 0, MAGIC_PLAINTEXT)
        overlay(out, offset, self._values_at, self._values)
        overlay(out, offset, self._body_end, self._tail)
        with self._shared:
            if len(out) < _WORTH_THREADS or len(parts) < 2 or usable_cores() < 2:
                for part in parts:
                    part.read(offset, out)
            else:
                self._threads.run_all(lambda part: part.read(offset, out), parts)

    def read_buffer(self, size: int) -> Any:
        """Return a pyarrow Buffer of up to `size` bytes; pyarrow calls this method if it exists."""
        import pyarrow as pa

        buffer = pa.allocate_buffer(self._clip(self._cursor, size))
        self._advance(memoryview(buffer).cast("B"))
        return buffer

    def close(self) -> None:
        """Close the source, if it was opened here, after the last read. Idempotent."""
        super().close()
        self._shared.close()
