.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON := $(VENV)/bin/python
export PATH := $(abspath $(VENV))/bin:$(PATH)
unexport VIRTUAL_ENV

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(PYTHON):
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip

.PHONY: develop
develop: $(PYTHON) ## A virtual environment with the package, editable, and all tools
	$(PYTHON) -m pip install --quiet --editable ".[examples,test,lint]"

.PHONY: test
test: develop ## The Python and the Rust tests
	python -m pytest -n 2
	cargo test

.PHONY: check
check: lint test doc ## The checks before a commit: lint, types, tests, examples of the docs

.PHONY: lint
lint: develop ## rustfmt, clippy, ruff, mypy, stubtest
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo clippy --test codegen -- -D warnings
	cargo clippy --features python -- -D warnings
	ruff check
	ruff format --check
	mypy
	python -m mypy.stubtest gradclip._core

.PHONY: doc
doc: develop ## The API docs of the crate, and the examples of all docs as tests
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items --features python
	python -m pytest --quiet --doctest-modules --doctest-ignore-import-errors --pyargs gradclip
	python -m pytest --quiet --doctest-glob='*.md' README.md docs --ignore=docs/conf.py

.PHONY: docs
docs: $(PYTHON) ## The documentation site, in target/site: every link and reference resolves
	$(PYTHON) -m pip install --quiet --editable ".[docs]"
	python -m sphinx --quiet --nitpicky --fail-on-warning --keep-going -d target/doctrees docs target/site

.PHONY: example
example: develop ## The examples, a few steps of each
	python examples/exploding_rnn.py --steps 20 --output $(VENV)/exploding_rnn.png
	python examples/embedding_rows.py --passes 2 --output $(VENV)/embedding_rows.png
	python examples/norms_by_layer.py --steps 20 --output $(VENV)/norms_by_layer.png
	python examples/private_step.py --steps 20 --output $(VENV)/private_step.png
	python examples/federated_round.py --rounds 5 --output $(VENV)/federated_round.png

.PHONY: codegen
codegen: develop ## The machine code of the kernels: hot loops wide and short, no fused operations, no maths library
	.ci/codegen python/gradclip/_core.abi3.so

.PHONY: aarch64
aarch64: ## The Rust tests on aarch64, emulated: the bits that x86-64 recorded
	.ci/aarch64

.PHONY: miri
miri: ## The Rust tests under Miri: memory out of bounds, aliasing, alignment, races
	.ci/miri

.PHONY: wheel
wheel: ## A wheel, the same bytes from a second build, and its import in a clean environment without cargo
	.ci/wheel

.PHONY: wheels
wheels: ## Wheels of all platforms and the source distribution in dist/, checked: TARGETS="macos-arm64 sdist"
	.ci/wheels $(TARGETS)

.PHONY: sanitize
sanitize: develop ## The tests of memory under AddressSanitizer, which needs a nightly compiler
	.ci/sanitize

.PHONY: cuda
cuda: develop ## Arrays on a GPU, tested without one: CuPy, NVIDIA's compiler, kernels on the CPU (250 MB)
	.ci/cuda

.PHONY: gpu
gpu: ## The tests that need a GPU, with the CuPy of the environment: PYTHON=python3
	.ci/gpu

.PHONY: supply
supply: ## Cargo.lock, licences, sources and known advisories of the dependencies
	.ci/supply

PYTHON_FT ?= python3.14t
.PHONY: free-threaded
free-threaded: ## The suite without a GIL, also with each test in several threads: PYTHON_FT=python3.14t
	.ci/free-threaded $(PYTHON_FT)

.PHONY: bench
bench: ## The kernels against naive loops and the read bandwidth
	cargo bench --features bench

.PHONY: compare
compare: ## Against NumPy, PyTorch, TensorFlow and optax (a venv of 7 GB, 30 minutes), written to docs/benchmarks*.md
	python3 -m venv .venv-compare
	.venv-compare/bin/python -m pip install --quiet --upgrade pip
	MATURIN_PEP517_ARGS="--profile wheel" \
		.venv-compare/bin/python -m pip install --quiet --requirement benches/compare/requirements.txt .
	.venv-compare/bin/python benches/compare --output docs
	.venv-compare/bin/python benches/steps --libraries all --output docs
	.venv-compare/bin/python benches/beyond.py

.PHONY: ci
ci: ## The checks that every change has to pass, on a clean checkout
	.ci/run

.PHONY: nightly
nightly: ## The checks that take hours: all cases, aarch64, Miri, sanitizers, wheels, GPU kernels, a million random calls with a new seed
	.ci/nightly

.PHONY: accuracy
accuracy: develop ## Measured errors against the promised bounds, written to docs/accuracy.md
	python benches/accuracy.py --write

.PHONY: coverage
coverage: develop ## The lines of Python and of Rust that the tests run (half an hour)
	.ci/coverage

.PHONY: fuzz
fuzz: develop ## A million calls drawn at random, each checked against the contract (20 minutes on two CPUs)
	python tests/fuzz --cases 1000000 --jobs 2 --counts

.PHONY: clean
clean: ## Remove all build output
	rm -rf target dist $(VENV) .venv-compare python/gradclip/*.so
