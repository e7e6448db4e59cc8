"""New keys for an encrypted Iceberg table, its files written anew by Spark's executors.

    driver      seals the key metadata of each file under a KEK that is for this job alone, and
                sends it with the file's location; the KEK as its master key has wrapped it
    executors   have the KEK unwrapped, once for each process; write each file anew under a key of
                its own; send that back, sealed under the same KEK
    driver      makes what names these files, and the commit, as `rotate_table` does without Spark

Files are data files, for new data keys; or manifests, for new KEKs, where key metadata in them is
sealed: executors then have the table's KEKs unwrapped, too, or in single wrapping each data key.

So no key is in what Spark pickles, logs or keeps: who has that, and no access to the key service,
has nothing. Executors read no metadata of the table; they follow locations into its folders alone.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modcrypt import errors
from modcrypt.fork_safety import fork_safe
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.rotate.dek_rotation import RekeyedFile, RekeyItem, rekey_file
from modcrypt.iceberg.rotate.manifest_rewrapping import Exchange, reseal_item
from modcrypt.iceberg.rotate.table_rotation import TableRotation, rotate_table
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.io.storage import Place, locate
from modcrypt.spark.jobs.driver import check_settings, slots_of
from modcrypt.spark.jobs.file_work import IN_STORE, ON_DISK, failure
from modcrypt.spark.jobs.task_files import MakeFilesystem, packed
from modcrypt.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Rekeying", "rotate_table_deks", "rotate_table_keks"]

FILES_PER_TASK, BYTES_PER_TASK = 64, 1 << 30

_TEXT, _LONG, _BYTES = pa.string(), pa.int64(), pa.binary()
_ITEMS = pa.schema(
    [
        ("task", pa.int32()), ("location", _TEXT), ("file_format", _TEXT), ("size", _LONG),
        ("sealed", _BYTES),
    ]
)  # fmt: skip
_DONE = pa.schema(
    [
        ("old", _TEXT), ("location", _TEXT), ("size", _LONG), ("sealed", _BYTES), ("word", _TEXT),
        ("message", _TEXT), ("worker", _TEXT),
    ]
)  # fmt: skip


def rotate_table_deks(
    spark: SparkSession,
    table: IcebergTable,
    settings: Settings,
    *,
    filesystem: MakeFilesystem | None = None,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> TableRotation:
    """Give the files of a table's current snapshot fresh keys: `rotate_table(table, "dek")`.

    Args:
        spark: whose executors write the data files; deletes, manifests and the commit are made
            here.
        table: as `open_table` or `load_table` gives it, in this process.
        settings: the table's key service by reference (`Settings(kms=...)`), which executors open.
        filesystem: makes the file system that the table is in, for executors; None where its
            folders have paths or URLs.
        dry_run: only say what would be done.
        files_per_task, bytes_per_task: most of a task.

    Raises:
        ModcryptError, OSError: as `rotate_table`; and what failed on an executor, of several one.
            The table is as it was then.
        TypeError: the settings are no `Settings`.
    """
    check_settings(settings)

    def run(
        table: IcebergTable, job: IcebergKey, name: str, items: Sequence[RekeyItem]
    ) -> Iterable[RekeyedFile]:
        work = Rekeying(
            settings=settings,
            job=job,
            name=name,
            key_length=table.metadata.key_length,
            folders=_folders(table, filesystem),
            filesystem=filesystem,
        )
        return _on_spark(spark, work, items, files_per_task, bytes_per_task)

    return rotate_table(table, "dek", dry_run=dry_run, run=run)


def rotate_table_keks(
    spark: SparkSession,
    table: IcebergTable,
    settings: Settings,
    *,
    new_master_key_id: str | None = None,
    filesystem: MakeFilesystem | None = None,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> TableRotation:
    """Put new KEKs in the places of a table's old ones: `rotate_table(table, "kek")`.

    Executors write manifests, where key metadata in them is sealed: in single wrapping, or with
    KEKs per partition or files. Otherwise there is nothing for them to do.

    Args:
        spark: whose executors write the manifests; manifest lists and the commit are made here.
        new_master_key_id: as of `rotate_table`.
        table, settings, filesystem, dry_run, files_per_task, bytes_per_task: as of
            `rotate_table_deks`.

    Raises:
        ModcryptError, OSError, TypeError: as `rotate_table_deks`.
    """
    check_settings(settings)

    def reseal(
        table: IcebergTable, job: IcebergKey, exchange: Exchange, items: Sequence[RekeyItem]
    ) -> Iterable[RekeyedFile]:
        work = Rekeying(
            settings=settings,
            job=job,
            name=exchange.name,
            key_length=exchange.key_length,
            folders=_folders(table, filesystem),
            filesystem=filesystem,
            exchange=exchange,
        )
        return _on_spark(spark, work, items, files_per_task, bytes_per_task)

    return rotate_table(
        table, "kek", new_master_key_id=new_master_key_id, dry_run=dry_run, reseal=reseal
    )


def _folders(table: IcebergTable, filesystem: MakeFilesystem | None) -> dict[str, str]:
    folders = table.walk.locations.folders
    return {prefix: _name(place, filesystem) for prefix, place in folders.items()}


def _name(place: Place, filesystem: MakeFilesystem | None) -> str:
    """Give what leads another process to a folder."""
    return place.full_name if filesystem is None else place.path


def _on_spark(
    spark: SparkSession,
    work: Rekeying,
    items: Sequence[RekeyItem],
    files_per_task: int,
    bytes_per_task: int,
) -> list[RekeyedFile]:
    """Have Spark do the work; the items go out as rows, not within a closure.

    Raises:
        ModcryptError, OSError, ValueError: what the first file that failed did.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if not items:
        return []
    sizes = [one.size for one in items]
    tasks = packed(sizes, files=files_per_task, size=bytes_per_task, slots=slots_of(spark))
    columns = (
        tasks, [one.location for one in items], [one.file_format for one in items], sizes,
        [one.sealed for one in items],
    )  # fmt: skip
    frame = spark.createDataFrame(pa.Table.from_arrays(list(map(pa.array, columns)), schema=_ITEMS))
    frame = frame.repartitionById(max(tasks) + 1, "task")
    done = frame.mapInArrow(work.run, from_arrow_schema(_DONE)).collect()
    for row in done:
        if row["word"] is not None:
            raise _raised(row["word"], row["message"])
    return [
        RekeyedFile(row["old"], row["location"], row["size"], bytes(row["sealed"])) for row in done
    ]


def _raised(word: str, message: str) -> Exception:
    """Give the exception that a failure on an executor was, as far as its word tells."""
    kinds: dict[str, Any] = {
        kind.word: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ModcryptError)
    }
    # That one is made of a module's address, which is in the message.
    kinds["tag"] = errors.IntegrityError
    if word in kinds:
        made: Exception = kinds[word](message)
        return made
    return ValueError(message) if word == "usage" else OSError(errno.EIO, message)


# --- on an executor ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rekeying:
    """What a task does; it is pickled, and holds no key but one that its master key has wrapped.

    Attributes:
        settings: the key service, by reference.
        job: the KEK of the job.
        name: what the names of new files begin with.
        key_length: bytes of their keys.
        folders: beginnings of locations, and the paths or URLs that they stand for.
        filesystem: makes the file system that these are paths in.
        exchange: of manifests: which keys take the places of which; None for data files.
    """

    settings: Settings
    job: IcebergKey
    name: str
    key_length: int
    folders: Mapping[str, str] = field(repr=False)
    filesystem: MakeFilesystem | None = None
    exchange: Exchange | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give a row for each file: what it is now, or why it failed."""
        worker = f"{socket.gethostname()}/{os.getpid()}"
        for batch in batches:
            items = [
                RekeyItem(row["location"], row["file_format"], row["size"], row["sealed"])
                for row in batch.to_pylist()
            ]
            rows = [{**row, "worker": worker} for row in self._rows(items)]
            yield pa.RecordBatch.from_pylist(rows, _DONE)

    def _rows(self, items: Sequence[RekeyItem]) -> list[dict[str, Any]]:
        try:
            resolver, locations = _resolver(self.settings, self.job), self._locations()
            job = resolver.opened(self.job)
        except Exception as error:  # keys or stores that can't be had here
            return [_failed(item, error) for item in items]

        def done(item: RekeyItem) -> dict[str, Any]:
            try:
                if self.exchange is None:
                    new = rekey_file(locations, item, job, self.name, self.key_length)
                else:
                    new = reseal_item(locations, item, job, self.exchange, resolver)
            except Exception as error:  # it is raised on the driver
                return _failed(item, error)
            return {
                "old": new.old, "location": new.location, "size": new.size, "sealed": new.sealed
            }  # fmt: skip

        stored = any(place.filesystem is not None for place in locations.folders.values())
        with ThreadPoolExecutor(IN_STORE if stored else ON_DISK, "modcrypt-spark") as pool:
            return list(pool.map(done, items))

    def _locations(self) -> Locations:
        made = None if self.filesystem is None else self.filesystem()
        return Locations({old: Place(*locate(new, made)) for old, new in self.folders.items()})


def _failed(item: RekeyItem, error: Exception) -> dict[str, Any]:
    word, message = failure(error)
    told = message if item.location in message else f"{item.location}: {message}"
    return {"old": item.location, "word": word, "message": told}


_kept: dict[tuple[int, str], KeyResolver] = {}  # by process: none is used after a fork
_making = fork_safe(threading.Lock())


def _resolver(settings: Settings, job: IcebergKey) -> KeyResolver:
    """Give what opens the keys of a job, each once in a process, which keeps no other job's.

    Raises:
        KeyRetrievalError: the key service can't be opened.
    """
    question = os.getpid(), job.id
    with _making:
        if question not in _kept:
            made = KeyResolver(settings.tools().client)
            _kept.clear()
            _kept[question] = made
        return _kept[question]
