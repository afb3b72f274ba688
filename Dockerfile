# syntax=docker/dockerfile:1
# The server's image. Arguments:
#   PYTHON_IMAGE  a slim Python 3.11 to 3.13
#   VARIANT       cpu or gpu
#   TORCH_INDEX   package index with torch's wheels without CUDA, for a small CPU image (about 1.8 GB
#                 instead of 6.6 GB). Without it the wheels with CUDA are taken, which also run on CPUs.
ARG PYTHON_IMAGE=python:3.12-slim

# --- the package's wheel, and what it depends on as a list ---
FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY constraints.txt pyproject.toml README.md ./
RUN pip install --no-cache-dir --constraint constraints.txt hatchling
# TorchServe's image for KServe has transformers too: archives do not list it among their requirements.
RUN python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        extras = map(project['optional-dependencies'].get, ('tracing', 'transformers')); \
        print(*project['dependencies'], *sum(extras, []), sep='\n')" > requirements.txt
COPY kserve_torch kserve_torch
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# --- the server: layers for tools, torch, the other libraries and the package ---
FROM ${PYTHON_IMAGE} AS server
# tini reaps what processes of handlers leave behind. With -s it does so too where it is not the first
# process of the pod: beside a model that is an image (oci://), where it would warn at each start.
# torch.compile needs a compiler on CPUs and GPUs alike.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*
ARG VARIANT=cpu
ARG TORCH_INDEX=
COPY --chmod=0644 constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch torchvision \
    && if [ "$VARIANT" = gpu ]; then \
        pip install --no-cache-dir --constraint /tmp/constraints.txt nvidia-ml-py; fi
COPY --from=wheel /source/requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt --requirement /tmp/requirements.txt
# The import compiles what the base image has without bytecode; each start would do that again.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps /wheels/*.whl \
    && python -c "import kserve_torch.server"
# As in TorchServe's images: images built on them replace this file.
COPY --chmod=0755 deploy/image/entrypoint.sh /usr/local/bin/dockerd-entrypoint.sh
# Nothing is written but under /tmp: the root file system may be read-only. What images built on this
# one install as model-server belongs elsewhere: Kubernetes mounts a volume over /tmp.
# NVIDIA_VISIBLE_DEVICES is for Kubernetes and docker --gpus to set: "all" here would give every GPU of
# a node to pods that ask for none.
ENV HOME=/tmp \
    PATH=$PATH:/home/model-server/.local/bin \
    PYTHONUSERBASE=/home/model-server/.local \
    USER=model-server \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# As there: images built on them store archives in it.
RUN useradd --uid 1000 --create-home --key HOME_MODE=0755 --home-dir /home/model-server model-server \
    && mkdir --parents /home/model-server/model-store "$(python -m site --user-site)" \
    && chown --recursive 1000:1000 /home/model-server
USER 1000:1000
WORKDIR /home/model-server
# KServe REST, KServe gRPC, metrics, TorchServe REST, TorchServe gRPC for inference and management
EXPOSE 8080 8081 8082 8085 7070 7071
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/usr/local/bin/dockerd-entrypoint.sh"]
CMD ["serve"]

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kserve-torch" \
      org.opencontainers.image.description="Serves TorchServe archives on KServe, in one Python process" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      io.kserve.torch.variant="${VARIANT}"
