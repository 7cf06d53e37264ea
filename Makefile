.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON := $(VENV)/bin/python
export PATH := $(abspath $(VENV))/bin:$(PATH)
unexport VIRTUAL_ENV

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(PYTHON):
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip

.PHONY: develop
develop: $(PYTHON) ## A virtual environment with the package, editable, and all tools
	$(PYTHON) -m pip install --quiet --editable ".[examples,test,lint]"

.PHONY: test
test: develop ## The Python and the Rust tests
	python -m pytest
	cargo test

.PHONY: lint
lint: develop ## rustfmt, clippy, ruff, mypy, stubtest
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo clippy --features python -- -D warnings
	ruff check
	ruff format --check
	mypy
	python -m mypy.stubtest gradclip._core

.PHONY: doc
doc: develop ## The API docs of the crate, and the examples of all docs as tests
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items --features python
	python -m pytest --quiet --doctest-modules --pyargs gradclip
	python -m pytest --quiet --doctest-glob='*.md' README.md docs

.PHONY: example
example: develop ## The example, a few steps of it
	python examples/exploding_rnn.py --steps 20 --output $(VENV)/exploding_rnn.png

.PHONY: codegen
codegen: develop ## What the compiler made: hot loops wide and short, no fused operations, no maths library
	.ci/codegen python/gradclip/_core.abi3.so

.PHONY: wheel
wheel: ## A wheel, and its import in a clean environment without cargo
	.ci/wheel

.PHONY: bench
bench: ## The kernels against naive loops and the read bandwidth
	cargo bench

.PHONY: compare
compare: ## Against NumPy, PyTorch, TensorFlow and optax (a venv of 7 GB, 15 minutes), written to docs/benchmarks.md
	python3 -m venv .venv-compare
	.venv-compare/bin/python -m pip install --quiet --upgrade pip
	.venv-compare/bin/python -m pip install --quiet --requirement benches/compare/requirements.txt .
	.venv-compare/bin/python benches/compare --output docs

.PHONY: ci
ci: ## Everything that .ci/run does
	.ci/run

.PHONY: accuracy
accuracy: develop ## Measured errors against what is promised, written to docs/accuracy.md
	python benches/accuracy.py --write

.PHONY: fuzz
fuzz: develop ## A million calls drawn at random, each held to the contract (40 minutes on two busy cores)
	python tests/fuzz.py --cases 1000000 --jobs 2 --counts

.PHONY: clean
clean: ## Remove what was built
	rm -rf target dist $(VENV) .venv-compare python/gradclip/*.so
