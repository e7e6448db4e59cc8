"""`modcrypt ags1`: encrypt, decrypt and inspect any file or pipe as an AES GCM Stream.

A stream does not contain its length, so a reader that does not know it cannot detect that the end
is missing. `decrypt` and `cat` demand it, in the key metadata or by `--length`, unless the user
waives it.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Any

import click
import cloup

import modcrypt
from modcrypt.cli.ags1.ags1_files import Encode, MetadataFile, is_stream, open_input, open_output
from modcrypt.cli.options.kms_options import (
    default_key,
    file_key_option,
    master_keys_option,
    named_service,
    refuse,
    service_options,
)
from modcrypt.cli.output.progress import progress_bar
from modcrypt.cli.output.terminal import is_terminal
from modcrypt.cli.references import check_private_file, is_stdin
from modcrypt.cli.shared import (
    combine_options,
    exclude_each_other,
    key_length_option,
    prefix_option,
    print_json,
    print_line,
    read_aad_prefix,
    read_key,
    threads_option,
)
from modcrypt.cli.shared_options import VerbCommand, VerbGroup, option, shared_option
from modcrypt.errors import printable
from modcrypt.report.text import format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.settings import Settings

_READ_BYTES = 4 << 20  # bytes of plaintext read at once, enough to occupy several threads

Progress = Callable[[int], None]

_key_options = combine_options(
    file_key_option,
    shared_option(
        "--key-metadata-file PATH",
        help="File of Iceberg's standard key metadata with key, AAD prefix and trusted length: "
        "raw, hex or base64; encrypted if --kms is given.",
    ),
    prefix_option,
    service_options,
)
_reading_options = combine_options(
    _key_options,
    master_keys_option,
    shared_option(
        "--length N",
        type=click.IntRange(min=0),
        help="Trusted length of the encrypted stream in bytes, as printed by encrypt; not needed "
        "if the key metadata has it.",
    ),
    shared_option(
        "--unverified-length",
        help="Accept a stream whose length you cannot check; the loss of its last blocks is not "
        "detected.",
    ),
    exclude_each_other("length", "unverified_length"),
)

_GROUP_EXAMPLE = """\b
Examples:
  modcrypt ags1 encrypt --new-key-metadata notes.key notes.txt notes.ags1
  modcrypt ags1 decrypt --key-metadata-file notes.key notes.ags1 notes.again.txt
  modcrypt ags1 cat --key-metadata-file notes.key notes.ags1 | head -1"""

_ENCRYPT_EXAMPLE = """\b
Examples: a fresh key, stored with the length; an existing key; a fresh key,
encrypted under a master key of a keyring
  modcrypt ags1 encrypt --new-key-metadata notes.key notes.txt notes.ags1
  tar c notes.txt | modcrypt ags1 encrypt --key file:own.key - notes.tar.ags1
  modcrypt ags1 encrypt --new-key-metadata notes.key.enc --kms file:lake.keyring#footer \\
      notes.txt notes.kms.ags1"""

_DECRYPT_EXAMPLE = """\b
Examples:
  modcrypt ags1 decrypt --key-metadata-file notes.key notes.ags1 notes.again.txt
  modcrypt ags1 decrypt --key-metadata-file notes.key.enc --kms file:lake.keyring \\
      notes.kms.ags1 notes.back.txt"""

_CAT_EXAMPLE = """\b
Example:
  modcrypt ags1 cat --key-metadata-file notes.key notes.ags1 | head -1"""

_INSPECT_EXAMPLE = """\b
Example:
  modcrypt ags1 inspect notes.ags1"""


@cloup.group(cls=VerbGroup, epilog=_GROUP_EXAMPLE)
def ags1() -> None:
    """Encrypt and decrypt any file or pipe as an AGS1 stream.

    AGS1 is the AES GCM Stream format of Apache Iceberg. A stream does not contain its length. To
    decrypt it, you must know its length from a trusted source: encrypt prints it, and key metadata
    stores it.
    """


_NO_RECIPIENTS = {"--to": "AGS1 has no recipients; pass --key, or --new-key-metadata with --kms"}
_NO_IDENTITIES = {"--identity": "AGS1 has no recipients; pass --key or --key-metadata-file"}


@ags1.command(cls=VerbCommand, epilog=_ENCRYPT_EXAMPLE, instead=_NO_RECIPIENTS)
@click.argument("source")
@click.argument("destination")
@option(
    "--new-key-metadata PATH",
    help="Generate a key and AAD prefix, and write them with the stream's length to this private "
    "file, as Iceberg's standard key metadata; --kms encrypts it.",
)
@key_length_option
@option(
    "--master-key ID",
    help="With --kms: master key that encrypts the fresh key. Default: the policy's footer "
    "key, or the one that the URI names.",
)
@_key_options
@threads_option
def encrypt(
    *, source: str, destination: str, new_key_metadata: str | None, key_length: str | None,
    master_key: str | None, force: bool, threads: int | None, as_json: bool, **references: Any,
) -> None:  # fmt: skip
    """Encrypt SOURCE into the AGS1 stream DESTINATION.

    Both are paths, pipes, "-" for standard input and output, or, with fsspec installed, URLs. A
    file appears only when it is complete. encrypt prints the length of the stream in bytes, on
    standard error if the stream is on standard output: store it. Use a fresh key each time.
    """
    keeper: AbstractContextManager[MetadataFile | None]
    if new_key_metadata is None:
        refuse({"key_length", "master_key"}, "this needs --new-key-metadata")
        key, aad_prefix = _read_key_and_prefix(source, references)
        keeper = nullcontext()
    else:
        settings = _parse_service(source, references)
        if any(references[name] is not None for name in references.keys() & _KEY_PARAMETERS):
            raise click.UsageError(
                "--new-key-metadata generates the key and AAD prefix; omit other options for them"
            )
        length = int(key_length or 16)
        key, aad_prefix = modcrypt.ags1.StandardKeyMetadata.generate(length), None
        if settings is None:
            refuse({"master_key"}, "this needs --kms or --policy")
        kept = keeper = MetadataFile(new_key_metadata, key, source, destination, force=force)
        if settings is not None:
            replaces = os.path.exists(destination) or os.path.exists(new_key_metadata)
            kept.encode = _make_metadata_encrypter(settings, master_key, length, replaces)
    with open_input(source) as file, open_output(destination) as sink:

        def work(progress: Progress | None) -> dict[str, Any]:
            with keeper as kept:
                writer = modcrypt.ags1.Ags1Writer(
                    sink, key, aad_prefix=aad_prefix, overwrite=force, threads=threads
                )
                _encrypt_stream(file, writer, progress, kept)
            return {"encrypted_bytes": writer.encrypted_length}

        result = _convert("Encrypting", source, destination, work, as_json)
        if not as_json and sys.stdout is sys.stderr:  # see `open_output`
            click.echo(f"modcrypt: encrypted length: {result['encrypted_bytes']}", err=True)
        elif not as_json:
            label = "encrypted length: " if is_terminal(sys.stdout) else ""
            print_line(f"{label}{result['encrypted_bytes']}")


@ags1.command(cls=VerbCommand, epilog=_DECRYPT_EXAMPLE, instead=_NO_IDENTITIES)
@click.argument("source")
@click.argument("destination")
@_reading_options
@threads_option
def decrypt(
    *, source: str, destination: str, force: bool, threads: int | None, as_json: bool,
    **reading: Any,
) -> None:  # fmt: skip
    """Decrypt the AGS1 stream SOURCE into DESTINATION.

    Both are paths, pipes, "-" for standard input and output, or, with fsspec installed, URLs. A
    file appears only when the whole stream is authenticated. A pipe receives each block once it is
    authenticated: only the end and the exit code show whether the stream was truncated.
    """
    options = {**_reading_arguments(source, **reading), "overwrite": force, "threads": threads}
    with open_input(source) as file, open_output(destination) as sink:

        def work(progress: Progress | None) -> dict[str, Any]:
            size = modcrypt.decrypt_ags1(file, sink, progress=progress, **options)
            return {"plaintext_bytes": size}

        result = _convert("Decrypting", source, destination, work, as_json)
    if not as_json and not (destination == "-" or is_stream(destination)):
        size = format_size(result["plaintext_bytes"])
        print_line(printable(f"decrypted {source} to {destination}; {size}"))


@ags1.command(cls=VerbCommand, epilog=_CAT_EXAMPLE, instead=_NO_IDENTITIES)
@click.argument("file")
@_reading_options
def cat(*, file: str, as_json: bool, **reading: Any) -> None:
    """Write the plaintext of an AGS1 stream to standard output.

    Each block of FILE is authenticated before it is written. --json prints to standard error.
    """
    options = _reading_arguments(file, **reading)
    started = time.perf_counter()
    with open_input(file) as source, open_output("-") as sink:
        size = modcrypt.decrypt_ags1(source, sink, **options)
        if as_json:
            seconds = round(time.perf_counter() - started, 6)
            fields = {"file": file, "plaintext_bytes": size, "seconds": seconds}
            print_json("ags1.cat", fields)


@ags1.command(epilog=_INSPECT_EXAMPLE)
@click.argument("file")
def inspect(*, file: str, as_json: bool) -> None:
    """Show the header and sizes of an AGS1 stream.

    No key is needed, and nothing in FILE is authenticated. Sizes are in bytes.
    """
    with open_input(file) as source:
        summary = modcrypt.ags1.inspect_ags1(source)
    header = summary.encrypted_length - summary.plaintext_length - summary.overhead
    sizes = {
        "block_length": summary.block_length,
        "blocks": summary.blocks,
        "last_block_length": summary.last_block_length,
        "header_bytes": header,
        "plaintext_bytes": summary.plaintext_length,
        "overhead_bytes": summary.overhead,
        "encrypted_bytes": summary.encrypted_length,
    }
    if as_json:
        print_json("ags1.inspect", {"file": file, **sizes, "authenticated": False})
    else:
        width = len(str(max(sizes.values())))
        for title, size in zip(_TITLES, sizes.values(), strict=True):
            print_line(f"{title:24}{size:>{width}}")
        print_line("not authenticated: anyone who can change the file can change all of this")


_TITLES = (
    "block length",
    "blocks",
    "length of the last",
    "header",
    "+ plaintext",
    "+ nonces and tags",
    "= encrypted length",
)


def _read_key_and_prefix(
    source: str, options: dict[str, Any]
) -> tuple[modcrypt.Key | modcrypt.ags1.StandardKeyMetadata, bytes | None]:
    settings, key_metadata_file = _parse_service(source, options), options["key_metadata_file"]
    if source == "-" and is_stdin(options, "key"):
        raise click.UsageError("standard input cannot be both SOURCE and key")
    if settings is not None and key_metadata_file is None:
        raise click.UsageError(
            "--kms and --policy need --new-key-metadata, whose file they encrypt, or "
            "--key-metadata-file, which they decrypt"
        )
    prefix = read_aad_prefix(options)
    key = read_key(options["key"], "key")
    if key_metadata_file is not None:
        if key is not None:
            raise click.UsageError("--key-metadata-file contains the key; omit other key options")
        from modcrypt.kms.key_references import read_metadata_file  # not to be loaded for the help

        if settings is None:
            metadata = read_metadata_file(key_metadata_file)  # refuses what is encrypted
            check_private_file(f"file:{key_metadata_file}", "key metadata file")
            return metadata, prefix
        tools = settings.tools()
        return read_metadata_file(key_metadata_file, tools.decrypt_key_metadata), prefix
    if key is None:
        raise click.UsageError(
            "a key is needed: --key or --key-metadata-file; encrypt generates one with "
            "--new-key-metadata"
        )
    return key, prefix


_KEY_PARAMETERS = {
    "key", "key_metadata_file", "aad_prefix",
}  # fmt: skip


def _parse_service(source: str, options: dict[str, Any]) -> Settings | None:
    settings = named_service(options, needed=False)
    if source == "-" and is_stdin(options, "passphrase"):
        raise click.UsageError("standard input cannot be both SOURCE and passphrase")
    return settings


def _make_metadata_encrypter(
    settings: Settings, master_key: str | None, key_length: int, replaces: bool
) -> Encode:
    """Return a function that encrypts key metadata; its KEK is wrapped now, before any work."""
    from modcrypt.settings.table import MAX_CACHE_LIFETIME  # the KEK must last for the whole stream

    policy = settings.policy
    aad = "" if policy is None else policy.kms_aad or ""
    tools = modcrypt.KeyTools(
        settings.client, kms_aad=aad, cache_lifetime_seconds=MAX_CACHE_LIFETIME
    )
    default = default_key(settings) if policy is None else policy.footer_key
    master = default if master_key is None else master_key
    if master is None:
        raise click.UsageError("the URI names no master key; name it by --master-key ID")

    tools.wrapper.get_writing_kek(master, key_length, replaces=replaces)
    return lambda metadata: tools.encrypt_key_metadata(metadata, master, replaces=replaces)


def _reading_arguments(
    source: str, *, length: int | None, unverified_length: bool, **references: Any
) -> dict[str, Any]:
    """Return key, AAD prefix and length as arguments of the library."""
    key, aad_prefix = _read_key_and_prefix(source, references)
    from modcrypt.ags1.lengths import trusted_length  # not to be loaded for the help

    trusted = modcrypt.ags1.UNVERIFIED if unverified_length else length
    try:
        trusted_length(key, trusted)
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    return {"key": key, "aad_prefix": aad_prefix, "length": trusted}


def _convert(
    verb: str, source: str, destination: str, work: Callable[[Progress | None], dict[str, Any]],
    as_json: bool,
) -> dict[str, Any]:  # fmt: skip
    """Run a command's work with a progress bar; return its result, printed if `as_json`."""
    source_size = _file_size(source)
    started = time.perf_counter()
    with progress_bar(verb, source_size) as progress:
        more = work(progress)
    seconds = time.perf_counter() - started
    result = {
        "source": source,
        "destination": destination,
        "source_bytes": source_size,
        "destination_bytes": _file_size(destination),
        "seconds": round(seconds, 6),
        **more,
    }
    if as_json:
        print_json("ags1.file", result)
    return result


def _file_size(path: str) -> int | None:
    """Return a file's size; None for a pipe, a URL or an inaccessible file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and path != "-" else None


def _encrypt_stream(
    source: str | IO[bytes],
    writer: modcrypt.ags1.Ags1Writer,
    progress: Progress | None,
    kept: MetadataFile | None,
) -> None:
    """Encrypt all of the source, and write the key metadata before the stream is complete."""
    from modcrypt.ags1.layout import encrypted_length
    from modcrypt.io.sources import open_stream

    with writer, open_stream(source) as stream:
        buffer = memoryview(bytearray(_READ_BYTES))
        while size := stream.readinto(buffer):
            writer.write(buffer[:size])
            if progress is not None:
                progress(writer.tell())
        if kept is not None:
            kept.write(encrypted_length(writer.tell(), writer.block_length))
