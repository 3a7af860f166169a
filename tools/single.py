#!/usr/bin/env python3
"""All headers as one file, for who wants one: tools/single.py OUT. Every room stands in it once, where it is first included, guards and all; so it can be
included for its declarations in many files, and with MESH_IMPLEMENTATION in one. MESH_WITH_NCCL brings the NCCL transport too."""
import os, re, sys

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
seen = set()


def text(path):
    path = os.path.normpath(path)
    if path in seen: return ""
    seen.add(path)
    lines = []
    for line in open(os.path.join(root, path)).read().split("\n"):
        m = re.match(r'#include "(.*)"', line)
        lines.append(text(os.path.join(os.path.dirname(path), m.group(1))) if m else line + "\n")
    return "".join(lines).rstrip("\n") + "\n"


made = "/* mesh.h in one file, made by `make single`. MIT licence (see LICENSE). */\n"
for door in ("mesh.h", "mesh_collectives.h", "mesh_parallel.h", "mesh_checkpoint.h", "transports/mesh_env.h", "transports/mesh_socket.h", "transports/mesh_sim.h"): made += "\n" + text(door)
made += "\n#ifdef MESH_WITH_NCCL\n" + text("transports/mesh_nccl.h") + "#endif\n"
open(sys.argv[1], "w").write(made)
