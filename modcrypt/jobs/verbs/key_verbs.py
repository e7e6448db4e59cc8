"""The verbs `keys scan`, `keys rotate` and `shred`, by references to keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modcrypt.jobs.engine import Job
from modcrypt.jobs.key_rewrapping import What
from modcrypt.jobs.key_rotation import RotatedFile, Rotation, check_rotation
from modcrypt.jobs.key_scan import ScannedKey, make_scanner, resolve_decryption
from modcrypt.jobs.listing import File
from modcrypt.jobs.shredding.choice import Criteria, criteria_of
from modcrypt.jobs.shredding.file_shredding import ShreddedFile, Shredding
from modcrypt.jobs.verbs.verb import Verb
from modcrypt.kms.proof import Prove, WrapProof, check_prove
from modcrypt.kms.settings import Settings


def _open_scan(settings: Settings | None, _filesystem: Any) -> Job[File, list[ScannedKey]]:
    tools = None if settings is None else settings.tools()
    scan = make_scanner(tools, None if settings is None else settings.requirements())
    return Job(lambda file: scan(file.place))


def _check_service(settings: Settings, _files: Sequence[File]) -> None:
    settings.tools()


SCAN = Verb(
    name="keys.scan", result=ScannedKey, open=_open_scan, check=_check_service, waits=True,
    columns="path kind column master_key_id version kek_id storage failed message word worker",
)  # fmt: skip
"""The verb `keys scan`."""


def _open_rotation(
    settings: Settings, _filesystem: Any, *, what: What, new_master_keys: dict[str, str],
    double_wrapping: bool | None, dry_run: bool, prove: Prove,
) -> Job[File, RotatedFile]:  # fmt: skip
    rotation = Rotation(
        settings.tools(), what, new_master_keys, settings.requirements(), dry_run,
        settings.writer_key, double_wrapping, WrapProof(prove),
    )  # fmt: skip
    return Job(lambda file: rotation.run(file.place)[0])


def _prepare_rotation(
    *, what: What = "mek", new_master_keys: Mapping[str, str] | None = None,
    double_wrapping: bool | None = None, dry_run: bool = False, prove: Prove = "first",
) -> Mapping[str, Any]:  # fmt: skip
    check_prove(prove)
    renamed = check_rotation(what, new_master_keys, double_wrapping)
    return {
        "what": what, "new_master_keys": renamed, "double_wrapping": double_wrapping,
        "dry_run": dry_run, "prove": prove,
    }  # fmt: skip


def _prove_masters(
    settings: Settings, _files: Sequence[File], *, new_master_keys: Mapping[str, str],
    dry_run: bool, **_arguments: Any,
) -> None:  # fmt: skip
    """Prove a wrap under each new master key; raise if the signing key can't be read."""
    tools, _ = settings.tools(), settings.writer_key
    for new_id in set() if dry_run else set(new_master_keys.values()):
        tools.wrapper.prove_master(new_id)


ROTATE = Verb(
    name="rotate", result=RotatedFile, open=_open_rotation, prepare=_prepare_rotation,
    check=_prove_masters, needs_keys=True, writes=True, waits=True,
    columns="path result failed keys message lost_signature proved worker",
    parameters={"what": str, "new_master_keys": dict, "dry_run": bool},
)  # fmt: skip
"""The verb `keys rotate`."""


def _open_shredding(
    settings: Settings | None, _filesystem: Any, *, wanted: Criteria, dry_run: bool
) -> Job[File, ShreddedFile]:
    tools = None if settings is None else settings.tools()
    decryption = resolve_decryption(tools, None if settings is None else settings.requirements())
    signing_key = None if settings is None else settings.writer_key
    shredding = Shredding(tools, wanted, decryption, dry_run, signing_key)
    return Job(lambda file: shredding.run(file.place)[0])


def _prepare_shredding(
    *, columns: Iterable[str], master_keys: Iterable[str], everything: bool, dry_run: bool
) -> Mapping[str, Any]:
    return {"wanted": criteria_of(columns, master_keys, everything), "dry_run": dry_run}


def _forget_keys(settings: Settings | None, *, dry_run: bool, **_arguments: Any) -> None:
    """Forget the keys of this process, which would keep opening the shredded data."""
    if settings is not None and not dry_run:
        settings.tools().wrapper.forget()


SHRED = Verb(
    name="shred", result=ShreddedFile, open=_open_shredding, prepare=_prepare_shredding,
    end=_forget_keys, writes=True, waits=True,
    columns="path result failed keys columns whole message worker",
)  # fmt: skip
"""The verb `shred`."""
