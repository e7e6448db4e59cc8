"""Encrypted Parquet to Arrow: `read_table` and `iter_batches`, of one file or of many.

A dataset's files are read like single ones, each with its own keys; what is common to them are
the types, which the first file says, and the fields that folders spell.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from modcrypt.errors import ModcryptError
from modcrypt.fork_safety import fork_safe
from modcrypt.io.buffers import usable_cores
from modcrypt.io.storage import open_source
from modcrypt.keys import KeyLike, Secret
from modcrypt.parquet.arrow.file_scan import Request, joined
from modcrypt.parquet.arrow.parquet_file import Filters, ParquetFile, as_expression, limited
from modcrypt.parquet.crypto.file_identity import FileIdentity
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, check_decryption, rooted
from modcrypt.parquet.datasets.aad_prefixes import PrefixTemplate, check_parts, identify_part
from modcrypt.parquet.datasets.discovery import DataFile, discover, is_dataset

__all__ = ["Decryption", "iter_batches", "open_first", "read_table"]

Decryption: TypeAlias = "FileDecryptionProperties | Callable[[str], FileDecryptionProperties]"
"""The properties of all files, or a function that gives those of the file with a path."""

_MAX_THREADS = 8


def read_table(
    source: Any,
    decryption: Decryption,
    *,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    row_groups: Sequence[int] | None = None,
    filesystem: Any = None,
    partitioning: Any = "hive",
    aad_prefix_template: str | None = None,
    expected_parts: int | None = None,
    use_threads: bool = True,
    **options: Any,
) -> pa.Table:
    """Read an encrypted Parquet file, or a dataset of them, as a table.

    Of a file are read the footer and the column chunks, or pages, that are needed; keys are looked
    for only for the columns asked for.

    Args:
        source: path, URL, bytes or seekable binary file object; or a folder, or a list of paths.
        decryption: keys, and what the caller insists on; of a dataset also a function that gives
            them for each file's path.
        columns: names of columns or groups, in the order wanted; None for all.
        filters: rows to keep, as pyarrow.parquet takes them. Row groups are left out by their
            statistics and, for equality, their bloom filters, pages by the page index.
        row_groups: ordinals, of a single file.
        filesystem: where paths are to be found: a filesystem of pyarrow or fsspec.
        partitioning: of a dataset: "hive", a pyarrow.dataset.Partitioning with a schema, or None.
        aad_prefix_template: each file must have an AAD prefix of its own, which is this with a
            number in the place of `{i}`, stored in it or not.
        expected_parts: the dataset must have the parts 0 to `expected_parts` - 1 of the template.
        use_threads: decode on several threads.
        options: how PyArrow is to decode; see `ParquetFile`.

    Raises:
        ValueError: a column, row group or file that is not there; arguments that don't go together.
        KeyNotFoundError: a key is missing, and `on_missing_key` is "error"; or the filter reads a
            column whose key is missing.
        AadPrefixError: parts of the dataset are missing, there twice, or foreign.
        PlaintextError: a file or column is not encrypted, and must be.
        ModcryptError: something does not authenticate or breaks the format.
    """
    if not _is_dataset(source, filesystem, aad_prefix_template, expected_parts, row_groups):
        with ParquetFile(source, _single(decryption), filesystem=filesystem, **options) as file:
            return file.read(
                columns, filters=filters, row_groups=row_groups, use_threads=use_threads
            )
    prefixes = aad_prefix_template, expected_parts
    dataset = _Reading(source, decryption, filesystem, partitioning, prefixes, options)
    threads = min(usable_cores(), _MAX_THREADS)
    with closing(dataset), ThreadPoolExecutor(threads, "modcrypt-file") as pool:
        request = dataset.request(columns, filters)
        read = partial(dataset.read, request, use_threads=use_threads)
        try:
            return joined(pool.map(read, dataset.matching(request)), dataset.result)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def iter_batches(
    source: Any,
    decryption: Decryption,
    *,
    batch_size: int = 65536,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    row_groups: Sequence[int] | None = None,
    filesystem: Any = None,
    partitioning: Any = "hive",
    aad_prefix_template: str | None = None,
    expected_parts: int | None = None,
    limit: int | None = None,
    use_threads: bool = True,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """Read an encrypted Parquet file, or a dataset of them, batch by batch.

    As `read_table`, but in bounded memory, one file after the other in the order of their paths; no
    batch has more than `batch_size` rows. With `limit`, so many rows are given, and what has none
    of them is not opened.

    Raises:
        ModcryptError, ValueError: as `read_table`: for the keys and parts at once, for the rest
            when it is met.
    """
    scan: dict[str, Any] = {"batch_size": batch_size, "use_threads": use_threads}
    if not _is_dataset(source, filesystem, aad_prefix_template, expected_parts, row_groups):
        with ExitStack() as stack:  # planned now, so that a mistake shows at once
            file = stack.enter_context(
                ParquetFile(source, _single(decryption), filesystem=filesystem, **options)
            )
            batches = file.iter_batches(
                columns=columns, filters=filters, row_groups=row_groups, limit=limit, **scan
            )
            return _closing(stack.pop_all(), batches)
    prefixes = aad_prefix_template, expected_parts
    dataset = _Reading(source, decryption, filesystem, partitioning, prefixes, options)
    with ExitStack() as stack:
        stack.enter_context(closing(dataset))
        request = replace(dataset.request(columns, filters), limit=limit)
        files = dataset.matching(request)
        batches = (batch for file in files for batch in dataset.batches(request, file, **scan))
        return _closing(stack.pop_all(), limited(batches, limit))


@contextmanager
def open_first(
    source: Any,
    decryption: Decryption,
    *,
    filesystem: Any = None,
    partitioning: Any = "hive",
    aad_prefix_template: str | None = None,
    expected_parts: int | None = None,
) -> Iterator[tuple[ParquetFile, pa.Schema, int]]:
    """Open a file, or the first one of a dataset; the footer key is enough.

    Gives it, the fields that folders spell, and the number of files; raises as `read_table`.
    """
    if not _is_dataset(source, filesystem, aad_prefix_template, expected_parts, None):
        with ParquetFile(source, _single(decryption), filesystem=filesystem) as file:
            yield file, pa.schema([]), 1
        return
    prefixes = aad_prefix_template, expected_parts
    dataset = _Reading(source, decryption, filesystem, partitioning, prefixes, {})
    files = dataset.dataset.files
    with closing(dataset), _naming(files[0].path), dataset._open(files[0]) as file:
        yield file, dataset.dataset.partition_schema, len(files)


def _single(decryption: Decryption) -> FileDecryptionProperties:
    if isinstance(decryption, FileDecryptionProperties):
        return decryption
    raise TypeError("one file is read with FileDecryptionProperties; a function is for datasets")


def _is_dataset(
    source: Any, filesystem: Any, template: str | None, expected: int | None, row_groups: Any
) -> bool:
    if expected is not None:
        if template is None:
            raise ValueError("expected_parts are counted by their aad_prefix_template")
        if not isinstance(expected, int) or expected < 1:
            raise ValueError("expected_parts is a number, at least 1")
    if template is None and not is_dataset(source, filesystem):
        return False
    if row_groups is not None:
        raise ValueError("row_groups are those of a single file")
    return True


class _Reading:
    """The files of a dataset, and how they are opened."""

    def __init__(
        self,
        source: Any,
        decryption: Decryption,
        filesystem: Any,
        partitioning: Any,
        prefixes: tuple[str | None, int | None],
        options: dict[str, Any],
    ) -> None:
        template, expected = prefixes
        files = source if is_dataset(source, filesystem) else [source]
        self.dataset = discover(files, filesystem, partitioning)
        self._decryption, self._options = decryption, options
        self._template = template
        if isinstance(decryption, FileDecryptionProperties):
            self._decryption = self._checked(decryption)
        self._given: dict[str, FileDecryptionProperties] = {}  # by path, what a function gave
        self._kept: dict[str, ParquetFile] = {}  # opened already
        self._prefixes: dict[str, bytes] = {}
        self._versions: dict[str, FileIdentity] = {}  # those that the parts were checked of
        self.result = pa.schema([])  # of what is given out
        if template is not None:
            self._prefixes = self._check_parts(PrefixTemplate(template), expected)

    def _check_parts(self, template: PrefixTemplate, expected: int | None) -> dict[str, bytes]:
        """Find out which part each file is; give the AAD prefixes that the files must have."""
        paths = [file.path for file in self.dataset.files]
        count = len(paths) if expected is None else expected

        def identify(number: int) -> tuple[int, FileIdentity]:
            path = paths[number]
            in_name = [int(n) for n in re.findall(r"[0-9]{1,9}", path.rsplit("/", 1)[-1])]
            likely = [g for g in (*in_name, number) if expected is None or g < expected]
            guesses = list(dict.fromkeys((*likely, *range(count))))
            where = self.dataset.filesystem
            with _naming(path), open_source(path, filesystem=where) as source:
                return identify_part(source, self._properties(path), template, guesses)

        with ThreadPoolExecutor(min(usable_cores(), _MAX_THREADS), "modcrypt-part") as pool:
            found = list(pool.map(identify, range(len(paths))))
        parts = [part for part, _ in found]
        self._versions = dict(zip(paths, (version for _, version in found), strict=True))
        check_parts(zip(paths, parts, strict=True), expected, template)
        return {path: template.prefix(part) for path, part in zip(paths, parts, strict=True)}

    def _properties(self, path: str) -> FileDecryptionProperties:
        given = self._decryption
        if not isinstance(given, FileDecryptionProperties):
            if path not in self._given:
                self._given[path] = self._checked(given(path))
            given = self._given[path]
        prefix = self._prefixes.get(path)
        return given if prefix is None else replace(given, aad_prefix=prefix)

    def _checked(self, properties: FileDecryptionProperties) -> FileDecryptionProperties:
        check_decryption(properties)
        prefix = properties.aad_prefix or properties.aad_prefix_verifier
        if self._template is not None and prefix is not None:
            raise ValueError("give aad_prefix_template, or a prefix or verifier, not both")
        if self._template is not None and not properties.check_footer_integrity:
            raise ValueError("aad_prefix_template needs footers that are checked")
        if self.dataset.root is not None:
            properties = rooted(properties, self.dataset.root)
        return _asking_once(properties)

    def _open(self, file: DataFile) -> ParquetFile:
        kept = self._kept.pop(file.path, None)
        if kept is not None:
            return kept
        where, properties = self.dataset.filesystem, self._properties(file.path)
        version = self._versions.get(file.path)
        return ParquetFile(
            file.path, properties, filesystem=where, expected=version, **self._options
        )

    def close(self) -> None:
        """Close what was opened and not read."""
        for file in self._kept.values():
            file.close()

    def request(self, columns: Sequence[str] | None, filters: Filters | None) -> Request:
        """Say what to read of each file; the first one says the types."""
        request = Request(
            columns=columns,
            filter=as_expression(filters),
            partition_schema=self.dataset.partition_schema,
        )
        first = self.dataset.files[0]
        with _naming(first.path):
            opened = self._kept[first.path] = self._open(first)
            schema, self.result = opened.types_of(request)
        return replace(request, schema=schema, result=self.result)

    def matching(self, request: Request) -> list[DataFile]:
        """Give the files whose folders don't say that no row matches the filter."""
        files = self.dataset.files
        if request.filter is None:
            return files
        # PyArrow judges by what is known of fragments, and never opens these.
        layout, nowhere = ds.ParquetFileFormat(), pafs.LocalFileSystem()
        fragments = [
            layout.make_fragment(str(number), nowhere, file.partition)
            for number, file in enumerate(files)
        ]
        known = ds.FileSystemDataset(fragments, request.schema, layout, nowhere)
        return [files[int(fragment.path)] for fragment in known.get_fragments(request.filter)]

    def read(self, request: Request, file: DataFile, **scan: Any) -> pa.Table:
        with _naming(file.path), self._open(file) as opened:
            return opened.read_request(replace(request, partition=file.partition), **scan)

    def batches(self, request: Request, file: DataFile, **scan: Any) -> Iterator[pa.RecordBatch]:
        with _naming(file.path), self._open(file) as opened:
            yield from opened.batches_of_request(replace(request, partition=file.partition), **scan)


def _asking_once(properties: FileDecryptionProperties) -> FileDecryptionProperties:
    """Spare the keeper of the keys the same question about every file."""
    ask = properties.key_retriever
    if ask is None or not callable(ask):  # one that knows its file spares its keeper by itself
        return properties
    answers: dict[bytes, Secret[KeyLike | None]] = {}
    locks: defaultdict[bytes, threading.Lock] = defaultdict(lambda: fork_safe(threading.Lock()))

    def once(metadata: bytes) -> KeyLike | None:
        with locks[metadata]:
            if metadata not in answers:
                answers[metadata] = Secret(ask(metadata))
            return answers[metadata]()

    return replace(properties, key_retriever=once)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file of the dataset an error is about."""
    try:
        yield
    except ModcryptError as error:
        if path not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise
    except Exception as error:
        if path not in str(error):
            error.add_note(f"while reading {path}")
        raise


def _closing(resources: ExitStack, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with resources:
        yield from batches
