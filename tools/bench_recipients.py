"""Measure files for recipients: opening with an identity, and wrapping for many recipients.

python -m tools.bench_recipients
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable

import pyarrow as pa

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.kms.recipients.file_recipients import FileRecipients
from modcrypt.parquet.crypto.file_plan import OpenFile

TABLE = pa.table({f"c{n}": [1, 2, 3] for n in range(20)})


def milliseconds(job: Callable[[], object], rounds: int = 101) -> float:
    """Return the median time of a job."""
    job()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def open_footer(data: bytes, properties: mc.FileDecryptionProperties) -> OpenFile:
    with open_source(data) as source:
        return OpenFile(source, properties)


def measure(kind: str, number: int) -> None:
    """Print the figures of files for a number of recipients of a kind."""
    me = mc.Identity.generate(kind)
    to = [mc.Identity.generate(kind).recipient for _ in range(number - 1)] + [me.recipient]
    out = io.BytesIO()
    mc.write_table(TABLE, out, mc.kms.RecipientEncryption(recipients=to))
    data, mine = out.getvalue(), mc.FileDecryptionProperties(key_retriever=me)
    key = open_footer(data, mine).footer.footer_key
    assert key is not None
    explicit = mc.FileDecryptionProperties(footer_key=key)
    beyond = milliseconds(lambda: open_footer(data, mine)) - milliseconds(
        lambda: open_footer(data, explicit)
    )
    file = FileRecipients.create(tuple(to))
    wrapping = milliseconds(lambda: file.make_footer_metadata(key)(b"file AAD"), 21)
    print(
        f"{kind}, {number} recipients: open {beyond:.2f} ms beyond explicit keys, wrap "
        f"{wrapping:.1f} ms, file {len(data):,} bytes"
    )


def main() -> None:
    for kind in ("x25519", "mlkem768-x25519"):
        for number in (1, 100):
            measure(kind, number)


if __name__ == "__main__":
    main()
