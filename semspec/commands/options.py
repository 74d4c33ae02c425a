"""The options of each command. Imports no optional dependencies, so that every `--help` works."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from semspec.errors import InvalidRequest
from semspec.keys import checked_key
from semspec.pairs import find, locate, named_pair, named_pairs, unknown_pair
from semspec.stack import StackConfig

DEFAULT_URL = "http://127.0.0.1:8080"
API_KEY = "SEMSPEC_API_KEY"
"""Environment variable with the API key of the gateway."""


def serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address the gateway listens on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="gateway's port (default 8080)")
    parser.add_argument(
        "--start-timeout-s", type=float, help="seconds to wait for the models to load (default 120)"
    )
    parser.add_argument(
        "--pair",
        metavar="NAME",
        help="pair listed by `semspec pairs`, or path of a release (default: the bundled pair)",
    )
    pairs_options(parser)
    for role in ("draft", "target"):
        parser.add_argument(
            f"--{role}-model",
            metavar="MODEL",
            help="folder, GGUF file, hub id, or ID:FILE.gguf on the hub (default: from --pair)",
        )


def pairs_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        metavar="FOLDER",
        type=Path,
        help="folder with the files of named pairs (default: the hub's cache)",
    )


def stack_config(
    arguments: argparse.Namespace, tell: Callable[[str], object] | None = None
) -> StackConfig:
    """Return the stack's configuration with the options of the command line. With `tell`, which gets lines about the
    progress, missing files of a named pair are downloaded. Raises: SemspecError."""
    names = "host", "port", "start_timeout_s", "draft_model", "target_model"
    options = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if key := os.environ.get(API_KEY):
        options["api_key"] = checked_key(key)
    if arguments.pair is not None:
        return replace(pair_config(arguments.pair, arguments.models, tell), **options)
    if arguments.models is not None:
        raise InvalidRequest("--models requires --pair NAME", remedy="`semspec pairs` lists names")
    if not options.keys().isdisjoint({"draft_model", "target_model"}):
        options["pair"] = None
    return StackConfig(**options)


def pair_config(
    name: str, models: Path | None, tell: Callable[[str], object] | None
) -> StackConfig:
    """Return the configuration of a named pair, or of a release's path; see `stack_config`. Raises: SemspecError.

    A release of a named pair's models takes their files from the folder `models` or from the hub's cache.
    """
    if pair := named_pair(name):
        return StackConfig.of_named(pair, locate(pair, models, tell))
    if not Path(name).exists():
        raise unknown_pair(name)
    config = StackConfig.of_release(Path(name))
    files = {file.model: file for pair in named_pairs() for file in pair.files.values()}

    def place(model: Path | str | None) -> Path | str | None:
        file = files.get(str(model))
        path = find(file, models) if file else None
        return model if path is None else str(path)

    target = place(config.target_model) or config.target_model
    return replace(config, draft_model=place(config.draft_model), target_model=target)


def chat_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="one question; without it, a conversation"
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"URL of a running gateway (default {DEFAULT_URL})"
    )
    parser.add_argument(
        "--api-key",
        type=api_key,
        metavar="KEY",
        default=os.environ.get(API_KEY),
        help=f"API key of the gateway (default: ${API_KEY})",
    )
    parser.add_argument(
        "--model",
        metavar="NAME[:STRATEGY]",
        help="model listed by GET /v1/models (default: the first)",
    )
    parser.add_argument(
        "--strictness", type=float, metavar="S", help="from 0, which accepts most drafts, to 1"
    )
    parser.add_argument(
        "--gamma", type=int, metavar="N", help="segments drafted before the target scores them"
    )
    parser.add_argument(
        "--exact-answer", action="store_true", default=None, help="draft the reasoning only"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="most tokens of an answer, with its reasoning"
    )
    parser.add_argument(
        "--session", metavar="ID", help="conversation to continue (default: a new one)"
    )
    parser.add_argument(
        "--plain", action="store_true", help="print text only, as when the output is not a terminal"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show the judgements and the rejected drafts"
    )


def key_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="owner of the key; keys with the same name share their data"
    )


def plan_options(parser: argparse.ArgumentParser) -> None:
    for role in ("draft", "target"):
        parser.add_argument(
            f"--{role}-model",
            metavar="NAME",
            required=True,
            help="hub id, or a folder with config.json",
        )
    parser.add_argument("--gpus", type=int, default=2, metavar="N", help="GPUs (default 2)")
    parser.add_argument(
        "--gpu-gib", type=int, default=80, metavar="GIB", help="memory of each GPU (default 80)"
    )
    parser.add_argument(
        "--context",
        type=int,
        default=34_816,
        metavar="N",
        help="tokens of prompt and output together (default 34816)",
    )
    parser.add_argument(
        "--sessions", type=int, default=8, metavar="N", help="concurrent answers (default 8)"
    )


def doctor_options(parser: argparse.ArgumentParser) -> None:
    serve_options(parser)
    parser.add_argument("--json", action="store_true", help="print the checks as one JSON object")


def health_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        help="grpc://host:port, grpcs://..., http://... or https://...",
    )
    parser.add_argument(
        "--service",
        default="",
        metavar="NAME",
        help="gRPC service, such as semspec.v2.Target (default: the whole process)",
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=4,
        metavar="S",
        help="seconds to wait for an answer (default 4)",
    )
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="PEM file of the CA that signed the certificate"
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="PEM file of the client certificate, if the service requires one",
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="PEM file of the client certificate's private key"
    )


def api_key(text: str) -> str | None:
    """Parse an API key; None if it is empty."""
    try:
        return checked_key(text) if text else None
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None
