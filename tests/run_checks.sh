#!/bin/bash
# `mesh run` and what only a shell can set up, as issue 12's points 12, 16 and 17 want it. Each check prints ok or FAIL; arguments: parts of names.
# From the repository's root, after make. Every wait is for a word (a file, an end, a message); `timeout` only ends what waits in vain.
mesh=$PWD/build/mesh hello=$PWD/build/hello
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
cd "$box" || exit 1
failed=0 passed=0

say() { # say STATUS NAME WHAT: 0 is ok
    if [ "$1" = 0 ]; then passed=$((passed + 1)) && echo "ok   $2"; else failed=$((failed + 1)) && echo "FAIL $2: $3"; fi
}
has() { grep -qF -- "$2" <<<"$1"; }
soon() { # soon COMMAND...: until it succeeds, 5 s at most
    local i
    for ((i = 0; i < 250; i++)); do "$@" 2>/dev/null && return 0; sleep 0.02; done
    return 1
}
state() { sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null; } # R, S, T, Z
state_is() { [ "$(state "$1")" = "$2" ]; }
gone() { [ ! -e "/proc/$1" ] || state_is "$1" Z; }
# a host of our own: loopback with 10.77.0.1, and names as $1 says. Runs the rest as a script.
host() {
    local names=$1
    shift
    unshare -nm bash -c 'ip link set lo up && ip addr add 10.77.0.1/32 dev lo && printf "%b" "$1" >hosts.$$ && mount --bind hosts.$$ /etc/hosts && eval "$2"' host "$names" "$1"
}
ranks() { # ranks N: as an environment of rank 0 of N
    export WORLD_SIZE=$1 MASTER_PORT=29611 MESH_SECRET=0123456789abcdef0123456789abcdef
}

# ---- 17: mesh run

# Rank 1 exits, or aborts, because rank 0 dies, which is seen to be dead after it: the kernel closes sockets first.
check_blame_late() {
    local out status way
    for way in 'exit 3' 'kill -ABRT $$'; do
        rm -f pid.*
        cat >late.sh <<S
echo \$\$ >pid.\$RANK.new; mv pid.\$RANK.new pid.\$RANK
while [ ! -e pid.1 ]; do :; done
[ \$RANK = 0 ] || $way
other=\$(cat pid.1)
while [ -e /proc/\$other ]; do :; done
kill -KILL \$\$
S
        out=$(timeout -k 1 20 "$mesh" run -n 2 -- bash late.sh 2>&1)
        status=$?
        [ $status = 137 ] && has "$out" "rank 0 was ended by SIGKILL" && ! has "$out" "rank 1"
        say $? "blame_late, $way" "ended with $status: $out"
    done
}
# What exits is blamed where nobody is killed, though others go on, and where others abort for it.
check_blame_exit() {
    local out status
    rm -f pid.*
    cat >exits.sh <<'S'
echo $$ >pid.$RANK.new; mv pid.$RANK.new pid.$RANK
while [ ! -e pid.1 ] || [ ! -e pid.2 ]; do :; done
[ $RANK != 1 ] || exit 3
while [ -e /proc/$(cat pid.1) ]; do :; done
[ $RANK != 2 ] || kill -ABRT $$
exec sleep 100
S
    out=$(timeout -k 1 20 "$mesh" run -n 3 -- bash exits.sh 2>&1)
    status=$?
    [ $status = 3 ] && has "$out" "rank 1 exited with status 3" && ! has "$out" "was ended by"
    say $? blame_exit "ended with $status: $out"
}

# Rank 1 is killed; rank 0, which saw it, exits with 1; the launcher looks only when both have ended.
check_blame() {
    cat >blame.sh <<'S'
echo $$ >pid.$RANK.new; mv pid.$RANK.new pid.$RANK
if [ $RANK = 1 ]; then while :; do sleep 1; done; fi
while [ ! -e go ]; do sleep 0.01; done
kill -SEGV -$(cat pid.1)
exit 1
S
    rm -f pid.* go
    timeout -k 1 20 "$mesh" run -n 2 -- sh blame.sh 2>out >/dev/null &
    local job=$! launcher text
    soon [ -s pid.0 ] && soon [ -s pid.1 ] # the shell $job is timeout; its child is the launcher
    launcher=$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')
    kill -STOP "$launcher"
    soon state_is "$launcher" T
    : >go
    soon gone "$(cat pid.0)" && soon gone "$(cat pid.1)"
    kill -CONT "$launcher"
    wait $job
    text="status $?, $(cat out)"
    has "$text" "rank 1 was ended by"
    say $? blame "rank 1 died of SIGSEGV, then rank 0 exited with 1: $text"
}

# Whoever starts the launcher may ignore SIGCHLD or block signals: it hears of its ranks' ends, and they hear signals.
check_inherited_signals() {
    local out status
    command -v python3 >/dev/null || { echo "skip: inherited_signals (no python3)" && return; }
    out=$(timeout -k 1 20 python3 -c 'import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])' \
        "$mesh" run -n 2 -- sh -c 'exit $((RANK * 3))' 2>&1)
    status=$?
    [ $status = 3 ] && has "$out" "rank 1 exited with status 3"
    say $? ignored_sigchld "status $status, $out"
    rm -f pid.*
    timeout -k 1 20 python3 -c 'import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); os.execv(sys.argv[1], sys.argv[1:])' \
        "$mesh" run -n 1 -- sh -c 'trap "exit 7" TERM; echo $$ >pid.0; while :; do sleep 0.05; done' >out 2>&1 &
    local job=$!
    soon [ -s pid.0 ]
    kill -TERM "$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')"
    wait $job
    status=$?
    [ $status = 143 ]
    say $? blocked_sigterm "status $status, $(cat out)"
}

# Ranks that somebody else waits for have ended all the same.
check_unseen() {
    cat >unseen.c <<'C'
#include <errno.h>
#include <sys/types.h>
pid_t waitpid(pid_t pid, int *status, int how) { (void)pid, (void)status, (void)how; return errno = ECHILD, -1; }
C
    cc -shared -fPIC unseen.c -o unseen.so || return
    local out status
    out=$(timeout -k 1 10 env LD_PRELOAD="$PWD/unseen.so" "$mesh" run -n 1 --bare -- env -u LD_PRELOAD true 2>&1)
    status=$?
    [ $status = 1 ] && has "$out" "does not say how they ended"
    say $? unseen "status $status, $out"
}

# A signal that is passed on to a rank that is not its program yet ends it: it is not caught by what it was forked from.
check_signal_before_exec() {
    cat >late.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
int setpgid(pid_t pid, pid_t group) { /* a rank's first call */
    int (*real)(pid_t, pid_t) = (int (*)(pid_t, pid_t))dlsym(RTLD_NEXT, "setpgid"), status = real(pid, group), i;
    struct timespec nap = {0, 10000000};
    if (!pid) close(open("forked", O_WRONLY | O_CREAT, 0666));
    for (i = 0; !pid && i < 1500 && access("told", F_OK); i++) nanosleep(&nap, NULL);
    return status;
}
C
    cc -shared -fPIC late.c -o late.so -ldl || return
    rm -f forked told ran
    timeout -k 1 20 env LD_PRELOAD="$PWD/late.so" sh -c 'echo $$ >launcher; exec "$@"' sh "$mesh" run -n 1 -- env -u LD_PRELOAD sh -c ': >ran' >out 2>&1 &
    local job=$! status
    soon [ -e forked ]
    kill -TERM "$(cat launcher)"
    soon grep -q "SIGTERM ends 1 rank" out
    : >told
    wait $job
    status=$?
    [ $status = 143 ] && [ ! -e ran ]
    say $? signal_before_exec "status $status, the rank $([ -e ran ] && echo ran all the same || echo did not run); $(cat out)"
}

# The second Ctrl-C kills what the first one did not end.
check_second_interrupt() {
    rm -f pid.* got
    timeout -k 1 20 "$mesh" run -n 1 -- sh -c 'trap "echo x >>got" INT; echo $$ >pid.0; while :; do sleep 0.05; done' >out 2>&1 &
    local job=$! launcher start
    soon [ -s pid.0 ]
    launcher=$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')
    kill -INT "$launcher"
    soon [ -s got ]
    start=$(date +%s%N)
    kill -INT "$launcher"
    wait $job
    local ms=$((($(date +%s%N) - start) / 1000000))
    [ $ms -lt 2000 ]
    say $? second_interrupt "the job ended $ms ms after the second SIGINT"
}

# forwarded NAME SIGNAL: ranks hear it
forwarded() {
    rm -f pid.* got
    timeout -k 1 10 "$mesh" run -n 2 -- bash -c "trap 'echo \$RANK >>got; exit 0' $2; echo \$\$ >pid.\$RANK; while :; do sleep 0.05; done" >out 2>&1 &
    local job=$!
    soon [ -s pid.0 ] && soon [ -s pid.1 ]
    kill -"$2" "$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')"
    wait $job 2>/dev/null
    local status=$?
    [ "$(sort got 2>/dev/null | tr -d '\n')" = 01 ]
    say $? "$1" "ranks that heard SIG$2: $(sort got 2>/dev/null | tr '\n' ' '); the launcher ended with $status"
}
check_usr1() { forwarded usr1 USR1; }
check_usr2() { forwarded usr2 USR2; }
# Both, where both come before the launcher looks.
check_usr_both() {
    rm -f pid.* got.* end
    timeout -k 1 20 "$mesh" run -n 1 -- bash -c 'trap ": >got.1" USR1; trap ": >got.2" USR2; echo $$ >pid.0; while [ ! -e end ]; do sleep 0.05; done' >out 2>&1 &
    local job=$! launcher
    soon [ -s pid.0 ]
    launcher=$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')
    kill -STOP "$launcher"
    soon state_is "$launcher" T
    kill -USR1 "$launcher"
    kill -USR2 "$launcher"
    kill -CONT "$launcher"
    soon [ -e got.1 ] && soon [ -e got.2 ]
    say $? usr_both "the rank heard $(ls got.* 2>/dev/null | tr '\n' ' ')"
    : >end
    wait $job
    rm -f end
}
check_quit() { forwarded quit QUIT; }

# Ctrl-Z stops the ranks and then the launcher; fg lets both go on.
check_stop() {
    rm -f pid.*
    timeout -k 1 20 "$mesh" run -n 1 -- sh -c 'echo $$ >pid.0; while [ ! -e end ]; do sleep 0.05; done' >out 2>&1 &
    local job=$! launcher ok=1 seen
    soon [ -s pid.0 ]
    launcher=$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')
    kill -TSTP "$launcher"
    soon state_is "$launcher" T
    soon state_is "$(cat pid.0)" T && ok=0
    seen="launcher $(state "$launcher"), rank $(state "$(cat pid.0)")"
    kill -CONT "$launcher"
    : >end
    wait $job || ok=1
    rm -f end
    say $ok stop "after SIGTSTP: $seen (T: stopped)"
}

# Signals are passed on while nobody takes what the ranks print, too; and one that ends the job does, however many lines are left.
check_stop_unread() {
    rm -f pid.* got end
    mkfifo full
    exec 3<>full
    timeout -k 1 40 "$mesh" run -n 1 -- bash -c 'trap ": >got" USR1; echo $$ >pid.0; yes & yes=$!
        while [ ! -e end ]; do sleep 0.05; done; kill $yes' 3>&- >full 2>out &
    local job=$! launcher ok=1 seen before=0 now=-1 status
    soon [ -s pid.0 ]
    launcher=$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')
    while [ "$before" != "$now" ]; do before=$now && sleep 0.2 && now=$(sed -n 's/wchar: //p' "/proc/$launcher/io"); done # the pipe is full
    kill -USR1 "$launcher"
    soon [ -e got ] && ok=0
    kill -TSTP "$launcher"
    soon state_is "$launcher" T || ok=1
    seen="USR1 was$([ -e got ] || echo ' not') passed on; after SIGTSTP the launcher is $(state "$launcher") (T: stopped)"
    kill -CONT "$launcher"
    kill -INT "$launcher"
    wait $job
    status=$?
    exec 3>&-
    rm -f full
    [ $status = 130 ] || ok=1 # 124: every line that was left is waited for
    say $ok stop_unread "$seen; SIGINT: $status"
}

# Time that a job is stopped for is none of its time: an hour of it, as the launcher's clock has it.
check_stopped_hour() {
    cat >hour.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
static time_t ahead;
int raise(int sig) {
    int status = kill(getpid(), sig);
    if (sig == SIGSTOP) ahead += 3600;
    return status;
}
int clock_gettime(clockid_t clock, struct timespec *t) {
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, t);
    if (clock == CLOCK_MONOTONIC) t->tv_sec += ahead;
    return status;
}
C
    cc -shared -fPIC hour.c -o hour.so -ldl || return
    rm -f pid.* got end
    timeout -k 1 20 env LD_PRELOAD="$PWD/hour.so" "$mesh" run -n 1 --timeout 1800 --idle-timeout 900 -- env -u LD_PRELOAD \
        bash -c 'trap ": >got" USR1; echo $$ >pid.0; while [ ! -e end ]; do sleep 0.05; done' >out 2>&1 &
    local job=$! launcher status
    soon [ -s pid.0 ]
    launcher=$(ps -o ppid= -p "$(cat pid.0)" | tr -d ' ')
    kill -TSTP "$launcher"
    soon state_is "$launcher" T
    kill -CONT "$launcher"
    kill -USR1 "$launcher" # it has looked at the clock when it passes this on
    soon [ -e got ]
    : >end
    wait $job
    status=$?
    rm -f end
    [ $status = 0 ]
    say $? stopped_hour "status $status, $(cat out)"
}

check_stdin() {
    local out
    out=$(echo hi | timeout -k 1 10 "$mesh" run -n 2 --bare -- sh -c 'read x; echo "$RANK:$x"' 2>err | sort | tr '\n' ' ')
    [ "$out" = "0:hi 1: " ]
    say $? stdin "ranks read: $out$(head -1 err)"
    out=$(echo hi | timeout -k 1 10 "$mesh" run -n 2 --bare --stdin all -- sh -c 'read x; echo "$RANK:$x"' 2>err | sort | tr '\n' ' ')
    [ "$out" = "0:hi 1:hi " ]
    say $? stdin_all "$out$(head -1 err)"
    out=$(echo hi | timeout -k 1 10 "$mesh" run -n 2 --bare --stdin 1 -- sh -c 'read x; echo "$RANK:$x"' 2>err | sort | tr '\n' ' ')
    [ "$out" = "0: 1:hi " ]
    say $? stdin_1 "$out$(head -1 err)"
    out=$(echo hi | timeout -k 1 10 "$mesh" run -n 2 --bare --stdin none -- sh -c 'read x; echo "$RANK:$x"' 2>err | sort | tr '\n' ' ')
    [ "$out" = "0: 1: " ]
    say $? stdin_none "$out$(head -1 err)"
}

check_signal_names() {
    local out
    out=$(timeout -k 1 10 "$mesh" run -n 1 -- sh -c 'kill -SEGV $$' 2>&1)
    has "$out" SIGSEGV
    say $? signal_names "$out"
}

check_log() {
    local out
    out=$(timeout -k 1 10 "$mesh" run -n 2 --log logs -- sh -c 'echo "out of $RANK"; echo "err of $RANK" >&2' 2>&1)
    grep -rqs "out of 1" logs && grep -rqs "err of 0" logs && ! grep -lrs "of 0" logs | xargs -r grep -qs "of 1"
    say $? log "logs/: $(ls logs 2>/dev/null | tr '\n' ' '); $out"
}

check_bind() {
    local out
    [ "$(nproc)" -ge 2 ] || return
    out=$(timeout -k 1 10 "$mesh" run -n 2 --bare --bind -- sh -c 'grep Cpus_allowed_list /proc/self/status' 2>err | sort -u)
    [ "$(grep -c Cpus_allowed_list <<<"$out")" = 2 ]
    say $? bind "the ranks' cores: $(tr '\n' ' ' <<<"$out")$(head -1 err)"
}

check_omp() {
    local out want=$(($(nproc) / 2))
    out=$(env -u OMP_NUM_THREADS timeout -k 1 10 "$mesh" run -n 2 --bare -- sh -c 'echo "$RANK:$OMP_NUM_THREADS"' 2>err | sort | tr '\n' ' ')
    [ "$out" = "0:$((want > 0 ? want : 1)) 1:$((want > 0 ? want : 1)) " ]
    say $? omp "two ranks on $(nproc) cores see OMP_NUM_THREADS: $out"
    [ "$(grep -c OMP_NUM_THREADS err)" = 1 ]
    say $? omp_said "said $(grep -c OMP_NUM_THREADS err) times"
    out=$(OMP_NUM_THREADS=7 timeout -k 1 10 "$mesh" run -n 2 --bare -- sh -c 'echo "$RANK:$OMP_NUM_THREADS"' 2>err | sort | tr '\n' ' ')
    [ "$out" = "0:7 1:7 " ]
    say $? omp_kept "set to 7: $out"
    out=$("$mesh" doctor 2>&1)
    has "$out" OMP_NUM_THREADS
    say $? omp_doctor "doctor does not mention it"
}

# A program that prints token by token: the first one is seen before it prints the next.
check_bare_partial() {
    mkfifo pipe
    rm -f seen
    timeout -k 1 10 "$mesh" run -n 1 --bare -- sh -c 'printf tok; for i in $(seq 150); do [ -e seen ] && exit 0; sleep 0.02; done; exit 9' >pipe 2>err &
    local job=$! word
    exec 3<pipe
    IFS= read -r -n 3 -t 8 word <&3
    : >seen
    wait $job
    local status=$?
    exec 3<&-
    rm -f pipe
    [ "$word" = tok ] && [ $status = 0 ]
    say $? bare_partial "\"$word\" was seen $([ $status = 0 ] && echo in time || echo 'only at the end')"
}

check_only() {
    local out
    out=$(timeout -k 1 10 "$mesh" run -n 3 --bare --only 1 -- sh -c 'echo "rank $RANK"' 2>err)
    [ "$out" = "rank 1" ]
    say $? only "$out$(head -1 err)"
}

# Ranks that share a GPU are a host each for NCCL; what the user has set stays.
check_share_gpu() {
    local out
    out=$(NCCL_NET=IB timeout -k 1 10 "$mesh" run -n 2 --share-gpu --bare -- sh -c 'echo "$NCCL_HOSTID $NCCL_NET $NCCL_SHM_DISABLE"' 2>err | sort)
    [ "$(cut -d' ' -f1 <<<"$out" | sort -u | wc -l)" = 2 ] && [ "$(grep -c ' IB 1$' <<<"$out")" = 2 ] && [ "$(grep -c -- --share-gpu err)" = 1 ]
    say $? share_gpu "$out $(head -1 err)"
}

# More ranks than a limit allows: refused before any is started, and the limit is named.
check_too_many() {
    local out status
    rm -f ran.*
    out=$( (ulimit -n 64 && timeout -k 1 20 "$mesh" run -n 100000 -- sh -c ': >ran.$RANK') 2>&1)
    status=$?
    sleep 0.1 # those that were started have had time to leave their mark
    [ $status != 0 ] && ! ls ran.* >/dev/null 2>&1 && has "$out" 64
    say $? too_many "status $status, $(ls ran.* 2>/dev/null | wc -l) ranks ran: $(head -1 <<<"$out")"
}

# Started ranks that a failed start kills are waited for: as their subreaper we would inherit them.
check_reaped() {
    local out
    command -v python3 >/dev/null || { echo "skip: reaped (no python3)" && return; }
    out=$(timeout -k 1 20 python3 - "$mesh" <<'P'
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
def few(): resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
p = subprocess.run([sys.argv[1], "run", "-n", "400", "--", "sleep", "30"], preexec_fn=few, capture_output=True, text=True)
left = 0
while True:
    try:
        os.wait()
        left += 1
    except ChildProcessError:
        break
print(left, p.stderr.strip())
P
    )
    [ "${out%% *}" = 0 ]
    say $? reaped "children left unreaped: $out"
}

# SIGTERM while ranks are being started ends the starting.
check_term_while_starting() {
    local started status
    rm -f ran.*
    timeout -k 1 20 "$mesh" run -n 400 -- sh -c ': >ran.$RANK; [ $RANK != 0 ] || kill -TERM $PPID; exec sleep 20' >out 2>&1
    status=$?
    started=$(ls ran.* | wc -l)
    rm -f ran.*
    [ $status = 143 ] && [ "$started" -lt 300 ]
    say $? term_while_starting "status $status; $started of 400 ranks were started though rank 0 sent SIGTERM at once"
}

# ---- 16: what a library call can be caught at

# A program that opens, closes and opens again, under the launcher: MESH_LISTEN_FD serves once, and what it accepted lingers at the port.
check_opened_twice() {
    cat >twice.c <<'C'
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include "mesh_collectives.h"
#include "transports/mesh_socket.h"
int main(void) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    int i;
    char c;
    d.open_timeout_ns = 5000000000;
    for (i = 0; i < 2; i++) {
        if (mesh_socket_open(&net, &d, &err)) return fprintf(stderr, "opening %d: %s\n", i + 1, err.text), 1;
        if (mesh_socket_close(&net)) return 1;
        if (net.base.rank == 0) { /* rank 1 goes on when rank 0 has closed */
            FILE *f = fopen("closed", "w");
            if (f) fputs("x", f), fclose(f);
        } else {
            FILE *f;
            while (!(f = fopen("closed", "r")) || fread(&c, 1, 1, f) != 1) sched_yield();
            fclose(f);
        }
    }
    return 0;
}
C
    rm -f closed
    cc -std=c99 -O0 -I"${mesh%/build/mesh}" twice.c -o twice || return
    local out
    out=$(timeout -k 1 20 "$mesh" run -n 2 -- ./twice 2>&1)
    say $? opened_twice "$(head -1 <<<"$out")"
}

check_no_entropy() {
    cat >norandom.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>
int open(const char *path, int flags, ...) {
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    va_list a;
    int mode;
    va_start(a, flags), mode = va_arg(a, int), va_end(a);
    if (strstr(path, "random")) return errno = ENOENT, -1;
    return real(path, flags, mode);
}
ssize_t getrandom(void *p, size_t n, unsigned f) { (void)p, (void)n, (void)f; return errno = ENOSYS, -1; }
int getentropy(void *p, size_t n) { (void)p, (void)n; return errno = ENOSYS, -1; }
C
    cc -shared -fPIC norandom.c -o norandom.so -ldl || return
    local out status
    out=$(LD_PRELOAD=$PWD/norandom.so timeout -k 1 10 "$mesh" run -n 1 --bare -- sh -c 'echo "secret $MESH_SECRET"' 2>&1)
    status=$?
    [ $status != 0 ] && has "$out" random
    say $? no_entropy "no random numbers, and the job runs: $out"
}

check_cloexec() {
    cat >cloexec.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
int socket(int f, int type, int p) {
    int (*real)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    if (!(type & SOCK_CLOEXEC)) fprintf(stderr, "leak: socket\n");
    return real(f, type, p);
}
int accept(int fd, struct sockaddr *a, socklen_t *n) {
    int (*real)(int, struct sockaddr *, socklen_t *) = (int (*)(int, struct sockaddr *, socklen_t *))dlsym(RTLD_NEXT, "accept");
    fprintf(stderr, "leak: accept\n");
    return real(fd, a, n);
}
int open(const char *path, int flags, ...) {
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    va_list v;
    int mode;
    va_start(v, flags), mode = va_arg(v, int), va_end(v);
    if (!(flags & O_CLOEXEC)) fprintf(stderr, "leak: open %s\n", path);
    return real(path, flags, mode);
}
FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = (FILE * (*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen");
    if (!strchr(mode, 'e')) fprintf(stderr, "leak: fopen %s\n", path);
    return real(path, mode);
}
C
    cc -shared -fPIC cloexec.c -o cloexec.so -ldl || return
    local out
    out=$(timeout -k 1 10 "$mesh" run -n 3 --bare -- env LD_PRELOAD="$PWD/cloexec.so" "$hello" 2>&1 | grep '^leak' | sort | uniq -c | tr -s ' \n' ' ')
    [ -z "$out" ]
    say $? cloexec "a program that forks meanwhile would inherit:$out"
}

# ---- 12: addresses (in a network namespace of our own)

check_second_address() {
    local out status
    out=$(host '::1 both\n127.0.0.1 both\n' '
        export WORLD_SIZE=2 MASTER_PORT=29611 MESH_SECRET=0123456789abcdef
        RANK=0 MASTER_ADDR=127.0.0.1 timeout -k 1 6 '"$hello"' >r0 2>&1 & RANK=1 MASTER_ADDR=both timeout -k 1 6 '"$hello"' 2>&1; s=$?; wait; exit $s')
    status=$?
    [ $status = 0 ]
    say $? second_address "a name of ::1 and 127.0.0.1, rank 0 at 127.0.0.1: status $status (124: waited in vain) $out"
}

# Debian's /etc/hosts: this host's own name is 127.0.1.1 here, and its address elsewhere.
check_debian_name() {
    local out status
    out=$(host '127.0.1.1 nodea\n' '
        export WORLD_SIZE=2 MASTER_PORT=29611 MESH_SECRET=0123456789abcdef
        RANK=0 MASTER_ADDR=nodea timeout -k 1 6 '"$hello"' >r0 2>&1 & RANK=1 MASTER_ADDR=10.77.0.1 timeout -k 1 6 '"$hello"' 2>&1; s=$?; wait; exit $s')
    status=$?
    [ $status = 0 ]
    say $? debian_name "nodea is 127.0.1.1 for rank 0, 10.77.0.1 for rank 1: status $status (124: waited in vain) $out"
    out=$(host '127.0.1.1 nodea\n' 'RANK=0 WORLD_SIZE=2 MASTER_ADDR=nodea MASTER_PORT=29611 MESH_SECRET=0123456789abcdef '"$mesh"' doctor')
    has "$out" 127.0.1.1
    say $? debian_doctor "says nothing of it: $(grep -E 'launcher|address' <<<"$out" | tr -s ' \n' ' ')"
    # Without a secret it stays on loopback.
    out=$(host '127.0.1.1 nodea\n' '
        export WORLD_SIZE=2 MASTER_PORT=29611 RANK=0 MASTER_ADDR=nodea
        '"$hello"' >r0 2>&1 & for i in $(seq 100); do l=$(ss -Hltn | grep 29611) && break; sleep 0.02; done; kill $!; echo "$l"')
    has "$out" 127.0.1.1:29611
    say $? debian_no_secret "listens: $(tr -s ' ' <<<"$out")"
}

# Two hosts: ranks 0 and 1 where nodea is 127.0.1.1, rank 2 where it is 10.77.0.1. Ranks 1 and 2 have to reach each other too.
check_debian_two_hosts() {
    local out status
    cat >other.sh <<'S'
printf '10.77.0.1 nodea\n' >hosts.b && mount --bind hosts.b /etc/hosts
ip link set lo up
: >b.ready
until ip link set vb up 2>/dev/null; do sleep 0.02; done
ip addr add 10.77.0.2/24 dev vb
exec env RANK=2 timeout -k 1 8 "$1"
S
    rm -f b.ready
    out=$(host '127.0.1.1 nodea\n' '
        export WORLD_SIZE=3 MASTER_PORT=29611 MESH_SECRET=0123456789abcdef MASTER_ADDR=nodea MESH_SOCKET_LANES=tcp
        ip addr del 10.77.0.1/32 dev lo
        unshare -nm bash other.sh '"$hello"' >r2 2>&1 & b=$!
        until [ -e b.ready ]; do sleep 0.02; done
        ip link add va type veth peer name vb netns $b && ip addr add 10.77.0.1/24 dev va && ip link set va up || echo "no veth"
        RANK=0 timeout -k 1 8 '"$hello"' >r0 2>&1 & RANK=1 timeout -k 1 8 '"$hello"' 2>&1; s=$?; wait $b || s=$?; wait; cat r0 r2; exit $s')
    status=$?
    [ $status = 0 ]
    say $? debian_two_hosts "status $status (124: waited in vain) $out"
}

check_own_address() {
    local out
    out=$(host '127.0.0.1 localhost\n' '
        export WORLD_SIZE=2 MASTER_PORT=29611 MESH_SECRET=0123456789abcdef RANK=0 MASTER_ADDR=10.77.0.1
        '"$hello"' >r0 2>&1 & for i in $(seq 100); do l=$(ss -Hltn | grep 29611) && break; sleep 0.02; done; kill $!; echo "$l"')
    has "$out" 10.77.0.1:29611
    say $? own_address "MASTER_ADDR=10.77.0.1, rank 0 listens:$(tr -s ' ' <<<"$out" | cut -d' ' -f4)"
}

host '' true 2>/dev/null || { echo "skip: no network namespaces (not root): second_address, debian_*, own_address"; skip="check_second_address check_debian_name check_debian_two_hosts check_own_address"; }
for check in $(declare -F | sed -n 's/.* \(check_.*\)/\1/p'); do
    [[ " $skip " == *" $check "* ]] && continue
    wanted=$#
    for part in "$@"; do [[ $check == *$part* ]] && wanted=0; done
    [ "$wanted" = 0 ] && $check
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
