"""Generate the schemas of the JSON that the command line prints, from the classes of the results.

`python -m tools.json_schemas` writes `modcrypt/cli/output/json_schemas.json`; a test compares it.
Members come from the attributes of a dataclass, as `modcrypt.report.json_fields` shows them, and
from `more`, for what a command adds or shows in another form.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from modcrypt.ags1.files import Ags1Summary
from modcrypt.cli.output import json_output
from modcrypt.doctor.machine_checks import Check
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.read.table_seals import TableSeal
from modcrypt.iceberg.rotate.catalog_rotation import RotatedTable
from modcrypt.iceberg.rotate.expiry import Expired
from modcrypt.iceberg.rotate.key_pruning import Pruned
from modcrypt.iceberg.rotate.key_repair import Repaired
from modcrypt.iceberg.rotate.orphan_removal import RemovedOrphans
from modcrypt.iceberg.rotate.partition_shredding import ShreddedPartition
from modcrypt.iceberg.rotate.purge import Purged
from modcrypt.iceberg.rotate.rotation_report import TableRotation
from modcrypt.iceberg.verify.key_trees import KeyTree, ProtectedFile
from modcrypt.iceberg.verify.table_results import TableVerification
from modcrypt.jobs.dataset_seals import SealUpdate, SealVerification
from modcrypt.jobs.engine import FileResult
from modcrypt.jobs.leaks.scan import ValueLeak
from modcrypt.jobs.recipients import ChangedRecipients, ListedRecipients
from modcrypt.jobs.seal_writers import SealLog
from modcrypt.jobs.shredding.proof import Proof, ProvenFile
from modcrypt.jobs.verbs.examination import INSPECT, VERIFY
from modcrypt.jobs.verbs.key_verbs import ROTATE, SCAN, SHRED
from modcrypt.jobs.verbs.verb import Verb
from modcrypt.kms.client import MasterKey
from modcrypt.lake.compromise.leak_reach import LeakReach
from modcrypt.lake.evidence.events import EvidenceCheck
from modcrypt.lake.reports.key_impact import DatasetImpact
from modcrypt.lake.reports.key_path import KeyStep
from modcrypt.lake.reports.lake_report import LakeReport
from modcrypt.module_ids import ModuleId
from modcrypt.parquet.verify.verification_results import DatasetVerification
from modcrypt.spark.report_schemas import attribute_types

PATH = Path(json_output.__file__).with_name(json_output.SCHEMAS)

_MODULE = {
    "type": str, "block?": int | None, "row_group?": int | None, "column?": int | None,
    "page?": int | None, "path?": str | None,
}  # fmt: skip
_SNAPSHOT = {"snapshot-id": int, "timestamp-ms": int, "operation": str | None}
_KEPT = {"snapshot-id": int, "why": str}
_USE = {"column": str | None, "master_key_id": str | None, "version": str | None,
        "kek_id": str | None}  # fmt: skip
_FILE = {
    "file": str, "state": str, "reason": str, "message": str, "size": int, "rows": int | None,
    "columns": int | None, "encrypted_columns": int | None, "keys": [_USE], "verified": bool,
}  # fmt: skip
_STATUS = {
    **dict.fromkeys(("location?", "error?"), str),
    **dict.fromkeys(("files?", "not_verified?", "bytes?"), int),
    **dict.fromkeys(("strays?", "waiting?", "due_keys?", "seal_faults?"), list[str]),
    "states?": dict[str, int], "unreadable?": dict[str, int], "reach?": LeakReach,
    "worn_keys?": [{"key": str, "wraps": int}], "leaks?": list[ValueLeak],
}  # fmt: skip
_DELETED = {
    "table": None, "kept": None, "dry_run": bool, "snapshots": [_SNAPSHOT],
    **dict.fromkeys(
        ("refs", "keys", "data_files", "delete_files", "statistics", "manifests",
         "manifest_lists", "metadata_files", "unreadable"), list[str],
    ),
    "rules": Mapping[str, Any], "left": list[str],
}  # fmt: skip
_COLUMNS = dict.fromkeys(
    ("dropped?", "nulls?", "resealed?", "kept?", "plaintext?", "hashed?", "masked?",
     "under_footer_key?", "lost_signatures?", "repaired?"), list[str],
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One object that a command prints.

    Attributes:
        description: Which command prints it, and what it says.
        of: Class of the result.
        more: Types of further members, or of members in another form. A name that ends with `?` is
            optional. A mapping is the type of an object, None that of a member that is left out.
        optional: Members of the class that are missing from some objects.
    """

    description: str
    of: type | None = None
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()


def _count(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, int)


ROWS = {
    "ags1.cat": Row(
        "`ags1 cat --json`, on stderr: the plaintext that was written.",
        more={"file": str, "plaintext_bytes": int, "seconds": float},
    ),
    "ags1.file": Row(
        "`ags1 encrypt` and `decrypt`: one file.",
        more={"source": str, "destination": str, "source_bytes": int | None,
              "destination_bytes": int | None, "seconds": float,
              **_count("encrypted_bytes?", "plaintext_bytes?")},
    ),
    "ags1.inspect": Row(
        "`ags1 inspect`: the header and sizes of a stream; nothing is authenticated.", Ags1Summary,
        {"file": str, **_count("header_bytes", "plaintext_bytes", "overhead_bytes"),
         "encrypted_bytes": int, "authenticated": bool, "plaintext_length": None,
         "encrypted_length": None},
    ),
    "convert.file": Row(
        "`encrypt`, `decrypt`, `rekey`, `mask` and `share`: one file, also one that failed.",
        more={"source": str, "destination": str, "result": str, "message": str,
              "module": Mapping[str, Any] | None, "source_bytes": int | None, "dry_run": bool,
              "destination_bytes": int | None, "seconds": float, "proved": int, **_COLUMNS},
    ),
    "convert.totals": Row(
        "The same commands for several files: the last line. The member named after the command "
        "counts finished files.",
        more={**_count("files", "encrypted?", "current", "planned", "erased?", "failed",
                       "not_begun"),
              "source_bytes": int, "dry_run": bool, "seconds": float,
              **_count("decrypted?", "rekeyed?", "masked?", "shared?")},
    ),
    "doctor": Row(
        "`doctor`: all checks, and how many have each state.",
        more={"checks": list[Check], **_count("ok", "hint", "warn", "fail")},
    ),
    "failure": Row(
        "Every command: why it failed. `error` is an error code.",
        more={"error": str, "message": str, "module": ModuleId | None, "name?": str},
    ),
    "iceberg.expire": Row("`iceberg expire`: what was deleted, or would be.", Expired,
                          {**_DELETED, "kept": [_KEPT]}),
    "iceberg.policy": Row("`iceberg admin policy`: the policy of keys.", KeyPolicy,
                          {"changed": bool, "metadata": str}),
    "iceberg.protected": Row("`iceberg tree --protected-by`: a file whose key a key protects.",
                             ProtectedFile),
    "iceberg.prune": Row("`iceberg admin prune`: the keys that were removed, or would be.", Pruned),
    "iceberg.purge": Row("`iceberg purge`: what was deleted with the table, or would be.", Purged,
                         {"deleted": None, **_DELETED}),
    "iceberg.shred": Row("`iceberg shred`: the keys of a partition that were removed, or would be.",
                         ShreddedPartition),
    "iceberg.rotated-table": Row(
        "`iceberg rotate mek --catalog`: a table of the catalog; `result` is rotated, current, "
        "plaintext or an error code.", RotatedTable, {"dry_run": bool}),
    "iceberg.remove-orphans": Row("`iceberg admin remove-orphans`: files that no snapshot reaches.",
                                  RemovedOrphans, {"size": int}),
    "iceberg.repair": Row("`iceberg admin repair`: the keys that were restored or lost.", Repaired,
                          {"plaintext_manifests": Mapping[str, Any] | None, "table": None}),
    "iceberg.rotation": Row("`iceberg rotate`: what was rotated, or would be.", TableRotation),
    "iceberg.rows": Row("`iceberg scan -o`: the rows that were written.",
                        more={"table": str, "destination": str, "format": str, "rows": int}),
    "iceberg.seal": Row("`iceberg seal`: the seal of a table.", TableSeal),
    "iceberg.tree": Row("`iceberg tree`: the hierarchy of keys.", KeyTree),
    "iceberg.verify": Row("`iceberg verify`: the result for a table.", TableVerification,
                          {"seconds": float}),
    "iceberg.write": Row(
        "`iceberg create`, `append` and `encrypt`: the new version of the table.",
        more={"metadata": str, "table_uuid": str, "master_key_id": str,
              "last_sequence_number": int, "snapshot_id": int | None,
              **_count("added_records", "added_data_files", "total_records")},
    ),
    "inspect": Row(
        "`inspect`: how a file is encrypted, and what it reveals. `regions` only with `--modules`.",
        INSPECT.result, optional=("regions",)),
    "keys.list": Row("`keys list`: the master keys of a key service.",
                     more={"keys": list[MasterKey]}),
    "keys.master": Row(
        "`keys create`, `rotate`, `disable`, `enable` and `destroy`: one master key.", MasterKey),
    "keys.scan": Row(
        "`keys scan`: the key of a file's footer or column. `word` is the error code of a failure.",
        SCAN.result),
    "keys.file": Row("`keys generate`: the file of a key.", more={"key": str, "bits": int}),
    "lake.apply": Row(
        "`apply`: one file (`kind` is `file` or, in a dry run, `planned-file`), or the totals of a "
        "dataset (`dataset` or `plan`).",
        more={"kind": Literal["file", "planned-file", "dataset", "plan"], "dataset": str,
              "dry_run": bool, **dict.fromkeys(("file?", "result?", "action?", "state?",
                                                "message?", "error?"), str),
              **_count("current?", "erased?", "encrypt?", "rekey?", "rotate?", "renew?", "refuse?",
                       "remove?"),
              "results?": dict[str, int], "new_versions?": list[str], "leaks?": list[ValueLeak]},
    ),
    "lake.impact": Row("`keys impact`: what a master key protects in a dataset.", DatasetImpact,
                       {"kind": str, "code": None}),
    "lake.report": Row("`report`: coverage, keys and findings of a lake.", LakeReport),
    "lake.status": Row(
        "`status`: the counts of a dataset (`kind` is `dataset`); with `--files`, files, too "
        "(`file`).",
        more={"kind": Literal["dataset", "file"], "dataset": str, **_STATUS,
              **{f"{name}?": kind for name, kind in _FILE.items()}},
    ),
    "lake.why": Row("`why`: a step from a file or column to its key service.", KeyStep,
                    {"kind": str}),
    "leaks.leak": Row("`leaks`: values of secret columns beside the files; never the values.",
                      ValueLeak),
    "leaks.totals": Row("`leaks`: the counts of a PATH, after its leaks.",
                        more={"path": str, **_count("leaks", "files", "encrypted")}),
    "recipients.change": Row("`recipients add` and `remove`: one file, also one that failed.",
                             ChangedRecipients),
    "recipients.file": Row("`recipients list`: the recipients of one file, also one that failed.",
                           ListedRecipients),
    "recipients.pair": Row("`keys generate --kind recipient`: the files of a key pair.",
                           more={"identity": str, "recipient": str, "id": str}),
    "report.check": Row(
        "`report --check`: whether the record of evidence is as it was written.", EvidenceCheck,
        {"ok": bool, "events": None, "more_events": None},
    ),
    "rotate.file": Row(
        "`keys rotate`: one file. `result` is `rotated`, `current`, `plaintext` or an error code.",
        ROTATE.result, {"dry_run": bool}, optional=("lost_signature", "proved")),
    "rotate.totals": Row(
        "`keys rotate`: the last line.",
        more={**_count("files", "rotated", "current", "plaintext", "failed", "keys"),
              "dry_run": bool, "seconds": float},
    ),
    "rows": Row("`cat -o`: the rows that were written.",
                more={"path": str, "destination": str, "format": str, "rows": int}),
    "schema": Row(
        "`schema`: the fields and columns of a file.",
        more={"path": str, "files": int | None, "encrypted": bool, "footer": str,
              "authenticated": bool,
              "fields": [{"name": str, "type": str, "nullable": bool, "partition": bool}],
              "columns": [{"column": str, "type": str, "key": str | None,
                           "master_key": str | None}]},
    ),
    "seals.pair": Row("`keys generate --kind signing`: the files of a key pair.",
                      more={"signing_key": str, "verifier": str, "id": str}),
    "seals.verifier": Row("`seals export`: the file of a verifying key.",
                          more={"verifier": str, "id": str}),
    "seals.log": Row("`seals log`: what each seal of a dataset states, the newest one last.",
                     SealLog),
    "seals.update": Row("`seals add`, `remove` and `writers`: the new seal, and what it states.",
                        SealUpdate),
    "seals.result": Row("`seals create` and `verify`: the seal, and how the files differ from it.",
                        SealVerification, {"ok": bool}),
    "shred.file": Row("`shred`: one file. `result` is `shredded`, `current` or an error code.",
                      SHRED.result, {"dry_run": bool}),
    "shred.proof-file": Row("`shred --prove`: one file.", ProvenFile),
    "shred.proof": Row(
        "`shred --prove`: the last line, what is readable and what is not.", Proof,
        {"proof": str, "ok": bool,
         **_count("files", "leftovers", "no_longer_readable", "refused", "still_readable",
                  "unknown", "unseen")},
    ),
    "shred.totals": Row(
        "`shred`: the last line of the removal.",
        more={**_count("files", "shredded", "current", "failed", "keys", "whole"),
              "unmet": list[str], "dry_run": bool, "remains": str, "seconds": float},
    ),
    "spark.files": Row(
        "`spark jar` and `spark package`: the file that was written.",
        more={"destination": str, "destination_bytes?": int, "url?": str, "coordinates?": str},
    ),
    "subjects.erase": Row("`subjects erase`: how many subjects were erased, now and before.",
                          more={"request": str, **_count("erased", "before", "unknown")}),
    "subjects.export": Row("`subjects export`: one row of a subject, and which columns are erased.",
                           more={"file": str, "row": dict[str, Any], "erased": list[str]}),
    "subjects.prove": Row("`subjects prove`: what is left of a subject. `state` is known, unknown, "
                          "erased, or returned if it is erased but has a row.",
                          more={**dict.fromkeys(("reference", "state", "request", "time"), str),
                                "proven": bool, **_count("values", "opened")}),
    "subjects.status": Row(
        "`subjects create`, `rotate` and `status`: the state of a vault.",
        more={"vault": str, **_count("generation", "subjects", "erased", "since_rotation",
                                     "returned", "older", "missing", "newer"),
              "requests": list[str], "complete": bool, "faults": list[str]},
    ),
    "trust": Row("`trust`: a declaration that is trusted, or with `--print` could be.",
                 more={"file": str, "sha256": str, "commands?": list[str]}),
    "verify.file": Row(
        "`verify`: one file. Members about its contents are missing if it could not be opened.",
        VERIFY.result, {"seconds?": float, "regions": None, "dataset?": str, "erased?": bool},
        optional=("signed_by",)),
    "verify.totals": Row(
        "`verify` for several files: the last line, with findings about the set. For a dataset of "
        "a lake, it has further members, and stands after its files.", DatasetVerification,
        {"files": int, "seconds": float, "erased?": int, "strays?": list[str],
         "limits?": list[str],
         **dict.fromkeys(("dataset?", "location?", "error?"), str),
         **_count("code?", "skipped?")}),
}  # fmt: skip
"""Objects that commands print, by the name of the schema without its prefix and version."""


# --- schemas -------------------------------------------------------------------------------------


def make_schemas() -> dict[str, Any]:
    """Return the document with a schema for each row."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "modcrypt.cli",
        "title": "JSON on stdout of the command line",
        "$defs": {f"modcrypt.{name}/1": _describe_row(name, row) for name, row in ROWS.items()},
    }


def describe_verb(verb: Verb) -> dict[str, Any]:
    """Return the schema of the objects that the command of a verb prints of files."""
    return _describe_row(f"{verb.name}.file", Row("", verb.result))


def _describe_row(name: str, row: Row) -> dict[str, Any]:
    members = {**({} if row.of is None else _members_of(row.of)), **row.more}
    described = _describe_object(members)
    described["required"] = [each for each in described["required"] if each not in row.optional]
    described["required"].insert(0, "schema")
    described["properties"] = {"schema": {"const": f"modcrypt.{name}/1"}} | described["properties"]
    return {"description": row.description, **described}


def _members_of(kind: type) -> dict[str, Any]:
    """Return the types of what `fields` shows of a dataclass."""
    hints = attribute_types(kind)
    first: tuple[str, ...] = getattr(kind, "_first", ())
    names = (*first, *(field.name for field in dataclasses.fields(kind)))
    left_out: tuple[str, ...] = getattr(kind, "_without", ())
    members = {name: hints[name] for name in names if name not in left_out}
    if issubclass(kind, FileResult):
        members = {"file": members.pop("path"), **members}
    return members


def _describe_object(members: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: kind for name, kind in members.items() if kind is not None}
    return {
        "type": "object",
        "required": [name for name in shown if not name.endswith("?")],
        "properties": {name.rstrip("?"): describe_type(kind) for name, kind in shown.items()},
    }


_NAMES = {str: "string", bytes: "string", int: "integer", float: "number", bool: "boolean",
          types.NoneType: "null"}  # fmt: skip


def describe_type(kind: Any) -> dict[str, Any]:
    """Return the schema of the JSON that shows a value of a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return {}
    if isinstance(kind, Mapping):
        return _describe_object(kind)
    if isinstance(kind, list):
        return {"type": "array", "items": describe_type(kind[0])}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return _describe_union([describe_type(each) for each in arguments])
    if origin in (list, tuple, collections.abc.Sequence, frozenset):
        return {"type": "array", "items": describe_type(arguments[0])}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object"}
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return {"type": "string"}
    if kind is ModuleId:
        return _describe_object(_MODULE)
    if dataclasses.is_dataclass(kind):
        return _describe_object(_members_of(typing.cast(type, kind)))
    return {"type": _NAMES[kind]}


def _describe_union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema for several: their types, and what one of them says more."""
    described: dict[str, Any] = {}
    for part in parts:
        described |= part
    described["type"] = sorted({part["type"] for part in parts})
    if "enum" in described and "null" in described["type"]:
        described["enum"] = [*described["enum"], None]
    return described


def main() -> None:
    """Write the file."""
    PATH.write_text(format_schemas())


def format_schemas() -> str:
    """Return the text of the file, with a line for each member."""
    document = make_schemas()
    defined = ",\n".join(map(_format_definition, *zip(*document.pop("$defs").items(), strict=True)))
    head = json.dumps(document, indent=2).removesuffix("\n}")
    return f'{head},\n  "$defs": {{\n{defined}\n  }}\n}}\n'


def _format_definition(name: str, schema: dict[str, Any]) -> str:
    members = schema.pop("properties").items()
    lines = [f"        {json.dumps(member)}: {json.dumps(kind)}" for member, kind in members]
    parts = [f"      {json.dumps(key)}: {json.dumps(value)}" for key, value in schema.items()]
    parts.append('      "properties": {\n' + ",\n".join(lines) + "\n      }")
    return f"    {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n    }"


if __name__ == "__main__":
    main()
