"""Test an installed modcrypt[cli] outside of the checkout; `.ci/run` does so with the built wheel.

It only needs the wheel and its dependencies. Pass `--compiled` for a wheel with compiled modules.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from importlib import resources
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

import modcrypt

KEY = modcrypt.Key.generate(16)
COLUMN_KEY = bytes(range(32))
TEXT_KEY = bytes(range(100, 116))


def check(holds: object, what: str) -> None:
    if not holds:
        sys.exit(f"smoke: FAILED: {what}")


def check_package() -> None:
    where = Path(modcrypt.__file__).resolve().parent
    site = Path(sysconfig.get_path("purelib")).resolve()
    check(where.parent == site, f"modcrypt comes from {where}, not from {site}")
    package = resources.files("modcrypt")
    for name in ("py.typed", "__init__.pyi", "thrift/parquet.thrift"):
        check(package.joinpath(name).is_file(), f"{name} is in the package")


def check_shipped_for_spark() -> None:
    """Check, without pyspark, the modules that Spark looks for and the Java sources for its JVM."""
    for module in ("pyspark_modcrypt", "pyspark_modcrypt_job"):
        check(find_spec(module), f"Spark finds the data source of {module}")
    sources = resources.files("modcrypt") / "spark" / "java_sources"
    names = {source.name for source in sources.iterdir()}
    check("ModcryptKmsClient.java" in names, "the Java sources are there")


def check_api(folder: Path, table: pa.Table) -> None:
    plain, sealed, back = (folder / f"api-{n}.parquet" for n in ("plain", "sealed", "back"))
    pq.write_table(table, plain)
    column_keys = {"name": COLUMN_KEY}
    modcrypt.encrypt_parquet(
        plain,
        sealed,
        modcrypt.FileEncryptionProperties(footer_key=KEY, column_keys=column_keys),
    )
    properties = modcrypt.FileDecryptionProperties(footer_key=KEY, column_keys=column_keys)
    modcrypt.decrypt_parquet(sealed, back, properties)
    check(sealed.read_bytes()[:4] == b"PARE", "the file has an encrypted footer")
    check(back.read_bytes() == plain.read_bytes(), "decrypting gives the same bytes")
    found = modcrypt.inspect_parquet(sealed, properties, pages=True)
    check(sum(region.size for region in found.regions) == found.size, "regions cover the file")
    check("data page" in {region.kind for region in found.regions}, "inspection finds the pages")


def check_tables(folder: Path, table: pa.Table) -> None:
    sealed = folder / "tables.parquet"
    encryption = modcrypt.FileEncryptionProperties(footer_key=KEY, column_keys={"name": COLUMN_KEY})
    modcrypt.write_table(table, sealed, encryption, bloom_filter_options={"name": True})
    keys = modcrypt.FileDecryptionProperties(footer_key=KEY, column_keys={"name": COLUMN_KEY})
    check(modcrypt.read_table(sealed, keys).equals(table), "read_table gives the table")
    found = modcrypt.read_table(sealed, keys, filters=[("name", "==", "name-3")], columns=["id"])
    check(found.num_rows == 143, "a filter with a bloom filter finds its rows")
    with modcrypt.open_parquet(sealed, keys) as view:
        check(pq.read_table(view).equals(table), "PyArrow reads through open_parquet")
    check(modcrypt.write_dataset(table, folder / "set", encryption), "a dataset is written")
    check(modcrypt.read_table(folder / "set", keys).equals(table), "and read")
    points = entry_points(group="fsspec.specs", name="modcrypt")
    check(len(points) == 1, "fsspec finds the file system")


def check_ags1(folder: Path) -> None:
    metadata = modcrypt.ags1.StandardKeyMetadata.generate()
    with modcrypt.ags1.Ags1Writer(folder / "any.ags1", metadata, block_length=100) as file:
        file.write(b"any file" * 100)
    stored = modcrypt.ags1.StandardKeyMetadata.decode(file.key_metadata.encode())
    with modcrypt.ags1.Ags1Reader(folder / "any.ags1", stored) as reader:
        check(reader.read_at(392, 16) == b"any file" * 2, "a part of an AGS1 stream is read")
    points = entry_points(group="fsspec.specs", name="ags1")
    check(len(points) == 1, "fsspec finds the file system ags1")
    new = ("--new-key-metadata", "stream.key")
    run(folder, 0, "ags1", "encrypt", *new, "any.ags1", "twice.ags1")
    run(folder, 0, "ags1", "inspect", "twice.ags1")
    run(folder, 0, "ags1", "decrypt", "--key-metadata-file", "stream.key", "twice.ags1", "once")
    same = (folder / "once").read_bytes() == (folder / "any.ags1").read_bytes()
    check(same, "the program decrypts an AGS1 stream")


def check_key_tools(folder: Path, table: pa.Table) -> None:
    modcrypt.Keyring.create(folder / "lake.keyring", passphrase="smoke").create_key("footer")
    tools = modcrypt.KeyTools(f"file:{folder / 'lake.keyring'}", passphrase="smoke")
    policy = modcrypt.Policy(footer_key="footer", internal_key_material=False)
    modcrypt.write_table(table, folder / "keyed.parquet", tools.encryption(policy))
    (rotated,) = modcrypt.jobs.rotate_keys(folder / "keyed.parquet", tools, what="kek")
    check(rotated.result == "rotated", f"keys are rotated: {rotated}")
    found = modcrypt.read_table(folder / "keyed.parquet", tools.decryption(policy))
    check(found.equals(table), "a file under a keyring is read")
    (folder / "passphrase").write_text("smoke\n")
    (folder / "passphrase").chmod(0o600)
    kms = ("--kms", "file:lake.keyring#footer", "--passphrase", "file:passphrase")
    run(folder, 0, "keys", "create", *kms, "second")
    pq.write_table(table, folder / "unkeyed.parquet")
    run(folder, 0, "encrypt", *kms, "unkeyed.parquet", "kms.parquet")
    run(folder, 0, "keys", "scan", "kms.parquet")
    run(folder, 0, "decrypt", *kms, "kms.parquet", "kms.back.parquet")
    try:
        modcrypt.kms.open_kms("hcvault://127.0.0.1/transit")
    except ModuleNotFoundError as error:
        check("modcrypt[vault]" in str(error), f"a missing extra is named: {error}")
    else:
        check(False, "the extra vault is not installed here")


def check_program(folder: Path, table: pa.Table) -> None:
    pq.write_table(table, folder / "plain.parquet")
    (folder / "text.key").write_text(f"{TEXT_KEY.hex()}\n")
    (folder / "text.key").chmod(0o600)
    key = ("--key", "file:text.key")
    run(folder, 0, "encrypt", *key, "plain.parquet", "sealed.parquet")
    properties = pe.create_decryption_properties(footer_key=TEXT_KEY)
    theirs = pq.read_table(folder / "sealed.parquet", decryption_properties=properties)
    check(theirs.equals(table), "PyArrow reads the encrypted file")
    run(folder, 0, "decrypt", *key, "sealed.parquet", "back.parquet")
    check(pq.read_table(folder / "back.parquet").equals(table), "the program decrypts")
    verified = run(folder, 0, "verify", *key, "--html", "sealed.html", "sealed.parquet")
    check("pages and parts authenticated" in verified, "the program verifies")
    check("<!DOCTYPE html>" in (folder / "sealed.html").read_text(), "the drawing is there")
    (folder / "next.toml").write_text('footer_key = "file:text.key"\n')
    run(folder, 0, "rekey", *key, "--to", "next.toml", "sealed.parquet", "new.parquet")
    again = run(folder, 0, "decrypt", *key, "--json", "sealed.parquet", "back.parquet")
    check('"current"' in again, "a second run leaves the file that the first has written")
    run(folder, 2, "decrypt", *key, "sealed.parquet", "new.parquet")
    run(folder, 3, "decrypt", "sealed.parquet", "other.parquet")
    run(folder, 1, "decrypt", *key, "plain.parquet", "other.parquet")
    version = run(folder, 0, "--version")
    check(version == f"modcrypt {modcrypt.__version__}\n", f"the version is {version}")
    form = "compiled" if "--compiled" in sys.argv else "interpreted"
    check(form in run(folder, 0, "doctor"), f"the hot modules are {form}")


def run(folder: Path, code: int, *arguments: str) -> str:
    program = which("modcrypt", path=str(Path(sys.executable).parent))
    assert program is not None
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    check(done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}: {done}")
    return done.stdout


def main() -> None:
    table = pa.table({"id": range(1000), "name": [f"name-{n % 7}" for n in range(1000)]})
    check_package()
    check_shipped_for_spark()
    with tempfile.TemporaryDirectory() as name:
        check_api(Path(name), table)
        check_tables(Path(name), table)
        check_ags1(Path(name))
        check_key_tools(Path(name), table)
        check_program(Path(name), table)
    print("smoke: ok")


if __name__ == "__main__":
    main()
