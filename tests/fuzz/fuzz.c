/* The driver of the fuzz targets: the name it is called by says which (fuzz_mesh, fuzz_calls, ...). `make fuzz` builds and runs it.
   fuzz_mesh --unpack FILE DIR writes a corpus out as files, --pack DIR FILE the other way. */
#define MESH_IMPLEMENTATION
#include "../../mesh.h"
#include "../../mesh_collectives.h"
#include "../../transports/mesh_sim.h"
#include "../../transports/mesh_socket.h"
#include "../harness.h"
#include "../t_mesh.h"
#include "../t_spec.h"
#include "../t_plan.h"
#include "targets.h"
#include "../t_corpus.h"

static const fuzz_target *fuzz_chosen;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
const char *__asan_default_options(void);
void __sanitizer_set_report_fd(void *fd);

const char *__asan_default_options(void) { return "allocator_may_return_null=1:detect_stack_use_after_return=0"; }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = strrchr((*argv)[0], '/'), *target;
    int i;
    name = name ? name + 1 : (*argv)[0];
    target = strncmp(name, "fuzz_", 5) ? name : name + 5;
    if (*argc == 4 && !strcmp((*argv)[1], "--unpack")) exit(corpus_unpack((*argv)[2], (*argv)[3]));
    if (*argc == 4 && !strcmp((*argv)[1], "--pack")) exit(corpus_pack((*argv)[2], (*argv)[3]));
    for (i = 0; i < FUZZ_TARGETS; i++)
        if (!strcmp(fuzz_targets[i].name, target)) fuzz_chosen = &fuzz_targets[i];
    __sanitizer_set_report_fd((void *)(intptr_t)dup(2)); /* a target may turn stderr away for a while */
    if (fuzz_chosen) return 0;
    fprintf(stderr, "%s: call it fuzz_TARGET, of these:", name);
    for (i = 0; i < FUZZ_TARGETS; i++) fprintf(stderr, " %s", fuzz_targets[i].name);
    fputs("\n", stderr);
    exit(2);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    fuzz_chosen->run(data, n);
    if (test_failures) abort();
    return 0;
}
