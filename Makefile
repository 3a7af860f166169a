# mesh.h: `make demo` trains a small GPT on eight ranks beside one process; `make test` runs the tests. Needs cc, make and a POSIX libc.
CC ?= cc
CFLAGS ?= -O2
config ?= release
prefix ?= /usr/local

WARN = -Wall -Wextra -Wshadow
ifeq ($(config),debug)
FLAGS = -g -O0
else ifeq ($(config),sanitize)
FLAGS = -g1 -Og -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
else ifeq ($(config),thread)
FLAGS = -g1 -Og -fsanitize=thread -DMESH_TEST_ONE_MAPPING
else ifeq ($(config),coverage)
FLAGS = -g -O0 --coverage
else ifeq ($(config),release)
FLAGS = $(CFLAGS)
else
$(error config=$(config): it is release, debug, sanitize, thread or coverage)
endif

# One goal and no -j: as many compilers at once as there are cores.
ifeq ($(MAKELEVEL)$(word 2,$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
endif

B = build$(if $(filter-out release,$(config)),-$(config))
HEADERS = $(wildcard *.h mesh/*.h transports/*.h transports/*/*.h)
GPU_EXAMPLES = gpu_hello gpu_redistribute
EXAMPLES = hello collectives poll_loop redistribute reshard_expert refit heat fft exercises checkpoint train_gpt $(GPU_EXAMPLES)
COMPILE = $(CC) -std=c99 $(WARN) $(FLAGS)
COMPILE_TEST = $(COMPILE) $(if $(filter -O2,$(FLAGS)),-O1) # -O2 takes longer to compile than it saves in their run

# The NCCL transport needs headers for types only: NVIDIA's where they are, else the stand-in's. Libraries are loaded at run time.
CUDA_HOME ?= /usr/local/cuda
NVCC_ARCH ?= sm_80 # and, from its PTX, any younger device
NVCC := $(shell command -v nvcc || command -v $(CUDA_HOME)/bin/nvcc)
TRAIN_CUDA = $(if $(and $(NVCC),$(wildcard $(CUDA_HOME)/include/nccl.h),$(wildcard $(CUDA_HOME)/include/cublas_v2.h)),$(B)/train_gpt_cuda)
FAKE = tests/fake_nccl
GPU_HEADERS = $(if $(wildcard $(CUDA_HOME)/include/nccl.h),-isystem $(CUDA_HOME)/include,-I$(FAKE)/include)

BENCHES = bench_mesh bench_native bench_plans bench_persistent bench_scale bench_redistribute bench_overlap bench_peers bench_kernels
# The command, in seconds. `make all` builds tests, benches and examples too.
default: $(B)/mesh
all: $(B)/mesh $(B)/test_mesh $(B)/test_nccl $(B)/bench_gpu $(BENCHES:%=$(B)/%) $(EXAMPLES:%=$(B)/%) $(TRAIN_CUDA)

$(B)/mesh: tools/mesh.c $(wildcard tools/*.h) tests/conformance.h $(wildcard tests/conformance/*.h) $(HEADERS) | $(B)
	$(COMPILE) $< -o $@

$(B)/test_mesh: $(wildcard tests/*.c tests/*.h tests/conformance/*.h) $(HEADERS) | $(B)
	$(COMPILE_TEST) tests/test_mesh.c -o $@ -lpthread

# The NCCL transport over a stand-in for libnccl and libcudart.
$(B)/fake/libnccl.so.2: $(wildcard $(FAKE)/*.* $(FAKE)/include/*) transports/kernels/mesh_nccl.cu $(HEADERS) | $(B)
	CC="$(CC)" sh $(FAKE)/build.sh $(B)/fake $(FLAGS)

$(B)/test_nccl: tests/test_nccl.c tools/share_gpu.h $(B)/fake/libnccl.so.2 $(wildcard tests/*.h tests/conformance/*.h) $(HEADERS) | $(B)
	$(COMPILE_TEST) -Wno-unused-function -I$(FAKE)/include $< -o $@ -L$(B)/fake -l:libcudart.so.13 '-Wl,-rpath,$$ORIGIN/fake' -ldl -lpthread

$(GPU_EXAMPLES:%=$(B)/%): $(B)/%: examples/%.c examples/ends.h $(HEADERS) | $(B)
	$(COMPILE) $(GPU_HEADERS) $< -o $@ -ldl -lpthread

$(B)/bench_peers: bench/bench_peers.c $(wildcard bench/peers*.h) bench/layouts.h bench/contender.h | $(B)
	$(CC) -std=gnu99 $(WARN) $(FLAGS) $< -o $@

$(B)/bench_%: bench/bench_%.c $(HEADERS) | $(B)
	$(COMPILE) $< -o $@

# -O3 for the kernels' loops; gcc's inlining and cloning of the rest takes a third of the compile time and makes nothing faster.
TRAIN = $(COMPILE) $(if $(filter -O2,$(FLAGS)),-O3 -march=native $(if $(findstring Free Software,$(shell $(CC) --version)),-fno-inline-functions -fno-ipa-cp-clone))
$(B)/train_gpt: examples/train_gpt.c examples/ends.h examples/ranks.h $(wildcard examples/train_gpt*.h) $(HEADERS) | $(B)
	$(TRAIN) $(abspath $<) -o $@ -lm -lpthread

# The same with --device cuda, where CUDA's toolkit is.
$(B)/train_gpt_cuda: examples/train_gpt.c $(B)/train_gpt_cu.o $(HEADERS) | $(B)
	$(TRAIN) -DTRAIN_GPT_CUDA $(GPU_HEADERS) $(abspath $<) $(B)/train_gpt_cu.o -o $@ -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 \
		-lcublas -lcudart -lstdc++ -ldl -lpthread -lm

$(B)/train_gpt_cu.o: examples/train_gpt.cu examples/train_gpt_cuda.h | $(B)
	$(NVCC) -O2 -arch=$(NVCC_ARCH) -c $< -o $@

$(B)/fft: examples/fft.c examples/ends.h examples/ranks.h $(HEADERS) | $(B)
	$(COMPILE) $< -o $@ -lm

# A save writes on a thread.
$(B)/checkpoint: examples/checkpoint.c examples/ends.h $(HEADERS) | $(B)
	$(COMPILE) $< -o $@ -lpthread

$(B)/%: examples/%.c examples/ends.h examples/ranks.h $(HEADERS) | $(B)
	$(COMPILE) $< -o $@

$(B):
	mkdir -p $@

# One process, then eight as a mesh: the same losses, side by side.
demo: $(B)/mesh $(B)/train_gpt
	$(B)/mesh draw "dp=4,tp=2"
	@echo
	$(B)/train_gpt --log $(B)/one.csv
	@echo
	$(B)/mesh run -n 8 --idle-timeout 60 -- $(B)/train_gpt --mesh dp=4,tp=2 --against $(B)/one.csv

TESTS = $(B)/test_mesh
ifeq ($(shell uname),Linux) # the stand-in needs it
TESTS += $(B)/test_nccl
$(B)/test_nccl: | $(B)/mesh $(GPU_EXAMPLES:%=$(B)/%)
endif
# The tests, the NCCL transport's over its stand-in, then the command and the examples as a user meets them.
test: $(TESTS) $(B)/mesh $(EXAMPLES:%=$(B)/%)
	@BUILD=$(B) tests/all.sh $(TESTS) tests/tools.sh

# Slips put into the headers one at a time: do the tests notice? MUTANTS="plan/ --named" for some; tests/mutants/run.py --help.
mutants:
	python3 tests/mutants/run.py $(MUTANTS)

# Beside bare MPI: mesh_all_reduce and MPI_Iallreduce with MPI_Wait; mesh_redistribute and MPI_Alltoallw. Two ranks of each MPI that is here; four for matrices.
bench-mpi:
	for mpi in openmpi mpich; do command -v mpicc.$$mpi >/dev/null || continue; echo "$$mpi"; \
		mpicc.$$mpi -O3 -march=native -I. bench/bench_mpi.c -o $(B)/bench_mpi_$$mpi || exit 1; \
		if [ $$mpi = openmpi ]; then start="mpirun.openmpi --allow-run-as-root --oversubscribe"; else start=mpiexec.mpich; fi; \
		$$start -n 2 $(B)/bench_mpi_$$mpi && $$start -n 4 $(B)/bench_mpi_$$mpi 9 matrices || exit 1; done

# The MPI transport, and programs over it, on the MPIs that are here, 2, 4 and 8 ranks of each, or RANKS="2 mpich:3" (Debian: apt install openmpi-bin
# libopenmpi-dev mpich libmpich-dev).
test-mpi: $(B)/mesh $(B)/train_gpt
	BUILD=$(B) CC="$(CC)" RANKS="$(RANKS)" tests/mpi.sh

GPUS ?= $(shell nvidia-smi -L 2>/dev/null | grep -c .)

# On one GPU, without a network, in slices of minutes; the text goes to docs/gpu-runs/. ONE_GPU="tests-1 examples" for some.
one-gpu:
	bash docs/gpu-runs/one-gpu.sh $(or $(ONE_GPU),all)

# On the GPUs of this machine, with NVIDIA's libraries; ranks beyond their number share them. The output goes to docs/gpu-runs/.
test-gpu: $(B)/test_gpu $(B)/mesh $(TRAIN_CUDA)
	$(B)/test_gpu
ifneq ($(TRAIN_CUDA),)
	$(B)/train_gpt_cuda --steps 20 --log $(B)/gpu.csv
	$(B)/mesh run -n $(GPUS) -- $(B)/train_gpt_cuda --device cuda --mesh dp=-1 --steps 20 --against $(B)/gpu.csv
endif

$(B)/test_gpu: tests/test_nccl.c tools/share_gpu.h $(wildcard tests/*.h tests/conformance/*.h) $(HEADERS) | $(B)
	$(COMPILE) -Wno-unused-function -DMESH_TEST_GPU $(GPU_HEADERS) $< -o $@ -L$(CUDA_HOME)/lib64 -lcudart '-Wl,-rpath,$(CUDA_HOME)/lib64' -ldl -lpthread

# Beside raw NCCL calls, which run in processes of their own, and rows copied by kernels beside 2-D copies. GPUS: ranks; BENCH="--max 64M"
# for less. One rank, and ranks that share a GPU, are no measure of NCCL: it refuses. GPUS=2 BENCH=--shared checks the results there.
bench-gpu: $(B)/mesh $(B)/bench_gpu
	@[ "$(GPUS)" -gt 0 ] || { echo "bench-gpu: nvidia-smi lists no GPU; GPUS=2 and the stand-in's MESH_NCCL_LIBRARY run it without"; exit 1; }
	$(B)/mesh run $(if $(findstring --shared,$(BENCH)),--share-gpu) -n $(GPUS) -- $(B)/bench_gpu $(BENCH)

$(B)/bench_gpu: bench/bench_gpu.c $(HEADERS) | $(B)
	$(COMPILE) $(GPU_HEADERS) $< -o $@ -ldl -lpthread

check:
	bash .ci/run --all

# Figures, beside what MPI and Gloo do where they are installed. bench-peers takes three to five hours, in pieces if need be:
# BENCH="--ops all_reduce --ranks 2" is one, and what it measures takes its place in bench/peers.csv.
bench: # one after the other, whatever -j says
	for b in quick plans scale redistribute peers; do $(MAKE) bench-$$b || exit 1; done

bench-quick: $(B)/bench_mesh $(B)/bench_native $(B)/bench_persistent $(B)/mesh
	$(B)/bench_mesh
	$(B)/bench_native
	$(B)/mesh run --bare -n 2 -- $(B)/bench_persistent

bench-plans: $(B)/bench_plans
	$(B)/bench_plans

bench-scale: $(B)/mesh $(B)/bench_scale
	$(B)/bench_scale

bench-redistribute: $(B)/mesh $(B)/bench_redistribute
	$(B)/bench_redistribute

# Reductions of n inputs on one core, in cache and out: GB/s, a minute. BENCH: bytes of an array.
bench-kernels: $(B)/bench_kernels
	$(B)/bench_kernels $(BENCH)

bench-peers: $(B)/mesh $(B)/bench_peers
	$(B)/bench_peers $(BENCH)

# Levels beside flat algorithms on hosts that are network namespaces (root): bench/HOSTS.md.
bench-hosts: $(B)/mesh
	rm -f bench/hosts.csv
	for rate in 1gbit 10gbit; do bench/hosts.sh 2 4 $$rate; bench/hosts.sh 4 2 $$rate; done
	python3 bench/hosts.py

# Gradients in buckets beside computing, over a link of 1 Gbit/s between two hosts that are network namespaces (root): bench/OVERLAP.md.
bench-overlap: $(B)/bench_overlap
	bench/overlap.sh

VERSION = $(shell sed -n 's/.*define MESH_VERSION "\(.*\)".*/\1/p' mesh/base.h)
INCLUDE = $(DESTDIR)$(prefix)/include
CMAKE = $(DESTDIR)$(prefix)/lib/cmake/mesh.h
PKGCONFIG = $(DESTDIR)$(prefix)/lib/pkgconfig
install:
	mkdir -p $(CMAKE) $(PKGCONFIG) $(DESTDIR)$(prefix)/bin $(addprefix $(INCLUDE)/,$(sort $(dir $(HEADERS))))
	for h in $(HEADERS); do cp $$h $(INCLUDE)/$$h; done
	printf 'prefix=%s\nName: mesh.h\nDescription: meshes of processes and GPUs, header-only\nVersion: %s\nCflags: -I$${prefix}/include\nLibs: -lpthread\n' \
		'$(prefix)' '$(VERSION)' >$(PKGCONFIG)/mesh.h.pc
	printf 'if(NOT TARGET mesh.h)\n  find_package(Threads REQUIRED)\n  add_library(mesh.h INTERFACE IMPORTED)\n  set_target_properties(mesh.h PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "$${CMAKE_CURRENT_LIST_DIR}/../../../include" INTERFACE_LINK_LIBRARIES Threads::Threads)\nendif()\n' \
		>$(CMAKE)/mesh.h-config.cmake
	printf 'set(PACKAGE_VERSION "%s")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\nif(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)\n  set(PACKAGE_VERSION_COMPATIBLE FALSE)\nendif()\nif(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)\n  set(PACKAGE_VERSION_EXACT TRUE)\nendif()\n' \
		'$(VERSION)' >$(CMAKE)/mesh.h-config-version.cmake
	$(MAKE) build/mesh config=release
	cp build/mesh $(DESTDIR)$(prefix)/bin/

uninstall:
	rm -f $(addprefix $(INCLUDE)/,$(HEADERS))
	-printf '%s\n' $(addprefix $(INCLUDE)/,$(filter-out ./,$(sort $(dir $(HEADERS))))) | sort -r | xargs rmdir
	rm -f $(PKGCONFIG)/mesh.h.pc $(CMAKE)/mesh.h-config.cmake $(CMAKE)/mesh.h-config-version.cmake $(DESTDIR)$(prefix)/bin/mesh
	-rmdir $(CMAKE)

clean:
	rm -rf build build-*

# Faults in every operation on every backend: TRIALS of them from SEED, as a table. What fails prints the line that repeats it.
TRIALS ?= 1000
SEED ?= 1
FAULTS_TABLE ?= docs/faults.md
faults: $(B)/faults
	$(B)/faults --trials $(TRIALS) --seed $(SEED) --jobs 2 --table $(FAULTS_TABLE) --csv $(B)/faults.csv

$(B)/faults: $(wildcard tests/*.c tests/*.h tests/conformance/*.h) $(HEADERS) | $(B)
	$(COMPILE) -Wno-unused-function tests/faults.c -o $@ -lpthread

# Jobs over hosts in network namespaces (root): cables, slow and lossy links, delay. See tests/hosts.sh.
hosts: $(B)/hosts_rank $(B)/relay $(B)/mesh
	bash tests/hosts_checks.sh

$(B)/hosts_rank $(B)/relay: $(B)/%: tests/%.c $(HEADERS) | $(B)
	$(COMPILE) $< -o $@

# Fuzzing (clang): FUZZ_SECONDS for each target of FUZZ ("" is all), what is new is kept in tests/corpus. FUZZ_SECONDS=3600 is a night.
FUZZ_SECONDS ?= 60
fuzz:
	bash tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ)
# As CI does: from the kept corpora, keeping nothing.
fuzz-check:
	bash tests/fuzz/run.sh --check $(or $(FUZZ_CHECK),3) $(FUZZ)

# valgrind's memcheck over the tests, but for those that it makes too slow; VALGRIND="part of a name" for some.
valgrind:
	bash tests/valgrind.sh $(VALGRIND)

# All headers as one file.
single: $(B)/mesh_single.h
$(B)/mesh_single.h: tools/single.py $(HEADERS) | $(B)
	python3 tools/single.py $@

# gcc's -fanalyzer over mesh.h and the rooms behind it (a minute; of the engine it finds no end).
analyze:
	bash tests/analyze.sh

.PHONY: default all uninstall demo test test-mpi bench-mpi mutants faults hosts fuzz fuzz-check valgrind analyze single one-gpu test-gpu bench-gpu check bench bench-quick bench-plans \
	bench-scale bench-redistribute bench-peers bench-kernels bench-hosts bench-overlap install clean
