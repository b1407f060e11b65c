# `make run` and `make test` do everything on a fresh Debian 12: see README.md and docs/building.md.

JOBS ?= $(shell nproc)
# The model, the text and the question of `make run`.
MODEL ?= models/k3-nano
PROMPT ?= The capital of France is
QUESTION ?= What is the capital of Japan?
MAX_NEW ?= 40
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 5
# Seconds for the clients that come and go, in the sanitizer builds.
SOAK_SECONDS ?= 60

program := build/release/deltafin
ctest := ctest --output-on-failure --no-tests=error -j $(JOBS)
# The test of the reference model has nothing of the engine in it, and takes minutes where all is
# slow: once is enough.
engine_only := -LE reference
# Where threads meet; ThreadSanitizer has nothing to see elsewhere.
threaded := base_test io_test device_test store_test engine_test engine_spine_test scheduler_test \
            hub_test engine_stream_test engine_faults_test server_test
# What is kept back of freed memory counts as the program's own, which budgets of tests leave little
# room for.
asan_options := quarantine_size_mb=8
space := $(subst ,, )

# ccache helps where it is installed; nothing needs it.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
endif

.DEFAULT_GOAL := build
.PHONY: build run test check prove nightly lint format fuzz asan tsan aarch64 clients clean deps-run deps-test deps-check

deps-run deps-test deps-check: deps-%:
	@scripts/install-deps $*

# The program alone: no test library is needed for it.
build: deps-run
	@test -f build/release/build.ninja || cmake --preset release -DDELTAFIN_TESTS=OFF
	@cmake --build build/release --target deltafin -j $(JOBS)

run: build
	@$(program) run --model "$(MODEL)" --prompt "$(PROMPT)" --max-new $(MAX_NEW)
	@$(program) run --model "$(MODEL)" --chat --prompt "$(QUESTION)" --max-new $(MAX_NEW)
	@echo "This was $(MODEL). The full Kimi K3 (1.56 TB, or 114 GB and the rest as it is needed): $(program) setup"

test: deps-test
	@$(MAKE) --no-print-directory run
	cmake --preset release -DDELTAFIN_TESTS=ON
	cmake --build build/release -j $(JOBS)
	cd build/release && $(ctest)
	@$(MAKE) --no-print-directory fuzz

check: deps-check
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory clients
	@$(MAKE) --no-print-directory asan
	@$(MAKE) --no-print-directory tsan
	@$(MAKE) --no-print-directory aarch64
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=30
	@$(MAKE) --no-print-directory prove

# All 93 layers of the full Kimi K3 in 2 GiB of memory (docs/performance.md).
prove: deps-test build
	scripts/prove-2gib --program $(program)

# Ten times as many random kills and fault plans as in `make test`.
nightly: deps-test
	cmake --preset release -DDELTAFIN_TESTS=ON -DDELTAFIN_TIMEOUT_FACTOR=6
	cmake --build build/release -j $(JOBS)
	cd build/release && DELTAFIN_ROUNDS=1000 $(ctest) -R '^(hub_test|engine_stream_test|setup_cli_test)$$'

asan: deps-test
	cmake --preset $@
	cmake --build build/$@ -j $(JOBS)
	cd build/$@ && ASAN_OPTIONS=$(asan_options) SOAK_SECONDS=$(SOAK_SECONDS) $(ctest) $(engine_only)

tsan: deps-test
	cmake --preset $@
	cmake --build build/$@ -j $(JOBS) --target deltafin $(threaded)
	cd build/$@ && TSAN_OPTIONS="die_after_fork=0 suppressions=$(CURDIR)/cmake/tsan.supp" SOAK_SECONDS=$(SOAK_SECONDS) $(ctest) -R '^($(subst $(space),|,$(threaded) serve_soak_test))$$'

aarch64: deps-check
	scripts/aarch64-sysroot
	cmake --preset $@
	cmake --build build/$@ -j $(JOBS)
	cd build/$@ && $(ctest) $(engine_only)

# The server with the programs that people use with it. npm fetches them once, as
# package-lock.json pins them.
clients: deps-check build
	cd tests/clients && { cmp -s package-lock.json node_modules/installed || \
	  { npm ci --ignore-scripts --no-audit --no-fund && cp package-lock.json node_modules/installed; }; }
	node --test $(wildcard tests/page/*.test.mjs)
	cd tests/clients && node --test --test-concurrency=1 $(notdir $(wildcard tests/clients/*_test.mjs))

fuzz: deps-test
	cmake --preset fuzz
	cmake --build build/fuzz --target fuzzers -j $(JOBS)
	cd build/fuzz && FUZZ_SECONDS=$(FUZZ_SECONDS) $(ctest)

lint: deps-check
	cmake --preset $@
	scripts/lint $(JOBS)

format: deps-check
	git ls-files '*.cc' '*.h' | xargs clang-format-14 -i

clean:
	rm -rf build
