"""The work on the files of a rotation, done as another process would do it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from modcrypt.iceberg import IcebergTable
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.rotate.file_rekeying import RekeyedFile, RekeyItem, Rewrite
from tests.support.iceberg.sample_kms import SampleKms


class Elsewhere:
    """Does the work from pickles, with the key service alone; `sent` has every pickle."""

    def __init__(self, *, twice: bool = False, forget: bool = False) -> None:
        self.twice, self.forget = twice, forget
        self.sent: list[bytes] = []
        self.items = 0

    def __call__(
        self, table: IcebergTable, job: IcebergKey, rewrite: Rewrite, items: Sequence[RekeyItem]
    ) -> Iterable[RekeyedFile]:
        resolver, done = KeyResolver(SampleKms()), []
        opened = resolver.open_key(self._send(job))
        for item in items:
            self.items += 1
            work, copy = self._send(rewrite), self._send(item)
            for _ in range(1 + self.twice):
                new = work(table.walk.locations, copy, opened, resolver)
            done.append(self._send(new))
        return done[1:] if self.forget else done

    def _send(self, what: Any) -> Any:
        self.sent.append(pickle.dumps(what))
        return pickle.loads(self.sent[-1])
