"""The members of a declaration: those of a policy, and those that only a lake has.

`make_schema` is the schema for editors, which the package contains as `modcrypt.schema.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modcrypt.lake.erasure.erasures import ERASED, ERASED_IN_TABLES
from modcrypt.module_ids import ALGORITHMS
from modcrypt.settings.kinds import COUNT, FLAG, NAME, NAMES, TEXT, Kind, one_of, table_of
from modcrypt.settings.setting import Setting, settings_of
from modcrypt.settings.table import PolicySettings, TablePolicySettings

DURATION = Kind(
    "a number of minutes, hours, days or weeks, such as 90d",
    {"type": "string", "pattern": "^[0-9]{1,6}[mhdw]$"},
)
_PLACE = Kind("the path or URL of a folder or file", NAME.schema)
_LINES = Kind("a list of .pub files or their lines", NAMES.schema)
_RULE = {
    "description": "Name of a column or group, pattern with * and ?, or field metadata such as "
    "{ pii = true }.",
    "anyOf": [NAME.schema, {
        "type": "object", "minProperties": 1,
        "additionalProperties": {"anyOf": [TEXT.schema, FLAG.schema, {"type": "integer"}]},
    }],
}  # fmt: skip
_RULES = Kind("a list of columns", {"type": "array", "items": _RULE})
_KEY_RULES = Kind(
    "a table of master keys and their columns",
    {"type": "object", "additionalProperties": {**_RULES.schema, "minItems": 1}},
)


def _collect(*settings: Setting) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


def _table(members: Mapping[str, Setting]) -> Kind:
    return Kind("a table", {"type": "object", **_describe(members)})


def _describe(members: Mapping[str, Setting]) -> dict[str, Any]:
    properties = {name: setting.schema for name, setting in members.items()}
    return {"additionalProperties": False, "properties": properties}


def _free(name: str, kind: Kind, text: str, **more: Any) -> Setting:
    """Return a member that needs no trust; `Inclusions` judges the places that some name."""
    return Setting(kind, name=name, text=text, free=True, **more)


def _command(name: str, kind: Kind, text: str, **more: Any) -> Setting:
    """Return a member that only a trusted declaration may have."""
    return Setting(kind, name=name, text=text, **more)


_MASTER_KEYS = _free(
    "master_keys", table_of(NAME, "a table that maps OLD ids to NEW ids"),
    "Ids of former master keys, and of those that replace them.",
)  # fmt: skip
_TEXTS = Kind("a list of strings", {"type": "array", "items": TEXT.schema})
PREVIOUS_MEMBERS = _collect(
    _MASTER_KEYS,
    _free("aad_prefixes", _TEXTS, "Former templates of AAD prefixes."),
    _free("kms_aads", _TEXTS, "Former values of kms_aad; an empty one for none."),
    _free(
        "algorithms",
        Kind(
            f"a list of {' and '.join(ALGORITHMS)}",
            {"type": "array", "items": one_of(*ALGORITHMS).schema},
        ),
        "Former algorithms.",
    ),
)  # fmt: skip
ROTATION_MEMBERS = _collect(
    _free(
        "max_version_age", DURATION, "Age at which a master key needs a new version, such as 365d."
    ),
    _free(
        "rewrap_after", DURATION, "Time for which keys may stay under an older version of their "
        "master key, such as 30d; 0d rewraps at once.",
    ),
)  # fmt: skip
_ROTATION = "When keys are too old."

_STRICT = _free(
    "strict", FLAG, "Whether files that belong to nothing declared are faults, not only warnings.",
    default=True,
)  # fmt: skip

OWN_MEMBERS = _collect(
    _free("kind", Kind("files or iceberg", {"enum": ["files"]}), "The dataset has Parquet files."),
    _free(
        "location", _PLACE, "Path or URL of the folder or file; relative paths refer to the folder "
        "of this declaration.",
    ),
    _free(
        "source", Kind("the path or URL of a folder", NAME.schema),
        "Path or URL of a folder whose plaintext files apply encrypts into location; it deletes "
        "none.",
    ),
    _free(
        "include", Kind('a pattern, such as "*.parquet"', NAME.schema),
        "Pattern that the paths of the dataset's files match, such as *.parquet. Other visible "
        "files are undeclared.",
    ),
    _free(
        "partitions", Kind('a list of names, such as ["day"]', NAMES.schema),
        "Names of the Hive partitions (folders NAME=VALUE).",
    ),
    _command("recipients", _LINES, "Recipients that open the files, too."),
    _free(
        "former_recipients", _LINES, "Recipients whose access has ended: apply makes new data keys "
        "for the files that they can open.",
    ),
    _STRICT,
    _free(
        "policy", Kind("the path of a TOML file", NAME.schema),
        "Path of a policy file, whose members the dataset's own members replace.",
    ),
    _free(
        "previous", _table(PREVIOUS_MEMBERS),
        "What may still protect older files, until apply has changed them.",
    ),
    _free("rotation", _table(ROTATION_MEMBERS), _ROTATION),
    _free(
        "erased", ERASED, "Files, or columns of them, that are erased: their keys are gone for "
        "good.",
    ),
)  # fmt: skip

_POLICY = settings_of(PolicySettings)


def _vary(name: str, kind: Kind | None = None) -> Setting:
    """Return a policy's member whose text may contain values of partitions."""
    setting = _POLICY[name]
    text = f"{setting.text} It may contain {{partition.NAME}}."
    return setting._replace(kind=kind or setting.kind, text=text)


POLICY_MEMBERS = {name: _POLICY[name] for name in _POLICY if name != "kms"} | _collect(
    _vary("footer_key"),
    _vary("aad_prefix"),
    _vary("column_keys", _KEY_RULES),
    _POLICY["plaintext_columns"]._replace(kind=_RULES),
)
DATASET_MEMBERS = {**OWN_MEMBERS, **POLICY_MEMBERS}


KEY_POLICY = settings_of(TablePolicySettings)  # members that state a table's policy
TABLE_PREVIOUS = _collect(_MASTER_KEYS)
TABLE_ROTATION = ROTATION_MEMBERS | _collect(
    _free("max_kek_age", DURATION, "Age at which apply replaces KEKs, such as 365d.")
)
TABLE_MEMBERS = _collect(
    _free(
        "kind", Kind("files or iceberg", {"enum": ["iceberg"]}), "The dataset is an Iceberg table."
    ),
    _free("location", _PLACE, "Path or URL of the table's folder; not with a catalog."),
    _command(
        "catalog", NAME, "URI of an SQL catalog, a Hive metastore or a REST catalog, without a "
        "password, or a name from pyiceberg's configuration."),
    _command("catalog_name", NAME, "Name under which an SQL catalog stores its tables."),
    _free(
        "table", NAME, "Identifier of the table in its catalog, such as shop.orders; backticks "
        "quote a name that has dots.",
    ),
    _free(
        "namespace", NAME, "Namespace of the catalog whose tables, with those in it, are the "
        "dataset; * for the whole catalog.",
    ),
    _free("table_uuid", NAME, "UUID that the table must have."),
    _STRICT,
    _free(
        "location_map", table_of(TEXT, "a table"),
        "Folders that replace the beginnings of locations in the table's metadata.",
    ),
    _command("key_store", NAME, "File that keeps KEKs outside the table's metadata."),
    _free("master_key", NAME, "Id of the table's master key."),
    _command(
        "signed_by", _LINES, "Writers, one of whom must have sealed the table.", default=(),
    ),
    _free("seal_at_least", COUNT, "Number that the seal must have at least.", needs=("signed_by",)),
    _free(
        "read_restrictions", NAME, "File of JSON with the rows and masks to which reading is "
        "restricted, as a REST catalog sends them.",
    ),
    *KEY_POLICY.values(),
    _free(
        "previous", _table(TABLE_PREVIOUS),
        "What may still protect the table, until apply has changed it.",
    ),
    _free("rotation", _table(TABLE_ROTATION), _ROTATION),
    _free(
        "erased", ERASED_IN_TABLES, "Partitions or files that are erased: their keys are gone for "
        "good.",
    ),
)  # fmt: skip


EVIDENCE_MEMBERS = _collect(
    _command(
        "sign", NAME, "Signing key of the operator, as a reference such as file:operator.key, or "
        "the URI of a key that signs in its key service.",
    ),
    _command(
        "sign_passphrase", NAME, "Reference to the passphrase of that key's file, such as env:NAME "
        "or prompt.", needs=("sign",),
    ),
    _command(
        "signed_by", _LINES, "Verifying keys, one of which must have signed each line, by their "
        ".pub files or lines.", default=(),
    ),
)  # fmt: skip


TOP_MEMBERS = _collect(
    _POLICY["kms"]._replace(
        text="URI of the key service, without secrets. Default: MODCRYPT_KMS, else "
        "the Vault of VAULT_ADDR.",
    ),
    _free(
        "compromised", NAMES, "Master keys that have leaked, as ID or ID@VERSION: apply makes new "
        "data keys for the files that they open.", default=(),
    ),
    _free("evidence", _table(EVIDENCE_MEMBERS), "Record what apply, verify and shred do and find."),
    Setting(Kind("a table", {"type": "object"}), name="dataset"),
)  # fmt: skip
DATASET_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of declarations."""
    kind = {"properties": {"kind": {"const": "iceberg"}}, "required": ["kind"]}
    datasets = {
        "type": "object", "minProperties": 1, "propertyNames": {"pattern": DATASET_NAME},
        "additionalProperties": {
            "if": kind, "then": {"$ref": "#/$defs/table"}, "else": {"$ref": "#/$defs/files"},
        },
    }  # fmt: skip
    differing = ("table_uuid", "seal_at_least", "read_restrictions")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "modcrypt.schema.json",
        "title": "modcrypt.toml",
        "description": "What the datasets of a lake must look like.",
        "type": "object", "additionalProperties": False, "required": ["dataset"],
        "properties": {
            "kms": TOP_MEMBERS["kms"].schema, "dataset": datasets,
            "compromised": TOP_MEMBERS["compromised"].schema,
            "evidence": TOP_MEMBERS["evidence"].schema,
        },
        "$defs": {
            "files": {
                "type": "object", **_describe(DATASET_MEMBERS), "required": ["location"],
                "anyOf": [_requires("footer_key"), _requires("policy")],
            },
            "table": {
                "type": "object", **_describe(TABLE_MEMBERS), "required": ["kind", "master_key"],
                "oneOf": [
                    _requires("location"),
                    _requires("catalog", "table"),
                    {**_requires("catalog", "namespace"),
                     "not": {"anyOf": [_requires(name) for name in differing]}},
                ],
            },
        },
    }  # fmt: skip


def _requires(*names: str) -> dict[str, Any]:
    return {"required": list(names)}
