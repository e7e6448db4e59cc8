"""The verbs `encrypt`, `decrypt`, `rekey`, `mask` and `share`, by references to keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from modcrypt.jobs.conversion import Conversion, ConversionVerb, ConvertedFile
from modcrypt.jobs.engine import Job
from modcrypt.jobs.listing import File, Folder
from modcrypt.jobs.verbs.verb import Row, Verb
from modcrypt.kms.key_references import absolute_reference, check_reference, read_key
from modcrypt.kms.proof import Prove, WrapProof, check_prove
from modcrypt.kms.settings import Settings
from modcrypt.parquet.rewrite.changes import Change


@dataclass(frozen=True, kw_only=True)
class ConversionReferences:
    """A conversion of the files of a folder; picklable, so without keys.

    Raises:
        ValueError: The reference is invalid, or is missing for hashed columns; settings can't
            encrypt files; or columns without a key would be lost in place.
        TypeError: Keys are not given as `Settings`.
    """

    verb: ConversionVerb
    source: str
    destination: str | None
    decryption: Settings | None = None
    encryption: Settings | None = None
    change: Change = field(default_factory=Change)  # changes of columns, without the hash key
    # Reference to the hash key, `file:PATH` or `env:NAME`, as in `Settings`.
    hash_key: str | None = None
    overwrite: bool = False
    dry_run: bool = False
    prove: Prove = "first"  # which new wraps are proved, in each task

    def __post_init__(self) -> None:
        if self.hash_key is not None:
            check_reference(self.hash_key)
            object.__setattr__(self, "hash_key", absolute_reference(self.hash_key))
        elif self.change.hashed:
            raise ValueError("hashed columns need a hash_key; pass file:PATH or env:NAME")
        check_prove(self.prove)
        where = self.source if self.destination is None else self.destination
        if self.decryption is not None:
            if self.destination is None and self.decryption.on_missing_key != "error":
                raise ValueError(
                    "in place, columns without a key would be lost for good; use "
                    'on_missing_key="error" or name a destination'
                )
            object.__setattr__(self, "decryption", self.decryption.under(self.source))
        if self.encryption is not None:
            self.encryption.check_writing()
            object.__setattr__(self, "encryption", self.encryption.under(where))

    def open(self, filesystem: Any) -> Conversion:
        """Return the conversion with its keys, read in this process."""
        change = vars(self.change)
        if self.hash_key is not None:
            change = {**change, "hash_key": read_key(self.hash_key, "hash key")}
        return Conversion(
            verb=self.verb,
            source=Folder(self.source, filesystem),
            destination=None if self.destination is None else Folder(self.destination, filesystem),
            decryption=None if self.decryption is None else self.decryption.decryption(),
            encryption=None if self.encryption is None else self.encryption.encryption(),
            change=Change(**change),
            overwrite=self.overwrite,
            dry_run=self.dry_run,
            proof=WrapProof(self.prove),
        )

    def fail(self, file: File, error: Exception) -> ConvertedFile:
        """Return the result of a file that failed, before the keys are opened."""
        target = None if self.destination is None else Folder(self.destination)
        conversion = Conversion(verb=self.verb, source=Folder(self.source), destination=target)
        return conversion.fail(file, error)


_MODULE = {"type": str, "row_group": int, "column": int, "path": str, "page": int}


def _open(
    _settings: None, filesystem: Any, *, conversion: ConversionReferences
) -> Job[File, ConvertedFile]:
    return Job(conversion.open(filesystem).process)


def _prepare(*, conversion: ConversionReferences) -> Mapping[str, Any]:
    return {"conversion": conversion}


def _fail(verb: Verb, file: File, error: Exception, *, conversion: ConversionReferences) -> Row:
    return verb.rows(file, conversion.fail(file, error))[0]


_FLAGS = {"overwrite": bool, "dry_run": bool}
_PARAMETERS = {"encrypt": {**_FLAGS, "allow_leaks": bool}, "rekey": _FLAGS}

CONVERSIONS: dict[ConversionVerb, Verb] = {
    name: Verb(
        name=name,
        result=ConvertedFile,
        columns="path destination result failed bytes_in bytes_out seconds message code module "
        "columns proved worker",
        open=_open,
        prepare=_prepare,
        fail=_fail,
        types={"module": _MODULE},
        parameters=_PARAMETERS.get(name),
    )
    for name in get_args(ConversionVerb)
}  # fmt: skip
"""The verbs that convert files, by their names."""
