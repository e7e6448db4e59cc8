#!/bin/sh
# pyiceberg 0.12.0 asks a REST catalog for the children of "in%20ner" when a namespace is "in ner".
#
# Versions: pyiceberg 0.12.0.
# Behaviour: `list_namespaces` percent-encodes the name of the parent, and its HTTP client encodes the
# percent signs again. A server, which decodes once, as the REST specification has it, knows no such
# namespace. Paths that contain a namespace are encoded once: only walks through a catalog fail, and
# only at names with a space, a slash or letters beyond ASCII.
# Seen: for "in ner" the server gets the parent "in%20ner" and, in the next request, the path "in ner".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check pyiceberg==0.12.0

cd "$folder"
new/bin/python - <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog.rest import RestCatalog

requests = []


class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        requests.append(urlsplit(self.path))
        answer = json.dumps(
            {"defaults": {}, "overrides": {}, "namespaces": [], "identifiers": []}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
catalog = RestCatalog("rest", uri=f"http://127.0.0.1:{server.server_port}")
found = {}
for name in ("inner", "in ner", "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher"):
    catalog.list_namespaces((name,))
    parent = parse_qs(requests[-1].query)["parent"][0]
    catalog.list_tables((name,))
    path = unquote(requests[-1].path).split("/")[-2]
    found[name] = (parent == name, path == name)
    print(f"namespace {name!r}: parent {parent!r}, path {path!r}")
assert list(found.values()) == [(True, True), (False, True), (False, True)], (
    "the behaviour has changed"
)
PYTHON
