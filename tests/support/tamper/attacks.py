"""The attacks of the tamper matrix, each one line of the table.

group | what is done | who does it | to which files | how they are read | why it may pass
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.parquet import ModuleType
from tests.support.keys import FOOTER_KEY
from tests.support.tamper import forgeries as forge
from tests.support.tamper.files import (
    CITY,
    DATA,
    Base,
    Files,
    Reading,
    clear_levels,
    ctr,
    ctr_crc,
    dataset,
    external,
    internal,
    mixed,
    mixed_pf,
    numbers,
    partial,
    partial_crc,
    partial_pf,
    rich,
    rich_pf,
    sealed,
    seed_random,
    signed,
    signed_ctr,
    signed_pf,
    simple,
    stored,
    under_masters,
    unstored,
)
from tests.support.tamper.forgeries import Forge


@dataclass(frozen=True)
class Attack:
    """One line of the matrix.

    Each reader is tried with the first of the bases that it reads when nobody has altered it.
    """

    group: str
    name: str
    who: str
    bases: tuple[Base, ...]
    done: Forge
    how: Mapping[str, Any] = field(default_factory=dict)  # what the reading is changed by
    unseen: str = ""  # why the format cannot detect it, and what helps

    def reading(self, base: Base) -> Reading:
        return replace(base.reading, **self.how)

    def apply(self, base: Base) -> Files:
        """Return the files as the attack leaves them."""
        with seed_random(self.name, base.name):
            return self.done(base)


NOBODY, FOOTER, COLUMN = "none", "footer key", "column's key"
OTHER_MASTER = "another master key"

PLAINTEXT = (
    "Columns left in plaintext carry no tag, in either footer mode. Encrypt the column: what needs "
    "no secrecy still gets integrity."
)
CTR_BODIES = (
    "Pages have no tag under AES_GCM_CTR_V1, and a CRC has no key. Write AES_GCM_V1, and accept "
    "nothing else, which is the default."
)
LEVELS = (
    "parquet-java leaves repetition and definition levels of data pages V2 unencrypted, so the "
    'tag does not cover them. Write V1 pages, or use `data_page_v2_levels="encrypted"`.'
)
REPLAY = (
    "Nothing in a file reveals that a newer one exists, or which file was meant. Require an AAD "
    "prefix that names the file and its version."
)
OWN_RIGHT = (
    "Anyone who has the key can write what it encrypts; a tag only proves that a holder of the "
    "key wrote it. Give keys only to those who may write."
)
COUNT = (
    "Only the footer counts row groups, and a holder of its key can write another footer. A "
    "number of rows stored elsewhere (`expected_rows`) reveals it."
)
DROPPED = (
    '`on_missing_key="drop"` permits this: with altered key metadata, a column looks like one '
    'without a key. Keep `"error"`, the default, where columns matter.'
)
PARTS = (
    "Files without AAD prefixes of their own do not form a set. Write datasets with "
    "`aad_prefix_template`, and read them with it and `expected_parts`."
)
NOT_READ = (
    "This kind of reading does not need the altered bytes, so it does not open them; the rows "
    "are right. `verify_parquet` opens everything."
)
UNUSED = (
    "The format does not authenticate these bytes, and this kind of reading does not use them: "
    "the caller passes keys, modcrypt never contacts addresses in files, and of two copies of "
    "metadata it uses the encrypted one."
)
NO_KEY = (
    "Verification uses the keys that it has, and reports a column without one as not verified. "
    "Reading is refused."
)
NAMED = (PLAINTEXT, CTR_BODIES, LEVELS, DROPPED, NO_KEY)
"""Parts that verification reports as not authenticated."""
ANY_MASTER = (
    "Key material is not authenticated, so the file chooses the master key, and the reader may "
    "unwrap with it. Read with a policy, or with `master_key_ids`."
)
BY_NAME = (
    "An explicit column key requires that the column is encrypted, but not under which key. "
    "Name the column in `require_encrypted`."
)
FILTERED: dict[str, Any] = {"where": ("id", 7)}
CITY_FILTER: dict[str, Any] = {"where": ("city", CITY)}


def _flips() -> Iterable[Attack]:
    def line(
        name: str, done: Forge, *bases: Base, who: str = NOBODY, unseen: str = "", **how: Any
    ) -> Attack:
        return Attack("Bits flipped", name, who, bases or (rich, simple), done, how, unseen)

    header, body = ModuleType.DATA_PAGE_HEADER, ModuleType.DATA_PAGE
    index, offsets = ModuleType.COLUMN_INDEX, ModuleType.OFFSET_INDEX
    bloom, bits = ModuleType.BLOOM_FILTER_HEADER, ModuleType.BLOOM_FILTER_BITSET
    yield line("sealed footer", forge.flip(ModuleType.FOOTER, 40))
    yield line("file-unique in the file's crypto metadata", forge.footer_field("unique"))
    yield line("footer key's metadata", forge.footer_field("key metadata"), unseen=UNUSED)
    yield line("plaintext footer", forge.edit_signed_footer(forge.other_rows), rich_pf)
    yield line("nonce of its signature", forge.flip_file(-8 - 28), rich_pf)
    yield line("tag of its signature", forge.flip_file(-8 - 1), rich_pf)
    yield line("magic at the start", forge.flip_file(0, b"\x20"))
    yield line("magic at the end (`PARE` to `PAR1`)", forge.flip_file(-1, b"\x74"))
    yield line("length of the footer", forge.flip_file(-8))
    yield line(
        "column metadata (footer signed again)",
        forge.holder(forge.flip_column_metadata),
        mixed_pf,
        who=FOOTER,
    )
    yield line("data page header", forge.flip(header, 20))
    yield line("data page", forge.flip(body, 20))
    yield line("data page: nonce", forge.flip(body, 5))
    yield line("data page: tag", forge.flip(body, -1))
    yield line("data page: length field", forge.flip(body, 0))
    yield line("data page: length field, 1 GiB more", forge.flip(body, 3, mask=b"\x40"))
    yield line("data page header: length field, 1 GiB more", forge.flip(header, 3, mask=b"\x40"))
    yield line("dictionary page header", forge.flip(ModuleType.DICTIONARY_PAGE_HEADER, 20, "name"))
    yield line("dictionary page", forge.flip(ModuleType.DICTIONARY_PAGE, 20, "name"))
    yield line(
        "column index, offset index, Bloom filter; read in full",
        forge.flip_all(index, offsets, bloom, bits, column="id"), rich, unseen=NOT_READ,
    )  # fmt: skip
    yield line("column index; read by a filter", forge.flip(index, 20, "id"), **FILTERED)
    yield line("offset index; read by a filter", forge.flip(offsets, 20, "id"), **FILTERED)
    yield line(
        "Bloom filter header; read by a filter", forge.flip(bloom, 20, "id"), rich, **FILTERED
    )
    yield line(
        "Bloom filter bitset; read by a filter", forge.flip(bits, 20, "id"), rich, **FILTERED
    )


def _moves() -> Iterable[Attack]:
    def line(name: str, done: Forge, *bases: Base, **how: Any) -> Attack:
        return Attack("Parts moved", name, NOBODY, bases or (rich,), done, how)

    yield line("two pages of a chunk exchanged", forge.swap_pages(("bonus", 0, 0), ("bonus", 0, 1)))
    yield line(
        "pages of two row groups exchanged",
        forge.swap_pages(("bonus", 0, 0), ("bonus", 1, 0)), rich, simple,
    )  # fmt: skip
    yield line(
        "pages of two columns under one key exchanged",
        forge.swap_pages(("id", 0, 0), ("bonus", 0, 0)), rich, simple,
    )  # fmt: skip
    yield line(
        "page of another file (same key, schema and place)",
        forge.with_data(forge.page_of_another_file), rich, simple,
    )  # fmt: skip
    yield line("page put in twice, in the next one's place", forge.with_data(forge.repeat_page))
    yield line(
        "headers of two pages exchanged, without their pages",
        forge.swap_modules(ModuleType.DATA_PAGE_HEADER, ("bonus", 0, 0), ("bonus", 0, 1)),
    )
    yield line(
        "dictionaries of two row groups exchanged",
        forge.swap_modules(ModuleType.DICTIONARY_PAGE, ("name", 0, 0), ("name", 1, 0)),
        rich,
        simple,
    )
    yield line("whole chunk of another file", forge.with_data(forge.chunk_of_another_file))
    yield line(
        "column indexes of two row groups exchanged; read by a filter",
        forge.swap_modules(ModuleType.COLUMN_INDEX, ("id", 0, 0), ("id", 1, 0)), **FILTERED,
    )  # fmt: skip
    yield line(
        "column metadata of two row groups exchanged",
        forge.edit_signed_footer(forge.swap_column_metadata),
        mixed_pf,
    )


def _replays() -> Iterable[Attack]:
    def line(name: str, done: Forge, *bases: Base, unseen: str = "", **how: Any) -> Attack:
        return Attack("Old files and footers", name, NOBODY, bases, done, how, unseen)

    old = forge.with_data(lambda base: base.other)
    yield line(
        "footer of an earlier version under today's pages",
        forge.with_data(forge.other_footer),
        rich,
        simple,
    )
    yield line("the same with a plaintext footer", forge.with_data(forge.other_footer), rich_pf)
    yield line(
        "crypto metadata of an earlier version alone",
        forge.with_data(forge.other_keys_crypto),
        rich,
        simple,
    )
    yield line("file replaced by its earlier version", old, rich, simple, unseen=REPLAY)
    yield line("file replaced by another one under the same keys", old, stored, unseen=REPLAY)
    yield line("the same, and a stored AAD prefix is demanded", old, stored, aad_prefix=b"part.1")
    yield line("the same, and an AAD prefix is demanded that isn't stored", old, unstored)


def _truncations() -> Iterable[Attack]:
    def line(name: str, done: Forge, *bases: Base) -> Attack:
        return Attack("Cut and lengthened", name, NOBODY, bases or (rich, simple), done)

    yield line("last 100 bytes cut off", forge.with_data(lambda base: base.data[:-100]))
    yield line("cut to half", forge.with_data(lambda base: base.data[: len(base.data) // 2]))
    yield line("page cut out, what follows moved up", forge.with_data(forge.cut_page), rich)
    yield line(
        "pages of the last row group cut out, what follows moved up",
        forge.with_data(forge.cut_row_group),
    )
    yield line(
        "last row group left out of a plaintext footer",
        forge.edit_signed_footer(forge.drop_last),
        rich_pf,
    )
    yield line(
        "row groups of a plaintext footer reordered",
        forge.edit_signed_footer(forge.reorder),
        rich_pf,
    )
    yield line("bytes appended", forge.with_data(lambda base: base.data + bytes(100)))
    yield line("emptied", forge.with_data(lambda base: b""))


def _labels() -> Iterable[Attack]:
    def line(name: str, done: Forge, *bases: Base, **how: Any) -> Attack:
        return Attack("Signatures and labels", name, NOBODY, bases, done, how)

    yield line(
        "signature stripped, plaintext column altered; it alone is read",
        forge.with_data(forge.strip_signature), mixed_pf, partial_pf, columns=("city",),
    )  # fmt: skip
    yield line(
        "plaintext file in the place of one with a sealed footer",
        forge.with_data(forge.plaintext_instead),
        rich,
        simple,
    )
    yield line(
        "plaintext file in the place of one with a signed footer",
        forge.with_data(forge.plaintext_instead),
        rich_pf,
    )
    yield line("GCM label switched to CTR", forge.relabel(forge.leave_unchanged), numbers)
    yield line("the same, and pages forged to fit", forge.relabel(forge.forge_pages), numbers)
    yield line(
        "GCM label switched to CTR; CTR is accepted",
        forge.relabel(forge.leave_unchanged),
        numbers,
        ctr=True,
    )
    yield line(
        "the same, and pages forged to fit; CTR is accepted",
        forge.relabel(forge.forge_pages),
        numbers,
        ctr=True,
    )
    yield line(
        "GCM label of a signed footer switched; CTR is accepted",
        forge.relabel(forge.leave_unchanged),
        rich_pf,
        ctr=True,
    )
    yield line(
        "statistics altered in a plaintext footer; read by a filter",
        forge.edit_signed_footer(forge.false_city_statistics),
        mixed_pf,
        partial_pf,
        **CITY_FILTER,
    )
    yield line(
        "readable copy of an encrypted column's metadata altered",
        forge.edit_signed_footer(forge.false_legacy_copy),
        mixed_pf,
    )


def _prefixes() -> Iterable[Attack]:
    def line(name: str, done: Forge, base: Base, **how: Any) -> Attack:
        return Attack("AAD prefix", name, NOBODY, (base,), done, how)

    demanded = {"aad_prefix": b"part.1"}
    yield line("stored prefix altered", forge.crypto(forge.rename_prefix(b"part.2")), stored)
    yield line("stored prefix removed", forge.crypto(forge.remove_prefix), stored)
    yield line(
        "another file's prefix altered to the one demanded",
        forge.crypto(forge.rename_prefix(b"part.1"), other=True),
        stored,
        **demanded,
    )
    yield line(
        "file said to have been written without a prefix", forge.crypto(forge.deny_prefix), unstored
    )
    yield line(
        "border moved: `part.10` passes for `part.1`, which is demanded",
        forge.crypto(forge.move_border, other=True),
        stored,
        **demanded,
    )
    yield line(
        "the same with a prefix that isn't stored",
        forge.crypto(forge.lend_byte, other=True),
        unstored,
    )


def _untagged_parts() -> Iterable[Attack]:
    def line(name: str, done: Forge, *bases: Base, unseen: str = PLAINTEXT, **how: Any) -> Attack:
        return Attack("Parts without a tag", name, NOBODY, bases, done, how, unseen)

    plain = mixed, partial
    body = ModuleType.DATA_PAGE
    yield line(
        "plaintext column's data altered",
        forge.with_data(lambda base: forge.edit_city(base.data)),
        *plain,
    )
    yield line(
        "the same, and a CRC is verified",
        forge.with_data(lambda base: forge.edit_city(base.data)),
        partial_crc,
        crc=True,
    )
    yield line(
        "the same, with its CRC rewritten",
        forge.with_data(forge.rewrite_crc),
        partial_crc,
        crc=True,
    )
    yield line(
        "its column index altered; read by a filter",
        forge.with_data(forge.city_index),
        *plain,
        **CITY_FILTER,
    )
    yield line(
        "its offset index altered (pages exchanged); read by a filter",
        forge.city_offsets(forge.exchange_locations),
        *plain,
        **CITY_FILTER,
    )
    yield line(
        "its offset index altered (a row moved); read by a filter",
        forge.city_offsets(forge.later_rows),
        *plain,
        **CITY_FILTER,
    )
    yield line(
        "its Bloom filter emptied; read by a filter",
        forge.with_data(forge.city_bloom),
        *plain,
        **CITY_FILTER,
    )
    yield line(
        "levels of a data page V2 in clear: a null moved",
        forge.clear_level(0b11000),
        clear_levels,
        unseen=LEVELS,
    )
    yield line(
        "levels of a data page V2 in clear: a null more",
        forge.clear_level(0b10000),
        clear_levels,
    )
    yield line("page under CTR: bits flipped", forge.flip(body, 20), ctr, unseen=CTR_BODIES)
    yield line(
        "pages under CTR exchanged, without their headers",
        forge.swap_modules(body, ("bonus", 0, 0), ("bonus", 0, 1)),
        ctr,
        unseen=CTR_BODIES,
    )
    yield line(
        "page under CTR with a CRC, which is verified: bits flipped",
        forge.flip(body, 20),
        ctr_crc,
        crc=True,
    )
    yield line(
        "the same, so that the CRC stays",
        forge.flip(body, 20, mask=forge.CRC_NEUTRAL),
        ctr_crc,
        unseen=CTR_BODIES,
        crc=True,
    )


def _holders() -> Iterable[Attack]:
    def line(
        name: str, done: Forge, *bases: Base, who: str = FOOTER, unseen: str = "", **how: Any
    ) -> Attack:
        return Attack("By holders of a key", name, who, bases, done, how, unseen)

    yield line("last row group left out", forge.holder(forge.drop_last), mixed, rich, unseen=COUNT)
    yield line(
        "the same, and the number of rows is known", forge.holder(forge.drop_last), mixed, rows=20
    )
    yield line("first row group left out", forge.holder(forge.drop_first), mixed, rich)
    yield line(
        "the same, and the next one renumbered",
        forge.holder(forge.drop_first_and_renumber),
        mixed,
        rich,
    )
    yield line("row groups reordered", forge.holder(forge.reorder), mixed, rich)
    yield line("the same, and renumbered", forge.holder(forge.reorder_and_renumber), mixed, rich)
    yield line(
        "last page of all columns but those with own keys left out",
        forge.with_data(forge.cut_last_pages),
        mixed,
    )
    yield line(
        "two columns exchange their names",
        forge.holder(forge.rename_columns),
        mixed,
        rich,
        unseen=OWN_RIGHT,
    )
    yield line(
        "plaintext column in the place of one with its own key", forge.replace_column(None), mixed
    )
    yield line(
        "column under the footer key in the place of one with its own",
        forge.replace_column(FOOTER_KEY),
        mixed,
        unseen=BY_NAME,
    )
    yield line(
        "the same, and its own key is demanded",
        forge.replace_column(FOOTER_KEY),
        mixed,
        own_key=("salary",),
    )
    yield line(
        "readable copy of an encrypted column's metadata altered, signed again",
        forge.holder(forge.false_legacy_copy),
        mixed_pf,
        unseen=UNUSED,
    )
    yield line(
        "column metadata of two row groups exchanged, signed again",
        forge.holder(forge.swap_column_metadata),
        mixed_pf,
    )
    yield line(
        "statistics of a column under the footer key altered; read by a filter",
        forge.holder(forge.false_id_statistics),
        rich,
        simple,
        unseen=OWN_RIGHT,
        **FILTERED,
    )
    yield line(
        "column index altered; read by a filter",
        forge.reseal_index(ModuleType.COLUMN_INDEX, "id", forge.false_bounds),
        rich,
        who=COLUMN,
        unseen=OWN_RIGHT,
        **FILTERED,
    )
    yield line(
        "offset index altered (pages exchanged); read by a filter",
        forge.reseal_index(ModuleType.OFFSET_INDEX, "id", forge.exchange_locations),
        rich,
        who=COLUMN,
        unseen=OWN_RIGHT,
        **FILTERED,
    )
    yield line(
        "offset index altered (a row moved); read by a filter",
        forge.reseal_index(ModuleType.OFFSET_INDEX, "id", forge.later_rows),
        rich,
        who=COLUMN,
        unseen=OWN_RIGHT,
        **FILTERED,
    )


def _materials() -> Iterable[Attack]:
    def line(
        name: str, done: Forge, *bases: Base, who: str = NOBODY, unseen: str = "", **how: Any
    ) -> Attack:
        return Attack("Key material", name, who, bases or (external,), done, how, unseen)

    yield line(
        "columns' material beside the file exchanged", forge.edit_material(forge.swap_columns)
    )
    yield line("footer's for a column's", forge.edit_material(forge.footer_for_column))
    yield line("another file's", forge.another_files_material)
    yield line("another master key named", forge.edit_material(forge.another_master))
    yield line("wrapped key altered", forge.edit_material(forge.flip_wrapped_key))
    yield line("removed", lambda base: {DATA: base.data})
    yield line(
        "footer's material in the file: another file's",
        forge.with_data(forge.other_keys_crypto),
        internal,
    )
    yield line(
        "columns' material in the file exchanged",
        forge.holder(forge.columns_material),
        internal,
        who=FOOTER,
    )
    yield line(
        "a master key named that isn't there",
        forge.edit_material(forge.unknown_master),
        unseen=NO_KEY,
    )
    yield line(
        "the same; columns without a key are dropped",
        forge.edit_material(forge.unknown_master),
        unseen=DROPPED,
        drop=True,
    )
    whole, part = (lambda _: under_masters("ko", "ko")), (lambda _: under_masters("kf", "ko"))
    name = "file forged under another master key that the reader may unwrap by"
    yield line(name, whole, internal, who=OTHER_MASTER, unseen=ANY_MASTER)
    yield line(
        "the same; a policy names the master keys", whole, internal, who=OTHER_MASTER, policy=True
    )
    yield line(
        "columns alone; a policy names the master keys", part, internal, who=FOOTER, policy=True
    )
    yield line(
        "a column forged under the footer key; a policy gives it a key of its own",
        forge.replace_column(FOOTER_KEY),
        internal,
        who=FOOTER,
        policy=True,
    )
    yield line(
        "a column forged in plaintext; a policy encrypts it",
        forge.replace_column(None),
        internal,
        who=FOOTER,
        policy=True,
    )
    yield line(
        "address of the key service beside the file: the attacker's",
        forge.edit_material(forge.address_beside),
        unseen=UNUSED,
    )
    yield line(
        "address of the key service in the file: the attacker's",
        forge.footer_material(forge.address_inside),
        internal,
        unseen=UNUSED,
    )


def _signatures() -> Iterable[Attack]:
    """Attacks by readers, who have all keys; only signatures of the writer stop them."""

    def line(name: str, done: Forge, *bases: Base, **how: Any) -> Attack:
        return Attack("Files that their writer signed", name, FOOTER, bases, done, how)

    yield line("last row group left out", forge.holder(forge.drop_last), signed)
    yield line("the same, in a plaintext footer", forge.holder(forge.drop_last), signed_pf)
    yield line("two columns exchange their names", forge.holder(forge.rename_columns), signed)
    yield line(
        "value of the plaintext column altered",
        forge.with_data(lambda base: forge.edit_city(base.data)),
        signed,
    )
    yield line(
        "statistics altered; read by a filter", forge.holder(forge.false_id_statistics), signed,
        **FILTERED,
    )  # fmt: skip
    yield line(
        "column index altered; read by a filter",
        forge.reseal_index(ModuleType.COLUMN_INDEX, "id", forge.false_bounds), signed, **FILTERED,
    )  # fmt: skip
    yield line("page under CTR altered", forge.flip(ModuleType.DATA_PAGE, -1), signed_ctr)
    yield line("signature removed", forge.holder(forge.without_writer), signed)
    yield line("file forged without a signature", lambda _: partial.others, signed)


def _datasets() -> Iterable[Attack]:
    def line(name: str, done: Forge, *, unseen: str = "", **how: Any) -> Attack:
        return Attack("Files of a dataset", name, NOBODY, (dataset,), done, how, unseen)

    alone = {"template": None, "parts": None}
    yield line("a file missing", forge.without_part, unseen=PARTS, **alone)
    yield line("a file missing; template and number of parts are given", forge.without_part)
    yield line("a file twice, in another's place", forge.part_twice, unseen=PARTS, **alone)
    yield line("a file twice; template and number of parts are given", forge.part_twice)
    yield line("a file replaced by its earlier version", forge.older_part, unseen=PARTS, **alone)
    yield line("an earlier version; the template names the version", forge.older_part)
    yield line("a file of another dataset added", forge.add_part, unseen=PARTS, **alone)
    yield line("a file added; template and number of parts are given", forge.add_part)


def _seals() -> Iterable[Attack]:
    """Attacks by readers who may write to the folder; the reader has seen the newest seal."""

    def line(name: str, done: Forge) -> Attack:
        return Attack("Files of a dataset that its writer sealed", name, FOOTER, (sealed,), done)

    yield line("a file missing", forge.without_part)
    yield line("all files missing", forge.no_parts)
    yield line("a file twice, in another's place", forge.part_twice)
    yield line("a file replaced by its earlier version, of the same writer", forge.older_part)
    yield line("an older file of the same writer added", forge.add_part)
    yield line("the whole folder replaced by its earlier state, with its seal", forge.older_dataset)
    yield line("the seal replaced by the earlier one", forge.older_seal)
    yield line("a file left out, and its entry of the seal", forge.without_entry)
    yield line("the seal removed", forge.without_seal)


ATTACKS: tuple[Attack, ...] = tuple(
    attack
    for group in (
        _flips, _moves, _replays, _truncations, _labels, _prefixes, _untagged_parts, _holders,
        _materials, _signatures, _datasets, _seals,
    )
    for attack in group()
)  # fmt: skip
