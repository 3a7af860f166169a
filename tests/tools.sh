#!/usr/bin/env bash
# The command, the examples and what they refuse, as a user meets them. From the repository's root, after make; BUILD: where it built.
set -u
cd "$(dirname "$0")/.."
build=${BUILD:-build}
out=$build/tools
: "${JOBS:=$(($(nproc) + 1))}" # many steps wait for most of their time
. tests/steps.sh
mesh=$build/mesh
json="python3 -m json.tool"
command -v python3 >/dev/null || { echo "skip: python3 reads no JSON here"; json=cat; }

# a rank that is killed leaves its trace; a broken line is no event of the whole
rm -rf "$out/killed"
refuses "a job with a rank that is killed" "rank 2 was lost" env MESH_TRACE=$out/killed $mesh run -n 3 -- bash -c 'trace=$1; shift
    [ $RANK = 2 ] || exec "$@"
    "$@" & until grep -qs "\"halo" $trace/rank-2.json; do sleep 0.1; done; kill -9 $!; wait $!' killed $out/killed $build/heat --mesh x=3 --steps 2000000000
settle
step "its trace" bash -c "printf ',\n{\"ph\":\"X\",\"dur\":4x5}\n' >>$out/killed/rank-1.json; $mesh trace $out/killed >$out/killed.txt && grep -q '^3 ranks' $out/killed.txt && grep -q 'no whole event' $out/killed.txt && grep -q halo $out/killed/rank-2.json && $json <$out/killed/trace.json >/dev/null"

# the longest first, beside the others
command -v python3 >/dev/null && step "train_gpt: every parallelism as one rank" python3 tests/train.py $build
command -v python3 >/dev/null && step "auto: every way, by formulas, published runs" python3 tests/auto.py $mesh

# README's program, with the headers copied as it says
rm -rf "$out/yours" && mkdir -p "$out/yours" && eval "$(sed -n 's|^\(cp -r .*\)~/yours/$|\1|p' README.md) $out/yours/"
awk '/^```c$/ { on = !done; next } /^```$/ { if (on) done = 1; on = 0 } on' README.md >"$out/yours/app.c"
command -v python3 >/dev/null && step "docs: from MPI, PyTorch, NCCL, the zoo" python3 tests/docs.py --out "$out/docs" --mesh $mesh
step "README: app.c on 8" bash -c "cc $out/yours/app.c -o $out/yours/app && $mesh run -n 8 $out/yours/app | grep -c '1 + ... + 8 = 36' | grep -qx 8"

step "hello alone" $build/hello
step "hello on 4" $mesh run -n 4 -- $build/hello
step "collectives on 4" $mesh run -n 4 -- $build/collectives
mkdir -p $out/full && ln -sf /dev/full $out/full/rank-0.json
step "a trace that cannot be written says so, and the job goes on" bash -c "MESH_TRACE=$out/full $mesh run -n 2 -- $build/hello 2>&1 | grep -q 'MESH_TRACE: cannot write what rank 0 does any more: No space left'"
step "a log beyond ulimit -f says so, and the job goes on" bash -c "(ulimit -f 1; $mesh run -n 2 --log $out/limited -- bash -c 'head -c 9000 /dev/zero; echo all' 2>&1) | tr -d '\0' >$out/limited.txt; grep -q 'the log of rank 0 cannot be written: File too large' $out/limited.txt && [ \$(grep -c all $out/limited.txt) = 2 ]"
step "what a failed rank leaves running is killed" bash -c "! $mesh run -n 2 -- bash -c 'trap \"\" TERM; sleep 300 >/dev/null 2>&1 & echo \$! >$out/left.\$RANK; exit 3' 2>/dev/null && for i in {1..250}; do cat /proc/\$(cat $out/left.0)/status /proc/\$(cat $out/left.1)/status 2>/dev/null | grep -q 'State:.[SRD]' || exit 0; sleep 0.02; done; exit 1" # SIGKILL is sent: they end when they next run
unshare -rn true 2>/dev/null &&
    refuses "a job where loopback is down" "loopback is down here" unshare -rn env MESH_OPEN_TIMEOUT=5 $mesh run -n 2 -- $build/hello
unshare -rn bash -c 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo' 2>/dev/null && {
    step "a job where loopback has ::1 alone" unshare -rn bash -c 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && $1 run -n 2 -- $2 && $1 doctor | grep -q "loopback .*GB/s"' six $mesh $build/hello
    refuses "a job where loopback has no address" "no port on loopback, 127.0.0.1 or ::1: " unshare -rn bash -c 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && ip addr del ::1/128 dev lo && $1 run -n 2 -- $2' none $mesh $build/hello
}
refuses "output of a rank that there is not" "--only takes a rank from 0 to RANKS - 1, not \"5\"" $mesh run -n 2 --only 5 -- true
refuses "input of a rank that there is not" "--stdin takes a rank from 0 to RANKS - 1, not \"7\"" $mesh run -n 2 --stdin 7 -- true
step "what ranks print comes whole to who reads slowly" bash -c "$mesh run -n 8 -- bash -c 'printf %60000s | tr \" \" x; echo' 2>/dev/null | (for i in {1..30}; do head -c 8192; sleep 0.1; done; cat) | tr -cd x | wc -c | grep -qx 480000"
for n in 1 4 8; do step "poll_loop on $n" $mesh run -n $n -- $build/poll_loop; done
# a rank that is stopped between mesh_arm and mesh_now: what is due has passed; -1 is for what never is
printf '#include <poll.h>\n#include <stdlib.h>\nstatic int seen(struct pollfd *f, nfds_t n, int ms) { return ms < -1 ? abort(), -1 : poll(f, n, ms); }\n' >$out/late.c
sed 's|"\.\./|"|; s|mesh_now(&net.base)|(wake < INT64_MAX ? wake + 9000000 : 0)|; s|if (poll(|if (seen(|' examples/poll_loop.c >>$out/late.c
step "poll_loop, late" bash -c "cc -I. -Iexamples $out/late.c -o $out/late && $mesh run -n 2 -- $out/late"
for n in 1 3 4; do step "redistribute on $n" $mesh run -n $n -- $build/redistribute; done
step "gpu_hello without a GPU says why" bash -c "$mesh run -n 2 -- $build/gpu_hello | grep -q 'on sockets: mesh_nccl_open: .*rank 0'"
for n in 1 4 8; do step "reshard_expert on $n" $mesh run -n $n -- $build/reshard_expert; done
rm -rf "$out/checkpoint"
for n in 1 4 3; do step "checkpoint on $n" $mesh run -n $n -- $build/checkpoint $out/checkpoint; done
refuses "a checkpoint that is none" "holds no checkpoint" $build/checkpoint --show $out
refuses "a checkpoint to show without a folder" "checkpoint [--show] FOLDER" $build/checkpoint --show
command -v python3 >/dev/null && step "checkpoint: Python's safetensors" python3 tests/checkpoint.py $build
for n in 2 6; do step "refit on $n" $mesh run -n $n -- $build/refit; done

# heat: bitwise what one process computes, or it exits with 1
heat() {
    local n=$1
    shift
    step "heat on $n: $*" bash -c "$mesh run -n $n -- $build/heat $* --check | grep -q ' 0 cells differ'"
}
heat 1 --size 31,17 --periodic x,y
heat 3 --mesh x=3 --size 7,200 --steps 30
heat 4 --mesh x=2,y=2 --size 31,17 --periodic y
heat 6 --mesh y=3,x=2 --size 40,9 --periodic x,y
heat 4 --mesh z=4 --size 9,3,4 --periodic z
heat 8 --mesh x=2,y=2,z=2 --size 13,6,31 --periodic x,z --steps 31
# 10 steps, 8 bytes: along x, where it wraps, 2 ranks x 2 sides x (150 + 151) cells; along y 4 ranks x 1 side x 250
step "heat: the bytes of halos" bash -c "$mesh run -n 4 -- $build/heat --mesh x=2,y=2 --size 500,301 --periodic x --steps 10 | grep -q 'halos of 176320 bytes'"
refuses "heat on more ranks than rows" "an interior of 0 cannot fill a neighbour's halo of 1" $mesh run -n 4 -- $build/heat --mesh x=4 --size 3,100
refuses "heat along an axis that is none" "along x and y only" $mesh run -n 2 -- $build/heat --mesh dp=2
refuses "heat of one dim" "2 or 3 numbers" $build/heat --size 500
refuses "heat, periodic along no dim" "--periodic takes" $build/heat --periodic z
refuses "heat, an unknown option" "[--periodic x,y]" $build/heat --fast
refuses "heat of no number of steps" "[--periodic x,y]" $build/heat --steps 3x
refuses "heat of more steps than there are numbers" "[--periodic x,y]" $build/heat --steps 99999999999
refuses "heat, a value that is missing" "[--periodic x,y]" $build/heat --mesh
# rank 2 is killed when rank 0 has said that it begins: the others name it
rm -f "$out/heat-began" && mkfifo "$out/heat-began"
refuses "heat without rank 2" "rank 2 was lost" $mesh run -n 4 -- bash -c 'began=$1; shift
    case $RANK in
    0) exec "$@" >"$began" ;;
    2) "$@" & read -r line <"$began"; kill -9 $!; wait $! ;;
    *) exec "$@" ;;
    esac' killed "$out/heat-began" $build/heat --mesh x=2,y=2 --steps 2000000000

# fft: exits with 1 where it is further than 1e-12 from a transform alone, from the definition, or from where it came
for run in "1 --size 1,30,11" "2 --mesh r=2 --size 7,5,9" "3 --mesh r=3 --size 31,16,4" "4 --mesh r=2,c=2 --size 13,1,31" "6 --mesh r=3,c=2 --size 12,10,9" \
    "8 --mesh r=4,c=2 --size 3,2,5"; do step "fft on $run" $mesh run -n ${run%% *} -- $build/fft ${run#* }; done
# of 32 x 50 x 24 numbers of 16 bytes half come from elsewhere; slabs have y and z whole at once
step "fft: the bytes of pencils" bash -c "$mesh run -n 4 -- $build/fft --mesh r=2,c=2 --size 64,50,47 | grep -Ec '(x to y|y to z) .* 307200 +307200\$' | grep -qx 2"
step "fft: the bytes of slabs" bash -c "$mesh run -n 4 -- $build/fft --mesh r=4 --size 16,8,5 | grep -Eq 'y to z .* 0 +0\$'"
refuses "fft of three axes" "one axis (slabs) or two (pencils)" $mesh run -n 8 -- $build/fft --mesh a=2,b=2,c=2
refuses "fft of other axes" "the axes of --mesh are r and c" $mesh run -n 2 -- $build/fft --mesh a=2
refuses "fft of nothing" "--size NX,NY,NZ" $build/fft --size 4,0,4
refuses "fft on another world" "mesh_parse" $mesh run -n 3 -- $build/fft --mesh r=2

command -v python3 >/dev/null && step "exercises: what is worked out by hand" python3 tests/exercises.py $build/exercises

step "plan" bash -c "$mesh plan --mesh dp=8,tp=8 --shape 8192x8192 --dtype bf16 'dp:S(0) tp:R' 'dp:R tp:S(0)' | grep -q 'no way needs fewer than 16777216'"
step "plan as json" bash -c "$mesh plan --json --mesh dp=4 --to-mesh tp=2@4 --shape 100x7 'dp:P(sum)' '[tp] [*]' | $json | grep -q '\"steps\": \\['"
refuses "a plan without room" "the least possible is" $mesh plan --mesh dp=4 --shape 100x64 --cap 100 "dp:P(sum)" "dp:R"
refuses "strict in a spec" "2 shards do not divide" $mesh plan --mesh dp=2,tp=2 --shape 7x8 "dp:S(0) strict" "dp:R"
refuses "a plan of half bytes" '--elem-bytes takes a whole number of bytes from 1 to 10^12, not "1.5"' $mesh plan --mesh dp=4 --shape 8x8 --elem-bytes 1.5 "dp:S(0)" "dp:R"
refuses "a plan of a cap in hex" '--cap takes a whole number of bytes from 1 to 10^12 (64M), not "0x10"' $mesh plan --mesh dp=4 --shape 8x8 --cap 0x10 "dp:S(0)" "dp:R"
refuses "a plan of a cap whose point ends it" '--cap takes a whole number of bytes from 1 to 10^12 (64M), not "64.M"' $mesh plan --mesh dp=4 --shape 8x8 --cap 64.M "dp:S(0)" "dp:R"
refuses "a job of signed ranks" '-n takes a whole number from 1 to 999999, not "+2"' $mesh run -n +2 -- true
refuses "a plan of a signed shape" "no shape" $mesh plan --mesh dp=4 --shape 8x+8 "dp:S(0)" "dp:R"
step "a plan's mesh from a rank on" bash -c "$mesh plan --mesh dp=8 --to-mesh tp=4@4 --shape 16x16 dp:S\(0\) tp:R | grep -q 'on tp=4@4$' && $mesh plan --mesh dp=8 --to-mesh tp=4@4 --shape 16x16 --json dp:S\(0\) tp:R | grep -qF '\"to\": {\"mesh\": \"tp=4@4\"'"
refuses "a bench without a root" '--root takes a whole number from 0 to 1000000, not ""' $mesh bench -n 2 --root "" --max 8 --iters 1
refuses "a bench of a signed size" "expected a size" $mesh bench -n 2 --min " -18446744073709551600" --max 64 --iters 1
refuses "a plan of two sizes" "--dtype and --elem-bytes: one of them" $mesh plan --mesh dp=4 --shape 8x8 --elem-bytes 4 --dtype bf16 "dp:S(0)" "dp:R"
refuses "a plan of no size" "no shape" $mesh plan --mesh dp=4 --shape 99999999999999999999 "dp:S(0)" "dp:R"
refuses "a spec that is none" "expected a place" $mesh plan --mesh dp=4 --shape 100x64 "dp:X" "dp:R"

command -v python3 >/dev/null && step "zoo: the textbook's bytes" python3 tests/zoo.py $mesh
step "zoo of everything" bash -c "$mesh zoo --mesh pp=2,dp_replicate=2,dp_shard=2,cp=2,tp=2 --sp --zero 3 --ep 4 | grep -q 'experts: the same ranks as efsdp=4,ep=4'"
step "zoo: the help's example" bash -c "$mesh zoo tp --mesh dp=4,tp=4 | grep -q tp && $mesh --help | grep -q 'mesh zoo tp --mesh dp=4,tp=4 '"
refuses "a parallelism that is none" "no such parallelism" $mesh zoo megatron --mesh tp=4
refuses "a parallelism without its axis" "tp needs an axis \"tp\"" $mesh zoo tp --mesh dp=4
printf 'heads 8\nkv_heads 2\n' >$out/grouped.model
refuses "queries whose keys are elsewhere" "8 heads, 2 kv_heads, 4 ways" $mesh zoo tp --mesh tp=4 --model $out/grouped.model
refuses "experts that do not divide" "3 ways, 4 ranks of a stage, 8 experts; 2 does" $mesh zoo ep --mesh dp=4 --ep 3
refuses "more ways than heads" "12 heads, 12 kv_heads, 24 ways" $mesh zoo tp --mesh tp=24
refuses "stages that do not divide" "pp = 5 divides neither the 12 layers nor, tables counted as layers, 14 in stages of 2 or more; nearest that do: 4 or 6, or 2 or 7" $mesh zoo pp --mesh pp=5
refuses "stages that are tables" "14 in stages of 2 or more; nearest that do: 12, or 7;" $mesh zoo pp --mesh pp=14
printf 'experts 4\ntop_k 8\n' >$out/many.model
refuses "more experts of a token than there are" "top_k 8 of 4 experts; 4 at most" $mesh zoo dp --mesh dp=4 --model $out/many.model
refuses "a name and another --zero" "zero1 is --zero 1; leave it out" $mesh zoo zero1 --mesh dp=4 --zero 3
refuses "data parallelism without its axis" 'zero1 needs an axis "dp", "dp_shard" or "dp_replicate" in the mesh: pp=2' $mesh zoo zero1 --mesh pp=2
step "zoo says why a schedule is none" bash -c "$mesh zoo --mesh pp=3 --json | $json | grep -q 'why.*interleaved with 4 micro-batches'"
printf 'layers 5000\nmicro 999999\n' >$out/deep.model # with config=sanitize: messages of a schedule that is none are not counted
step "zoo of more stages than a schedule has" bash -c "$mesh zoo pp --mesh pp=2500 --model $out/deep.model | grep -q '1f1b .*2500 ranks; at least 1 and at most 512'"

auto="$mesh auto --model $out/auto.model --cluster $out/auto.cluster"
printf 'layers 6\nheads 8 # of 64\nkv_heads 8\nhidden 512\nffn 2048\nsequence 256\nbatch 24\nsource a test\n' >$out/auto.model
printf 'hosts 2\ndevices_per_host 4\nmemory 16\nbandwidth 1000\nflops 100\nefficiency 0.5\ntopology 4:3us:100GB/s,*:8us:10GB/s\nsource a test\n' >$out/auto.cluster
auto_line() { # NAME FRAGMENT FILE LINE: a file whose last line is wrong
    cp $out/auto.$3 $out/auto-$1.$3 && printf '%s\n' "$4" >>$out/auto-$1.$3
    refuses "auto: ${4:0:40}" "$2" ${auto/auto.$3/auto-$1.$3}
}
step "auto: the best ten" bash -c "$auto --top 3 | grep -c '1f1b\|interleaved\|zb-h1' | grep -qx 3"
sed 's/^layers.*/layers 512/' $out/auto.model >$out/auto-deep.model # a stage of 256 layers
step "auto: more layers on a stage than chunks can be" bash -c "${auto/auto.model/auto-deep.model} --fix pp=2 | grep -q ' interleaved '"
refuses "auto: more chunks than can be" "more than 255 chunks on a rank" ${auto/auto.model/auto-deep.model} --fix pp=2,chunks=256
step "auto as json" bash -c "$auto --json | $json | grep -q '\"tried\"'"
published() { echo "$mesh auto --model examples/models/$1.model --cluster examples/clusters/$2.cluster --top 1 --fix"; }
step "auto: a published run that fits" bash -c "$(published megatron-1.7b selene) tp=1,cp=1,pp=1 | grep -q 'published 137: 1.000 of it; place 1 of 1 meshes'"
step "auto: one that does not fit" bash -c "$(published llama3-405b-8k-8192 llama3) tp=8,cp=1,pp=16 | grep -q 'by this prediction it needs 94.8 GB of 76.0; else it had place 1'"
step "auto: with another batch it is another run" bash -c "$(published megatron-1.7b selene) tp=1,cp=1,pp=1 --batch 256 >$out/auto-batch.txt && ! grep -q published $out/auto-batch.txt"
step "auto: one that --fix excludes" bash -c "$(published megatron-1.7b selene) tp=2,cp=1,pp=1 | grep -q 'is none of the ways tried'"
refuses "auto: a little too small" "needs 1.137 GB, 0.00698" bash -c "sed 's/^memory.*/memory 1.13/' $out/auto.cluster >$out/auto-small.cluster; ${auto/auto.cluster/auto-small.cluster} --fix tp=1,pp=1,zero=0"
refuses "auto: nothing fits, beside a published run" "nothing fits into memory" $(published llama3-405b-8k-8192 llama3) tp=8,cp=1,pp=16,zero=1,recompute=0
auto_line 1 "auto-1.model:9: a whole number from 1 to 999999 is expected: layers 0" model "layers 0"
auto_line 2 "auto-2.model:9: no such name; those that --help lists are: width 3" model "width 3"
auto_line 3 "auto-3.model:9: a value is missing; a line is NAME VALUE: batch" model "batch"
auto_line 4 "auto-4.model:9: more than one value; a line is NAME VALUE: batch 3 4" model "batch 3 4"
auto_line 5 "auto-5.model:9: a number from 0 to 999999 is expected: published_tflops fast" model "published_tflops fast"
auto_line 6 "auto-6.model:9: expected 1f1b, interleaved, gpipe or zb-h1: published_schedule zero" model "published_schedule zero"
auto_line 7 "auto-7.model:9: a line of 399 bytes or more" model "source $(printf %0400d 0)"
auto_line 8 "auto-8.model: some 3.1e+21 weights" model $'experts 999999\nffn 999999\nmlp_matrices 999999'
auto_line 9 "numbers that a step makes of them; at most 1e15 of each" model $'batch 999999\nsequence 999999\nffn 9999'
auto_line 1 "auto-1.cluster:9: a number from 1e-6 to 1e6 is expected: flops -3" cluster "flops -3"
auto_line 7 "a number from 1e-6 to 1e6 is expected: flops 1e-310" cluster "flops 1e-310"
auto_line 8 "auto-8.cluster: 1000000 devices, hosts times devices_per_host; 999999 at most" cluster "hosts 250000"
auto_line 2 "auto-2.cluster:9: no such name; a cluster has hosts" cluster "nodes 3"
auto_line 3 "auto-3.cluster:9: a whole number is expected: hosts 1.5" cluster "hosts 1.5"
auto_line 4 "auto-4.cluster:9: a part of the peak is expected, at most 1: efficiency 60" cluster "efficiency 60"
auto_line 5 "auto-5.cluster:9: mesh_topology_parse" cluster "topology fast"
step "auto: a topology of many levels" bash -c "sed 's|^topology.*|topology 1:2.500us:300GB/s,2:3.250us:250GB/s,4:4.250us:200GB/s,*:8.500us:25GB/s|' $out/auto.cluster >$out/auto-levels.cluster; ${auto/auto.cluster/auto-levels.cluster} | grep -q '8 devices'"
auto_line 10 "auto-10.cluster:9: a number from 1e-6 to 1e6 is expected: flops 0x10" cluster "flops 0x10"
auto_line 11 "auto-11.cluster:9: a number from 1e-6 to 1e6 is expected: flops +5" cluster "flops +5"
auto_line 10 "auto-10.model:9: a number from 0 to 999999 is expected: published_tflops 7." model "published_tflops 7."
auto_line 6 "reserve is the whole memory of 16 GB or more; say less" cluster "reserve 16"
sed '/^memory/d' $out/auto.cluster >$out/auto-less.cluster
auto_line 8 "auto-8.model:9: a whole number is expected: published_zero 2.5" model "published_zero 2.5"
auto_line 9 "7 kv_heads do not divide 8 heads; 4 do" model "kv_heads 7"
auto_line 7 "7 heads do not divide hidden, 512; 518 does, or say head_width" model $'heads 7\nkv_heads 7'
step "auto: a head's width said" bash -c "printf 'heads 7\nkv_heads 7\nhead_width 64\n' | cat $out/auto.model - >$out/auto-width.model; ${auto/auto.model/auto-width.model} | grep -q '7 heads of 64 '"
printf 'layers 6\nhidden 64\0garbage\n' >$out/auto-zero.model
refuses "auto: a byte 0" "auto-zero.model:2: a byte 0: this is no text" ${auto/auto.model/auto-zero.model}
refuses "auto: a directory" "Is a directory: /tmp" ${auto/$out\/auto.model//tmp}
refuses "auto: no text, and no end" "a byte 0" ${auto/$out\/auto.model//dev/zero}
for word in layers hidden heads sequence batch; do
    sed "/^$word/d" $out/auto.model >$out/auto-no-$word.model
    refuses "auto: a model without $word" "auto-no-$word.model lacks a line: $word" ${auto/auto.model/auto-no-$word.model}
done
sed '/^kv_heads/d;/^ffn/d' $out/auto.model >$out/auto-follows.model
step "auto: what follows from what is said" bash -c "$auto >$out/auto-said.txt && ${auto/auto.model/auto-follows.model} | cmp - $out/auto-said.txt && grep -q '6 layers, hidden 512, ffn 2048, 8 heads of 64 (8 of keys)' $out/auto-said.txt"
refuses "auto: a cluster without its memory" "auto-less.cluster lacks a line: memory, in GB" ${auto/auto.cluster/auto-less.cluster}
refuses "auto: no such file" "No such file" $mesh auto --model $out/none --cluster $out/auto.cluster
refuses "auto without a cluster" "expected --model FILE and --cluster FILE" $mesh auto --model $out/auto.model
refuses "auto: an option that is none" "unknown option: --fast" $auto --fast
refuses "auto: a value is missing" "a value is missing after: --top" $auto --top
refuses "auto: no number" "a whole number from 1 to 999999 is expected: few" $auto --top few
refuses "auto: more devices than there are" "9 devices, but the cluster has 8; take as many or fewer" $auto --devices 9
refuses "auto: a dp that cannot be" "dp = 3 does not divide the devices (8); nearest that do: 2 or 4" $auto --fix dp=3
refuses "auto: what flash attention has not" "recompute = 1 (selective) computes again the scores" $mesh auto --model examples/models/llama3-405b-8k-8192.model --cluster examples/clusters/llama3.cluster --fix recompute=1
refuses "auto: --fix of no such name" "not: width" $auto --fix width=3
refuses "auto: --fix of no such value" "zero 0 to 3" $auto --fix tp=2,zero=4
refuses "auto: --fix that is none" "--fix takes NAME=VALUE,... as in tp=8,schedule=1f1b: tp" $auto --fix tp
refuses "auto: tp that does not divide" "tp = 3 does not divide the devices (8); nearest that do: 2 or 4" $auto --fix tp=3
refuses "auto: tp beyond a host" "tp = 8 does not fit within a host of 4 devices; nearest that do: 4" $auto --fix tp=8
refuses "auto: cp beyond the sequence" "2 cp = 8 does not divide the sequence (12); nearest that do: 6 or 12" bash -c "sed 's/^sequence.*/sequence 12/' $out/auto.model >$out/auto-cp.model; ${auto/auto.model/auto-cp.model} --fix cp=4"
refuses "auto: stages that layers do not fill" "pp = 8 divides neither the 6 layers nor, tables counted as layers, 8" $auto --fix pp=8
refuses "auto: a batch that does not divide" "dp = 8 does not divide the batch (20); nearest that do: 5 or 10" $auto --batch 20 --fix dp=8
refuses "auto: experts that are none" "ep > 1, but the model has no experts; 1 does" $auto --fix ep=2
printf 'experts 6\n' | cat $out/auto.model - >$out/auto-experts.model
refuses "auto: experts that cross" "ep = 3 crosses tp x cp = 2; nearest that do not: 2, or a multiple of that" bash -c "sed 's/^hosts 2/hosts 3/' $out/auto.cluster >$out/auto-three.cluster; $mesh auto --model $out/auto-experts.model --cluster $out/auto-three.cluster --fix tp=2,cp=1,pp=2,ep=3"
refuses "auto: chunks that do not divide" "chunks = 2 does not divide a stage's layers (3); nearest that do: 1 or 3" $auto --fix pp=2,chunks=2
refuses "auto: micro-batches that do not go round" "pp = 2 does not divide micro-batches, as interleaving asks, (3)" $auto --fix pp=2,dp=4,micro=2,chunks=3
refuses "auto: settings that contradict" "interleaved has more than 1 chunk, every other schedule 1" $auto --fix pp=2,dp=4,schedule=gpipe,chunks=3
refuses "auto: nothing to cut, and cut" "zero 1 to 3 want dp_shard > 1" $auto --fix dp_shard=1,zero=2
refuses "auto: a mesh that is none" "dp = 4, but 8 devices leave 8 beside tp 1, cp 1, pp 1" $auto --fix tp=1,cp=1,pp=1,dp=4
refuses "auto: nothing fits" "more than there are; more devices" bash -c "sed 's/^memory.*/memory 0.01/' $out/auto.cluster >$out/auto-small.cluster; ${auto/auto.cluster/auto-small.cluster}"

step "schedule: 1f1b's bubble is the formula's" bash -c "$mesh schedule --kind 1f1b -p 4 -m 8 | grep -q 'bubble 0.3750, and (p - 1) / m = 0.3750'"
step "schedule: zb-v's is a sixth" bash -c "$mesh schedule --kind zb-v -p 4 -m 8 | grep -q 'bubble 0.0625, and (p - 1) / (6 m) = 0.0625'"
step "schedule with other costs" bash -c "$mesh schedule --kind zb-h1 -p 2 -m 2 --forward 3 --backward 4 --weight 0 --send 5 | grep -q 'no formula for these numbers'"
step "schedule: no formula where nothing is computed" bash -c "$mesh schedule --kind forward -p 4 -m 4 --forward 0 | grep -q 'bubble 0.0000 (no formula'"
step "schedule as a picture" bash -c "$mesh schedule --kind interleaved -p 4 -m 8 -v 3 --svg | grep -c '<title>' | grep -qx 192"
refuses "a schedule that is none" "take 8 or 12" $mesh schedule --kind interleaved -p 4 -m 10
refuses "a schedule of no kind" "no kind \"pipedream\"" $mesh schedule --kind pipedream -p 4 -m 8
refuses "a schedule without its sizes" "expected --kind, -p and -m" $mesh schedule --kind 1f1b -p 4

step "draw" $mesh draw "pp=2,dp=2,tp=2"
step "draw as dot and svg" bash -c "$mesh draw --dot dp=2,tp=2 | grep -q graph && $mesh draw --svg pp=2,dp=2,tp=2 | grep -q '</svg>'"
step "table of 24" bash -c "[ \$($mesh table --world 24 --csv | wc -l) = 81 ] && $mesh table --world 24 --csv | grep -q ^4,2,1,3, && [ \$($mesh table --world 24 --csv 'tp<=2' pp=1 | wc -l) = 15 ]"
step "table on every degree" bash -c "[ \$($mesh table --world 64 --csv 'tp<=8' cp=1 pp=1 'dp_shard>=8' ep=16 | wc -l) = 10 ] && $mesh table --world 64 --csv dp_replicate=2 'ep|4' | grep -q '^2,1,4,2,4,4,\"dp_replicate=2,dp_shard=4,pp=4,tp=2\"'"
refuses "a filter on no degree" "of tp, cp, pp, dp, dp_replicate, dp_shard, ep" $mesh table --world 8 "xp=2"
refuses "a filter that is none" "neither an option nor a filter" $mesh table --world 8 "dp_shard<4"
refuses "a mesh that is none" "mesh_parse" $mesh draw "dp=0"
refuses "an unknown command" "no command" $mesh frobnicate

step "test dp=2,tp=2" $mesh test --mesh dp=2,tp=2
step "test over TCP" env MESH_SOCKET_LANES=tcp $mesh test --mesh a=3
step "bench of everything" $mesh bench --mesh dp=2,tp=2 --call all --max 4K --factor 64 --iters 3
step "bench of a group" $mesh bench --mesh dp=3,tp=2 --axes tp,dp --call all --dtype f64 --op minloc --root 2 --max 4K --factor 64 --iters 3 --csv
refuses "bench --tune: told before it measures" "cannot write /nowhere/t.txt" $mesh bench -n 2 --tune /nowhere/t.txt
step "bench, tuned" bash -c "$mesh bench -n 2 --tune $out/tuned.txt --max 64 && MESH_TUNING=$out/tuned.txt $mesh bench -n 2 --call all --max 4K --factor 64 --iters 3 --json | tail -1 | grep -q ']\$'"
refuses "a wrong tuning table" "no algorithm" env MESH_TUNING=<(echo "all_reduce ranks<=* bytes<=* bruck") $build/hello

step "doctor" $mesh doctor
# with FORKS processes that can be started
cat >"$out/forks.c" <<'END'
#define fork some_forks
#include "tools/mesh.c"
#undef fork
pid_t fork(void);
pid_t some_forks(void) {
    static int n;
    if (n++ < atoi(getenv("FORKS"))) return fork();
    errno = EAGAIN;
    return -1;
}
END
step "doctor where no process can be started" bash -c "cc -std=c99 -I. $out/forks.c -o $out/forks -lpthread && { FORKS=0 $out/forks doctor >$out/forks.0; [ \$? = 1 ]; } && grep -q 'none can be started: Resource' $out/forks.0 &&
    ! grep -q loopback $out/forks.0 && { FORKS=4 $out/forks doctor >$out/forks.4; [ \$? = 1 ]; } && grep -q 'only 4 can be started at once: Resource' $out/forks.4 &&
    ! grep -q compiler $out/forks.4 && { FORKS=8 $out/forks doctor >$out/forks.8; [ \$? = 1 ]; } && grep -q hostname $out/forks.8"
unshare -rm mount --bind /dev/null /dev/urandom 2>/dev/null &&
    refuses "a job without random numbers" "no random numbers for the job's secret: /dev/urandom: No data available" unshare -rm bash -c 'mount --bind /dev/null /dev/urandom && exec "$@"' random $mesh run -n 2 -- true
refuses "mesh run as a rank of an MPI job" "rank 1 of the 3 of an MPI job (PMI_RANK), each of which would start 2 more" env PMI_RANK=1 PMI_SIZE=3 $mesh run -n 2 -- true
step "mesh run in an MPI job of one" env PMI_RANK=0 PMI_SIZE=1 $mesh run -n 2 -- true
refuses "a mesh of 2 on one rank" "start 2 with a launcher (mesh run -n 2, mpirun -n 2)" $build/heat --mesh x=2
refuses "doctor: a secret's file that is none" '"level":"ERROR"' env MESH_SECRET_FILE=$out/none $mesh doctor --json
refuses "doctor: a secret's file that no rank takes" "MESH_SECRET_FILE names \"/dev/null\": it is empty" env MESH_SECRET= MESH_SECRET_FILE=/dev/null $mesh doctor
refuses "doctor: a secret that is too long" "MESH_SECRET has 300 bytes; at most 255" env MESH_SECRET=$(printf %0300d 0) $mesh doctor
refuses "doctor: an empty secret, and another host" "is beyond loopback, and there is no secret" env MESH_SECRET= MESH_SECRET_FILE= RANK=0 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=29500 $mesh doctor
for name in TIMEOUT OPEN_TIMEOUT PROGRESS_THREAD LISTEN_FD MPI_NATIVE; do
    refuses "doctor: a number that is none: MESH_$name" "MESH_$name is \"abc\"" env MESH_$name=abc $mesh doctor
done
step "doctor leaves a trace that is there" bash -c "rm -rf $out/looked && mkdir $out/looked && echo kept >$out/looked/rank-0.json && echo 'all_reduce ranks<=* bytes<=* ring' >$out/looked.txt &&
    MESH_TRACE=$out/looked MESH_TUNING=$out/looked.txt $mesh doctor | grep -q 'looked.txt: 1 rows' && [ \$(cat $out/looked/rank-0.json) = kept ]"
step "doctor: a table is not blamed for another variable" bash -c "echo 'all_reduce ranks<=* bytes<=* ring' >$out/blamed.txt; MESH_TIMEOUT=abc MESH_TUNING=$out/blamed.txt $mesh doctor >$out/blamed; [ \$? = 1 ] && grep -q 'blamed.txt: 1 rows' $out/blamed"
step "doctor: empty is unset" bash -c "! env MESH_SOCKET_LANES= MESH_SECRET= $mesh doctor | grep -E 'ERROR|MESH_SECRET has'"
refuses "a path for logs that is too long" "File name too long" $mesh run -n 1 --log $out/$(printf 'd%.0s' $(seq 1 4100)) true
step "doctor: how many ranks a limit of descriptors is for" bash -c "ulimit -n 64 && $mesh doctor | grep -q 'at most 64: mesh run starts no more than 24 ranks' && $mesh run -n 24 -- true && ! $mesh run -n 25 -- true"
refuses "doctor of a bad variable" '"level":"ERROR"' env RANK=abc WORLD_SIZE=2 $mesh doctor --json
step "trace" bash -c "rm -rf $out/trace; MESH_TRACE=$out/trace $mesh run -n 4 -- $build/collectives && $mesh trace $out/trace | grep -q 'last to come'"
step "trace: files that are not there" bash -c "rm -rf $out/fewer && cp -r $out/trace $out/fewer && rm $out/fewer/rank-1.json $out/fewer/rank-2.json && $mesh trace $out/fewer 2>&1 | grep -q 'no file of rank 1 to 2: on another host'"
refuses "trace of nothing" "MESH_TRACE" $mesh trace "$out"
refuses "a trace that is none" "rank-3.json is no trace, and no other is" bash -c "mkdir -p $out/garbage && echo garbage >$out/garbage/rank-3.json && $mesh trace $out/garbage"

printf '#include <stdio.h>\n#define MESH_IMPLEMENTATION\n#include "transports/mesh_env.h"\n' >$out/hidden.c
refuses "POSIX hidden from mesh_env.h" "mesh_env.h: POSIX is hidden: compile with" cc -std=c99 -I. -c $out/hidden.c -o $out/hidden.o

refuses "run without a program" "no program to run" $mesh run -n 2
refuses "run of nothing" "the program's name is empty" $mesh run -n 2 ""
step "a directory is said once" bash -c "[ \"\$($mesh run -n 3 $out 2>&1)\" = 'mesh run: cannot run $out: it is a directory' ]"
printf '#!/nowhere/sh\necho\n' >$out/lacking && chmod +x $out/lacking
step "a missing interpreter is said once" bash -c "[ \"\$($mesh run -n 3 $out/lacking 2>&1)\" = 'mesh run: cannot run $out/lacking: its first line asks for /nowhere/sh, which is not there' ]"
printf '#! /bin/sh\necho $RANK\n' >$out/script && chmod +x $out/script
step "a script" bash -c "[ \"\$($mesh run -n 2 $out/script 2>/dev/null | grep -c '^\[[01]\] [01]\$')\" = 2 ]"
step "a missing program is said once" bash -c "[ \"\$($mesh run -n 3 ./missing 2>&1)\" = 'mesh run: cannot run ./missing: No such file or directory' ]"
step "without a PATH, where execvp looks" env -u PATH $mesh run -n 2 -- true
cp $out/script $out/script-here
step "an empty entry of PATH is the working directory" bash -c "cd $out && [ \"\$(PATH=:/usr/bin:/bin $PWD/$mesh run -n 2 -- script-here 2>/dev/null | grep -c '^\[[01]\] [01]\$')\" = 2 ]"
for streams in '<&-' '>&-' '2>&-' '<&- >&- 2>&-'; do step "run with closed streams: $streams" bash -c "$mesh run -n 2 --timeout 20 -- $build/hello $streams"; done
refuses "a stdout that is closed" "Bad file descriptor" bash -c "$mesh draw dp=2 2>&1 1>&-"
[ -e /dev/full ] && for what in "run -n 2 -- echo hi" "bench -n 2 --max 8 --iters 2" "test --mesh dp=2" --help --version; do
    refuses "no room for what is printed: $what" "No space left" bash -c "$mesh $what 2>&1 >/dev/full"
done
for what in hello poll_loop redistribute reshard_expert refit heat fft exercises gpu_hello gpu_redistribute "checkpoint $out/full-save" "train_gpt --steps 1 --sample 0" "train_gpt --simulate 2 --steps 1 --sample 0"; do
    [ -e /dev/full ] && refuses "no room for what an example prints: $what" "cannot write to stdout" bash -c "$build/$what 2>&1 >/dev/full"
done
for what in hello collectives poll_loop redistribute reshard_expert refit exercises; do
    refuses "an argument that $what does not know" "\"bogus\" is not known; there are no arguments:" $build/$what bogus
done
step "test: what did not end is not called wrong" bash -c "said=\$($mesh run -n 3 -- bash -c '[ \$RANK != 2 ] || exec $build/hello; exec $mesh test --mesh dp=3' 2>&1); grep -q ': not ended ' <<<\"\$said\" && grep -q 'ranks disagree' <<<\"\$said\" && ! grep -q WRONG <<<\"\$said\""
refuses "a log that is no directory" "cannot write /dev/null/rank-0.out: Not a directory" $mesh run -n 2 --log /dev/null echo hi
refuses "a log that is cut" "the log of rank 0 cannot be written: File too large" bash -c "trap '' XFSZ; ulimit -f 7; $mesh run -n 1 --log $out/cut seq 1 100000 2>&1 >/dev/null; exit 1"
step "nohup" bash -c "rm -f $out/nohup; mkfifo $out/nohup; nohup $mesh run -n 2 --bare --timeout 20 -- sh -c '[ \$RANK = 1 ] || echo started >$out/nohup; sleep 1' >/dev/null 2>&1 & read -r w <$out/nohup; kill -HUP \$!; wait \$!"
refuses "a failing rank" "rank 1 exited with status 7" $mesh run -n 3 -- sh -c '[ $RANK != 1 ] || exit 7; sleep 20'
refuses "an idle job" "no output for 1 s; ending ranks 0 1" $mesh run -n 2 --idle-timeout 1 -- sleep 20
step "a forwarded signal" bash -c "mkfifo $out/word; $mesh run -n 2 -- sh -c 'echo started >$out/word; exec sleep 20' & read -r w <$out/word; rm $out/word; kill -TERM \$!; wait \$!; [ \$? = 143 ]"
step "mesh run" bash -c "cd $build/.. && bash tests/run_checks.sh"

step "train_gpt, a few steps on another text" $build/train_gpt --text README.md --steps 2
step "train_gpt, as many layers as it takes, with experts" $build/train_gpt --text README.md --steps 1 --sample 0 --layers 40 --experts 3 --channels 8 --heads 1 --batch 1 --context 16
step "train_gpt on the mesh of no axes" bash -c "$build/train_gpt --text README.md --steps 1 --sample 0 --mesh '' --experts 3 | grep -q '^1 rank as pp=1,tp=1;'"
refuses "a mesh that is none, in the user's words" "at byte 0 of \"dp\"" $build/train_gpt --steps 1 --mesh dp
step "train_gpt keeps the log that it compares with" bash -c "$build/train_gpt --steps 1 --sample 0 --log $out/kept.csv && ! $build/train_gpt --steps 1 --log $out/kept.csv --against $out/./kept.csv 2>$out/kept.txt && grep -q 'would write over' $out/kept.txt && [ \$(wc -l <$out/kept.csv) = 2 ]"
refuses "a text that is not there" "train_gpt: --text: cannot read /nonexist/a: No such file" $build/train_gpt --steps 1 --text /nonexist/a
refuses "a text that is a folder" "train_gpt: --text: cannot read $out: Is a directory" $build/train_gpt --steps 1 --text $out
printf 'too short' >$out/short.txt
refuses "a text that is too short" "--text: $out/short.txt has 9 bytes; with --context 64 at least 256" $build/train_gpt --steps 1 --text $out/short.txt
refuses "a text of rank 0 that is not there, told on rank 1" "rank 0 gave up: --text: cannot read /nonexist/a" $mesh run -n 2 -- $build/train_gpt --mesh dp=2 --steps 1 --text /nonexist/a
refuses "a batch that cannot be cut" "--batch 3 does not divide by micro and dp = 2 on the mesh" $mesh run -n 2 -- $build/train_gpt --mesh dp=2 --batch 3
refuses "a checkpoint that cannot be, before the training" "train_gpt: --save: cannot make /nonexist/a: " $build/train_gpt --steps 1000000 --save /nonexist/a
refuses "a checkpoint without a name, before the training" "train_gpt: --save: the folder's name is empty" $build/train_gpt --steps 1000000 --save ""
[ -e /dev/full ] && refuses "a log that is not all there" "train_gpt: --log: not all of it could be written to /dev/full" $build/train_gpt --steps 2 --sample 0 --log /dev/full
refuses "a log of rank 0 that cannot be, told on rank 1" "rank 0 gave up: --log: cannot write /nonexist/a" $mesh run -n 2 -- $build/train_gpt --mesh dp=2 --steps 2 --log /nonexist/a
refuses "an axis that train_gpt has not" "the axes are pp, dp, dp_replicate, dp_shard, cp and tp" $mesh run -n 2 -- $build/train_gpt --mesh x=2
refuses "more stages than layers" "--layers 2 are fewer than the stages, 2 x 2" $mesh run -n 2 -- $build/train_gpt --mesh pp=2 --chunks 2 --schedule interleaved
refuses "micro-batches that do not go round" "interleaved" $mesh run -n 2 -- $build/train_gpt --mesh pp=2 --chunks 2 --schedule interleaved --layers 4 --micro 1
refuses "a schedule that train_gpt has not" "it is 1f1b, gpipe, interleaved, zb-h1 or zb-v" $mesh run -n 2 -- $build/train_gpt --mesh pp=2 --schedule pipedream
refuses "more ranks than experts" "--ep 6, and --experts 4: each of those ranks has one or more; 3 does" $build/train_gpt --mesh dp_shard=6 --simulate 6 --experts 4 --ep 6 --batch 24
refuses "ranks that cannot share experts" "--ep 4 does not divide dp_shard x cp x tp = 2 on the mesh" $mesh run -n 2 -- $build/train_gpt --mesh dp_shard=2 --experts 4 --ep 4
refuses "experts that no mesh can hold so" "or name dp_shard, cp and tp in this order" $mesh run -n 6 -- $build/train_gpt --mesh tp=2,dp_shard=3 --ep 3 --batch 9 --experts 3
refuses "fewer experts than ranks that share them" "--ep 2, and --experts 1" $mesh run -n 2 -- $build/train_gpt --mesh dp_shard=2 --experts 1 --top-k 1 --ep 2
refuses "ranks for experts, and no experts" "--ep 2, and --experts 0" $mesh run -n 2 -- $build/train_gpt --mesh dp_shard=2 --ep 2
refuses "more choices than experts" "--top-k 2 of --experts 1" $build/train_gpt --experts 1
refuses "positions that tp cannot cut" "--context 25 does not divide by cp and tp = 2" $mesh run -n 2 -- $build/train_gpt --mesh tp=2 --experts 2 --context 25
refuses "a world that does not divide" "does not divide" $mesh run -n 3 -- $build/train_gpt --mesh dp=-1,tp=2
refuses "train_gpt --device cuda: not built in" "TRAIN_GPT_CUDA" $build/train_gpt --device cuda
steps_end
