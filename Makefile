# Needs Python 3.11 to 3.13 and make; everything else is set up by scripts/venv.py, once.
#
#   make serve   set up, build the MNIST archive, serve it on port 8085
#   make test    set up, run all tests
#   make check   lint, format and types
#   make fmt     put the format right
#   make bench   measure
#   make docs    build the documentation and do what its pages show
#   make gpu, make parity, make soak    the tests that need a GPU, TorchServe (and Java) or patience
#   make fuzz    fuzz what reads bytes (TARGET, SECONDS); needs atheris
#   make reference    write the table of keys in docs/configuration.md anew
#
# PYTHON=python3.12 has any of them use that Python, with an environment of its own.

SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c '$(SUITABLE)' 2>/dev/null && echo $$p && break; done)
SERVE_ARGS ?=
TEST_ARGS ?=
PARALLEL ?= -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
TARGET ?= read_v2
SECONDS ?= 60

export PYTHONPATH := $(CURDIR)
# Compiling the sources anew would double the time that each start takes.
unexport PYTHONDONTWRITEBYTECODE
RUN := $(shell $(PYTHON) scripts/venv.py --path 2>/dev/null)/bin/python

.PHONY: serve test check fmt bench gpu parity soak fuzz docs reference venv help

serve: venv model-store/mnist.mar
	$(RUN) -m kserve_torch --model_dir model-store $(SERVE_ARGS)

model-store/mnist.mar: $(wildcard handlers/mnist/* handlers/build_archive.py) | venv
	$(RUN) handlers/build_archive.py mnist --output model-store/

test: venv
	$(RUN) -m pytest $(PARALLEL) $(TEST_ARGS)

gpu parity soak: venv
	$(RUN) -m pytest -m $@ -o faulthandler_timeout=0 $(TEST_ARGS)

fuzz: venv
	$(RUN) -m tests.fuzz.atheris_targets $(TARGET) -max_total_time=$(SECONDS)

check: venv
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

fmt: venv
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: venv
	$(RUN) -m benchmarks

docs: venv
	$(RUN) -m mkdocs build --strict
	$(RUN) -m pytest -m docs $(TEST_ARGS)

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

reference: venv
	$(RUN) scripts/reference.py

venv:
	@$(or $(PYTHON),false) -c '$(SUITABLE)' || { echo "no Python from 3.11 to 3.13 found" >&2; exit 1; }
	@$(PYTHON) scripts/venv.py >/dev/null
