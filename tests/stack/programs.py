"""Tiny programs in the places of services and gateway."""

import sys

from semspec.stack import StackConfig
from tests.helpers.processes import GENEROUS_S

SERVICE = """
import os, time
with open(os.environ["SEMSPEC_PORT_FILE"] + ".new", "w") as file:
    file.write("4711")
os.rename(file.name, file.name.removesuffix(".new"))
time.sleep(600)
"""

GATEWAY = """
import os, socket
from http.server import BaseHTTPRequestHandler, HTTPServer

BODY = b""
MODELS = b'''{
    "detail": "ready",
    "data": [{"id": "semspec-demo", "strategy": "semantic"}, {"id": "semspec-demo:target", "strategy": "target"}],
    "unsupported": {"semantic": "no probes", "retrieval": "no datastore"}
}'''
HOST = os.environ["SEMSPEC_HOST"]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if BODY else 200)
        self.end_headers()
        self.wfile.write(BODY or MODELS)

HTTPServer.address_family = socket.AF_INET6 if ":" in HOST else socket.AF_INET
HTTPServer((HOST, int(os.environ["SEMSPEC_GATEWAY_PORT"])), Handler).serve_forever()
"""

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
DEAF_GATEWAY = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + GATEWAY
BROKEN = "import sys; sys.exit('no model at /nowhere: name one with SEMSPEC_TARGET_MODEL')"


def config(
    start_timeout_s: float = GENEROUS_S, stop_grace_s: float = 5.0, **programs: str
) -> StackConfig:
    """A stack of small programs; `programs` replaces some of them."""
    usual = dict.fromkeys(("draft", "target", "verifier"), SERVICE) | {"gateway": GATEWAY}
    commands = {role: (sys.executable, "-c", text) for role, text in (usual | programs).items()}
    return StackConfig(
        commands=commands, start_timeout_s=start_timeout_s, stop_grace_s=stop_grace_s
    )
