/* mesh_parallel.h - what parallelisms ask beyond changing layouts. Part of mesh.h 0.1.0. MIT licence.

   The front door of this part. A parallelism itself is a table of layouts (mesh/local.h, `mesh zoo`, examples/train_gpt_table.h); this is the rest:
     mesh/buckets.h        gradients to where the optimizer wants them, weights to where they are used, while the program computes
     mesh/pipeline.h       schedules of stages as data: made, checked, timed, drawn; mesh/pipeline_run.h runs them
     mesh/attention.h      ring attention: keys and values travel
     mesh/experts.h        tokens to experts and back
     mesh/vocabulary.h     cross-entropy and embedding of a vocabulary in parts
     mesh/rows.h           what these do with rows, wherever their memory is
     mesh/norm.h           norms and clipping that count every element once; mesh/replicas.h: are replicas still the same?
     mesh/random.h         random numbers by global index

DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file
    #include "mesh_parallel.h"          brings mesh.h and mesh_collectives.h
    #include "transports/mesh_socket.h"

EXAMPLE
    mesh_random_normal(&weight, rank, 1234, 7, 0, 0.02, &err);        the same values in any layout, on any number of ranks
    ... gradients ...
    mesh_clip(&comm, gradients, n, 1.0, &norm);                       every element once, whatever lies where
    mesh_schedule_make(&s, "1f1b", 4, 8, 1, memory, nbytes, &err);    who does what in which order, as data
    mesh_pipeline_run(&comm, "pp", &s, &stage);                       stage.run computes, its messages are the library's
*/
#include "mesh_collectives.h"

#ifndef MESH_PARALLEL_H
#define MESH_PARALLEL_H
#endif /* MESH_PARALLEL_H */

#if !defined(MESH__ONE_ROOM)
#include "mesh/random.h"
#include "mesh/norm.h"
#include "mesh/replicas.h"
#include "mesh/buckets.h"
#include "mesh/vocabulary.h"
#include "mesh/attention.h"
#include "mesh/pipeline_run.h"
#include "mesh/experts.h"
#endif
