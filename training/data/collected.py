"""Reads collections: folders of answers that `semspec train collect` fetched from a gateway.

A collection has the files of a stage, see `semspec.training.files`: in `recipe.json` the models and the segmentation,
and in each shard rows with `id`, `owner`, `conversation`, `question`, `pieces` and `draft_prompt`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from semspec.errors import InvalidRequest, Mismatch
from semspec.training.config import PipelineConfig
from semspec.training.files import Row, StageFolder, read_json, read_rows

if TYPE_CHECKING:
    from semspec.training.data.pair import Pair

COLLECTION_FORMAT = 1


def opened(path: Path) -> tuple[StageFolder, Row]:
    """The shards of a collection, and its recipe. Raises: InvalidRequest when there is none, Mismatch for another
    format or a damaged recipe."""
    recipe = read_json(path / "recipe.json") if (path / "recipe.json").exists() else {}
    if (found := recipe.get("collection")) is None:
        raise InvalidRequest(
            f"{path} is no collection; `semspec train collect --output {path}` makes one", "collection"
        )
    if found != COLLECTION_FORMAT:
        raise Mismatch(f"{path} is a collection of format {found}, this version reads format {COLLECTION_FORMAT}")
    return StageFolder(path), recipe


def collected_rows(path: Path) -> Iterator[Row]:
    """The answers of a collection, each with `collected` for its `Question`.

    Raises: InvalidRequest when there are none, Mismatch naming a shard that is not what its manifest says.
    """
    folder, _ = opened(path)
    if not folder.numbers():
        raise InvalidRequest(f"{path} has no answers yet; run `semspec train collect --output {path}`", "collection")
    for number in folder.numbers():
        if names := folder.damaged(number):
            manifest = folder.file(number, ".json")
            raise Mismatch(f"{path}: {', '.join(names)} is damaged; delete {manifest} to leave this shard out")
        for row in read_rows(folder.file(number, ".parquet")):
            yield row | {"collected": json.dumps({name: row[name] for name in ("pieces", "draft_prompt")})}


def check_collections(config: PipelineConfig, pair: "Pair") -> None:
    """Raises: Mismatch when a collection has answers of other models or another segmentation than the configuration."""
    for source in (*config.questions, *config.evaluation_sets):
        if source.collection is None:
            continue
        _, recipe = opened(source.collection)
        if recipe["segmentation"] != config.segmentation:
            raise Mismatch(
                f"{source.collection} was collected with the segmentation {recipe['segmentation']}, this configuration "
                f"has {config.segmentation}: set segmentation, or name another collection"
            )
        for writer, model in pair.models.items():
            own, found = model.lm.info.fingerprint, recipe[writer.value]["fingerprint"]
            if own != found:
                raise Mismatch(
                    f"{source.collection} was collected from a {writer.value} with the fingerprint {found}, this "
                    f"configuration's has {own}: name that pair's models, or another collection"
                )
