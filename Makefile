PORT ?= 8080
PROBLEMS ?= 100
SEED ?=
NAMED_PAIR := $(PAIR)
PAIR ?= r1-1.5b-r1-14b
ARGS ?=
TEST_PROCESSES ?= 2
export PYTHON TORCH_VARIANT

BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-slow test-vllm test-clients test-compose test-manifests test-chaos fuzz attack lint docs bench bench-gpu \
	reproduce environment

help:
	@sed -n 's/^##  *//p' $(MAKEFILE_LIST)

## make setup        virtual environment in .venv with all for development; TORCH_VARIANT=cuda: for GPUs, with vLLM (PYTHON=python3.12)
setup:
	@scripts/setup

## make demo         real questions through the whole stack, with a table (ARGS=--json, ARGS="--problems 100")
## make demo PAIR=qwen2.5-coder    a pair of `semspec pairs` instead, on MATH-500 (ARGS="--models FOLDER --data FILE")
demo:
	@scripts/setup $(if $(NAMED_PAIR),dev,serve)
	@$(BIN)/python -m semspec_demo.run $(if $(NAMED_PAIR),--pair $(NAMED_PAIR)) $(ARGS)

## make serve        the same stack kept up until Ctrl-C (PORT=8080, ARGS="--draft-model PATH --target-model PATH")
serve:
	@scripts/setup serve
	@$(BIN)/python -m semspec.cli serve --port $(PORT) $(ARGS)

## make test         the quick tests, in two processes (ARGS="-k decoding")
test: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -m "not slow" -n $(TEST_PROCESSES) --dist loadfile $(ARGS)

## make test-slow    all other tests, one after another: faults, clients, the playground, pipelines (ARGS="-k chaos")
test-slow: setup
	@$(BIN)/python -m pytest tests -m slow $(ARGS)

## make fuzz         odd and grown requests of REST and gRPC, ten minutes: ten times as many as make attack draws
fuzz: setup
	@$(BIN)/python -m tests.attacks --only REST,gRPC --share 10 --seed "$(SEED)" $(ARGS)

## make test-chaos   processes killed and frozen, networks cut, rolling restarts under load; benchmarks/results/chaos
test-chaos: setup
	@$(BIN)/python -m tests.chaos $(ARGS)

## make attack       thousands of requests, messages, files and answers drawn from SEED, by default the commit's hash; benchmarks/results/attacks
attack: setup
	@$(BIN)/python -m tests.attacks --seed "$(SEED)" $(ARGS)

## make test-compose the images built, docker-compose.yml brought up, containers killed (needs a Docker engine)
test-compose: setup
	@$(BIN)/python -m pytest tests/compose/live.py $(ARGS)

## make test-clients every client of docs/clients.md, in environments of their own; writes its table anew
test-clients: setup
	@SEMSPEC_CLIENTS_REPORT=benchmarks/results/clients.json $(BIN)/python -m pytest tests/clients/test_matrix.py -k can_do $(ARGS)
	@scripts/clients-table

## make test-vllm    the engine over vLLM's CPU build, in an environment of its own, .work/vllm (ARGS="-k parity")
test-vllm:
	@scripts/vllm-venv
	@.work/vllm/bin/python -m pytest tests/vllm -W default -o "python_files=live_*.py" $(ARGS)

## make test-manifests  every Kubernetes overlay: schemas, cross-references, policies (needs kubectl)
test-manifests: setup
	@$(BIN)/python -m pytest tests/manifests/test_builds.py $(ARGS)

## make lint         ruff, mypy --strict, import rules, freshness of the generated stubs
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	scripts/proto --check

## make docs         the documentation as a site with an API reference: build/docs, in an environment of its own
docs: setup
	@scripts/docs

## make bench        every strategy and a peer on PROBLEMS=100 problems, sampled and greedy: benchmarks/results/DATE
bench: setup
	$(BIN)/semspec bench suite --limit $(PROBLEMS) --probes benchmarks/results/probes/report.json $(ARGS)

# Targets that run on GPUs install nothing: they use the environment that is there.
environment:
	@[ -x $(BIN)/semspec ] || { echo "there is no environment in .venv; make one with: make setup TORCH_VARIANT=cuda" >&2; exit 1; }

## make reproduce    the paper's comparison for PAIR=r1-1.5b-r1-14b, from its models on: about a day on two GPUs (ARGS=--check; docs/benchmarks.md)
reproduce: environment
	@$(BIN)/semspec bench reproduce --pair $(PAIR) $(ARGS)

## make bench-gpu    first of all on one or two GPUs: 30 minutes, no weights needed, one file to send (docs/two-gpus.md; ARGS="--scale quarter-hour")
bench-gpu: environment
	$(BIN)/python -m semspec_bench.gpu $(ARGS)
