"""Conversion of an exception into a line on stderr, a JSON object and an exit code.

Error codes are those of `modcrypt.errors`, and `usage`, `file`, `interrupted` and `internal` for
faults that concern neither a Parquet file nor a key. A line never contains a traceback, control
characters from a hostile file's column names, or an argument that looks like a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence

import click

from modcrypt.cli.output.signals import Stopped
from modcrypt.errors import printable
from modcrypt.jobs.failures import Failure, describe
from modcrypt.keys.lookalikes import looks_like_key, looks_like_private_key
from modcrypt.report.suggestions import suggest

EXIT_CODES = """\
  0    done
  1    integrity: the file is not authentic, is damaged or is not the expected one; or several
       files failed with different codes
  2    usage: wrong arguments, a file that does not exist, a destination that exists and is not
       the finished result
  3    a key is missing, denied, disabled or malformed
  4    the key service is unavailable, or a concurrent commit to a table won: try again
  5    unsupported: valid, but not supported, or only accepted with an option
  70   internal: a bug in modcrypt
  74   input or output failed, for example on a full disk
  130  interrupted by Ctrl-C; 143 ended by SIGTERM"""

# Names of arguments in the library's messages, and the options that replace them.
_OPTION_NAMES = (
    ("give it in column_keys", "give it with --column-key"),
    ('on_missing_key="drop"', "--on-missing-key drop"),
    ('on_erased="skip"', "--on-erased skip"),
    ("check_footer_integrity=False", "--no-check-footer"),
    ("pass aad_prefix", "pass --aad-prefix"),
    ("pass master_key_ids", "pass --master-key"),
    ("aad_prefix is given", "--aad-prefix is given"),
    ("pass root=, the", "pass --root FOLDER, the"),
    ("pass kms, or a policy", "pass --kms, or a policy"),
    ("pass shared_aad_prefix=True", "pass --shared-aad-prefix"),
    ("length=…, as the writer reported it", "--length N, as encrypt printed it"),
    ("length=UNVERIFIED", "--unverified-length"),
    ("generate fresh metadata for each file", "make fresh metadata by --new-key-metadata"),
    ('pass accept_algorithms=["AES_GCM_V1"]', "pass --accept-algorithm AES_GCM_V1"),
    ('pass accept_algorithms=["AES_GCM_CTR_V1"]', "pass --accept-algorithm AES_GCM_CTR_V1"),
    ("no identity of its recipients is given", "no --identity of its recipients is given"),
    ("no footer key is given", "no --key is given, nor --identity, --kms or --policy"),
    (
        "pass require_encrypted=False and no AAD prefix to read it",
        "pass --allow-plaintext and no AAD prefix to schema, head or cat",
    ),
    ("pass encryption for the new file", "pass --to POLICY"),
    ("the file is plaintext; pass encryption", "the file is plaintext; run modcrypt encrypt"),
    ("name its place by identity_passphrase=", "use --identity-passphrase"),
    (
        "pass encryption with the recipients of the new file",
        "name the recipients of the new file by --to",
    ),
    (
        "name its place by passphrase=",
        "use --passphrase or the environment variable MODCRYPT_PASSPHRASE",
    ),
    ("pass pin=, set pin-source in the URI", "set pin-source in the URI"),
    ("require the signature of its writer by signed_by", "require its writer by --signed-by"),
    ("open it without a passphrase", "pass no passphrase, and unset MODCRYPT_PASSPHRASE"),
    ("name its place by signing_passphrase=", "use --sign-passphrase"),
    ("map its beginning to a folder with location_map", "map its beginning with --location-map"),
    ("open the table with load_table", "name the catalog with --catalog"),
    ("open_table(at_least=...)", "--at-least"),
    ("open the catalog by that name", "name it with --catalog-name"),
    ("open the table with key_store", "open the table with --key-store"),
    ("(expire_history removes", "(expire removes"),
    ("expire_history drops them", "expire drops them"),
    ("with expire_history", "with expire"),
    ("encrypt_table makes", "iceberg encrypt makes"),
    ("no key_store was given", "no --key-store was given"),
    ("kek_per must be table or files", "--kek-per must be table or files"),
    ("read the table with modcrypt.iceberg", "use modcrypt iceberg"),
    ("or root is not its", "or --root is not its"),
    ("expected_parts", "--expected-parts"),
    ("in aad_prefix", "in --aad-prefix"),
    ("pass overwrite=True (or --force)", "pass --force"),
    ("pass drop_summaries=True", "pass --drop-summaries"),
    ("pass encrypt_plaintext=True", "pass --encrypt-plaintext"),
    ("pass allow_leaks=True", "pass --allow-leaks"),
    ("pass keep_unknown_fields=True", "pass --keep-unknown-fields"),
    ("pass exact=False", "pass --no-exact"),
    ("instead of overwrite=True", "instead of --force"),
    ('use on_missing_key="error"', "use --on-missing-key error"),
    ('pass on_missing_key="null"', "pass --on-missing-key null"),
    ("work in place (destination=None)", "pass --in-place"),
    ("SQL catalog (load_table)", "SQL catalog (--catalog)"),
    ("with seal_table", "with modcrypt iceberg seal"),
    ("two passphrases: remove passphrase=,", "two passphrases: remove --passphrase,"),
    ("read it with modcrypt.ags1", "use modcrypt ags1 decrypt, cat or inspect"),
)


def explain(
    error: BaseException, arguments: Sequence[str], options: Collection[str] | None = None
) -> Failure:
    """Return the report and exit code for an exception that ends the program.

    `options` are those of the command: advice to pass another one is left out. None keeps all.
    """
    if isinstance(error, click.ClickException):
        message = use_option_names(error.format_message().rstrip("."))
        if isinstance(error, click.UsageError) and error.ctx is not None:
            message += f"; see {error.ctx.command_path} --help"
        failure = Failure("usage", message, 2)
    elif isinstance(error, Stopped):
        failure = Failure("interrupted", f"ended by {error.signal}", int(error.code or 1))
    else:
        failure = describe(error)
    return failure._replace(message=show(failure.word, failure.message, arguments, options))


_ADVICE = re.compile(r"(?:; |, or )(?:pass|use) (?P<option>--[a-z][a-z0-9-]*)(?:\([^)]*\)|[^;)])*")


def show(
    word: str, message: str, arguments: Sequence[str], options: Collection[str] | None = None
) -> str:
    """Return the library's message of a failure for the command line, which names options.

    `word` is the error code. The message may repeat `arguments`, those of the program. `options`
    are as in `explain`.
    """
    message = use_option_names(message)
    if options is not None:
        message = _ADVICE.sub(lambda advice: advice[0] * (advice["option"] in options), message)
    if word == "usage":
        message += suggest_columns(message)
    if word == "format" and "encrypt" in arguments and "AGS1" not in message:
        message += "; modcrypt ags1 encrypt takes files of any kind"
    looks = looks_like_key if word == "usage" else looks_like_private_key
    message = _hide_keys(message, arguments, looks)
    return _hide_queries(printable(message), arguments)


def use_option_names(message: str) -> str:
    """Replace names of the library's arguments in a message by names of options."""
    for name, option in _OPTION_NAMES:
        message = message.replace(name, option)
    return message


def _hide_keys(message: str, arguments: Sequence[str], looks: Callable[[str], bool]) -> str:
    """Remove arguments that look like a key from a message that repeats them."""
    for argument in arguments:
        tails = [argument[m.end() :] for m in re.finditer("[=:]", argument)]
        pieces = {argument, argument.strip(), *tails, *re.split("[=:]", argument)}
        for piece in sorted(pieces, key=len, reverse=True):
            if looks(piece) and not piece.startswith("--"):
                # click quotes values, and paths lose double slashes, which base64 may have
                for spelling in (piece, repr(piece)[1:-1], os.path.normpath(piece)):
                    message = message.replace(spelling, "(hidden)")
    return message


# Parts of a URI, alone or as an option's value, in which a user may have put a secret.
_URI = re.compile(
    r"(?:--[a-z-]+=)?(?P<uri>(?P<shown>[A-Za-z][A-Za-z0-9+.-]*:.*?)(?:\?|pin-value=).*)", re.DOTALL
)


def _hide_queries(message: str, arguments: Sequence[str]) -> str:
    """Remove the queries of URIs among the arguments from a message that repeats them."""
    for argument in arguments:
        if match := _URI.fullmatch(argument):
            visible = printable(match["shown"])
            message = message.replace(printable(match["uri"]), f"{visible}(hidden)")
    return message


_UNKNOWN = re.compile(
    r"the file does not have these columns: (?P<unknown>.+?); it has (?P<known>.+)"
)


def suggest_columns(message: str) -> str:
    """Return a question for the first misspelt column that a message names; empty for others."""
    if (match := _UNKNOWN.search(message)) is None:
        return ""
    known = match["known"].split(", ")
    hints = (suggest(name, known) for name in match["unknown"].split(", "))
    return next(filter(None, hints), "")
