#!/usr/bin/env bash
# tests/analyze.sh: gcc's -fanalyzer over mesh.h and the rooms behind it as one unit, warnings as errors.
set -u
cd "$(dirname "$0")/.."
printf '#define MESH_IMPLEMENTATION\n#include "mesh.h"\n' | ${CC:-gcc} -std=c99 -O0 -fanalyzer -Werror -I. -x c -c - -o /dev/null
