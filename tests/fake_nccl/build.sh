#!/bin/sh
# build.sh OUT [extra CFLAGS...]: builds libcudart.so.13, libnccl.so.2 and fake_nccl_selftest into OUT.
# CC chooses the compiler. Where NVIDIA's headers are, it also checks that include/ agrees with them.
set -e
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
mkdir -p "$out"
cc="${CC:-cc} -std=gnu11 -O2 -g -Wall -Wextra $* -I$here/include"
$cc -fPIC -shared -Wl,-soname,libcudart.so.13,-z,nodelete "$here/fake_cudart.c" -o "$out/libcudart.so.13" -lpthread
$cc -fPIC -shared -Wl,-soname,libnccl.so.2,-z,nodelete "$here/fake_nccl.c" -o "$out/libnccl.so.2" \
    -L"$out" -l:libcudart.so.13 -Wl,-rpath,'$ORIGIN',--disable-new-dtags -lpthread
$cc "$here/selftest.c" -o "$out/fake_nccl_selftest" -L"$out" -l:libnccl.so.2 -l:libcudart.so.13 \
    -Wl,-rpath,'$ORIGIN',--disable-new-dtags -lpthread
cuda=${CUDA_HOME:-/usr/local/cuda}/include
if [ -f "$cuda/nccl.h" ]; then
    ${CC:-cc} -std=gnu11 -Wall -Wextra -isystem "$cuda" -DFAKE_PROTOTYPES_ONLY "$here/check_headers.c" -o "$out/headers_real"
    ${CC:-cc} -std=gnu11 -Wall -Wextra -I"$here/include" "$here/check_headers.c" -o "$out/headers_fake"
    "$out/headers_real" >"$out/headers_real.txt"
    "$out/headers_fake" >"$out/headers_fake.txt"
    cmp "$out/headers_real.txt" "$out/headers_fake.txt"
fi
