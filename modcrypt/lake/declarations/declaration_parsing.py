"""Parse a declaration; find all mistakes at once, each with its line and a suggestion."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from modcrypt.errors import MAX_NAME, printable
from modcrypt.io.addresses import is_url
from modcrypt.kms.policy import (
    MAX_POLICY,
    Policy,
    resolve_reference,
    resolve_service,
    resolve_vault,
    resolve_writer,
)
from modcrypt.kms.recipients.recipient import Recipient, check_recipients
from modcrypt.kms.signing.signing_keys import check_signing_reference
from modcrypt.lake.declarations.columns import ColumnRule, make_rule
from modcrypt.lake.declarations.declaration import (
    AnyDataset,
    DatasetDeclaration,
    EvidenceDeclaration,
    LakeDeclaration,
    Previous,
    Rotation,
    TableDeclaration,
)
from modcrypt.lake.declarations.declaration_faults import (
    DeclarationFault,
    FaultList,
    MemberPath,
    find_lines,
)
from modcrypt.lake.declarations.inclusions import Inclusions
from modcrypt.lake.declarations.member_table import (
    DATASET_MEMBERS,
    DATASET_NAME,
    EVIDENCE_MEMBERS,
    OWN_MEMBERS,
    POLICY_MEMBERS,
    PREVIOUS_MEMBERS,
    ROTATION_MEMBERS,
    TOP_MEMBERS,
)  # fmt: skip
from modcrypt.lake.declarations.members import Members
from modcrypt.lake.declarations.partitions import has_other_places, is_ambiguous, names_in
from modcrypt.lake.declarations.table_parsing import TableParsing
from modcrypt.parquet.crypto.path_prefix import NAME, PATH
from modcrypt.settings.strict_toml import strict_toml

_WILD = re.compile(r"[*?]")


def parse_declaration(
    text: str, path: Path, default_kms: str | None = None, inclusions: Inclusions | None = None
) -> tuple[LakeDeclaration | None, list[DeclarationFault]]:
    """Return a declaration, or None and all mistakes in it.

    Args:
        path: Path of its file, to whose folder relative locations refer.
        default_kms: URI of the key service if the text names none.
        inclusions: Takes what the declaration commands and includes.
    """
    try:
        members = strict_toml(text)
    except ValueError as error:
        return None, [DeclarationFault(None, str(error))]
    parsing = _Parsing(FaultList(find_lines(text)), inclusions or Inclusions(path.parent))
    kms = parsing.parse_service(members, default_kms)
    found = parsing.parse_datasets(members)
    compromised = parsing.parse_compromised(members)
    evidence = parsing.parse_evidence(members)
    if parsing.faults.total:
        return None, parsing.faults.sort()
    # A leak changes no state that a cache keeps, and the answer must not wait for all files; nor
    # does evidence. The datasets contain the policies that the text includes.
    others = {name: members[name] for name in members if name not in ("compromised", "evidence")}
    content = f"{others}{found}"
    digest = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    found = {name: replace(each, compromised=compromised) for name, each in found.items()}
    tables = {name: each for name, each in found.items() if isinstance(each, TableDeclaration)}
    datasets = {name: each for name, each in found.items() if isinstance(each, DatasetDeclaration)}
    return LakeDeclaration(
        path=str(path), kms=kms, datasets=datasets, tables=tables, compromised=compromised,
        evidence=evidence, digest=digest,
    ), []  # fmt: skip


class _Parsing:
    """The parsing of one declaration."""

    def __init__(self, faults: FaultList, inclusions: Inclusions) -> None:
        self.faults, self._inclusions = faults, inclusions

    def parse_service(self, members: Mapping[str, Any], default: str | None) -> str:
        if members.keys() & TOP_MEMBERS:  # else another kind of file, perhaps full of secrets
            self.faults.check_names((), members, TOP_MEMBERS)
        if (kms := members.get("kms", default)) is None:
            self.faults.add((), "no key service is named; add kms = URI, or set MODCRYPT_KMS")
        elif faults := TOP_MEMBERS["kms"].kind.list_faults("kms", kms):
            self.faults.add(("kms",), faults[0])
        else:
            service = resolve_service(kms, self._inclusions.folder)
            if service != default:  # a key service that the environment names is no command
                self._inclusions.note(("kms",), service)
            return service
        return ""

    def parse_compromised(self, members: Mapping[str, Any]) -> tuple[str, ...]:
        given = members.get("compromised", ())
        if faults := TOP_MEMBERS["compromised"].kind.list_faults("compromised", given):
            self.faults.add(("compromised",), faults[0])
            return ()
        return tuple(dict.fromkeys(given))

    def parse_evidence(self, members: Mapping[str, Any]) -> EvidenceDeclaration | None:
        if (given := members.get("evidence")) is None:
            return None
        if not isinstance(given, Mapping):
            self.faults.add(("evidence",), "evidence must be a table [evidence]")
            return None
        return _EvidenceParsing(self.faults, ("evidence",), self._inclusions, given).parse()

    def parse_datasets(self, members: Mapping[str, Any]) -> dict[str, AnyDataset]:
        tables = members.get("dataset", {})
        if not isinstance(tables, Mapping) or not all(
            isinstance(table, Mapping) for table in tables.values()
        ):
            self.faults.add(("dataset",), "declare each dataset as a table [dataset.NAME]")
            return {}
        if not tables:
            self.faults.add((), "no dataset is declared; add a table [dataset.NAME]")
        found = {}
        for name, table in tables.items():
            if not re.fullmatch(DATASET_NAME, name):
                message = "name datasets by letters, digits, and . _ - after the first"
                self.faults.add(("dataset", name), message)
                continue
            if (dataset := self._parse_dataset(("dataset", name), table)) is not None:
                found[name] = dataset
        return found

    def _parse_dataset(self, path: MemberPath, table: Mapping[str, Any]) -> AnyDataset | None:
        if (kind := table.get("kind", "files")) == "iceberg":
            return TableParsing(self.faults, path, self._inclusions, table).parse()
        if kind != "files":
            self.faults.add((*path, "kind"), "kind must be files or iceberg")
        return _DatasetParsing(self.faults, path, self._inclusions, table).parse()


class _EvidenceParsing(Members):
    """The parsing of the table about the record of evidence."""

    def parse(self) -> EvidenceDeclaration:
        given = self.take(EVIDENCE_MEMBERS)
        folder = self.inclusions.folder
        references = {
            name: resolve_reference(given[name], folder)
            for name in ("sign", "sign_passphrase") if name in given
        }  # fmt: skip
        with self.noting_errors("sign"):
            check_signing_reference(references.get("sign"), references.get("sign_passphrase"))
        if not self.has_faults:  # else a reference may be the secret itself
            self.note_commands(given, EVIDENCE_MEMBERS)
        return EvidenceDeclaration(**references, signed_by=self.writers(given.get("signed_by", ())))


class _DatasetParsing(Members):
    """The parsing of one dataset of Parquet files."""

    def parse(self) -> DatasetDeclaration | None:
        own = self.take(OWN_MEMBERS, others=POLICY_MEMBERS)
        values = {**self._read_policy(own.get("policy")), **self.given}
        self.note_commands(values, DATASET_MEMBERS)
        rules = dict(self._parse_rules(values))
        members = {
            name: values[name]
            for name in POLICY_MEMBERS
            if name in values and name not in ("column_keys", "plaintext_columns")
        }
        partitions = tuple(own.get("partitions", ()))
        self._check_templates(members, rules, partitions)
        self._check_policy(members, rules)
        if members.get("signed_by") and not self.has_faults:
            members["signed_by"] = self.writers(members["signed_by"])
        if members.get("subject_columns") and not self.has_faults:
            members["subjects"] = resolve_vault(members["subjects"], self.inclusions.folder)
            members.setdefault("subject_dataset", self.path[-1])
        previous = self._parse_previous(rules, members)
        rotation = Rotation(**self.rotation(ROTATION_MEMBERS))
        location, include = self._parse_location(own)
        source = self._parse_source(own, location)
        recipients = self._read_recipients("recipients", own)
        former = self._read_recipients("former_recipients", own)
        if both := sorted({each.hex_id for each in former} & {each.hex_id for each in recipients}):
            self.fault("former_recipients", f"{both[0]} is in recipients, too; remove it from one")
        erased = self.erased(own, partitions)
        if self.has_faults:
            return None
        return DatasetDeclaration(
            name=self.path[-1], location=location, source=source, include=include,
            partitions=partitions, strict=own.get("strict", True), members=members, rules=rules,
            previous=previous, rotation=rotation, recipients=recipients,
            former_recipients=former, erased=erased,
        )  # fmt: skip

    def _parse_location(self, own: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the folder or file, and the pattern of the files that belong to the dataset."""
        location, include = own.get("location"), own.get("include")
        if location is None:
            self.fault("location", f"location must be {OWN_MEMBERS['location'].kind.words}")
            return "", None
        if wild := _WILD.search(location):
            if include is not None:
                self.fault("include", "location is a pattern already; remove include")
            folder, slash, _ = location[: wild.start()].rpartition("/")
            location, include = folder or slash or ".", location[len(folder) + len(slash) :]
        return self.inclusions.place((*self.path, "location"), location), include

    def _parse_source(self, own: Mapping[str, Any], location: str) -> str | None:
        if own.get("source") is None:
            return None
        source = self.inclusions.place((*self.path, "source"), own["source"])
        folders = [each if is_url(each) else os.path.normpath(each) for each in (source, location)]
        first, second = sorted(posixpath.join(folder, "") for folder in folders)
        if second.startswith(first):
            self.fault("source", "source and location must be folders outside of each other")
        return source

    def _read_recipients(self, member: str, own: Mapping[str, Any]) -> tuple[Recipient, ...]:
        """Return the recipients that the lines and files of a member name, each once."""
        found: list[Recipient] = []
        for text in own.get(member, ()):
            with self.noting_errors(member, text):
                found += self.inclusions.recipients((*self.path, member), text)
        return check_recipients(found) if found else ()

    def _read_policy(self, name: str | None) -> Mapping[str, Any]:
        """Return the members of the policy that a dataset includes."""
        if name is None:
            return {}
        try:
            data = self.inclusions.read((*self.path, "policy"), name, MAX_POLICY + 1)
            members = strict_toml(data.decode()) if len(data) <= MAX_POLICY else None
        except OSError as error:
            self.fault("policy", f"{name}: {error.strerror}")
            return {}
        except UnicodeDecodeError:
            self.fault("policy", f"{name} is not UTF-8")
            return {}
        except ValueError as error:
            self.fault("policy", f"{name}: {error}")
            return {}
        return self._check_included(name, members)

    def _check_included(self, name: str, members: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if members is None:
            self.fault("policy", f"{name} is longer than {MAX_POLICY} bytes")
            return {}
        known = (*POLICY_MEMBERS, "kms")
        if not members.keys() & set(known):  # another kind of file, perhaps full of secrets
            self.fault("policy", f"{name} has no member of a policy")
            return {}
        for other in sorted(members.keys() - set(known)):
            shown = printable(other, MAX_NAME)
            hint = self.faults.suggest(other, known)
            self.fault("policy", f"{name}: unknown member {shown}{hint}")
        found = {member: members[member] for member in POLICY_MEMBERS if member in members}
        if isinstance(writers := found.get("signed_by"), list):  # relative to the policy's file
            folder = (self.inclusions.folder / name).parent
            found["signed_by"] = [resolve_writer(text, folder) for text in writers]
        if isinstance(vault := found.get("subjects"), str):
            found["subjects"] = resolve_vault(vault, (self.inclusions.folder / name).parent)
        return found

    def _parse_rules(
        self, values: Mapping[str, Any]
    ) -> Iterator[tuple[str | None, tuple[ColumnRule, ...]]]:
        """Yield the rules of each master key, and of plaintext columns under None."""
        keys = values.get("column_keys", {})
        if not isinstance(keys, Mapping):
            self.fault("column_keys", "column_keys must be a table of master keys and columns")
            keys = {}
        lists: dict[str | None, Any] = {**keys, None: values.get("plaintext_columns", [])}
        seen: dict[ColumnRule, str] = {}
        for key, given in lists.items():
            path = ("plaintext_columns",) if key is None else ("column_keys", key)
            rules = tuple(self._make_rules(path, given))
            if not rules and key is not None and isinstance(given, list):
                self.fault(path, f"the master key {key} has no columns", key)
            for rule in rules:
                if rule in seen:
                    self.fault(path, f"{rule} is already in {seen[rule]}", str(rule))
                seen.setdefault(rule, ".".join(path))
            if rules:
                yield key, rules

    def _make_rules(self, path: MemberPath, given: Any) -> Iterator[ColumnRule]:
        if not isinstance(given, list):
            self.fault(path, f"{path[-1]} must be a list of columns")
            return
        for value in given:
            try:
                yield make_rule(value)
            except ValueError as error:
                self.fault(path, f"{path[-1]}: {error}")

    def _check_templates(
        self, members: Mapping[str, Any], rules: Mapping[str | None, Any], partitions: Any
    ) -> None:
        """Check the placeholders in ids of master keys and in the AAD prefix."""
        templates = [(("column_keys", key), key, ()) for key in rules if key is not None]
        for name, allowed in (("footer_key", ()), ("aad_prefix", (PATH, NAME))):
            if isinstance(members.get(name), str):
                templates.append(((name,), members[name], allowed))  # type: ignore[arg-type]
        known = dict.fromkeys(partitions)
        for path, template, allowed in templates:
            shown = repr(printable(template, MAX_NAME))
            for name in names_in(template):
                if name not in known:
                    hint = self.faults.suggest(name, known) or "; add it to partitions"
                    self.fault(path, f"unknown partition {name} in {shown}{hint}", template)
            if is_ambiguous(template):
                self.fault(path, f"{shown}: separate the two partitions by text", template)
            if has_other_places(template, allowed):
                places = ", ".join(["{partition.NAME}", *allowed])
                self.fault(path, f"{shown} has an unknown placeholder; use {places}", template)

    def _check_policy(self, members: Mapping[str, Any], rules: Mapping[str | None, Any]) -> None:
        """Report what `Policy` says about the members, with placeholders replaced."""
        if "footer_key" not in members:
            self.fault("footer_key", "footer_key is missing; set it to the id of a master key")
        elif members.get("subjects") and names_in(str(members["footer_key"])):
            message = "footer_key protects the vault of subjects, too: name no partition in it"
            self.fault("footer_key", message)
        sample: dict[str, Any] = {
            name: re.sub(r"\{[^{}]*\}", "x", value) if isinstance(value, str) else value
            for name, value in members.items()
        }
        keys = {key: [f"column {n}"] for n, key in enumerate(rules) if key is not None}
        try:
            Policy(**{"footer_key": "x", **sample, "column_keys": keys})
        except ValueError as error:
            for message in str(error).removeprefix("invalid policy: ").split("; "):
                member = message.split(" ", 1)[0]
                self.fault(member if member in POLICY_MEMBERS else (), message)

    def _parse_previous(
        self, rules: Mapping[str | None, Any], members: Mapping[str, Any]
    ) -> Previous:
        given = self.take(PREVIOUS_MEMBERS, "previous")
        keys = given.get("master_keys", {})
        declared = dict.fromkeys([str(members.get("footer_key")), *(key for key in rules if key)])
        varies = any(map(names_in, declared))
        for old, new in keys.items():
            if new not in declared and not varies:
                hint = self.faults.suggest(new, declared)
                message = f"{new} is not a master key of the dataset{hint}"
                self.fault(("previous", "master_keys"), message, new)
            if old in declared:
                message = f"{old} is still a master key of the dataset, so it is not a previous one"
                self.fault(("previous", "master_keys"), message, old)
        return Previous(
            master_keys=dict(keys),
            aad_prefixes=tuple(given.get("aad_prefixes", ())),
            kms_aads=tuple(given.get("kms_aads", ())),
            algorithms=tuple(given.get("algorithms", ())),
        )
