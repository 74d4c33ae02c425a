"""A Hugging Face hub on this machine."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

REVISION = "0123456789abcdef0123456789abcdef01234567"
HUGE = 10**17


class Handler(BaseHTTPRequestHandler):
    """Answers what `snapshot_download` asks."""

    models: Mapping[str, Path | None]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/api/models")
        model = next((name for name in self.models if path.startswith(f"/{name}/")), None)
        folder = self.models[model] if model else None
        if model is None:
            self._answer(404, {"X-Error-Code": "RepoNotFound"})
        elif folder is None:
            self._answer(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask its authors"})
        elif "/resolve/" in path and not (file := folder / path.rpartition("/")[2]).is_file():
            self._answer(404, {"X-Error-Code": "EntryNotFound"})
        elif "/resolve/" in path:
            headers = {"ETag": f'"{file.name}"', "X-Repo-Commit": REVISION}
            self._answer(200, headers, file.read_bytes(), size(file))
        elif "/tree/" in path:
            files = [
                {"type": "file", "path": file.name, "size": size(file), "oid": "0"}
                for file in folder.iterdir()
            ]
            self._answer(200, {}, json.dumps(files).encode())
        elif path.endswith(("/revision/main", model)):
            self._answer(200, {}, json.dumps({"id": model, "sha": REVISION}).encode())
        else:
            self._answer(404, {"X-Error-Code": "RevisionNotFound"})

    do_HEAD = do_GET

    def _answer(
        self, status: int, headers: Mapping[str, str], body: bytes = b"", size: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body) if size is None else size),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


def size(file: Path) -> int:
    """In bytes; of an empty file more than any disk has."""
    return file.stat().st_size or HUGE


@contextmanager
def serving(models: Mapping[str, Path | None]) -> Iterator[str]:
    """The endpoint of a hub with these models: a folder, or None for one that is gated."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Hub", (Handler,), {"models": models})
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def use(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process ask the hub at `endpoint`."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
