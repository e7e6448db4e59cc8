"""Measure what a lake's verbs cost per file, and compute what they cost at 10 million files.

    python -m tools.lake_sizing local 1000 10000            seconds and key-service calls
    python -m tools.lake_sizing copies 100000               the same, for copies of one file
    python -m tools.lake_sizing leak 100000                 the answer to a leak of 1 % of the files
    python -m tools.lake_sizing s3 1000                     requests, through moto
    python -m tools.lake_sizing s3-copies 100000            the same, for copies of one file
    python -m tools.lake_sizing model 20                    hours on 20 Spark executors

Files are small: one row group, four columns, two of them with keys of their own. The costs of bytes
are in docs/explanation/performance.md; the model takes its figures from here and from there.

Another server than moto answers if AWS_ENDPOINT_URL names it, and AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION let the tool make a bucket there.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import modcrypt as mc

DECLARATION = """\
kms = "file:{folder}/lake.keyring"

[dataset.orders]
location = "{location}"
include = "*.parquet"
partitions = ["day"]
footer_key = "footer"
plaintext_columns = ["country"]
aad_prefix = "orders/{{path}}"

[dataset.orders.column_keys]
pii = ["*_ssn", {{ pii = true }}]
"""
FILES_PER_DAY = 100


class CountingClient:
    """A keyring that counts the calls of a key service; listing keys counts as one."""

    def __init__(self, keyring: mc.Keyring) -> None:
        self._keyring, self.calls = keyring, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._keyring, name)
        if name not in ("wrap", "unwrap", "rewrap", "wrap_many", "list_keys"):
            return method

        def count_and_call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            return method(*arguments, **options)

        return count_and_call


def plaintext_file() -> bytes:
    """Return a plaintext Parquet file."""
    mail = pa.field("mail", pa.string(), metadata={"pii": "true"})
    fields = [("id", pa.int64()), ("country", pa.string()), ("home_ssn", pa.string()), mail]
    table = pa.table({"id": [1, 2], "country": ["NO", "SE"], "home_ssn": ["1", "2"],
                      "mail": ["a", "b"]}, schema=pa.schema(fields))  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def make_lake(folder: Path, location: str) -> Path:
    """Make a keyring and a declaration; return its path."""
    keyring = mc.Keyring.create(folder / "lake.keyring", plaintext=True)
    for name in ("footer", "pii"):
        keyring.create_key(name)
    (folder / "modcrypt.toml").write_text(DECLARATION.format(folder=folder, location=location))
    return folder / "modcrypt.toml"


def list_names(files: int) -> Iterator[str]:
    """Yield the paths of files in partitions."""
    for number in range(files):
        yield f"day={number // FILES_PER_DAY:05}/part-{number % FILES_PER_DAY:03}.parquet"


FIRST = next(list_names(1))


def write_files(orders: Path, files: int, data: bytes) -> None:
    """Write the same bytes as many files."""
    for path in list_names(files):
        target = orders / path
        if path.endswith("part-000.parquet"):
            target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def run_verbs(
    config: Path, files: int, *, copies: bool = False
) -> Iterator[tuple[str, float, float, int]]:
    """Run each verb on a lake of plaintext files, or of copies of an encrypted one.

    Yield its name, seconds, seconds of the processor, and key-service calls.
    """
    verbs: dict[str, Callable[[mc.Lake], Any]] = {
        "status of plaintext": lambda lake: lake.status(),
        "apply: encrypt": lambda lake: lake.apply(),
        "status, empty cache": lambda lake: lake.status(),
        "status again": lambda lake: lake.status(),
        "apply: nothing to do": lambda lake: lake.apply(),
        "verify": lambda lake: lake.verify(),
        "verify --since last": lambda lake: lake.verify(since="last"),
        "report": lambda lake: lake.report().to_html(),
    }
    for name, call in verbs.items():
        if copies and name in ("status of plaintext", "apply: encrypt"):
            continue
        lake = mc.Lake.open(config)
        client: Any = CountingClient(mc.Keyring(config.parent / "lake.keyring"))
        lake.__dict__["client"] = client
        started, before = time.perf_counter(), time.process_time()
        done = call(lake)
        seconds, busy = time.perf_counter() - started, time.process_time() - before
        if name == "apply: encrypt":
            assert done[0].changed == files
        yield name, seconds, busy, client.calls


Write = Callable[[int, bytes], None]
"""A function that writes the same bytes as a number of files."""


def fill_lake(
    config: Path, files: int, *, copies: bool, write: Write, read: Callable[[], bytes]
) -> None:
    """Write a number of plaintext files, or of copies of one that is encrypted.

    To copy an encrypted file is quicker than to encrypt as many; `verify` then finds the copies.

    Args:
        config: Path of the declaration.
        files: Number of files.
        copies: Whether to write copies of an encrypted file.
        write: A function that writes files.
        read: A function that returns the content of the first file.
    """
    data = plaintext_file()
    if copies:
        config.write_text(config.read_text().replace("orders/{path}", "orders"))
        write(1, data)
        mc.Lake.open(config).apply()
        data = read()
    write(files, data)


def measure_local(files: int, *, copies: bool = False) -> None:
    """Print what each verb costs on a local disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        config, orders = make_lake(folder, "orders"), folder / "orders"
        write, read = partial(write_files, orders), (orders / FIRST).read_bytes
        fill_lake(config, files, copies=copies, write=write, read=read)
        for verb, seconds, busy, calls in run_verbs(config, files, copies=copies):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            each = f"{busy / files * 1e3:7.3f} ms/file, {calls / files * 1e3:6.2f} calls/1,000"
            line = f"{files:8,}  {verb:22} {seconds:8.1f} s, {busy:8.1f} s CPU, {each}, {peak} MB"
            print(line, flush=True)


# --- a leak --------------------------------------------------------------------------------------

LEAKED = """
[dataset.leaked]
location = "leaked"
footer_key = "leaked"
aad_prefix = "leaked"
"""


def measure_leak(files: int) -> None:
    """Print what the answer costs to the leak of the key of a hundredth of the files, all copies.

    Opened files count by their paths, and each opening.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        config, keyring = make_lake(folder, "orders"), mc.Keyring(folder / "lake.keyring")
        text = config.read_text().replace("orders/{path}", "orders") + LEAKED
        keyring.create_key("leaked")
        config.write_text(text)
        for dataset, count in (("orders", files - files // 100), ("leaked", files // 100)):
            write_files(folder / dataset, 1, plaintext_file())
            mc.Lake.open(config).apply(dataset)
            write_files(folder / dataset, count, (folder / dataset / FIRST).read_bytes())
        print_run(config, "status, empty cache", lambda lake: lake.status())
        print_run(config, "status again", lambda lake: lake.status())
        keyring.rotate_key("leaked")
        config.write_text(f'compromised = ["leaked@1"]\n{text}')
        print_run(config, "status of the leak", lambda lake: lake.status())
        print_run(config, "keys impact", lambda lake: lake.impact("leaked@1"))
        print_run(config, "apply", lambda lake: lake.apply())
        print_run(config, "status after it", lambda lake: lake.status())
        print_run(config, "status again", lambda lake: lake.status())


def print_run(config: Path, name: str, call: Callable[[mc.Lake], Any]) -> None:
    """Run a verb, and print its seconds, opened files and calls of the key service."""
    from modcrypt.io.sources import FileSource

    opened, begin = Counter[str](), FileSource.__init__

    def note(self: FileSource, path: str) -> None:
        opened[path] += path.endswith(".parquet")
        begin(self, path)

    lake = mc.Lake.open(config)
    client: Any = CountingClient(mc.Keyring(config.parent / "lake.keyring"))
    lake.__dict__["client"] = client
    started, before = time.perf_counter(), time.process_time()
    with mock.patch.object(FileSource, "__init__", note):
        call(lake)
    seconds, busy = time.perf_counter() - started, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    files = sum(map(bool, opened.values()))
    print(
        f"{name:20} {seconds:7.1f} s, {busy:6.1f} s CPU, {files:8,} files, {opened.total():8,} "
        f"opened, {client.calls:4} calls, {peak} MB", flush=True,
    )  # fmt: skip


# --- an object store -----------------------------------------------------------------------------


def measure_store(files: int, *, copies: bool = False) -> None:
    """Print how many requests each verb makes to an object store."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        client, bucket = stack.enter_context(connect_to_store()), f"lake-{os.urandom(4).hex()}"
        client.create_bucket(Bucket=bucket)

        def write(number: int, data: bytes) -> None:
            for path in list_names(number):
                client.put_object(Bucket=bucket, Key=f"orders/{path}", Body=data)

        def read() -> bytes:
            found: bytes = client.get_object(Bucket=bucket, Key=f"orders/{FIRST}")["Body"].read()
            return found

        config = make_lake(folder, f"s3://{bucket}/orders")
        fill_lake(config, files, copies=copies, write=write, read=read)
        kinds = stack.enter_context(count_requests())
        for verb, seconds, busy, calls in run_verbs(config, files, copies=copies):
            each = ", ".join(f"{n / files:.3f} {kind}" for kind, n in sorted(kinds.items()))
            line = f"{files:8,}  {verb:22} {seconds:7.1f} s, {busy / files * 1e3:.2f} ms CPU/file"
            print(
                f"{line}, {kinds.total() / files:.3f} requests/file: {each}; {calls} calls",
                flush=True,
            )
            kinds.clear()


@contextmanager
def connect_to_store() -> Iterator[Any]:
    """Yield a client of the server that the environment names, or of a new one of moto."""
    import boto3

    from tests.support.object_store import KEY, REGION, SECRET, object_store

    with ExitStack() as stack:
        if "AWS_ENDPOINT_URL" not in os.environ:
            os.environ.update({
                "AWS_ENDPOINT_URL": stack.enter_context(object_store()).endpoint,
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
                "NO_PROXY": "127.0.0.1",
            })  # fmt: skip
        yield boto3.client("s3")


@contextmanager
def count_requests() -> Iterator[Counter[str]]:
    """Count the requests that s3fs sends, repeated ones included, by their kinds."""
    from aiobotocore.httpsession import AIOHTTPSession

    kinds, send = Counter[str](), AIOHTTPSession.send

    async def count_and_send(self: Any, request: Any) -> Any:
        kinds[name_request(request.method, request.url)] += 1
        return await send(self, request)

    with mock.patch.object(AIOHTTPSession, "send", count_and_send):
        yield kinds


def name_request(method: str, url: str) -> str:
    """Return the kind of a request to a store, as it is charged."""
    if method == "GET":
        return "LIST" if "list-type=" in url or "?uploads" in url else "GET"
    return "PUT" if method in ("PUT", "POST") else method


# --- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verb:
    """The measured costs of a verb for one file.

    Attributes:
        name: Name of the verb.
        where: Where it runs: on "executors", or in one process, the "driver".
        seconds: Seconds of a core for each file, without its bytes.
        reads, writes: How often the bytes of a file are read and written.
        gets, puts: Requests to the store for each file: GET and HEAD; PUT, POST and COPY.
        wraps: Whether keys are wrapped, once for each KEK; otherwise they are unwrapped.
    """

    name: str
    where: str
    seconds: float
    reads: int
    writes: int
    gets: float
    puts: float
    wraps: bool = False


# Measured with this tool on two cores; see docs/explanation/lake-sizing.md. The driver's part of
# `apply`, a `status`, is a line of its own. Rotation is measured by tools/bench_kms.py.
VERBS = (
    Verb("status, empty cache", "driver", 0.00035, 0, 0, 3.0, 0.0),
    Verb("status again", "driver", 0.00002, 0, 0, 0.0, 0.0),
    Verb("apply --spark: encrypt", "executors", 0.00165, 1, 1, 10.0, 3.0, wraps=True),
    Verb("apply --spark: rotate", "executors", 0.0014, 1, 1, 10.0, 3.0, wraps=True),
    Verb("verify, on one machine", "driver", 0.0008, 1, 0, 7.0, 0.0),
    Verb("verify --spark", "executors", 0.00112, 1, 0, 7.0, 0.0),
    Verb("verify --spark: listing and results", "driver", 0.0001, 0, 0, 0.0, 0.0),
)

CORES = 16
"""Cores of an executor's machine, and of the driver's."""

NETWORK = 12.5e9 / 8
"""Bytes per second of its network: 12.5 Gbit/s."""

BYTES_PER_CORE = 751e6
"""Bytes per second that a core encrypts with Spark; a core verifies more, 1,164 MB/s."""

RANGE = 8 << 20
"""Bytes of a request for the content of a large file, and of a part of an upload."""

LATENCY, CONNECTIONS = 0.04, 64
"""Seconds of a request, and concurrent requests of the driver with --jobs 64."""

KEK_SECONDS = 600
"""Seconds for which a process uses and caches a KEK."""

GET_LIMIT, PUT_LIMIT = 5500, 3500
"""Requests per second that Amazon S3 supports for each prefix."""

PREFIXES = 100
"""Prefixes among which the keys of the objects are spread."""

SERVICES = {
    "AWS KMS, 5,500 requests/s (smallest quota of a region, symmetric keys)": 5500.0,
    "Google Cloud KMS, 60,000 requests/min of a project": 1000.0,
    "Azure Key Vault, 4,000 transactions in 10 s (RSA 2048 keys)": 400.0,
}
"""Published default limits of key services, in calls per second."""


def print_model(executors: int, files: int = 10_000_000, size: float = 1e15) -> None:
    """Print the hours, requests and calls of each verb on a lake of 1 PB."""
    print(f"{files:,} files, {size / 1e15:g} PB, {executors} executors of {CORES} cores")
    for verb in VERBS:
        print_verb(verb, executors, files, size)


def print_verb(verb: Verb, executors: int, files: int, size: float) -> None:
    """Print the model of one verb."""
    machines = executors if verb.where == "executors" else 1
    gets = files * verb.gets + verb.reads * size / RANGE
    puts = files * verb.puts + verb.writes * size / RANGE
    python_cores = machines * CORES if machines > 1 else 1  # threads share one interpreter
    times = {
        "Python": files * verb.seconds / python_cores,
        "AES": verb.reads * size / (BYTES_PER_CORE * CORES * machines),
        "network": (verb.reads + verb.writes) * size / (NETWORK * machines),
        "the store": max(gets / GET_LIMIT, puts / PUT_LIMIT) / PREFIXES,
        "latency": (gets + puts) * LATENCY / (CONNECTIONS * machines),
    }
    bound = max(times, key=times.__getitem__)
    seconds = times[bound]
    print(f"\n{verb.name}, by {verb.where}: {seconds / 3600:.2f} h, bound by {bound}")
    print(f"  {gets / 1e6:,.0f} million GET and HEAD, {puts / 1e6:,.0f} million PUT and POST")
    processes = machines * CORES if machines > 1 else 1
    masters = 2
    calls = max(processes * -(-seconds // KEK_SECONDS), 1) * masters
    print(f"  double wrapping: {calls:,.0f} calls of the key service, {calls / seconds:.3f}/s")
    if verb.wraps:
        for service, limit in SERVICES.items():
            hours = files * masters / limit / 3600
            print(f"  single wrapping: {files * masters:,} calls, {hours:.1f} h at {service}")


def main(arguments: Sequence[str]) -> None:
    what, *numbers = arguments or ["model", "20"]
    if what == "model":
        for number in numbers:
            print_model(int(number))
        return
    measures: dict[str, Callable[[int], None]] = {
        "local": measure_local, "copies": partial(measure_local, copies=True),
        "leak": measure_leak,
        "s3": measure_store, "s3-copies": partial(measure_store, copies=True),
    }  # fmt: skip
    for count in numbers[:-1]:  # a process each, for their peaks
        subprocess.run([sys.executable, "-m", "tools.lake_sizing", what, count], check=True)
    measures[what](int(numbers[-1]))


if __name__ == "__main__":
    main(sys.argv[1:])
