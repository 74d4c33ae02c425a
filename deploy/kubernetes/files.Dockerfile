# A folder as an image, for pods to copy it from: the bundled pair, the probes of your own. The folder is the context:
#   docker build --file deploy/kubernetes/files.Dockerfile --tag ghcr.io/semspec/semspec-demo-pair:0.2.0 examples/demo/semspec_demo/pair
ARG BASE_IMAGE=busybox:1.37.0
FROM ${BASE_IMAGE}
COPY --chown=10001:10001 . /files
USER 10001:10001
CMD ["cp", "-r", "/files/.", "/models"]
