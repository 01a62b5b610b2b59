# The front door. `make demo` shows what Hanare does, `make test` checks it; neither needs anything typed before.
#
#   make demo          sort 640 MB of text with 1200 MB of buffer in 256 MB of local memory, against plain sort
#   make test          every test; the last line counts them
#   make check         format, lints, licences
#   make test-programs  real programs in every trap mode, compared with themselves; installs them  (tests/programs; hours)
#   make torture       MINUTES (60) of checking programs with random settings and disturbances from SEED (1)  (tests/torture)
#   make torture-servers  MINUTES of kills, stops, cut and corrupt links to SERVERS (4) from SEED, with REDUNDANCY (mirror)
#   make worlds        the engine over a view and a store that fail, and redundant pages over servers that are lost, each
#                      by ten thousand seeds
#   make fuzz          MINUTES (10) of coverage-guided fuzzing for each decoder of outside bytes  (scripts/fuzz; wants c++)
#   make models        every interleaving of the lock-free parts, within a bound of preemptions  (models)
#   make sanitize      tests under the address sanitizer, and those of locks under the thread sanitizer
#   make bench         the pager against this machine's floors      (benches/run.sh; wants a machine at rest)
#   make bench-swap    the pager against kernel swap to zram         (benches/swap.sh; wants root)
#   make bench-policies  replacement policies on small workloads   (benches/policies.sh)
#   make bench-prefetch  loading several pages at a time           (benches/prepaging.sh)
#   make bench-bits    what pseudo reference bits cost              (benches/bits.sh)
#   make bench-heap    allocating and freeing far blocks against malloc  (benches/heap.sh)
#   make bench-programs  the scoreboard: real programs against themselves and kernel swap  (benches/programs.py; hours)
#   make bench-fit     what `hanare fit` predicts against what is measured  (benches/fit.py)
#   make bench-servers a greedy client among others                (benches/servers.sh)
#   make bench-redundancy  checked, sealed and copied pages against plain ones  (benches/redundancy.sh)
#   make bench-shared  shared memory: faults, barriers, LAPLACE against MPI, LU against threads  (benches/shared.sh)
#   make bench-cluster  how the cluster simulation grows with the machine  (benches/cluster.sh)
#   make reproduce     the tables, figures and claims of the papers; REPRODUCE_FLAGS="--full --out DIR"  (crates/reproduce)
#   make results       the benchmarks whose figures SPECIFICATION.md has, into it  (benches/results.sh; an hour at rest)
#   make workloads     the C programs the tests run                  (target/workloads)
#   make shared-workloads  those on shared memory: laplace, lu, matmul, ...
#   make wheel         the Python package, into target/wheels       (python)
#   make site          the documents as a site, into target/site   (scripts/site; wants mdbook)
#   make install       PREFIX (/usr/local), LIBDIR, INCLUDEDIR, DOCDIR, MANDIR and DESTDIR say where
#   make install-service  hanare-server.service, which lends this machine's memory, and /etc/default/hanare-server
#   make install-rule  the udev rule that opens /dev/userfaultfd to the group hanare
#   make uninstall     removes what the three with the same variables have installed
#   make deb           Debian packages, into target/debian
#   make release       archive, packages, bill of materials, checksums, into target/release-VERSION  (scripts/release)
#   make clean
#
# CARGO_TARGET_DIR moves everything that is built. PROFILE (release) is what is built, measured and installed. TEST_PROFILE
# (dev) is what is tested: with overflow checks and assertions, and built in a third of the time.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DELETE_ON_ERROR:

CARGO ?= cargo
PROFILE ?= release
TEST_PROFILE ?= dev
TARGET := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DOCDIR ?= $(PREFIX)/share/doc/hanare
MANDIR ?= $(PREFIX)/share/man
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
UNITDIR ?= $(PREFIX)/lib/systemd/system
UDEVDIR ?= $(PREFIX)/lib/udev/rules.d
# What is installed below DOCDIR, as it lies here. Links between these files go on to work.
DOCUMENTS := $(wildcard README.md CHANGELOG.md ARCHITECTURE.md SPECIFICATION.md SECURITY.md LICENSE-* docs/*.md docs/*/*.md \
    examples/*.c include/*.h python/examples/*.py packaging/grafana/*.json)
DEFAULTS := /etc/default/hanare-server
# Where the shells look for completions of installed commands.
COMPLETIONS := bash:$(PREFIX)/share/bash-completion/completions/hanare zsh:$(ZSHDIR)/_hanare \
    fish:$(PREFIX)/share/fish/vendor_completions.d/hanare.fish

# An absolute path, because recipes below build in other folders.
OUT := $(abspath $(TARGET))/workloads
PYTHON := $(TARGET)/venv/bin/python

all: build

build:
	@scripts/need cargo cc
	$(CARGO) build --profile $(PROFILE) -p hanare -p hanare-preload -p hanare-dsm-library -p hanare-cli

demo: build
	@$(MAKE) --no-print-directory -s -C workloads OUT=$(OUT) $(OUT)/gentext
	@scripts/demo $(BIN)/hanare $(OUT)/gentext $(TARGET)/demo

# The tests of the command, the preload library and the whole build what they need of the same profile beside themselves.
test: python
	@$(MAKE) --no-print-directory PROFILE=$(TEST_PROFILE) workloads
	@scripts/need cargo sort xz sqlite3 pkg-config timeout
	@scripts/need redis-server redis-benchmark stress-ng memtester mpirun srun shellcheck || echo "the tests that want them are skipped"
	HANARE_TEST_PYTHON=$(abspath $(PYTHON)) \
	    $(CARGO) test --profile $(TEST_PROFILE) --workspace --no-fail-fast -- --show-output 2>&1 | scripts/count-tests

# PROGRAMS_FLAGS: `--only sort,xz --modes thread --quick`; tests/programs/run.py --help has all of them.
test-programs: build
	@scripts/need python3 cc c++
	tests/programs/run.py --hanare $(BIN)/hanare --work $(TARGET)/programs $(PROGRAMS_FLAGS)

# PROFILE=dev TORTURE_FLAGS=--refuse has system calls refused, too.
MINUTES ?= 60
SEED ?= 1
torture: shared-workloads
	@scripts/need python3 cc c++
	@$(MAKE) --no-print-directory PROFILE=$(PROFILE) workloads
	tests/torture/torture.py --minutes $(MINUTES) --seed $(SEED) --hanare $(BIN)/hanare --workloads $(OUT) \
	    --work $(TARGET)/torture $(TORTURE_FLAGS)

# SERVERS_FLAGS="--size 1G --local 128M" is passed on.
SERVERS ?= 4
REDUNDANCY ?= mirror
torture-servers: build
	$(BIN)/hanare torture --minutes $(MINUTES) --seed $(SEED) --servers $(SERVERS) --redundancy $(REDUNDANCY) $(SERVERS_FLAGS)

# HANARE_SEED=n runs one seed.
worlds:
	@scripts/need cargo cc
	$(CARGO) test --profile $(TEST_PROFILE) -p hanare --lib -- --ignored engine::world
	HANARE_TEST_SEEDS=10000 HANARE_TEST_STEPS=10000 $(CARGO) test --release -p hanare-store --lib -- redundant::machine::world

# New inputs and failures stay in $(TARGET)/fuzz; FUZZ_FLAGS="ranks diffs" leaves the other targets out.
fuzz: MINUTES = 10
fuzz:
	@scripts/need cargo cc c++
	@scripts/fuzz $(MINUTES) $(TARGET)/fuzz $(FUZZ_FLAGS)

# LOOM_MAX_PREEMPTIONS (3) bounds the interleavings. MODELS_FLAGS is a part of a model's path: `make models MODELS_FLAGS=rings`.
models:
	@scripts/need cargo cc
	$(CARGO) test --locked --manifest-path models/Cargo.toml --target-dir $(TARGET)/models -- $(MODELS_FLAGS)

# The toolchain's own sanitizers. The standard library comes without them: the thread sanitizer sees no races within it, and
# would name some that its channels rule out (scripts/tsan.supp). Left out is a test of mlock, which sanitizers make
# nothing of.
HOST := $(shell uname -m)-unknown-linux-gnu
SANITIZED = RUSTC_BOOTSTRAP=1 $(CARGO) test --target $(HOST) --target-dir $(TARGET)/sanitize/$(1)
SANITIZER = -Zsanitizer=$(1) --cfg hanare_sanitize
has_sanitizer = ls "$$(rustc --print sysroot)"/lib/rustlib/$(HOST)/lib/librustc-*_rt.$(1).a >/dev/null 2>&1

sanitize:
	@scripts/need cargo cc
	@$(call has_sanitizer,asan) || { echo "this toolchain has no address sanitizer: nothing is done"; exit 1; }
	ASAN_OPTIONS=handle_segv=0:handle_sigbus=0 RUSTFLAGS="$(call SANITIZER,address)" $(call SANITIZED,address) --no-fail-fast \
	    -p hanare-paging -p hanare-wire -p hanare-server -p hanare-sys -- \
	    --skip a_locked_page_is_reported_and_passed_over
	@if $(call has_sanitizer,tsan); then $(MAKE) --no-print-directory sanitize-threads; \
	    else echo "this toolchain has no thread sanitizer: that part is left out"; fi

sanitize-threads: export TSAN_OPTIONS = suppressions=$(abspath scripts/tsan.supp)
sanitize-threads: export RUSTFLAGS = $(call SANITIZER,thread) -Cunsafe-allow-abi-mismatch=sanitizer
sanitize-threads:
	$(call SANITIZED,thread) -p hanare-sys --test futex
	$(call SANITIZED,thread) -p hanare --lib -- gate:: tree::
	$(call SANITIZED,thread) -p hanare-store --lib -- places::

# Advisories are left out: their database is on GitHub, which a machine that builds from a registry mirror may not reach.
check:
	@scripts/need cargo cargo-fmt cargo-clippy cargo-deny
	$(CARGO) fmt --all --check
	cd fuzz/coverage && $(CARGO) fmt --check
	cd models && $(CARGO) fmt --check
	cd python && $(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked --manifest-path python/Cargo.toml --target-dir $(TARGET)/python -- -D warnings
	$(CARGO) deny --log-level warn check licenses bans sources
	$(CARGO) deny --log-level warn --manifest-path fuzz/coverage/Cargo.toml --config deny.toml check -A unmatched-skip licenses bans sources
	$(CARGO) deny --log-level warn --manifest-path models/Cargo.toml --config deny.toml check -A unmatched-skip licenses bans sources
	$(CARGO) deny --log-level warn --manifest-path python/Cargo.toml --config deny.toml check -A unmatched-skip licenses bans sources

bench: build
	benches/run.sh

bench-swap: build
	benches/swap.sh

bench-policies: build
	@scripts/need cc python3
	benches/policies.sh

bench-prefetch: build
	@scripts/need cc
	benches/prepaging.sh

bench-bits: build
	@scripts/need cc
	benches/bits.sh

bench-heap: build
	@scripts/need cc
	benches/heap.sh

# PROGRAMS_FLAGS: `--only dict,is --percent 50 --runs 1 --peers none`; benches/programs.py --help has all of them.
bench-programs: build
	@scripts/need python3 cc
	benches/programs.py --hanare $(BIN)/hanare --target $(TARGET) $(PROGRAMS_FLAGS)

# FIT_FLAGS: `--only is,mg --runs 1`; benches/fit.py --help has all of them.
bench-fit: build
	@scripts/need python3 cc
	benches/fit.py --hanare $(BIN)/hanare --target $(TARGET) $(FIT_FLAGS)

bench-servers: build
	benches/servers.sh

bench-redundancy: build
	benches/redundancy.sh

bench-shared: shared-workloads
	@scripts/need cc
	benches/shared.sh

reproduce: shared-workloads
	@scripts/need awk cc mktemp seq sh
	@$(MAKE) --no-print-directory PROFILE=$(PROFILE) workloads
	$(BIN)/hanare reproduce --workloads $(OUT) --out $(TARGET)/reproduced $(REPRODUCE_FLAGS)

bench-cluster: build
	@scripts/need python3
	benches/cluster.sh

# RESULTS_FLAGS="run heap" leaves the other benchmarks, and their figures, as they are.
results: build shared-workloads
	@scripts/need cc python3
	benches/results.sh $(RESULTS_FLAGS)

# Two of them call the library, and are linked with it where it is built.
workloads:
	@scripts/need cargo cc c++
	$(CARGO) build --quiet --profile $(PROFILE) -p hanare
	@$(MAKE) --no-print-directory -s -C workloads OUT=$(OUT) HANARE_LIBDIR=$(abspath $(BIN))

# Those on shared memory want its library first.
shared-workloads: build
	@$(MAKE) --no-print-directory -s -C workloads shared OUT=$(OUT) HANARE_LIBDIR=$(abspath $(BIN))

# The Python packages that tests run, in a place of their own, and those that make and check our own package. Where they
# cannot be had, the tests that want them skip themselves and say so.
python:
	@scripts/need python3
	@$(PYTHON) -c 'import numpy, duckdb, sklearn, Bio, prometheus_client' 2>/dev/null || { \
	    python3 -m venv $(TARGET)/venv && $(PYTHON) -m pip install --quiet --disable-pip-version-check \
	        numpy duckdb scikit-learn biopython prometheus-client; \
	} || echo "numpy, duckdb, scikit-learn, biopython or prometheus-client cannot be installed: the tests that want them are skipped"
	@$(PYTHON) -c 'import maturin, pytest, mypy, pandas' 2>/dev/null || \
	    $(PYTHON) -m pip install --quiet --disable-pip-version-check maturin pytest mypy pandas || \
	    echo "maturin, pytest, mypy or pandas cannot be installed: the tests that want them are skipped"

# The library is built a second time: that of the wheel can be loaded into a process that runs already, as the last line
# checks. `make test` does not, because it runs with the ordinary library.
wheel:
	@scripts/need cargo cc clang python3
	@$(PYTHON) -c 'import maturin, numpy' 2>/dev/null || { \
	    echo 'installing maturin and numpy into $(TARGET)/venv'; python3 -m venv $(TARGET)/venv && \
	    $(PYTHON) -m pip install --quiet --disable-pip-version-check maturin numpy; }
	$(CARGO) build --release -p hanare -p hanare-preload -p hanare-cli
	library=$$(scripts/wheel-library release $(TARGET)/wheels/build/library); \
	    wheel=$$(scripts/wheel $(TARGET)/release "$$library" release $(TARGET)/wheels $(abspath $(PYTHON))); \
	    $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-index --upgrade \
	        --target $(TARGET)/wheels/build/site "$$wheel"; \
	    PYTHONPATH=$(TARGET)/wheels/build/site $(PYTHON) -c 'import hanare; assert hanare.is_far(hanare.zeros(9))'; \
	    echo "$$wheel"

site:
	@scripts/need cargo python3 mdbook
	scripts/site $(TARGET)/site

# The preload library is nothing to link with: it lies where the command looks for it, whatever LIBDIR is.
install: build
	install -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(PREFIX)/lib/hanare $(LIBDIR) $(PKGCONFIGDIR) $(INCLUDEDIR))
	install -s -m 755 $(BIN)/hanare $(DESTDIR)$(PREFIX)/bin/
	install -s -m 755 $(BIN)/libhanare_preload.so $(DESTDIR)$(PREFIX)/lib/hanare/
	install -s -m 755 $(BIN)/libhanare.so $(BIN)/libhanare_dsm.so $(DESTDIR)$(LIBDIR)/
	install -m 644 include/*.h $(DESTDIR)$(INCLUDEDIR)/
	for name in hanare hanare-dsm; do \
	    sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	        -e 's|@VERSION@|$(VERSION)|' packaging/$$name.pc.in > $(DESTDIR)$(PKGCONFIGDIR)/$$name.pc; done
	for file in $(DOCUMENTS); do install -D -m 644 $$file $(DESTDIR)$(DOCDIR)/$$file; done
	scripts/live-links $(DESTDIR)$(DOCDIR)
	$(BIN)/hanare manual $(DESTDIR)$(MANDIR)/man1
	for each in $(COMPLETIONS); do file="$(DESTDIR)$${each#*:}"; \
	    install -d "$${file%/*}"; $(BIN)/hanare completions "$${each%%:*}" > "$$file"; done

# The options that a user has set there stay.
install-service:
	install -d $(addprefix $(DESTDIR),$(UNITDIR) $(dir $(DEFAULTS)))
	sed -e 's|@PREFIX@|$(PREFIX)|' packaging/hanare-server.service.in > $(DESTDIR)$(UNITDIR)/hanare-server.service
	[ -e $(DESTDIR)$(DEFAULTS) ] || install -m 644 packaging/hanare-server.default $(DESTDIR)$(DEFAULTS)

install-rule:
	install -D -m 644 packaging/70-hanare.rules $(DESTDIR)$(UDEVDIR)/70-hanare.rules

# Debian's own paths: the libraries have no versions, so they are in a folder of their own.
DEBDIR ?= $(TARGET)/debian
STAGE = $(DEBDIR)/stage
DEBIAN_PATHS = PREFIX=/usr LIBDIR=/usr/lib/hanare ZSHDIR=/usr/share/zsh/vendor-completions \
    PKGCONFIGDIR=/usr/lib/$$(dpkg-architecture -qDEB_HOST_MULTIARCH)/pkgconfig
deb:
	@scripts/need cargo cc python3 dpkg-deb dpkg-shlibdeps
	rm -rf $(DEBDIR)
	umask 022; $(MAKE) --no-print-directory install install-rule DESTDIR=$(STAGE)/hanare $(DEBIAN_PATHS)
	umask 022; scripts/dependencies licences > $(STAGE)/hanare/usr/share/doc/hanare/THIRD-PARTY
	umask 022; $(MAKE) --no-print-directory install-service DESTDIR=$(STAGE)/hanare-server $(DEBIAN_PATHS)
	scripts/packages $(STAGE) $(DEBDIR) $(VERSION)

release:
	@PROFILE=$(PROFILE) scripts/release

# Removes what `make install`, `make install-service` and `make install-rule` with the same variables have installed.
# Options that a user has set stay.
uninstall:
	if [ -e $(DESTDIR)$(UNITDIR)/hanare-server.service ] && \
	    cmp -s packaging/hanare-server.default $(DESTDIR)$(DEFAULTS); then rm -f $(DESTDIR)$(DEFAULTS); fi
	rm -f $(addprefix $(DESTDIR),$(UNITDIR)/hanare-server.service $(UDEVDIR)/70-hanare.rules)
	rm -f $(addprefix $(DESTDIR),$(PREFIX)/bin/hanare $(PREFIX)/lib/hanare/libhanare_preload.so \
	    $(LIBDIR)/libhanare.so $(LIBDIR)/libhanare_dsm.so $(INCLUDEDIR)/dlmm.h $(INCLUDEDIR)/dsm.h \
	    $(PKGCONFIGDIR)/hanare.pc $(PKGCONFIGDIR)/hanare-dsm.pc)
	rm -f $(addprefix $(DESTDIR)$(DOCDIR)/,$(DOCUMENTS))
	if [ -d $(DESTDIR)$(DOCDIR) ]; then find $(DESTDIR)$(DOCDIR) -depth -type d -empty -delete; fi
	rm -f $(DESTDIR)$(MANDIR)/man1/hanare.1 $(DESTDIR)$(MANDIR)/man1/hanare-*.1
	for each in $(COMPLETIONS); do rm -f "$(DESTDIR)$${each#*:}"; done
	for folder in $(PREFIX)/lib/hanare $(PKGCONFIGDIR); do \
	    if [ -d $(DESTDIR)$$folder ]; then rmdir --ignore-fail-on-non-empty $(DESTDIR)$$folder; fi; done

clean:
	$(CARGO) clean
	rm -rf $(TARGET)/workloads $(TARGET)/venv $(TARGET)/demo $(TARGET)/debian $(TARGET)/wheels $(TARGET)/python $(TARGET)/site $(TARGET)/site-source \
	    $(TARGET)/pages

.PHONY: all build demo test test-programs torture torture-servers worlds fuzz models check sanitize sanitize-threads bench bench-swap bench-policies bench-prefetch bench-bits bench-heap bench-programs bench-fit \
    bench-servers bench-redundancy bench-shared bench-cluster reproduce results workloads shared-workloads python wheel site install \
    install-service install-rule deb release uninstall clean
