#!/usr/bin/env bash
# The MPI transport's tests, and programs over it, on every MPI that is installed: `make test-mpi`. The last line is "N passed, N failed".
# MEMCHECK=openmpi: under valgrind on that one alone.
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build} passed=0 failed=0
out=$build/mpi
mkdir -p "$out"

told() { # STATUS NAME OUTPUT
    if [ "$1" = 0 ]; then
        passed=$((passed + 1)) && echo "ok   $2"
    else
        failed=$((failed + 1)) && printf 'FAIL %s\n%s\n' "$2" "$3"
    fi
    return "$1"
}

run() { # RANKS PROGRAM ... on the MPI at hand
    local ranks=$1
    shift
    if [ "$mpi" = openmpi ]; then
        timeout 240 mpirun.openmpi --allow-run-as-root --oversubscribe -n "$ranks" "$@" 2>&1
    else
        timeout 240 mpiexec.mpich -n "$ranks" "$@" 2>&1
    fi
}

unit() { # the tests of test_mpi.c
    local line ended=0
    while read -r line; do
        case $line in
        "ok "*) passed=$((passed + 1)) && echo "$line, $1 ranks of $mpi" ;;
        FAIL*) failed=$((failed + 1)) && echo "$line, $1 ranks of $mpi" ;;
        *passed,*) ended=1 ;;
        *WARN*) ;; # of UCX, at MPI_Finalize, of what was never received
        *.[ch]:[0-9]*) echo "    $line" ;;
        esac
    done < <(run "$1" "$build/test_mpi_$mpi")
    [ $ended = 1 ] || told 1 "the tests on $1 ranks of $mpi come to their end" ""
    line=$(run "$1" "$build/test_mpi_$mpi" --late)
    grep -q "^closed late: 0 checks failed" <<<"$line"
    told $? "a transport that is closed behind MPI_Finalize, on $1 ranks of $mpi" "$line"
    line=$(run "$1" "$build/test_mpi_$mpi" --alone)
    grep -q "^failed alone: 0 checks failed" <<<"$line"
    told $? "a rank that cannot take part in what opens the transport is named by all others, on $1 ranks of $mpi" "$line"
    [ "$mpi" = openmpi ] && [ "$1" -gt 2 ] || return # MPICH ends the job with its rank
    line=$(run "$1" --enable-recovery "$build/test_mpi_$mpi" --killed)
    grep -q "^killed: 0 checks failed" <<<"$line"
    told $? "a rank of $1 that is killed is named by all others, on $mpi" "$line"
}

model="--text README.md --steps 12 --batch 8 --context 24 --channels 24 --heads 4 --layers 4 --sample 0"
strategies() { # of train_gpt, on so many ranks
    case $1 in
    2) printf '%s\n' "dp_shard=2 --zero 3 --micro 2" "tp=2 --sp" "cp=2 --ring" "pp=2 --micro 4 --schedule zb-h1" "dp_shard=2 --ep 2 --experts 4" ;;
    4) printf '%s\n' "dp_shard=2,tp=2 --zero 3 --sp" "cp=2,tp=2 --ulysses" "pp=2,dp_shard=2 --micro 4 --zero 2" "cp=2,tp=2 --ep 4 --experts 4" ;;
    8) printf '%s\n' "dp_shard=2,cp=2,tp=2 --sp --zero 3 --ring --micro 2" "pp=2,dp_shard=2,cp=2 --micro 4 --schedule zb-v --zero 3" ;;
    esac
}

train() { # as one rank does, and the same bits as over TCP
    local what name said log
    while read -r what; do
        [ -n "$what" ] || continue
        name=$1-${what//[^a-z0-9]/_}
        log=$out/tcp-$name.csv
        if [ ! -f "$log" ]; then # shellcheck disable=SC2086 # several words
            MESH_SOCKET_LANES=tcp "$build/mesh" run -n "$1" -- "$build/train_gpt" $model --mesh $what --log "$log" >"$out/said" 2>&1 ||
                told 1 "train_gpt on $1 over TCP: $what" "$(tail -5 "$out/said")"
        fi # shellcheck disable=SC2086
        said=$(run "$1" "$build/train_gpt_$mpi" $model --mesh $what --log "$out/$name.csv" $([ -z "${what##*--ep*}" ] || echo "--against $out/one.csv")) &&
            said+=$(cmp "$log" "$out/$name.csv" 2>&1)
        told $? "train_gpt on $1 ranks of $mpi: the bits of TCP: $what" "${said: -800}"
    done < <(strategies "$1")
}

heat() { # RANKS OPTION ...: bitwise what one process computes
    local said ranks=$1
    shift
    said=$(run "$ranks" "$build/heat_over_$mpi" "$@" --check) && grep -q '^0 cells differ' <<<"$said"
    told $? "heat on $ranks ranks of $mpi: $*" "$said"
}

programs() {
    local said meshes
    said=$(run "$1" "$build/heat_$mpi")
    told $? "examples/mpi/heat.c on $1 ranks of $mpi" "$said"
    heat "$1" --mesh "x=$1" --size 33,17 --periodic x,y --steps 30
    [ "$1" = 4 ] && heat 4 --mesh x=2,y=2 --size 31,17 --periodic y --steps 30
    [ "$1" = 8 ] && heat 8 --mesh x=2,y=2,z=2 --size 13,6,31 --periodic x,z --steps 31
    meshes=c=$1
    [ "$1" = 4 ] && meshes=r=2,c=2
    [ "$1" = 8 ] && meshes=r=4,c=2
    said=$(run "$1" "$build/fft_$mpi" --mesh $meshes --size 16,10,9)
    told $? "fft on $1 ranks of $mpi: $meshes" "$said"
    train "$1"
}

refused() { # NAME TEXT COMMAND ...: fails, and says that
    local said name=$1 text=$2
    shift 2
    said=$("$@" 2>&1)
    [ $? != 0 ] && grep -qF "$text" <<<"$said"
    told $? "$name" "$said"
}

starts() { # wrongly: by mesh run, by another MPI's launcher; and alone
    refused "a program over $mpi that mesh run starts" "start it with the launcher of its MPI, mpirun -n 2" "$build/mesh" run -n 2 -- "$build/heat_over_$mpi"
    local other=(PMI_RANK=1 PMI_SIZE=2)
    [ "$mpi" = mpich ] && other=(OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2)
    refused "a program over $mpi that another launcher starts" "it is not that of the MPI that the program was compiled with" env "${other[@]}" "$build/heat_over_$mpi"
    refused "a program over $mpi without a launcher" "start 2 with a launcher (mesh run -n 2, mpirun -n 2)" "$build/heat_over_$mpi" --mesh x=2
    "$build/heat_over_$mpi" --mesh x=1 --size 9,9 --check >/dev/null
    told $? "a program over $mpi, alone" ""
    "$build/mesh" doctor | grep -q "mpi  .*$(mpicc_version): compile with mpicc.*, start with mpi"
    told $? "mesh doctor finds $mpi, its version, its wrapper" "$("$build/mesh" doctor)"
}
mpicc_version() {
    case $mpi in
    openmpi) mpicc.openmpi --showme:version 2>&1 | grep -o 'Open MPI [0-9.]*' ;;
    mpich) mpichversion | awk '$2 == "Version:" { print "MPICH " $3 }' ;;
    esac
}

compiles() { # without a warning, as C and as C++
    local said where
    printf '#include "%s"\n' mesh.h mesh_collectives.h transports/mesh_mpi.h | sed '1i #define MESH_IMPLEMENTATION' >"$out/all.c"
    where=$($cc -show -c "$out/all.c" | tr ' ' '\n' | sed -n 's/^-I/-isystem/p' | tr '\n' ' ')
    for with in "${CC:-cc} -std=c99" "clang -std=c99" "c++ -x c++ -std=c++11" "c++ -x c++ -std=c++20"; do
        command -v ${with%% *} >/dev/null || continue # shellcheck disable=SC2086
        said=$($with -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wno-unused-function -Werror -fsyntax-only -I. $where "$out/all.c" 2>&1)
        told $? "mesh_mpi.h beside the mpi.h of $mpi: $with" "$said"
    done
}

memcheck() { # nothing is read that was not written, nothing of ours is lost; MPI's own do not count
    local said
    command -v valgrind >/dev/null && [ "${MEMCHECK:-$mpi}" = "$mpi" ] || return
    said=$(run 2 valgrind --quiet --leak-check=full --show-leak-kinds=definite "$build/test_mpi_$mpi" mpi/refused mpi/native mpi/scheduled mpi/transport mpi/comms mpi/halves \
        mpi/tags mpi/lengths mpi/orphaned)
    grep -q "13 passed, 0 failed" <<<"$said"
    told $? "the tests under valgrind on $mpi" "${said: -800}"
    said=$(sed 's/^==[0-9]*== $//' <<<"$said" | awk -v RS= '/mesh_/ && /==[0-9]+==/')
    [ -z "$said" ]
    told $? "valgrind blames nothing of ours on $mpi" "$said"
}

rm -f "$out"/*.csv
# shellcheck disable=SC2086
"$build/train_gpt" $model --log "$out/one.csv" >/dev/null || told 1 "train_gpt on one rank" ""
for mpi in openmpi mpich; do
    cc=mpicc.$mpi
    if ! command -v $cc >/dev/null; then
        echo "skip: $cc is missing"
        continue
    fi
    c99="${MPI_CFLAGS:--O1} -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wshadow -Wno-unused-function"
    # shellcheck disable=SC2086
    {
        $cc $c99 -g tests/test_mpi.c -o "$build/test_mpi_$mpi" -lpthread &
        $cc $c99 -I. examples/mpi/heat.c -o "$build/heat_$mpi" -lpthread && $cc $c99 -DWITH_MPI examples/heat.c -o "$build/heat_over_$mpi" -lpthread &&
            $cc $c99 -DWITH_MPI examples/fft.c -o "$build/fft_$mpi" -lm -lpthread && $cc $c99 -DWITH_MPI examples/train_gpt.c -o "$build/train_gpt_$mpi" -lm -lpthread
        told $? "the examples with $cc" ""
        wait $!
        told $? "tests/test_mpi.c with $cc" "" || continue
    }
    compiles
    starts
    memcheck
    for ranks in ${RANKS:-2 4 8}; do # 4, or openmpi:4
        [ "${ranks%:*}" = "$ranks" ] || [ "${ranks%:*}" = "$mpi" ] || continue
        ranks=${ranks#*:}
        unit "$ranks"
        programs "$ranks"
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
