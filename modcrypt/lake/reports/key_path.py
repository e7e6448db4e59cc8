"""Why a file or column opens or not: file, data key, KEK, master key and key service, in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.jobs.failures import describe
from modcrypt.jobs.key_scan import parse_wrapped_version
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.file_policies import DatasetPolicies, read_columns
from modcrypt.lake.files.file_states import EXPOSED, FileState
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_keys import list_footer_keys, list_key_metadata
from modcrypt.parquet.format.schema import covering_name
from modcrypt.pkmt1.external import find_material, read_store
from modcrypt.pkmt1.material import SHREDDED, KeyMaterial, decode_metadata

SCHEMA = "modcrypt.lake.why/1"  # the name and version of the lines of JSON

_ADVICE: Mapping[str, str] = {
    "disabled": "enable the master key again, such as with modcrypt keys enable",
    "destroyed": "nothing recovers what the master key wrapped; restore another copy of the data",
    "denied": "ask for the permission to unwrap under this master key",
    "unavailable": "try again when the key service can be reached",
    "no-key": "check that the key service is the one that wrapped the key",
    "key-material": "if it is a former master key, add it to previous.master_keys",
    "plaintext": "run modcrypt apply to encrypt it",
    "aad-prefix": "move the file back to its place; previous.aad_prefixes names former templates",
    "tag": "restore the file from a copy: its bytes, or those of its keys, were altered",
    "unsupported": "add the former algorithm to previous.algorithms",
    "policy": "run modcrypt apply to re-key it",
    "old-keys": "run modcrypt apply to rotate its keys",
    "exposed": "run modcrypt apply to encrypt it under new data keys",
    "not-erased": "run modcrypt shred again, or remove the statement that it is erased",
    "kms-aad": "restore the kms_aad of the time of writing, or add it to previous.kms_aads",
    "seal": "if you know who wrote the files, sign the next seal: modcrypt seals create, or add",
    "replaced": "if you know who wrote it, run modcrypt apply --accept-replaced to encrypt it",
    "writer-signature": "restore a copy that a declared writer signed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStep:
    """A step on the way from a file to the service that holds its master key.

    Attributes:
        step: "file", "data key", "KEK", "master key", "declaration", "key service", "footer",
            "seal", "column" or "policy".
        ok: Whether the step succeeds.
        text: What was found, or why the step refuses.
        advice: What would help; empty for a step that succeeds.
    """

    step: str
    ok: bool
    text: str
    advice: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the attributes as values for JSON."""
        return {"schema": SCHEMA, "kind": "step", **asdict(self)}


def follow_keys(
    examination: FooterExamination, place: Place, column: str | None,
    judge: Callable[[FileState], FileState], *, is_doubted: bool = False,
) -> Iterator[KeyStep]:  # fmt: skip
    """Yield the steps from a file, or a column of it, to its key service; end at a refusal.

    Args:
        judge: Function that returns the state of a file with what is compromised or erased.
        is_doubted: Whether `apply` encrypts the file, if it is plaintext, only on request.

    Raises:
        OSError: The file does not exist, is a folder, or cannot be opened.
    """
    walk = _Walk(examination, place, judge, is_doubted)
    with open_source_at(place) as source:
        try:
            yield from walk.follow_footer(source)
            yield from walk.check_seal(source)
            yield from walk.follow_column(source, column)
        except Exception as error:
            yield walk.refuse(error)


class _Walk:
    """The walk through the keys of one file; `step` is the step that an error refuses."""

    def __init__(
        self, examination: FooterExamination, place: Place,
        judge: Callable[[FileState], FileState], is_doubted: bool,
    ) -> None:  # fmt: skip
        self._examination, self._place = examination, place
        self._judge, self._is_doubted = judge, is_doubted
        self._policies: DatasetPolicies = examination.policies
        self._path = self._policies.path_of(place)
        self._step = "file"
        self._file: OpenFile | None = None
        self._material: KeyMaterial | None = None

    def _pass(self, step: str, text: str) -> KeyStep:
        return KeyStep(step=step, ok=True, text=text)

    def refuse(self, error: Exception) -> KeyStep:
        """Return the step that refuses."""
        failure = describe(error)
        word = failure.word
        if word in ("disabled", "no-key") and self._material is not None:
            master = self._examination.ages.masters.get(self._material.master_key_id)
            word = "destroyed" if master is not None and master.destroyed else word
        return KeyStep(
            step=self._step, ok=False, text=f"{word}: {failure.message}",
            advice=_ADVICE.get(self._find_remedy(word), ""),
        )  # fmt: skip

    def _find_remedy(self, word: str) -> str:
        if self._step == "seal":
            return "seal"
        if word == "plaintext" and self._is_doubted:
            return "replaced"
        if word == "key-material" and self._step == "key service":
            return "kms-aad"
        if self._step == "declaration" and self._material is not None:
            declared = self._policies.key_ids(self._path)  # for another part of the file
            return "policy" if self._material.master_key_id in declared else word
        return word

    def follow_footer(self, source: Source) -> Iterator[KeyStep]:
        self._step = "declaration"
        self._policies.opening(self._place)  # the values of partitions may name no master key
        self._step = "file"
        keys, hidden = list_key_metadata(source)
        mode = "encrypted" if hidden else "plaintext, signed"
        yield self._pass("file", f"{self._path} is encrypted; its footer is {mode}")
        yield from self._follow_key(keys[0].metadata, None)
        self._step = "footer"
        self._file, *_ = self._examination.open_footer(self._place, source)
        prefix = self._file.footer.aad_prefix
        bound = "no AAD prefix" if prefix is None else f"the AAD prefix {prefix!r}"
        yield self._pass("footer", f"it opens with {bound}")

    def check_seal(self, source: Source) -> Iterator[KeyStep]:
        """Check that the seal of the dataset, if it requires one, has the file as it is."""
        if (seal := self._policies.required_seal) is not None and self._file is not None:
            self._step = "seal"
            OpenFile(source, replace(self._file.properties, seal=seal))
            yield self._pass("seal", "the seal of the dataset has it as it is")

    def follow_column(self, source: Source, column: str | None) -> Iterator[KeyStep]:
        """Follow one column, or all columns that have keys of their own."""
        file = self._file
        assert file is not None
        names = [".".join(leaf) for leaf in file.leaves]
        self._step = "column"
        if column is not None and column not in names:
            raise ValueError(f"the file has no column {column}; it has {', '.join(names)}")
        own = {
            key.column: key.metadata
            for key in list_footer_keys(file.metadata, file.footer.key_metadata)
        }
        plain = file.plaintext_columns(range(len(names)))
        erased = self._examination.find_erased(self._place, self._path, file)
        for name in names if column is None else [column]:
            if name in erased:  # which keeps no other column from being opened
                yield KeyStep(step="column", ok=column is None, text=f"{name} is erased")
            elif name in own:
                yield from self._follow_key(own[name], name)
                self._step = "column"
                file.select([names.index(name)])
                yield self._pass("column", f"{name} opens")
            elif column is not None:
                where = "in plaintext" if name in plain else "under the footer key"
                yield self._pass("column", f"{name} is {where}")
        yield self._compare(source)

    def _compare(self, source: Source) -> KeyStep:
        """Return the step that compares the file with the declaration, as `status` does."""
        state = self._judge(self._examination.run(LakeFile(self._path, 0, ""), source))
        if state.state == "declared":
            return self._pass("policy", "the file is encrypted as declared")
        if state.state == "old-keys":  # which readers accept
            return KeyStep(step="policy", ok=True, text=state.message, advice=_ADVICE["old-keys"])
        word = "exposed" if state.state in EXPOSED else state.reason or "policy"
        return KeyStep(step="policy", ok=False, text=state.message, advice=_ADVICE.get(word, ""))

    def _follow_key(self, metadata: bytes | None, column: str | None) -> Iterator[KeyStep]:
        what = "the footer" if column is None else f"column {column}"
        self._step, self._material = "data key", None
        material = self._material = self._decode(metadata, what)
        storage = "in the file" if material.internal else "beside the file"
        yield self._pass("data key", f"the key of {what} is wrapped; its material is {storage}")
        if material.kek_id is not None:
            yield self._pass("KEK", f"KEK {material.kek_id.hex()} wraps it")
        version = parse_wrapped_version(material.master_wrapped)
        of_version = "" if version is None else f", version {version}"
        yield self._pass(
            "master key", f"master key {material.master_key_id}{of_version} wraps that"
        )
        self._step = "declaration"
        yield self._pass("declaration", self._check_declared(material, column, what))
        self._step = "key service"
        self._policies.tools.wrapper.unwrap(material)
        yield self._pass("key service", f"it unwraps under master key {material.master_key_id}")

    def _decode(self, metadata: bytes | None, what: str) -> KeyMaterial:
        if metadata == SHREDDED:
            raise KeyNotFoundError("the file was shredded: its wrapped key was removed")
        if not metadata:
            raise KeyMaterialError(f"{what} has no key metadata, so no key service wrapped its key")
        material = decode_metadata(metadata)
        if isinstance(material, KeyMaterial):
            return material
        return find_material(read_store(self._place), material)

    def _check_declared(self, material: KeyMaterial, column: str | None, what: str) -> str:
        """Return the place of a master key in the declaration; raise if it has none."""
        previous, key = self._policies.dataset.previous.master_keys, material.master_key_id
        if key in previous:
            return f"{key} is a previous master key of {previous[key]}"
        expected = self._expect(column)
        if key not in expected:
            names = ", ".join(sorted(expected))
            raise KeyMaterialError(f"{what} is under master key {key}, but {names} is declared")
        return f"{key} is the declared master key of {what}"

    def _expect(self, column: str | None) -> frozenset[str]:
        """Return the ids that the declaration names for a column, or for the footer."""
        columns = None
        if self._file is not None:
            columns = read_columns(self._file.footer, self._file.leaves)
        policy = self._policies.policy(self._path, columns)
        if column is None:
            return frozenset([policy.footer_key])
        name = covering_name(tuple(column.split(".")), policy.key_of_column)
        return frozenset([policy.footer_key if name is None else policy.key_of_column[name]])
