/* The fuzz targets: functions of bytes that check laws. tests/fuzz/fuzz.c drives them by libFuzzer, tests/t_corpus.h replays what was kept. */
#ifndef FUZZ_TARGETS_H
#define FUZZ_TARGETS_H

#include <limits.h>
#include "../t_comm.h"
static int wrong_value(const char *command, const char *option, const char *takes, const char *value) {
    (void)takes;
    return wrong(command, option, value);
}
#include "../../tools/plan.h"
#include "bytes.h"
#include "fuzz_mesh.h"
#include "fuzz_text.h"
#include "fuzz_plan.h"
#include "fuzz_wire.h"
#include "fuzz_calls.h"

typedef struct fuzz_target {
    const char *name;
    void (*run)(const unsigned char *data, size_t n);
} fuzz_target;

static const fuzz_target fuzz_targets[] = {{"mesh", fuzz_mesh},
                                           {"spec", fuzz_spec},
                                           {"tuning", fuzz_tuning},
                                           {"topology", fuzz_topology},
                                           {"environment", fuzz_environment},
                                           {"trace", fuzz_trace},
                                           {"plan", fuzz_plan},
                                           {"frames", fuzz_frames},
                                           {"handshake", fuzz_handshake},
                                           {"calls", fuzz_calls}};
enum { FUZZ_TARGETS = sizeof fuzz_targets / sizeof fuzz_targets[0] };

#endif
