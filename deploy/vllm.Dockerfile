# Draft or target over vLLM, on GPUs. From the repository's root:
#   docker build --file deploy/vllm.Dockerfile --build-arg ROLE=target --tag semspec-target:vllm .
# Any image with vLLM 0.32 or 0.33 is a base. Its packages stay as they are; only what semspec needs beside them is added.
ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${BASE_IMAGE} AS wheel
WORKDIR /src
COPY LICENSE README.md pyproject.toml ./
COPY semspec semspec
COPY services services
RUN --mount=type=cache,target=/root/.cache/pip python3 -m pip wheel --no-deps --wheel-dir /wheels .

FROM ${BASE_IMAGE}
ARG ROLE=target
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG PIP_ROOT_USER_ACTION=ignore
COPY constraints.txt /tmp/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    grep -E '^(grpcio|grpcio-health-checking|protobuf)==' /tmp/constraints.txt > /tmp/beside.txt \
    && python3 -m pip install --requirement /tmp/beside.txt \
    && python3 -m pip install --no-index --no-deps /wheels/*.whl \
    && useradd --uid 10001 --user-group --home-dir /cache --create-home --shell /usr/sbin/nologin semspec
ENV PYTHONUNBUFFERED=1 \
    HF_HOME=/cache \
    SEMSPEC_ROLE=${ROLE} \
    SEMSPEC_DRAFT_ENGINE=vllm \
    SEMSPEC_TARGET_ENGINE=vllm \
    SEMSPEC_HOST=0.0.0.0
USER 10001:10001
EXPOSE 50051 50052 9464
HEALTHCHECK --start-period=60s --timeout=10s \
    CMD ["/bin/sh", "-c", "case $SEMSPEC_ROLE in draft) set -- 50051 Draft ;; *) set -- 50052 Target ;; esac; exec semspec health grpc://127.0.0.1:$1 --service semspec.v2.$2"]
ENTRYPOINT ["/bin/sh", "-c", "exec python3 -m semspec_$SEMSPEC_ROLE"]
