#!/bin/sh
# boto3 1.44 gives up on AWS KMS after 3 attempts within half a second, where 1.43 made 5 over seconds.
#
# Versions: boto3 1.43.127 and 1.44.8, without settings, against a server on this machine that fails.
# Behaviour: 1.44 retries in the mode "standard", whose first waits for errors of the server are 0.1 s and
# less; 1.43 doubled waits of up to a second. A service that restarts for a second therefore fails calls
# that used to outlast it. On the other hand, LimitExceededException, which 1.43 raised at once, is
# now tried 3 times. `AWS_MAX_ATTEMPTS=5` restores the number, but not the waits; `AWS_RETRY_MODE=legacy` both.
# Seen: attempts and seconds of one call of Decrypt, below.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
cat >"$folder/count.py" <<'PYTHON'
import http.server
import json
import sys
import threading
import time

import boto3
from botocore.exceptions import ClientError

word, attempts = sys.argv[1], []


class Failing(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        attempts.append(time.monotonic())
        body = json.dumps({"__type": word, "message": "try again"}).encode()
        self.send_response(500 if "Internal" in word else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Failing)
threading.Thread(target=server.serve_forever, daemon=True).start()
kms = boto3.client(
    "kms", "eu-central-1", endpoint_url=f"http://127.0.0.1:{server.server_port}",
    aws_access_key_id="none", aws_secret_access_key="none",
)
try:
    kms.decrypt(CiphertextBlob=b"wrapped")
except ClientError:
    pass
seconds = attempts[-1] - attempts[0]
print(boto3.__version__, word, len(attempts), f"attempts in {seconds:.1f} s", file=sys.stderr)
print(len(attempts), seconds < 0.5)
PYTHON
for version in 1.43.127 1.44.8; do
    "$python" -m venv "$folder/$version"
    "$folder/$version/bin/python" -m pip install --quiet --disable-pip-version-check \
        "boto3==$version" "botocore==$version"
    for word in KMSInternalException LimitExceededException; do
        env -u AWS_MAX_ATTEMPTS -u AWS_RETRY_MODE "$folder/$version/bin/python" "$folder/count.py" $word
    done
done >"$folder/found"
[ "$(tr '\n' ' ' <"$folder/found")" = "5 False 1 True 3 True 3 False " ] || {
    echo "the behaviour has changed" >&2
    exit 1
}
