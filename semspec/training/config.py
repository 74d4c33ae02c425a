"""The pipeline's configuration: one YAML file, validated before any model loads."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from semspec.clustering.loading import EquivalenceConfig, PythonObject
from semspec.errors import InvalidRequest
from semspec.training.trainer.recipe import FitRecipe
from semspec.types import SamplingParams, Segmentation


class Part(BaseModel):
    """Base class of the configuration's parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSampler(Part):
    """Segments written by SemanticSpec's engine."""

    backend: Literal["engine"] = "engine"


class ServerSampler(Part):
    """Segments written by an inference server; SemanticSpec's engine then computes their states."""

    backend: Literal["openai", "tgi"]
    base_url: str = Field(
        pattern=r"^https?://", description="of an OpenAI-compatible server (with /v1) or of TGI"
    )
    model: str | None = Field(None, description="the model's name there (OpenAI)")
    api_key_env: str | None = Field(None, description="environment variable that holds the key")
    concurrency: int = Field(40, ge=1, le=1024, description="requests in flight")
    timeout_s: float = Field(120, gt=0)
    max_retries: int = Field(5, ge=0, le=20)

    @model_validator(mode="after")
    def _has_model(self) -> "ServerSampler":
        if self.backend == "openai" and not self.model:
            raise ValueError("model: an OpenAI-compatible server needs the model's name")
        return self


class ModelConfig(Part):
    """One model of the pair."""

    model: str = Field(min_length=1, description="folder, GGUF file, hub id, or ID:FILE.gguf")
    revision: str | None = None
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "packed"] = "auto"
    sampler: Annotated[EngineSampler | ServerSampler, Field(discriminator="backend")] = (
        EngineSampler()
    )


class QuestionSource(Part):
    """A source of questions: exactly one of `hub`, `file` and `python`."""

    hub: str | None = Field(None, description="dataset id, or a dataset's folder")
    hub_config: str | None = None
    hub_split: str = "train"
    revision: str | None = None
    file: Path | None = Field(None, description="JSON lines")
    python: PythonObject | None = Field(None, description="function that yields rows")
    arguments: dict[str, Any] = Field({}, description="keyword arguments of the function")
    question: str = Field("question", description="name of the field that holds the question")
    id: str | None = Field(
        None, description="name of the field that identifies it; else its number"
    )
    trace: str | None = Field(None, description="name of the field that holds a reasoning trace")
    domain: str = Field("all", description="name of the domain, for the cross-domain matrix")
    domain_field: str | None = Field(None, description="field that holds the domain instead")
    limit: int | None = Field(None, ge=1)
    role: Literal["train", "test"] = Field("train", description="test: only for the report")

    @model_validator(mode="after")
    def _is_one(self) -> "QuestionSource":
        if sum(source is not None for source in (self.hub, self.file, self.python)) != 1:
            raise ValueError("name exactly one of hub, file and python")
        return self


class Shares(Part):
    """Shares of the training questions reserved for other uses."""

    validation: float = Field(
        0.1, gt=0, lt=0.5, description="early stopping, choice of the acceptance rule"
    )
    calibration: float = Field(0.1, ge=0, lt=0.5, description="calibration of the probabilities")
    test: float = Field(
        0.15, ge=0, lt=0.5, description="the report; not taken where a source has the role test"
    )


class PromptConfig(Part):
    """The rendering of a question as a prompt."""

    template: str = Field("{question}", pattern=r"\{question\}", description="the user's turn")
    chat: bool = Field(True, description="render the target's chat template around it")


class ContextsConfig(Part):
    """Traces and the points in them where next segments are sampled."""

    traces: Literal["mixture", "target", "data"] = Field(
        "mixture",
        description="written by both models in turns at random, by the target alone, or taken from the data",
    )
    draft_share: float = Field(
        0.7, ge=0, le=1, description="of a mixture; about what the draft gets to write when served"
    )
    per_question: int | None = Field(
        None, ge=1, description="contexts a question, one a stratum of depth; unset: all"
    )
    max_segments: int = Field(24, ge=1, description="of a trace")
    max_tokens: int = Field(
        8192, ge=16, description="of a context, by the target's count; deeper ones are left out"
    )


class SamplingConfig(Part):
    """Sampling parameters."""

    temperature: float = Field(0.6, ge=0, le=2)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    seed: int = Field(1, ge=0)

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_p, self.top_k, self.seed)


class SamplesConfig(SamplingConfig):
    """The next segments sampled at each context."""

    num_samples: int = Field(20, ge=2, description="from each model (SemanticSpec: N = 20)")
    num_test_samples: int | None = Field(
        None,
        ge=2,
        description="from the target where questions are for the report only; unset: num_samples",
    )
    rows_at_once: int = Field(
        20, ge=1, description="alternatives in one forward; lower it when memory runs out"
    )


class ReportConfig(Part):
    """The report's comparisons, and the limit for the acceptance rule."""

    variants: bool = Field(
        True,
        description="fit the paper's recipe, states alone, last layer and surprisal alone, and deliver the last two",
    )
    learning_curve: tuple[float, ...] = Field(
        (0.125, 0.25, 0.5), description="shares of the training questions"
    )
    max_wrong_accepted: float = Field(
        0.03, ge=0, le=1, description="limit for the recommended acceptance rule"
    )
    gamma: int = Field(
        1,
        ge=1,
        le=8,
        description="segments drafted at a time when served; compare with semspec bench",
    )


class LikelihoodConfig(Part):
    """The pilot by which the strategy `likelihood` is calibrated, without probes."""

    num_questions: int = Field(
        100, ge=1, description="of the pilot: the first ones that are not for the report"
    )
    max_wrong_accepted: float = Field(0.1, ge=0, le=1, description="limit for the threshold")


class WorkConfig(Part):
    """Settings common to the configurations of a pair's probes and of a datastore."""

    name: str = Field(min_length=1)
    target: ModelConfig
    questions: tuple[QuestionSource, ...] = Field(min_length=1)
    evaluation_sets: tuple[QuestionSource, ...] = Field(
        (), description="their questions are dropped from `questions`"
    )
    shares: Shares = Field(
        Shares(), description="a datastore, too, leaves questions of the share `test` out"
    )
    prompt: PromptConfig = PromptConfig()


class PipelineConfig(WorkConfig):
    """The configuration of a pair's probes."""

    name: str = Field(pattern=r"^[\w./-]{1,128}$", description="of the release, in the API, too")
    version: str = Field(
        "1", pattern=r"^[\w.-]{1,32}$", description="of the release; requests name it NAME@VERSION"
    )
    draft: ModelConfig
    segmentation: Segmentation = Segmentation.PARAGRAPH
    max_segment_tokens: int = Field(512, ge=2)
    contexts: ContextsConfig = ContextsConfig()
    samples: SamplesConfig = SamplesConfig()
    equivalence: EquivalenceConfig
    truth: PythonObject | None = Field(
        None,
        description="function (question id, reasoning, segment) -> whether it is right here, or None; for reports only",
    )
    probes: FitRecipe = FitRecipe()
    report: ReportConfig = ReportConfig()
    likelihood: LikelihoodConfig = LikelihoodConfig()
    shard_questions: int = Field(
        5, ge=1, description="questions a shard: what is lost when a worker dies"
    )
    output: Path = Field(
        description="folder of the release: pair.json, the two probes and alternatives/"
    )

    @model_validator(mode="before")
    @classmethod
    def _target_judges(cls, content: Any) -> Any:
        """Name the target as the model of an equivalence of the kind `model` that names none."""
        match content:
            case {
                "equivalence": {"kind": "model"} as judge,
                "target": {"model": _} as target,
            } if "model" not in judge:
                fields = ("model", "revision", "device", "dtype")
                loaded = {name: target[name] for name in fields if name in target}
                return content | {"equivalence": loaded | judge}
        return content


class AnswersConfig(SamplingConfig):
    """The answers whose tokens and states the datastore holds."""

    source: Literal["target", "data"] = Field(
        "target",
        description="written by the target, or the data's own (questions.trace), such as those of a server",
    )
    per_question: int = Field(1, ge=1, description="answers written to each question")
    max_tokens: int = Field(2048, ge=1)


class DatastoreConfig(WorkConfig):
    """The configuration of a datastore."""

    answers: AnswersConfig = AnswersConfig()
    neighbours: bool = Field(
        True, description="false: n-grams only, without states; needs no faiss"
    )
    layer: int | None = Field(
        None,
        ge=0,
        description="row of the states that keys are of, 0 the embeddings; unset: at 3/4 of the depth",
    )
    width: int = Field(64, ge=1, le=1024, description="principal components of a key")
    fit_tokens: int = Field(
        50_000, ge=64, description="tokens whose states the components are fitted to"
    )
    shard_questions: int = Field(
        20, ge=1, description="questions a shard: what is lost when a worker dies"
    )
    output: Path = Field(description="folder of the datastore")


C = TypeVar("C", bound=Part)


def load_config(path: Path) -> PipelineConfig:
    """Read the configuration of a pair's probes; see `read_config`."""
    return read_config(path, PipelineConfig)


def read_config(path: Path, kind: type[C]) -> C:
    """Read the configuration in a YAML file. Raises: InvalidRequest naming each invalid field."""
    return validated(read_yaml(path), kind, str(path))


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises: InvalidRequest when it cannot be read."""
    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {path}: {error.strerror}", remedy="give a YAML file"
        ) from error
    except RecursionError:
        raise InvalidRequest(
            f"{path} has too many levels of lists and objects", remedy="correct it"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def validated(content: Any, kind: type[C], source: str) -> C:
    """Validate the content of a configuration. Raises: InvalidRequest naming `source` and each invalid field."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {_problem(detail)}"
            for detail in error.errors()
        ]
        raise InvalidRequest(f"{source}: {'; '.join(problems)}") from error


EXAMPLES = {
    "draft": "{model: Qwen/Qwen2.5-0.5B-Instruct}",
    "target": "{model: Qwen/Qwen2.5-1.5B-Instruct}",
    "questions": "[{file: questions.jsonl, question: question}]",
    "equivalence": "{kind: entailment, model: cross-encoder/nli-deberta-v3-base}",
    "output": "probes/my-pair",
    "model": "Qwen/Qwen2.5-1.5B-Instruct",
}
"""Examples of required settings, for messages."""


def _problem(detail: Any) -> str:
    name = str(detail["loc"][-1]) if detail["loc"] else ""
    if detail["type"] in ("missing", "union_tag_not_found", "too_short") and name in EXAMPLES:
        return f"missing; for example `{name}: {EXAMPLES[name]}`"
    if detail["type"] == "extra_forbidden":
        return "no such setting"
    return str(detail["ctx"]["error"] if detail["type"] == "value_error" else detail["msg"])
