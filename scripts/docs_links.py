"""Hooks of mkdocs.yml: links from docs/ to other parts of the repository, and the page of the OpenAPI document."""

import re
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File, Files

OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s#]+)(#[^)]*)?\)")
OPENAPI_PAGE = """\
# API reference

Generated from the gateway's own OpenAPI document.

<swagger-ui src="openapi.json"/>
"""


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "openapi.md", content=OPENAPI_PAGE))
    files.append(File.generated(config, "openapi.json", abs_src_path="build/openapi.json"))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that leave docs/ go to the repository, pictures to its raw files."""
    folder = PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        path = normpath(str(folder / match[1]))
        if path.startswith("docs/"):
            return match[0]
        kind = "raw" if path.endswith((".png", ".svg")) else "blob"
        return f"]({config.repo_url}/{kind}/main/{path}{match[2] or ''})"

    return OUTSIDE.sub(replaced, markdown)
