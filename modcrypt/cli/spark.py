"""Commands on Spark (`--spark MASTER`): process the files of a folder on its executors.

Only references to keys are sent to Spark, so what they refer to must exist on the driver and on
all executors. Therefore file descriptors and typed passphrases are not supported.

This module has more than 400 lines because each command needs a short function here, and all share
the session and the way from options to references.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from modcrypt.cli.options.kms_options import Service, refuse
from modcrypt.cli.options.passphrases import VARIABLE
from modcrypt.cli.output.failures import exit_code, use_option_names
from modcrypt.cli.shared import format_table, print_line, read_aad_prefix

if TYPE_CHECKING:  # not to be loaded for the help
    from pyspark.sql import DataFrame, SparkSession

    from modcrypt.iceberg.rotate.table_rotation import TableRotation
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.spark.settings import Settings

__all__ = [
    "SHOWN",
    "decryption_settings",
    "encryption_settings",
    "hash_key_reference",
    "is_any_typed",
    "iterate_rows",
    "print_report",
    "refuse_local_options",
    "rotate_table_on_spark",
    "service_settings",
    "spark_option",
    "start_spark",
    "take_details",
]

spark_option = click.option(
    "--spark",
    "spark_master",
    metavar="MASTER",
    help="For folders: run on Spark at local[4], spark://HOST:PORT, yarn or sc://HOST:PORT, "
    "and skip finished files. Its executors must reach the sources of keys.",
)

SHOWN = 100
"""Maximal number of failures printed for people, followed by the number of others."""

_NOT_ON_SPARK = {"glob", "jobs", "record", "fail_fast", "threads", "audit"}
_NOT_SENT = {"key_fd", "passphrase_fd", "hash_key_fd"}

Options = dict[str, Any]

# --- the commands --------------------------------------------------------------------------------


def rotate_table_on_spark(
    master: str, table: IcebergTable, settings: Settings, what: str, new_master_key: str | None
) -> TableRotation:
    """Run `iceberg rotate dek` or `kek`.

    Args:
        master: Value of `--spark`.
        table: Table to rotate.
        settings: Settings from `service_settings`.
        what: `dek` or `kek`.
        new_master_key: Value of `--new-master-key`, for `kek`.
    """
    from modcrypt.spark.jobs.iceberg_jobs import rotate_table_deks, rotate_table_keks

    with start_spark(master, f"iceberg rotate {what}") as spark:
        if what == "dek":
            return rotate_table_deks(spark, table, settings)
        return rotate_table_keks(spark, table, settings, new_master_key_id=new_master_key)


# --- what they have in common --------------------------------------------------------------------


def start_spark(master: str, verb: str) -> AbstractContextManager[SparkSession]:
    """Return a session for a command."""
    from modcrypt.spark.session import spark_session

    bar = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    return spark_session(master, f"modcrypt {verb}", bar)


def iterate_rows(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows, one partition at a time."""
    return (row.asDict() for row in frame.toLocalIterator())


def print_report(
    frame: DataFrame, fields: Callable[[dict[str, Any]], dict[str, Any]], as_json: bool,
    result: str = "result",
) -> int:  # fmt: skip
    """Print all rows as JSON, or failures as a table; return the exit code of the failures.

    Args:
        frame: Report of a job.
        fields: Function that returns the fields of a row for JSON.
        as_json: Whether to print JSON.
        result: Name of the column with the error code.
    """
    if as_json:
        for row in iterate_rows(frame):
            print_line(json.dumps(fields(row)))
    failures = frame.where("failed")
    counts = failures.groupBy(result).count().collect()
    if counts and not as_json:
        rows = list(iterate_rows(failures.limit(SHOWN)))
        cells = [(row["path"], row[result], use_option_names(row["message"])) for row in rows]
        print_line(format_table(("file", "error", "message"), cells, left=(0, 1, 2)))
        if (more := sum(row["count"] for row in counts) - len(rows)) > 0:
            print_line(f"and {more} more")
    return exit_code(row[result] for row in counts)


def take_details(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the command prints of the row of a file as JSON without Spark."""
    details: dict[str, Any] = json.loads(row["details"])
    for fields in (details, *details.get("findings", ())):
        if "message" in fields:
            fields["message"] = use_option_names(fields["message"])
    return details


# --- from options to references ------------------------------------------------------------------


def refuse_local_options() -> None:
    """Raise a usage error if an option is typed that Spark's executors can't follow."""
    refuse(
        _NOT_ON_SPARK,
        "not supported with --spark, which checks each file and distributes the work itself",
    )
    refuse(_NOT_SENT | {f"new_{name}" for name in _NOT_SENT}, "Spark's executors cannot read this")
    refuse(
        {"no_check_footer", "keep_unknown_fields", "keep_unchanged"}, "not supported with --spark"
    )


def encryption_settings(options: Options, new: str = "") -> Settings:
    """Return the values of `encryption_options` as references for Spark.

    Args:
        options: Those values and others.
        new: Beginning of the parameter names, as for `encryption_properties`.

    Raises:
        click.UsageError: The options contradict each other, or only a policy can express them.
    """
    from modcrypt.cli.options.parquet_options import encryption_properties
    from modcrypt.parquet.crypto.properties import FileEncryptionProperties
    from modcrypt.spark.settings import Settings

    refuse_local_options()
    options = {name: value for name, value in options.items() if name != "audit"}
    explicit = {} if Service(dict(options)).named else _explicit_references(options)
    properties: Any = encryption_properties(None, new, **options)
    if not isinstance(properties, FileEncryptionProperties):
        return Settings(
            kms=_service_uri(options),
            policy=properties.policy,
            root=_absolute_root(options),
            shared_aad_prefix=options["shared_aad_prefix"],
        )
    settings = Settings(
        **explicit,
        plaintext_columns=options["plaintext_columns"],
        aad_prefix=_prefix_text(options),
        shared_aad_prefix=options["shared_aad_prefix"],
    )
    if settings.encryption() != properties:
        raise click.UsageError(
            "--spark takes keys, plaintext columns and the AAD prefix from options; for more, "
            "write a --policy"
        )
    return settings


def decryption_settings(options: Options) -> Settings:
    """Return the options of keys, prefix, reading and service as references for Spark.

    Raises:
        click.UsageError: The options contradict each other, or executors cannot read their sources.
    """
    from modcrypt.cli.options.parquet_options import EXPLICIT_KEYS
    from modcrypt.parquet.crypto.properties import ALGORITHMS
    from modcrypt.spark.settings import Settings

    refuse_local_options()
    service = Service(dict(options))
    if service.named:
        refuse(EXPLICIT_KEYS, "keys come from the key service of --kms or --policy")
    elif "key_file" not in options:
        raise click.UsageError("a key service is needed: --kms, or --policy with one that names it")
    return Settings(
        kms=_service_uri(options),
        policy=service.policy,
        **({} if service.named else _explicit_references(options)),
        aad_prefix=_prefix_text(options),
        root=_absolute_root(options),
        shared_aad_prefix=options.get("shared_aad_prefix", False),
        algorithms=tuple(options.get("accept") or ALGORITHMS[:1]),
        on_missing_key=options.get("on_missing_key", "error"),
        master_key_ids=tuple(options.get("master_keys", ())),
    )


def service_settings(options: Options) -> Settings:
    """Return the options of a key service as references for Spark.

    Raises:
        click.UsageError: As `decryption_settings`.
    """
    from modcrypt.spark.settings import Settings

    refuse_local_options()
    return Settings(kms=_service_uri({**options, "policy_file": None}))


def _absolute_root(options: Options) -> str | None:
    """Return the folder of --root as an absolute path: executors run in other folders."""
    root: str | None = options.get("root")
    return root if root is None or "://" in root else os.path.abspath(root)


def _prefix_text(options: Options) -> str | None:
    names = ("aad_prefix", "aad_prefix_hex", "aad_prefix_file")
    prefix = read_aad_prefix(*(options.get(name) for name in names))
    try:
        return None if prefix is None else prefix.decode()
    except UnicodeDecodeError:
        raise click.UsageError("with --spark the AAD prefix must be UTF-8 text") from None


_COLUMN_KEY = re.compile(r"(?P<name>.+?)=(?P<kind>file|env):(?P<where>.+)", re.DOTALL)


def _explicit_references(options: Options) -> dict[str, Any]:
    """Return the references to keys with absolute paths: executors run in other folders."""
    footer = None
    if options["key_file"] is not None and options["key_env"] is not None:
        raise click.UsageError("--key-file and --key-env exclude each other")
    if options["key_file"] is not None:
        footer = _make_reference("file", options["key_file"])
    elif options["key_env"] is not None:
        footer = _make_reference("env", options["key_env"])
    columns = {}
    for value in options["column_key_refs"]:
        match = _COLUMN_KEY.fullmatch(value)
        if match is None:
            raise click.UsageError(
                "--column-key takes NAME=file:PATH or NAME=env:VARIABLE with --spark (the value is "
                "not repeated here)"
            )
        columns[match["name"]] = _make_reference(match["kind"], match["where"])
    return {"footer_key": footer, "column_keys": columns}


def hash_key_reference(file: str | None, env: str | None) -> str | None:
    """Return the reference to the hash key; None if no option gives one."""
    if file is not None and env is not None:
        raise click.UsageError("--hash-key-file and --hash-key-env exclude each other")
    if file is not None:
        return _make_reference("file", file)
    return None if env is None else _make_reference("env", env)


def _make_reference(kind: str, where: str) -> str:
    path = where if kind == "env" else os.path.abspath(os.path.expanduser(where))
    return f"{kind}:{path}"


def _service_uri(options: Options) -> str | None:
    """Return the URI of the key service, with a reference to a keyring's passphrase."""
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
        passphrase = "?passphrase=" + urllib.parse.quote(_make_reference(kind, where), safe=":/")
    path = urllib.parse.quote(os.fsencode(os.path.abspath(keyring_path(service.uri))))
    key = f"#{urllib.parse.quote(parsed.fragment)}" if parsed.fragment else ""
    return f"file:{path}{passphrase or ''}{key}"


def is_any_typed(options: Collection[str]) -> bool:
    """Return whether one of the options is typed on the command line."""
    context = click.get_current_context()
    return any(
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in options
    )
