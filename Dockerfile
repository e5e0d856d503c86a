# syntax=docker/dockerfile:1
# The image of the service and of its load generators. CPU torch by default; the CUDA build is PyPI's own, so
# for a GPU pass an empty index:
#   docker build --build-arg TORCH_INDEX_URL= -t launchbound:gpu .

ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/venv/bin:$PATH
RUN python -m venv /opt/venv

# What the service needs to run, at the locked versions. This layer is built again only when these two files
# change; development tools are in the lock as well, but are not asked for. The other index gives torch alone: of
# two indexes at a time pip takes any package from either.
COPY pyproject.toml requirements.lock ./
RUN python -c 'import tomllib; told = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
      extras = told["optional-dependencies"]; \
      print(*told["dependencies"], *extras["models"], *extras["report"], sep="\n")' > runtime.txt \
    && if [ -n "$TORCH_INDEX_URL" ]; then \
         pip install --no-deps --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' requirements.lock)"; fi \
    && pip install --constraint requirements.lock --requirement runtime.txt setuptools

COPY README.md LICENSE launchbound.py launchbound_pytest.py ./
COPY service service
COPY models models
COPY loadtests loadtests
COPY dashboards dashboards
RUN pip install --no-deps --no-build-isolation .


# The bill of materials of what was just installed, by a tool that the image itself does not carry.
FROM ${PYTHON_IMAGE} AS sbom
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY pyproject.toml requirements.lock ./
RUN pip install --constraint requirements.lock cyclonedx-bom
COPY --from=build /opt/venv /opt/venv
RUN cyclonedx-py environment --pyproject=pyproject.toml --mc-type=application --output-reproducible \
      --output-file=/launchbound.cdx.json /opt/venv/bin/python


FROM ${PYTHON_IMAGE}
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="launchbound" \
      org.opencontainers.image.description="Serves a transformer through PyTorch's inference modes and measures where each request's time went" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${COMMIT}"

# torch.compile builds C++ while the service warms up, so the compiler stays in the image. Its version is
# the one of the pinned base image's Debian release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --system --uid 10001 --home-dir /cache --shell /usr/sbin/nologin launchbound \
    && install --directory --mode 0700 --owner launchbound /cache \
    && install --directory --mode 0755 --owner launchbound /results
COPY --from=build /opt/venv /opt/venv
COPY --from=sbom /launchbound.cdx.json /usr/share/launchbound/launchbound.cdx.json

# Everything that is written at run time lies under /cache (a volume), /tmp or, of a sweep, /results (compose's
# volume, which takes its owner from here), so that the root may be read-only.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    LAUNCHBOUND_CACHE_FOLDER=/cache/launchbound \
    LAUNCHBOUND_COMMIT=${COMMIT}
USER 10001
WORKDIR /cache
VOLUME /cache
EXPOSE 8000

# Alive, not ready: compiling all modes takes minutes, and an orchestrator must not kill it for that.
# Bash alone: a Python every five seconds would disturb what the engine measures.
HEALTHCHECK --interval=5s --timeout=4s --start-period=60s --retries=6 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET /health/live HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n' >&3 && read -r -t 3 line <&3 && [[ $line == *' 200 '* ]]"]
CMD ["launchbound", "serve", "--host", "0.0.0.0"]
