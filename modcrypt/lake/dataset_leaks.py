"""Find values of encrypted columns beside the files of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable

from modcrypt.jobs.leaks.exposure import Secrecy
from modcrypt.jobs.leaks.scan import Folder, ValueLeak
from modcrypt.lake.declarations.columns import FileColumns
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.lake_files import make_matcher
from modcrypt.parquet.datasets.discovery import is_hidden

_NO_COLUMNS = FileColumns((), {})


def find_dataset_leaks(
    policies: DatasetPolicies, is_claimed: Callable[[str], bool]
) -> tuple[ValueLeak, ...]:
    """Return the leaks in the folder of a dataset, except files of datasets: status examines them.

    `is_claimed` returns whether a path inside the dataset is that of another one's file. Raise
    LimitError or OSError as in `find_leaks`.
    """
    if not policies.root.is_folder:
        return ()
    root = policies.root.place
    include = policies.dataset.include
    matches = make_matcher("*" if include is None else include)

    def is_of_dataset(inside: str) -> bool:
        if is_hidden(inside, ""):
            return False
        # The files of a visible link to a folder are those of the dataset, too.
        return (
            bool(matches(inside))
            or is_claimed(inside)
            or os.path.isdir(os.path.join(root.path, inside))
        )

    found = Folder.scan(root, skip=is_of_dataset)
    return found.judge(_secrecy_of(policies)).leaks


def _secrecy_of(policies: DatasetPolicies) -> Secrecy:
    rules = policies.dataset.rules
    plain = rules.get(None, ())
    patterns = [rule for rule in plain if not rule.is_name]
    secret = [rule for key, given in rules.items() if key for rule in given]
    return Secrecy(
        named=frozenset(rule.text for rule in secret if rule.is_name),
        plain=frozenset(rule.text for rule in plain if rule.is_name),
        is_plain=lambda path: any(rule.selects(path, _NO_COLUMNS) for rule in patterns),
        others=True,
        schema=not policies.dataset.members.get("plaintext_footer", False),
    )
