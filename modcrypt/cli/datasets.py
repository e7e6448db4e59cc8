"""Datasets that a declaration names: their paths, and the keys and requirements of their files.

A PATH that exists is a path; else it may be the name of a declared dataset, or FILE#NAME, which
also `--policy` takes. Options that repeat the declaration are compared with it, never preferred.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import click
from click.core import ParameterSource

from modcrypt.errors import printable
from modcrypt.io.addresses import is_url
from modcrypt.runtime.plugins import DECLARATIONS, load_all

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.settings import Settings

KEYS = {"kms", "policy_file", "key", "column_key_refs"}
"""Parameters that name keys which a declaration names, too."""

_NAME = re.compile(r"[\w-]+(/[\w.-]+)?")
_ARGUMENTS, _LAKES, _TABLE = "modcrypt.arguments", "modcrypt.lakes", "modcrypt.table"
_NAMED, _WARNED = "modcrypt.named", "modcrypt.warned"


class Lake(Protocol):
    """What the plug-in for lakes offers: see `modcrypt.lake.found_lake.FoundLake`."""

    path: str
    refusal: Exception | None
    is_valid: bool
    kms: str

    def dataset_at(self, where: str) -> str | None:
        """Return the name of the dataset that a path belongs to."""

    def has(self, name: str) -> bool:
        """Return whether a dataset is declared."""

    def inside(self, name: str, where: str) -> str:
        """Return the path of a file or folder inside a dataset; empty for all of it."""

    def locate(self, name: str) -> str | None:
        """Return the path or URL of a dataset; None for a table."""

    def table_at(self, where: str) -> str | None:
        """Return the name of the table at a path."""

    def table_options(self, name: str) -> dict[str, Any] | None:
        """Return the values that options of commands for tables have by declaration."""

    def suggest(self, name: str) -> str:
        """Return a question for the name of a dataset that resembles another."""

    def settings(self, name: str, **options: Any) -> Any:
        """Return the settings of a dataset."""

    def advise(self, name: str, command: str) -> str:
        """Return which command works on a table instead of one that works on files."""


def find_lake(file: str | None = None) -> Lake | None:
    """Return the lake of a named declaration, or the one that is found; None if there is none.

    It is read once in a command. The option --config of a command names it, too.
    """
    context = click.get_current_context()
    file = file or context.params.get("config")
    known: dict[str | None, Lake | None] = context.meta.setdefault(_LAKES, {})
    if file not in known:
        found = [find(file) for find in load_all(DECLARATIONS)]
        known[file] = found[0] if found else None
    return known[file]


# --- arguments -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declared:
    """The dataset that has the files of a command."""

    lake: Lake
    name: str
    file: str | None = None  # the declaration, if the user named it by FILE#NAME

    @property
    def key(self) -> tuple[str, str]:
        """Values that two objects for the same dataset share."""
        return os.path.realpath(self.lake.path), self.name

    def __str__(self) -> str:
        return f"{printable(self.lake.path)} declares {printable(self.name)}"


@dataclass(frozen=True)
class _Arguments:
    """The sources and the destination that the arguments of a command name."""

    sources: Sequence[str] = ()
    destination: str | None = None


def take_paths(
    context: click.Context, parameter: click.Parameter, value: Any, *, tables: bool = False
) -> Any:
    """Return the paths of an argument, with the places of datasets for their names.

    It is the callback of arguments; `_Arguments` are remembered for `declared_settings`. With
    `tables`, names of Iceberg tables are left as they are; otherwise they are usage errors.
    """
    paths = (value,) if isinstance(value, str) else tuple(value or ())
    refuse_pipes(paths)
    has_destination = (parameter.metavar or "").endswith("[DESTINATION]")
    ends = has_destination and len(paths) > 1 and not context.params.get("in_place")
    find = partial(_find_place, context=context, tables=tables)
    sources = [find(path) for path in paths[: len(paths) - ends]]
    last = [find(path, may_be_new=True) for path in paths[len(paths) - ends :]]
    context.meta[_ARGUMENTS] = _Arguments(sources, last[0] if last else None)
    if isinstance(value, str):
        return sources[0]
    return (*sources, *last)


def refuse_pipes(paths: Collection[str]) -> None:
    """Raise a usage error if an argument is "-"."""
    if "-" in paths:
        raise click.UsageError(
            "pipes are not supported: Parquet needs random access; use modcrypt ags1 for any "
            "file or pipe"
        )


def _find_place(
    text: str, context: click.Context, *, tables: bool, may_be_new: bool = False
) -> str:
    """Return the path that an argument names: itself, or that of the dataset with this name."""
    if is_url(text):
        return text
    exists = os.path.lexists(text)
    if not exists and (reference := split_reference(text)):
        lake = find_lake(reference[0])
        return text if lake is None else _locate(Declared(lake, *reference[::-1]), context, tables)
    if not _NAME.fullmatch(text):
        return text
    lake = find_lake()
    if lake is None or not lake.has(text):
        outer, _, inner = text.partition("/")
        if exists or may_be_new or lake is None or (inner and not lake.has(outer)):
            return text
        if lake.refusal is not None:
            raise _usage_error(lake.refusal)
        raise click.UsageError(
            f"there is no file {text}, and {lake.path} declares no dataset {text}"
            f"{lake.suggest(text)}"
        )
    if exists:
        with suppress(ValueError, OSError):
            if lake.dataset_at(text) == text:
                return text
        raise click.UsageError(
            f"{text} is a path, and a dataset of {lake.path} at another place; write ./{text} or "
            f"{lake.path}#{text}"
        )
    return _locate(Declared(lake, text), context, tables)


def _locate(declared: Declared, context: click.Context, tables: bool) -> str:
    """Return the place of a dataset, and remember its name; a table, if allowed, has only that."""
    try:
        place = declared.lake.locate(declared.name)
    except (ValueError, OSError) as error:
        raise _usage_error(error) from None
    if place is None and not tables:
        raise click.UsageError(declared.lake.advise(declared.name, context.info_name or ""))
    place = place or declared.name
    context.meta.setdefault(_NAMED, {})[place] = declared
    return place


def _usage_error(error: Exception) -> click.UsageError:
    return click.UsageError(str(error))


def split_reference(text: str | None) -> tuple[str, str] | None:
    """Return the declaration and the dataset of FILE#NAME; None for anything else."""
    file, mark, name = (text or "").rpartition("#")
    if not mark or not file or not name or os.path.exists(text or "") or not os.path.isfile(file):
        return None
    return file, name


def names_paths() -> bool:
    """Return whether an argument of the running command names paths."""
    arguments: _Arguments = click.get_current_context().meta.get(_ARGUMENTS, _Arguments())
    return bool(arguments.sources)


def take_table(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the Iceberg table of an argument: its place or identifier, if it is declared by name.

    It is the callback of arguments. What is declared becomes the default of the options.

    Raises:
        click.UsageError: An option contradicts the declaration, or it may not decide.
    """
    found = None if value is None else _find_table(value)
    if found is None:
        return value
    try:
        declared = found.lake.table_options(found.name)
    except (ValueError, OSError) as error:
        raise _usage_error(error) from None
    if declared is None:
        raise click.UsageError(f"{found.name} is a dataset of Parquet files, not an Iceberg table")
    for option, wanted in declared.items():
        given, is_open = context.params.get(option), wanted is None and "catalog" not in option
        if given not in (None, ()) and not is_open and not _agrees(option, given, wanted):
            _refuse(found, option, f"with {wanted}" if wanted else f"at {declared['where']}")
    context.meta[_TABLE] = declared
    context.default_map = {**(context.default_map or {}), **declared}
    return str(declared["where"])


def _find_table(text: str) -> Declared | None:
    """Return the dataset that an argument for a table names, or whose folder it is."""
    file, name = split_reference(text) or (None, text)
    lake = find_lake(file)
    if lake is None:
        return None
    if file is None and os.path.lexists(text):
        found = lake.table_at(text) if lake.refusal is None else None
        return None if found is None else Declared(lake, found)
    return Declared(lake, name) if file is not None or lake.has(name) else None


def declared_table() -> Mapping[str, Any]:
    """Return what `take_table` found about the table of the running command."""
    members: Mapping[str, Any] = click.get_current_context().meta.get(_TABLE, {})
    return members


def _agrees(parameter: str, given: Any, declared: Any) -> bool:
    """Return whether the value of an option is the declared one; a list may be a part of it."""
    if parameter == "kms":
        return _is_same_service(given, declared)
    return set(given) <= set(declared) if isinstance(given, tuple) else given == declared


# --- the dataset of a command --------------------------------------------------------------------


def find_named(policy: str | None) -> Declared | None:
    """Return the dataset that the value of an option for policies names: FILE#NAME, or NAME alone.

    A file that exists is a policy.
    """
    if (reference := split_reference(policy)) is not None:
        lake = find_lake(reference[0])
        return None if lake is None else Declared(lake, *reference[::-1])
    if policy is None or not _NAME.fullmatch(policy) or os.path.isfile(policy):
        return None
    lake = find_lake()
    return None if lake is None or not lake.has(policy) else Declared(lake, policy)


def find_declared(policy_file: str | None, *, writes: bool = False) -> Declared | None:
    """Return the dataset whose files the running command reads, or writes; None for other files.

    It is the one that `policy_file` names, or the one that the arguments lie in.

    Raises:
        click.UsageError: The arguments belong to several datasets.
    """
    if (named := find_named(policy_file)) is not None:
        return named
    arguments: _Arguments = click.get_current_context().meta.get(_ARGUMENTS, _Arguments())
    is_apart = writes and arguments.destination is not None
    paths = [str(arguments.destination)] if is_apart else arguments.sources
    found = [dataset_of(path) for path in paths]
    names = dict.fromkeys("no dataset" if each is None else each.name for each in found)
    if len({None if each is None else each.key for each in found}) > 1:
        raise click.UsageError(
            f"the paths belong to several datasets ({', '.join(names)}), which have keys of their "
            "own; run the command once for each"
        )
    if not any(found):
        _warn_if_ignored(paths)
    return next(iter(found), None)


def dataset_of(path: str) -> Declared | None:
    """Return the dataset that a path of the running command lies in, or whose name it stood for.

    Raises:
        click.UsageError: Several datasets share the folder.
    """
    named: Mapping[str, Declared] = click.get_current_context().meta.get(_NAMED, {})
    if path in named:
        return named[path]
    lake = find_lake()
    try:
        name = None if lake is None or lake.refusal is not None else lake.dataset_at(path)
    except ValueError as error:
        raise _usage_error(error) from None
    return None if lake is None or name is None else Declared(lake, name)


def use_paths(paths: Sequence[str]) -> None:
    """Let the running command be about some of its paths only."""
    click.get_current_context().meta[_ARGUMENTS] = _Arguments(paths)


def _warn_if_ignored(paths: Sequence[str]) -> None:
    """Print, once, that a declaration decides about nothing, if no option names keys instead."""
    meta, lake = click.get_current_context().meta, find_lake() if paths else None
    if lake is None or lake.refusal is None or _typed(KEYS | {"to"}) or meta.get(_WARNED):
        return
    meta[_WARNED] = True
    has_mistakes = not lake.is_valid
    if has_mistakes or any(lake.dataset_at(path) for path in paths):
        why = (
            "has mistakes; modcrypt status lists them"
            if has_mistakes
            else ("is not trusted; modcrypt trust shows what it commands")
        )
        click.echo(
            f"modcrypt: warning: {printable(lake.path)} is ignored, because it {why}", err=True
        )


def destination_dataset() -> Declared | None:
    """Return the dataset that the DESTINATION of the running command lies in."""
    arguments: _Arguments = click.get_current_context().meta.get(_ARGUMENTS, _Arguments())
    return None if arguments.destination is None else find_declared(None, writes=True)


def declared_settings(
    declared: Declared, options: Mapping[str, Any], make_passphrase: Callable[[str], str | None],
    given: Mapping[str, Any],
) -> Settings:  # fmt: skip
    """Return the settings of a dataset, and what options demand in addition.

    Args:
        declared: The dataset.
        options: Values of the options, which must not contradict the declaration.
        make_passphrase: Function from a key service's URI to the reference to its passphrase.
        given: Attributes of the Settings that options set.

    Raises:
        click.UsageError: An option contradicts the declaration, or the dataset is a table.
    """
    settings = _open_settings(declared, options)
    own = {name: value for name, value in given.items() if value}
    for name in ("signed_by", "seal_at_least", "aad_prefix", "kms", "root"):
        if settings.declared.get(name):
            own.pop(name, None)
    own.setdefault("passphrase", make_passphrase(settings.kms))
    evolved: Settings = settings.evolve(**own)
    return evolved


def declared_members(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is declared for the dataset of the running command; empty for other files.

    Raises:
        click.UsageError: As `declared_settings`.
    """
    declared = find_declared(None)
    if declared is None:
        return {}
    members: Mapping[str, Any] = _open_settings(declared, options).declared
    return members


def _open_settings(declared: Declared, options: Mapping[str, Any]) -> Any:
    """Return the settings of a dataset; raise click.UsageError as `declared_settings`."""
    try:
        if declared.lake.locate(declared.name) is None:
            command = click.get_current_context().info_name or ""
            raise click.UsageError(declared.lake.advise(declared.name, command))
        settings = declared.lake.settings(declared.name)
    except (ValueError, OSError) as error:
        raise _usage_error(error) from None
    _check_options(declared, settings, options)
    return settings


def _check_options(declared: Declared, settings: Any, options: Mapping[str, Any]) -> None:
    """Raise click.UsageError for the first option that contradicts the declaration."""
    what = settings.declared
    for name in KEYS - {"kms", "policy_file"}:
        if options.get(name):
            _refuse(declared, name, f"with the key service {what['kms']}")
    policy, kms = options.get("policy_file"), options.get("kms")
    if policy is not None and find_named(policy) is None:
        _refuse(declared, "policy_file", "with its own keys and columns")
    if kms is not None and not _is_same_service(kms, what["kms"]):
        _refuse(declared, "kms", f"with the key service {what['kms']}")
    if what["aad_prefix"] is not None and options.get("aad_prefix") is not None:
        _refuse(declared, "aad_prefix", f"with the AAD prefix {what['aad_prefix']}")
    root = options.get("root")
    if root is not None and not _is_same_folder(root, what["root"]):
        _refuse(declared, "root", f"at {what['root']}")
    signers = options.get("signed_by")
    if signers and what["signed_by"] and set(signers) != set(what["signed_by"]):
        from modcrypt.kms.signing.signing_keys import read_verifying_keys

        if {str(key) for key in read_verifying_keys(signers)} != set(what["signed_by"]):
            _refuse(declared, "signed_by", "with other writers (signed_by)")
    least = options.get("seal_at_least")
    if least is not None and what["seal_at_least"] not in (None, least):
        _refuse(declared, "seal_at_least", f"with seal_at_least = {what['seal_at_least']}")
    if extra := set(options.get("accept_algorithms") or ()) - set(what["accept_algorithms"]):
        _refuse(declared, "accept_algorithms", f"without {', '.join(sorted(extra))}")


def refuse_declared(declared: Declared, parameters: Collection[str]) -> None:
    """Raise a usage error if an option is typed about which the declaration decides."""
    for parameter in _typed(parameters):
        raise click.UsageError(
            f"{parameter.opts[0]}: {declared} and how its files are encrypted; remove the option, "
            "or change the declaration"
        )


def _refuse(declared: Declared, parameter: str, what: str) -> NoReturn:
    command = click.get_current_context().command
    option = next((p.opts[0] for p in command.params if p.name == parameter), parameter)
    raise click.UsageError(
        f"{option} contradicts the declaration: {declared} {what}; remove the option, or change "
        "the declaration (MODCRYPT_CONFIG=none ignores it)"
    )


def _is_same_folder(given: str, declared: str) -> bool:
    if is_url(given) or is_url(declared):
        return given.rstrip("/") == declared.rstrip("/")
    return os.path.realpath(given) == os.path.realpath(declared)


def _is_same_service(given: str, declared: str) -> bool:
    """Return whether two URIs name a key service alike; the given one may leave out its query."""
    from modcrypt.kms.keyring.keyring import keyring_path

    first, second = (uri.partition("#")[0] for uri in (given, declared))
    if "?" not in first:
        second = second.partition("?")[0]
    if first.startswith("file:") and second.startswith("file:"):
        return os.path.realpath(keyring_path(first)) == os.path.realpath(keyring_path(second))
    return first == second


def list_typed(is_wanted: Callable[[str], bool]) -> list[str]:
    """Return the parameters of the running command that are typed, and wanted."""
    command = click.get_current_context().command
    names = [parameter.name or "" for parameter in command.params]
    return [p.name or "" for p in _typed([name for name in names if is_wanted(name)])]


def _typed(parameters: Collection[str]) -> list[click.Parameter]:
    context = click.get_current_context()
    return [
        parameter
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
