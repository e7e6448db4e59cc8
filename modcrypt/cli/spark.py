"""`--spark MASTER`: what a command does with a folder, done by Spark.

Keys go to Spark by reference alone: what the options of a command refer to must be on the driver
and on all executors. So descriptors, and passphrases that are typed, don't do.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from modcrypt.cli.options.kms_options import Service, refuse
from modcrypt.cli.options.passphrases import VARIABLE
from modcrypt.cli.output.failures import exit_code, in_options, printable
from modcrypt.cli.shared import aad_prefix_from, print_line, table
from modcrypt.errors import KmsUnavailableError

if TYPE_CHECKING:  # not to be loaded for the help
    from pyspark.sql import DataFrame, SparkSession

    from modcrypt.iceberg.rotate.table_rotation import TableRotation
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.spark.settings import Settings

__all__ = [
    "decrypt_on_spark",
    "decryption_settings",
    "encrypt_on_spark",
    "encryption_settings",
    "hash_key_reference",
    "inspect_on_spark",
    "mask_on_spark",
    "rekey_on_spark",
    "rotate_on_spark",
    "rotate_table_on_spark",
    "scan_on_spark",
    "service_settings",
    "share_on_spark",
    "spark_option",
    "verify_on_spark",
]

spark_option = click.option(
    "--spark",
    "spark_master",
    metavar="MASTER",
    help="Of a folder: have Spark do it, as local[4], spark://HOST:PORT, yarn or sc://HOST:PORT "
    "says. Files that are done already are left. What keys are read from must be there on its "
    "executors, too.",
)

SHOWN = 100
"""Failures that are printed for people; how many more there are is said."""

_NOT_ON_SPARK = {"glob", "jobs", "record", "fail_fast", "threads", "audit"}
_NOT_SENT = {"key_fd", "passphrase_fd", "hash_key_fd"}

Options = dict[str, Any]
Job = Callable[["SparkSession"], "DataFrame"]

# --- the commands --------------------------------------------------------------------------------


def encrypt_on_spark(
    master: str, source: str, destination: str | None, options: Options, *, force: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Do what `encrypt` does, with a folder; give the exit code.

    Args:
        master: the value of `spark_option`.
        source, destination: as of the command.
        options: its others, those of `batch_options` and `in_place_option` among them.
        force, as_json: as of `output_options`.
    """
    more = _of_folders(options, destination, force)
    settings = encryption_settings(options)

    def job(spark: SparkSession) -> DataFrame:
        from modcrypt.spark.jobs.table_jobs import encrypt_table

        return encrypt_table(spark, source, destination, settings, **more)

    return _converted(master, "encrypt", job, as_json)


def decrypt_on_spark(
    master: str, source: str, destination: str | None, options: Options, *, force: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Do what `decrypt` does, with a folder; arguments as of `encrypt_on_spark`."""
    more = _of_folders(options, destination, force)
    settings = decryption_settings(options)

    def job(spark: SparkSession) -> DataFrame:
        from modcrypt.spark.jobs.table_jobs import decrypt_table

        return decrypt_table(spark, source, destination, settings, **more)

    return _converted(master, "decrypt", job, as_json)


def rekey_on_spark(
    master: str, source: str, destination: str | None, options: Options, encryption: Settings, *,
    force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Do what `rekey` does, with a folder; arguments as of `encrypt_on_spark`.

    Args:
        encryption: of the new files, by `encryption_settings`.
    """
    refuse({"keep_unchanged"}, "not with --spark")
    more = _of_folders(options, destination, force)
    decryption = decryption_settings(options)

    def job(spark: SparkSession) -> DataFrame:
        from modcrypt.spark.jobs.table_jobs import rekey_table

        return rekey_table(spark, source, destination, decryption, encryption, **more)

    return _converted(master, "rekey", job, as_json)


def mask_on_spark(
    master: str, source: str, destination: str | None, options: Options,
    encryption: Settings | None, masks: dict[str, Any], *, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Do what `mask` does, with a folder; arguments as of `rekey_on_spark`.

    Args:
        encryption: None for the files' own keys.
        masks: as `mask_table` takes them.
    """
    more = _of_folders(options, destination, force)
    decryption = decryption_settings(options)

    def job(spark: SparkSession) -> DataFrame:
        from modcrypt.spark.jobs.table_jobs import mask_table

        return mask_table(spark, source, destination, decryption, encryption, **masks, **more)

    return _converted(master, "mask", job, as_json)


def share_on_spark(
    master: str, source: str, destination: str, options: Options, encryption: Settings,
    columns: Sequence[str], *, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Do what `share` does, with a folder; arguments as of `rekey_on_spark`."""
    more = _of_folders(options, destination, force)
    decryption = decryption_settings(options)

    def job(spark: SparkSession) -> DataFrame:
        from modcrypt.spark.jobs.table_jobs import share_table

        return share_table(spark, source, destination, decryption, encryption, columns, **more)

    return _converted(master, "share", job, as_json)


def rotate_on_spark(
    master: str, paths: Sequence[str], settings: Settings, *, what: Any,
    new_master_keys: dict[str, str], dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """Do what `keys rotate` does with files; give the exit code.

    Args:
        paths: files and folders.
        settings: by `decryption_settings`.
        what, new_master_keys, dry_run: as of `rotate_keys`.
    """

    def job(spark: SparkSession) -> DataFrame:
        from modcrypt.spark.jobs.table_jobs import rotate_keys

        return rotate_keys(
            spark, list(paths), settings, what=what, new_master_keys=new_master_keys,
            dry_run=dry_run,
        )  # fmt: skip

    def fields(row: dict[str, Any]) -> dict[str, Any]:
        return {"file": row["path"], **{name: row[name] for name in ("result", "keys", "message")}}

    return _run(master, "keys rotate", job, fields, as_json)


def rotate_table_on_spark(
    master: str, table: IcebergTable, settings: Settings, what: str, new_master_key: str | None
) -> TableRotation:
    """Do what `iceberg rotate dek` or `kek` does.

    Args:
        master: the value of `--spark`.
        table: that is rotated.
        settings: by `service_settings`.
        what: `dek` or `kek`.
        new_master_key: of `kek`: the value of `--new-master-key`.
    """
    from modcrypt.spark.jobs.iceberg_jobs import rotate_table_deks, rotate_table_keks

    with _started(master, f"iceberg rotate {what}") as spark:
        if what == "dek":
            return rotate_table_deks(spark, table, settings)
        return rotate_table_keks(spark, table, settings, new_master_key_id=new_master_key)


def scan_on_spark(master: str, paths: Sequence[str], options: Options, *, as_json: bool) -> int:
    """Do what `keys scan` does, for people with numbers of files; as `rotate_on_spark`."""
    named = Service(dict(options)).named
    settings = decryption_settings(options) if named else None
    _refuse_all()
    with _started(master, "keys scan") as spark:
        from modcrypt.spark.jobs.table_jobs import scan_keys

        found = scan_keys(spark, list(paths), settings)
        if as_json:
            for row in _rows(found):
                del row["worker"], row["failed"]
                message = in_options(row["message"] or "")
                print_line(json.dumps({"file": row.pop("path"), **row, "message": message}))
        else:
            counted = found.groupBy("kind", "column", "master_key_id", "version", "storage")
            _print_keys(list(_rows(counted.count().orderBy("kind", "column", "master_key_id"))))
        failures = found.where("failed")
        count = failures.count()
        if count and not as_json:
            _print_failures(failures, count, result="word")
        return exit_code(row["word"] for row in failures.select("word").distinct().collect())


def _print_keys(rows: Sequence[dict[str, Any]]) -> None:
    kinds = {"footer": "(footer)", "hidden": "(sealed)", "key metadata": "(key metadata)"}
    names = ("master_key_id", "version", "storage", "count")
    cells = [
        (kinds.get(row["kind"], row["column"]), *(row[name] for name in names))
        for row in rows
        if row["kind"] != "error"
    ]
    titles = ("column", "master key", "version", "storage", "files")
    print_line(table(titles, cells, left=(0, 1, 3)))


def verify_on_spark(
    master: str, paths: Sequence[str], options: Options, *, strict: bool, as_json: bool
) -> int:
    """Do what `verify` does with files, and tell copies of one among them; give the exit code.

    Args:
        master, paths: as of `rotate_on_spark`.
        options: of keys, prefix, reading and service.
        strict, as_json: as of the command.
    """
    _refuse_all()
    refuse({"aad_prefix_template", "expected_parts", "expected_rows", "html"}, "not with --spark")
    settings = decryption_settings(options) if _typed(options) else None
    started = time.perf_counter()
    with _started(master, "verify") as spark:
        from modcrypt.spark.jobs.table_jobs import verify_table

        found = verify_table(spark, list(paths), settings)
        if as_json:
            for row in _rows(found):
                print_line(json.dumps(_verified(row)))
        copies = _copies(found)
        totals = _totals(found, copies)
        missing = _words(found)
        if not as_json and totals["failed"]:
            _print_failures(found.where("failed"), totals["failed"])
    if as_json:
        seconds = round(time.perf_counter() - started, 6)
        print_line(json.dumps({**totals, "copies": copies, "seconds": seconds}))
    else:
        for first, last in copies:
            print_line(printable(f"the same file twice: {first}, {last}"))
        counts = ", ".join(f"{totals[name]} {name}" for name in _VERIFIED if totals[name])
        print_line(f"{totals['files']} files: {counts}; {totals['modules']:,} modules")
    if totals["failed"] or copies:
        return 1
    if KmsUnavailableError.word in missing:
        return 4
    if (totals["encrypted"] and not totals["modules"]) or (missing and options["policy_file"]):
        return 3
    return int(strict and totals["authentic"] < totals["files"])


_VERIFIED = ("authentic", "partial", "failed")


def _verified(row: dict[str, Any]) -> dict[str, Any]:
    found, notes = row["findings"] or (), row["not_authenticated"] or ()
    findings = [{**one.asDict(), "message": in_options(one["message"])} for one in found]
    return {
        "name": row["path"], "size": row["bytes_in"], "result": row["result"],
        "ok": not row["failed"], "complete": row["complete"], "encrypted": row["encrypted"],
        "num_rows": row["rows"], "modules": row["modules"],
        "authenticated_bytes": row["authenticated_bytes"], "findings": findings,
        "not_authenticated": [one.asDict() for one in notes],
        "message": in_options(row["message"]),
    }  # fmt: skip


def _copies(found: DataFrame) -> list[tuple[str, str]]:
    """Give files of which there are copies, as the first and the last path of each."""
    counted = found.where("file_unique is not null").groupBy("file_unique").count()
    uniques = [row["file_unique"] for row in counted.where("count > 1").limit(SHOWN).collect()]
    paths: dict[str, list[str]] = {unique: [] for unique in uniques}
    for row in found.select("file_unique", "path").where(found.file_unique.isin(uniques)).collect():
        paths[row["file_unique"]].append(row["path"])
    return [(min(names), max(names)) for names in paths.values()]


def _words(found: DataFrame) -> set[str]:
    """Return the error codes of keys that could not be had."""
    words = found.selectExpr("explode(not_authenticated.word) as word").distinct().collect()
    return {row["word"] for row in words} - {None}


def _totals(found: DataFrame, copies: Sequence[object]) -> dict[str, Any]:
    counts = dict.fromkeys(("files", *_VERIFIED, "encrypted", "modules"), 0)
    grouped = found.selectExpr(
        "case when failed then 'failed' else result end as result", "encrypted", "modules"
    ).groupBy("result", "encrypted")
    for row in grouped.agg({"*": "count", "modules": "sum"}).collect():
        counts["files"] += row["count(1)"]
        counts[row["result"]] += row["count(1)"]
        counts["encrypted"] += row["count(1)"] * bool(row["encrypted"])
        counts["modules"] += row["sum(modules)"] or 0
    return {**counts, "ok": not counts["failed"] and not copies}


def inspect_on_spark(master: str, paths: Sequence[str], options: Options, *, as_json: bool) -> int:
    """Do what `inspect` does with files, for people with numbers of them; give the exit code.

    Args:
        master, paths: as of `rotate_on_spark`.
        options: of keys, prefix and service.
        as_json: as of the command; columns are counted there.
    """
    _refuse_all()
    refuse({"html", "force", "pages"}, "not with --spark")
    settings = decryption_settings(options) if _typed(options) else None
    with _started(master, "inspect") as spark:
        from modcrypt.spark.jobs.table_jobs import inspect_table

        found = inspect_table(spark, list(paths), settings)
        failures = found.where("failed")
        count = failures.count()
        if as_json:
            for row in _rows(found):
                print_line(json.dumps(_inspected(row)))
        else:
            _print_kinds(found.where("not failed"))
            if count:
                _print_failures(failures, count)
    return int(bool(count))


def _inspected(row: dict[str, Any]) -> dict[str, Any]:
    """Give the fields of a row by the names that `inspect` has for them."""
    message = in_options(row["message"])
    if row["failed"]:
        return {"name": row["path"], "error": row["result"], "message": message}
    fields = {"name": row.pop("path"), "size": row.pop("bytes_in"), "num_rows": row.pop("rows")}
    for name in ("result", "failed", "message", "worker"):
        del row[name]
    return {**fields, **row}


_KIND = ("encrypted", "footer_mode", "algorithm", "footer_key", "writer")


def _print_kinds(found: DataFrame) -> None:
    """Say how many files there are of each kind, and what is open of them to everybody."""
    counted = found.groupBy(*_KIND).agg({"*": "count", "rows": "sum", "bytes_in": "sum"})
    rows = counted.orderBy(*_KIND).limit(SHOWN).collect()
    cells = [
        (
            row["footer_mode"] if row["encrypted"] else "not encrypted",
            *(row[name] for name in ("algorithm", "footer_key", "writer")),
            *(row[name] for name in ("count(1)", "sum(rows)", "sum(bytes_in)")),
        )
        for row in rows
    ]
    titles = ("footer", "algorithm", "footer key", "writer", "files", "rows", "bytes")
    print_line(table(titles, cells, left=range(4)))


# --- what they have in common --------------------------------------------------------------------


def _converted(master: str, verb: str, job: Job, as_json: bool) -> int:
    def fields(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "source": row["path"], "destination": row["destination"], "result": row["result"],
            "message": in_options(row["message"]), "source_bytes": row["bytes_in"],
            "destination_bytes": row["bytes_out"], "seconds": round(row["seconds"] or 0.0, 6),
        }  # fmt: skip

    return _run(master, verb, job, fields, as_json)


def _run(
    master: str, verb: str, job: Job, fields: Callable[[dict[str, Any]], dict[str, Any]],
    as_json: bool,
) -> int:  # fmt: skip
    """Have Spark do a job with a row for each file, print the report, and give the exit code."""
    started = time.perf_counter()
    with _started(master, verb) as spark:
        report = job(spark)
        if as_json:
            for row in _rows(report):
                print_line(json.dumps(fields(row)))
        counted = [row.asDict() for row in report.groupBy("result", "failed").count().collect()]
        failed = sum(row["count"] for row in counted if row["failed"])
        if failed and not as_json:
            _print_failures(report.where("failed"), failed)
    done = {row["result"]: row["count"] for row in counted if not row["failed"]}
    files = sum(done.values()) + failed
    if as_json:
        seconds = round(time.perf_counter() - started, 6)
        print_line(json.dumps({"files": files, **done, "failed": failed, "seconds": seconds}))
    else:
        told = ", ".join(f"{count} {word}" for word, count in {**done, "failed": failed}.items()
                         if count)  # fmt: skip
        print_line(f"{files} file{'s' * (files != 1)}: {told}")
    codes = {_CODES.get(row["result"], 1) for row in counted if row["failed"]}
    return 0 if not codes else codes.pop() if len(codes) == 1 else 1


_CODES = {
    "no-key": 3, "denied": 3, "disabled": 3, "key-material": 3, "key": 3, "exhausted": 3,
    "unavailable": 4, "unsupported": 5, "file": 2, "usage": 2, "internal": 70,
}  # fmt: skip
"""Exit codes where all files that failed did so for one reason; else 1."""


def _started(master: str, verb: str) -> AbstractContextManager[SparkSession]:
    from modcrypt.spark.session import spark_session

    bar = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    return spark_session(master, f"modcrypt {verb}", bar)


def _rows(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Give the rows, a task's at a time."""
    return (row.asDict() for row in frame.toLocalIterator())


def _print_failures(failures: DataFrame, count: int, result: str = "result") -> None:
    rows = [row.asDict() for row in failures.limit(SHOWN).collect()]
    cells = [(row["path"], row[result], in_options(row["message"])) for row in rows]
    print_line(table(("file", "error", "message"), cells, left=(0, 1, 2)))
    if count > len(rows):
        print_line(f"and {count - len(rows)} more")


# --- from options to references ------------------------------------------------------------------


def _refuse_all() -> None:
    refuse(_NOT_ON_SPARK, "not with --spark, which looks at each file and shares out the work")
    refuse(_NOT_SENT | {f"new_{one}" for one in _NOT_SENT}, "Spark's executors can't read that")
    refuse({"no_check_footer", "keep_unknown_fields"}, "not with --spark")


def _of_folders(options: Options, destination: str | None, force: bool) -> dict[str, Any]:
    """Take the values of `batch_options` out of the options; give what a job takes of them."""
    _refuse_all()
    dry_run, in_place = options.pop("dry_run"), options.pop("in_place", False)
    for name in ("glob", "jobs", "record", "fail_fast"):
        options.pop(name)
    if in_place and destination is not None:
        raise click.UsageError("--in-place takes no DESTINATION")
    if destination is None and not in_place:
        raise click.UsageError("Missing argument 'DESTINATION': name it, or say --in-place")
    return {"overwrite": force, "dry_run": dry_run}


def encryption_settings(options: Options, new: str = "") -> Settings:
    """Make of the values of `encryption_options` references for Spark.

    Args:
        options: those and others.
        new: as of `encryption_properties`.

    Raises:
        click.UsageError: they don't fit together, or say what only a policy can.
    """
    from modcrypt.cli.options.parquet_options import encryption_properties
    from modcrypt.parquet.crypto.properties import FileEncryptionProperties
    from modcrypt.spark.settings import Settings

    _refuse_all()
    options = {name: value for name, value in options.items() if name != "audit"}
    explicit = {} if Service(dict(options)).named else _explicit(options)
    properties: Any = encryption_properties(None, new, **options)
    if not isinstance(properties, FileEncryptionProperties):
        return Settings(
            kms=_uri(options),
            policy=properties.policy,
            root=_root(options),
            shared_aad_prefix=options["shared_aad_prefix"],
        )
    settings = Settings(
        **explicit,
        plaintext_columns=options["plaintext_columns"],
        aad_prefix=_prefix(options),
        shared_aad_prefix=options["shared_aad_prefix"],
    )
    if settings.encryption() != properties:
        raise click.UsageError(
            "--spark takes keys, plaintext columns and the AAD prefix from options; for more, "
            "write a --policy"
        )
    return settings


def decryption_settings(options: Options) -> Settings:
    """Make of the values of options of keys, prefix, reading and service references for Spark.

    Raises:
        click.UsageError: they don't fit together, or refer to what executors can't read.
    """
    from modcrypt.cli.options.parquet_options import EXPLICIT_KEYS
    from modcrypt.parquet.crypto.properties import ALGORITHMS
    from modcrypt.spark.settings import Settings

    _refuse_all()
    service = Service(dict(options))
    if service.named:
        refuse(EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
    elif "key_file" not in options:
        raise click.UsageError("a key service is needed: --kms, or --policy with one that names it")
    return Settings(
        kms=_uri(options),
        policy=service.policy,
        **({} if service.named else _explicit(options)),
        aad_prefix=_prefix(options),
        root=_root(options),
        shared_aad_prefix=options.get("shared_aad_prefix", False),
        algorithms=tuple(options.get("accept") or ALGORITHMS[:1]),
        on_missing_key=options.get("on_missing_key", "error"),
        master_key_ids=tuple(options.get("master_keys", ())),
    )


def service_settings(options: Options) -> Settings:
    """Make of the values of options of a key service alone references for Spark.

    Raises:
        click.UsageError: as `decryption_settings`.
    """
    from modcrypt.spark.settings import Settings

    _refuse_all()
    return Settings(kms=_uri({**options, "policy_file": None}))


def _root(options: Options) -> str | None:
    """Return the folder of --root as executors can name it, which run in other folders."""
    root: str | None = options.get("root")
    return root if root is None or "://" in root else os.path.abspath(root)


def _prefix(options: Options) -> str | None:
    names = ("aad_prefix", "aad_prefix_hex", "aad_prefix_file")
    prefix = aad_prefix_from(*(options.get(name) for name in names))
    try:
        return None if prefix is None else prefix.decode()
    except UnicodeDecodeError:
        raise click.UsageError("with --spark the AAD prefix is text: UTF-8") from None


_COLUMN_KEY = re.compile(r"(?P<name>.+?)=(?P<kind>file|env):(?P<where>.+)", re.DOTALL)


def _explicit(options: Options) -> dict[str, Any]:
    """Give the references to keys, paths made absolute: executors run in folders of their own."""
    footer = None
    if options["key_file"] is not None and options["key_env"] is not None:
        raise click.UsageError("--key-file and --key-env exclude each other")
    if options["key_file"] is not None:
        footer = _reference("file", options["key_file"])
    elif options["key_env"] is not None:
        footer = _reference("env", options["key_env"])
    columns = {}
    for value in options["column_key_refs"]:
        match = _COLUMN_KEY.fullmatch(value)
        if match is None:
            raise click.UsageError(
                "--column-key takes NAME=file:PATH or NAME=env:VARIABLE with --spark (the value is "
                "not repeated here)"
            )
        columns[match["name"]] = _reference(match["kind"], match["where"])
    return {"footer_key": footer, "column_keys": columns}


def hash_key_reference(file: str | None, env: str | None) -> str | None:
    """Give the reference to the key of hashes; None if none of both is given."""
    if file is not None and env is not None:
        raise click.UsageError("--hash-key-file and --hash-key-env exclude each other")
    if file is not None:
        return _reference("file", file)
    return None if env is None else _reference("env", env)


def _reference(kind: str, where: str) -> str:
    path = where if kind == "env" else os.path.abspath(os.path.expanduser(where))
    return f"{kind}:{path}"


def _uri(options: Options) -> str | None:
    """Give the URI of the key service, with a reference to the passphrase of a keyring."""
    service = Service(dict(options))
    if not service.named:
        return None
    if not service.is_keyring:
        return service.uri
    from modcrypt.kms.keyring.keyring import keyring_path
    from modcrypt.kms.uris import parse_kms_uri

    parsed = parse_kms_uri(service.uri, frozenset({"passphrase"}))
    passphrase = parsed.query.get("passphrase")
    if service.passphrase.file is not None:
        passphrase = f"file:{service.passphrase.file}"
    elif service.passphrase.env is not None:
        passphrase = f"env:{service.passphrase.env}"
    elif passphrase is None and os.environ.get(VARIABLE):
        passphrase = f"env:{VARIABLE}"
    if passphrase is not None:
        kind, _, where = passphrase.partition(":")
        passphrase = "?passphrase=" + urllib.parse.quote(_reference(kind, where), safe=":/")
    path = urllib.parse.quote(os.fsencode(os.path.abspath(keyring_path(service.uri))))
    key = f"#{urllib.parse.quote(parsed.fragment)}" if parsed.fragment else ""
    return f"file:{path}{passphrase or ''}{key}"


def _typed(options: Options) -> bool:
    """Tell whether an option is given on the command line."""
    context = click.get_current_context()
    return any(
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in options
    )
