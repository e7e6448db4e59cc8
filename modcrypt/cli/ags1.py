"""`modcrypt ags1`: any file or pipe as an AES GCM Stream, encrypted, decrypted and looked at."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import click

import modcrypt
from modcrypt.cli import key_refs
from modcrypt.cli.options.kms_options import (
    Service,
    default_key,
    master_keys_option,
    refuse,
    service_options,
)
from modcrypt.cli.output.failures import printable
from modcrypt.cli.shared import (
    SIGPIPE_EXIT,
    aad_prefix_from,
    convert,
    force_option,
    json_option,
    key_from,
    key_options,
    prefix_options,
    print_line,
    threads_option,
    together,
)

__all__ = ["ags1"]

_READ_BYTES = 4 << 20
"""Plaintext read at a time, enough for several threads to seal."""

Progress = Callable[[int], None]
Encode = Callable[["modcrypt.StandardKeyMetadata"], bytes]

_key_options = together(
    key_options("Key"),
    click.option(
        "--key-metadata-file",
        metavar="PATH",
        help="Key, AAD prefix and trusted length: a file of Iceberg's standard key metadata, raw "
        "or as hex or base64 text; or, with --kms, sealed.",
    ),
    prefix_options,
    service_options,
)
_reading_options = together(
    _key_options,
    master_keys_option,
    click.option(
        "--length",
        metavar="N",
        type=click.IntRange(min=0),
        help="The trusted length of the encrypted stream in bytes, as encrypt printed it. Not "
        "needed if the key metadata has it.",
    ),
    click.option(
        "--unverified-length",
        is_flag=True,
        help="Go without a trusted length: a stream that lost its last blocks is taken for whole.",
    ),
)

# click keeps the lines of a paragraph after \b as they are.
_GROUP_EXAMPLE = """\b
Examples:
  modcrypt ags1 encrypt --new-key-metadata notes.key notes.txt notes.ags1
  modcrypt ags1 decrypt --key-metadata-file notes.key notes.ags1 notes.again.txt
  modcrypt ags1 cat --key-metadata-file notes.key notes.ags1 | head -1"""

_ENCRYPT_EXAMPLE = """\b
Examples: a fresh key, kept with its length; a key that is there already; a
fresh key, sealed under a master key of a keyring
  modcrypt ags1 encrypt --new-key-metadata notes.key notes.txt notes.ags1
  tar c notes.txt | modcrypt ags1 encrypt --key-file own.key - notes.tar.ags1
  modcrypt ags1 encrypt --new-key-metadata notes.sealed --kms file:lake.keyring#footer \\
      notes.txt notes.kms.ags1"""

_DECRYPT_EXAMPLE = """\b
Examples:
  modcrypt ags1 decrypt --key-metadata-file notes.key notes.ags1 notes.again.txt
  modcrypt ags1 decrypt --key-metadata-file notes.sealed --kms file:lake.keyring \\
      notes.kms.ags1 notes.back.txt"""

_CAT_EXAMPLE = """\b
Example:
  modcrypt ags1 cat --key-metadata-file notes.key notes.ags1 | head -1"""

_INSPECT_EXAMPLE = """\b
Example:
  modcrypt ags1 inspect notes.ags1"""


@click.group(epilog=_GROUP_EXAMPLE, invoke_without_command=True)
@click.pass_context
def ags1(context: click.Context) -> None:
    """Encrypt and decrypt any file or pipe as an AGS1 stream, the one of Apache Iceberg.

    A stream does not say where it ends. Whoever decrypts it must know its length from a trusted
    source: encrypt prints it, and key metadata holds it.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@ags1.command(epilog=_ENCRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination")
@click.option(
    "--new-key-metadata",
    metavar="PATH",
    help="Make a fresh key and AAD prefix, and write them with the stream's length into this "
    "file, which others can't read: Iceberg's standard key metadata. With --kms they are sealed.",
)
@click.option(
    "--key-length",
    type=click.Choice(["16", "24", "32"]),
    help="Bytes of the fresh key. Default: 16.",
)
@click.option(
    "--master-key",
    metavar="ID",
    help="With --kms: master key under which the fresh key is sealed. Default: the policy's "
    "for footers, or the one that the URI names.",
)
@_key_options
@force_option
@threads_option("How many threads seal. Default: as many as there are processors, up to 4.")
@json_option
def encrypt(
    *,
    source: str,
    destination: str,
    new_key_metadata: str | None,
    key_length: str | None,
    master_key: str | None,
    force: bool,
    threads: int | None,
    as_json: bool,
    **references: Any,
) -> None:
    """Encrypt SOURCE into the AGS1 stream DESTINATION.

    Both are paths, pipes, "-" for standard input and output, or, with fsspec installed, URLs. A
    file appears when it is complete, or not at all. The length of the stream is printed: store
    it. With the stream on standard output, it is on standard error. Take a fresh key each time.
    """
    keeper: AbstractContextManager[_MetadataFile | None]
    if new_key_metadata is None:
        refuse({"key_length", "master_key"}, "that is for the key of --new-key-metadata")
        key, aad_prefix = _key(source, **references)
        keeper = nullcontext()
    else:
        service = _service(source, references)
        if any(value is not None for value in references.values()):
            raise click.UsageError(
                "--new-key-metadata makes key and AAD prefix: no other option may give one"
            )
        length = int(key_length or 16)
        key, aad_prefix = modcrypt.StandardKeyMetadata.generate(length), None
        if not service.named:
            refuse({"master_key"}, "--kms or --policy is needed with that")
        kept = keeper = _MetadataFile(new_key_metadata, key, source, destination, force=force)
        if service.named:
            kept.encode = _sealer(service, master_key, length)
    with _input(source) as file, _output(destination) as sink:

        def work(progress: Progress | None) -> dict[str, Any]:
            with keeper as kept:
                writer = modcrypt.Ags1Writer(
                    sink, key, aad_prefix=aad_prefix, overwrite=force, threads=threads
                )
                _seal(file, writer, progress, kept)
            return {"encrypted_bytes": writer.encrypted_length}

        result = convert("Encrypting", source, destination, work, as_json)
        if not as_json:
            _print_length(result["encrypted_bytes"])


@ags1.command(epilog=_DECRYPT_EXAMPLE)
@click.argument("source")
@click.argument("destination")
@_reading_options
@force_option
@threads_option("1: one thread; 2 or more: write in a second one. Default: by processors.")
@json_option
def decrypt(
    *,
    source: str,
    destination: str,
    force: bool,
    threads: int | None,
    as_json: bool,
    **reading: Any,
) -> None:
    """Decrypt the AGS1 stream SOURCE into DESTINATION.

    Both are paths, pipes, "-" for standard input and output, or, with fsspec installed, URLs. A
    file appears when all of the stream is authenticated, or not at all. A pipe gets each block
    once it is: whether the stream was cut short, only its end and the exit code tell.
    """
    options = {**_reading(source, **reading), "overwrite": force, "threads": threads}
    with _input(source) as file, _output(destination) as sink:

        def work(progress: Progress | None) -> dict[str, Any]:
            size = modcrypt.decrypt_ags1(file, sink, progress=progress, **options)
            return {"plaintext_bytes": size}

        convert("Decrypting", source, destination, work, as_json)


@ags1.command(epilog=_CAT_EXAMPLE)
@click.argument("file")
@_reading_options
@json_option
def cat(*, file: str, as_json: bool, **reading: Any) -> None:
    """Write the plaintext of the AGS1 stream FILE to standard output.

    Nothing is written before it is authenticated. What --json prints goes to standard error.
    """
    options = _reading(file, **reading)
    started = time.perf_counter()
    with _input(file) as source, _output("-") as sink:
        size = modcrypt.decrypt_ags1(source, sink, **options)
        if as_json:
            seconds = round(time.perf_counter() - started, 6)
            print_line(json.dumps({"file": file, "plaintext_bytes": size, "seconds": seconds}))


@ags1.command(epilog=_INSPECT_EXAMPLE)
@click.argument("file")
@json_option
def inspect(*, file: str, as_json: bool) -> None:
    """Show what the AGS1 stream FILE says of itself; no key is needed.

    Nothing of it is authenticated. Sizes are in bytes.
    """
    with _input(file) as source:
        summary = modcrypt.inspect_ags1(source)
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
        print_line(json.dumps({"file": file, **sizes, "authenticated": False}))
    else:
        width = len(str(max(sizes.values())))
        for title, size in zip(_TITLES, sizes.values(), strict=True):
            print_line(f"{title:24}{size:>{width}}")
        print_line("not authenticated: whoever can change the file can change all of this")


_TITLES = (
    "block length",
    "blocks",
    "length of the last",
    "header",
    "+ plaintext",
    "+ nonces and tags",
    "= encrypted length",
)


# --- keys and lengths ----------------------------------------------------------------------------


def _key(
    source: str,
    *,
    key_file: str | None,
    key_env: str | None,
    key_fd: int | None,
    key_metadata_file: str | None,
    aad_prefix: str | None,
    aad_prefix_hex: str | None,
    aad_prefix_file: str | None,
    **of_service: Any,
) -> tuple[modcrypt.Key | modcrypt.StandardKeyMetadata, bytes | None]:
    service = _service(source, of_service)
    if source == "-" and key_fd == 0:
        raise click.UsageError("standard input can't be both SOURCE and key")
    if service.named and key_metadata_file is None:
        raise click.UsageError(
            "--kms and --policy seal the key metadata of --new-key-metadata, and open that of "
            "--key-metadata-file"
        )
    prefix = aad_prefix_from(aad_prefix, aad_prefix_hex, aad_prefix_file)
    key = key_from(key_file, key_env, key_fd, "key")
    if key_metadata_file is not None:
        if key is not None:
            raise click.UsageError("--key-metadata-file brings the key: give no other one")
        unseal = _unsealer(service) if service.named else None
        return key_refs.metadata_from_file(key_metadata_file, unseal), prefix
    if key is None:
        raise click.UsageError(
            "a key is needed: --key-file, --key-env, --key-fd or --key-metadata-file; "
            "encrypt makes one by --new-key-metadata"
        )
    return key, prefix


def _service(source: str, options: dict[str, Any]) -> Service:
    service = Service(options)
    if source == "-" and service.passphrase.fd == 0:
        raise click.UsageError("standard input can't be both SOURCE and passphrase")
    return service


def _sealer(service: Service, master_key: str | None, key_length: int) -> Encode:
    """Give what seals key metadata; the key service wraps for it now, before any work is done."""
    tools = service.tools(keep_keks=True)
    named = default_key(tools) if service.policy is None else service.policy.footer_key
    master = named if master_key is None else master_key
    if master is None:
        raise click.UsageError("the URI names no master key: --master-key ID")

    tools.wrapper.writing_kek(master, key_length)
    return lambda metadata: tools.seal_key_metadata(metadata, master)


def _unsealer(service: Service) -> Callable[[bytes], modcrypt.StandardKeyMetadata]:
    def unseal(data: bytes) -> modcrypt.StandardKeyMetadata:
        return service.tools().open_key_metadata(data)

    return unseal


def _reading(
    source: str, *, length: int | None, unverified_length: bool, **references: Any
) -> dict[str, Any]:
    """Give key, AAD prefix and length as the library takes them."""
    if length is not None and unverified_length:
        raise click.UsageError("--length and --unverified-length exclude each other")
    key, aad_prefix = _key(source, **references)
    from modcrypt.ags1.lengths import trusted_length  # not to be loaded for the help

    trusted = modcrypt.UNVERIFIED if unverified_length else length
    try:
        trusted_length(key, trusted)
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    return {"key": key, "aad_prefix": aad_prefix, "length": trusted}


# --- encrypting ----------------------------------------------------------------------------------


class _MetadataFile:
    """The file that fresh key metadata goes to: complete, or not there.

    No moment may see a published stream without its key. So the metadata is in its place before
    the stream is published; or, where a file is to be replaced that may open the stream that is
    replaced, beside it, as `PATH.new`, until the stream is published.
    """

    def __init__(
        self,
        path: str,
        metadata: modcrypt.StandardKeyMetadata,
        source: str,
        destination: str,
        *,
        force: bool,
    ) -> None:
        self._metadata, self._destination = metadata, destination
        self.encode: Encode = modcrypt.StandardKeyMetadata.encode
        self._target = self._place = os.path.realpath(path)
        if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
            raise click.UsageError("--new-key-metadata takes the path of a file")
        if self._target in {_local(source), _local(destination)}:
            raise click.UsageError("--new-key-metadata is one file with SOURCE or DESTINATION")
        if os.path.lexists(path):
            if not force:
                raise FileExistsError(errno.EEXIST, "", path)
            self._place += ".new"
        if self._place != self._target and os.path.lexists(self._place):
            raise click.UsageError(
                f"{self._place} is left of a run that was interrupted, and may be all that opens "
                "its DESTINATION: put it elsewhere first"
            )
        self._written = False

    def __enter__(self) -> _MetadataFile:
        from modcrypt.io.storage import open_sink

        self._before = _identity(self._destination)
        self._stack = ExitStack()
        mask = os.umask(0o077)
        try:  # a folder that can't be written is better known before the work is done
            sink = open_sink(Path(self._place), overwrite=False)
            self._sink = self._stack.enter_context(sink)
        finally:
            os.umask(mask)
        return self

    def write(self, length: int) -> None:
        """Write the metadata of a stream of so many bytes, which is about to be published."""
        self._sink.append(self.encode(self._metadata.with_length(length)))
        self._stack.close()
        self._written = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._written:
            self._stack.__exit__(kind, error, trace)
        elif error is None:
            if self._place != self._target:
                os.replace(self._place, self._target)
        elif self._before is not None and _identity(self._destination) == self._before:
            os.unlink(self._place)
        else:
            where = printable(self._place)
            click.echo(f"modcrypt: the key metadata is in {where}", err=True)


def _local(path: str) -> str | None:
    """Give the real local path that is meant; None for a URL of a store, or a pipe."""
    from modcrypt.io.storage import locate

    filesystem, place = locate(path, None)
    return None if filesystem is not None or path == "-" else os.path.realpath(place)


def _identity(destination: str) -> tuple[int, ...] | None:
    """Tell a file from the one that replaces it; None where that can't be told.

    A file that isn't there has an identity too.
    """
    path = _local(destination)
    if path is None or _is_stream(destination):
        return None
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino


def _seal(
    source: str | IO[bytes],
    writer: modcrypt.Ags1Writer,
    progress: Progress | None,
    kept: _MetadataFile | None,
) -> None:
    """Seal all of the source, and keep the key metadata before the stream is complete."""
    from modcrypt.ags1.layout import encrypted_length
    from modcrypt.io.storage import open_stream

    with writer, open_stream(source) as stream:
        buffer = memoryview(bytearray(_READ_BYTES))
        while size := stream.readinto(buffer):
            writer.write(buffer[:size])
            if progress is not None:
                progress(writer.tell())
        if kept is not None:
            kept.write(encrypted_length(writer.tell(), writer.block_length))


def _print_length(length: int) -> None:
    if sys.stdout is sys.stderr:  # see `_output`
        click.echo(f"modcrypt: encrypted length: {length}", err=True)
    else:
        print_line(str(length))


# --- files and pipes -----------------------------------------------------------------------------


@contextmanager
def _input(source: str) -> Iterator[Any]:
    """Give what the library reads for a SOURCE."""
    if source != "-":
        yield source
        return
    if sys.stdin is None:
        raise click.UsageError("standard input is closed")
    buffer: Any = sys.stdin.buffer
    file = getattr(buffer, "raw", buffer)
    # Of a file that is partly read, the rest is meant.
    whole = file.seekable() and _is_file(file.fileno()) and file.tell() == 0
    yield file if whole else _Pipe(file)


@contextmanager
def _output(destination: str) -> Iterator[str | IO[bytes]]:
    """Give what the library writes to for a DESTINATION; end quietly when a pipe's reader goes.

    Once standard output is the stream, what else would be printed there is on standard error.
    """
    with ExitStack() as stack:
        if destination == "-":
            if sys.stdout is None:
                raise click.UsageError("standard output is closed")
            file = sys.stdout.buffer
            sys.stdout = sys.stderr
            sink: IO[bytes] = getattr(file, "raw", file)
        elif _is_stream(destination):
            sink = stack.enter_context(open(destination, "wb", buffering=0))
        else:
            yield destination
            return
        try:
            yield sink
        except BrokenPipeError:
            sys.exit(SIGPIPE_EXIT)


class _Pipe(io.RawIOBase):
    """A file object as something that can only be read on."""

    def __init__(self, file: Any) -> None:
        self._file, self.name = file, file.name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size: int | None = self._file.readinto(buffer)
        return size


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _is_stream(path: str) -> bool:
    """Tell whether a path is a pipe or device, which is written to and not replaced."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # opening it will say what is wrong
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
