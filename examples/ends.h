/* How an example begins and ends: it refuses arguments that it does not know, and fails where what it printed has not come out. */
#ifndef ENDS_H
#define ENDS_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* For an example without arguments: 0 where there are none; `start` says how it is called. */
static inline int any_argument(int argc, char **argv, const char *start) {
    if (argc < 2) return 0;
    fprintf(stderr, "\"%s\" is not known; there are no arguments: %s\n", argv[1], start);
    return 1;
}

/* The exit status: what was printed has to be there. */
static inline int finish(const char *program, int status) {
    errno = 0; /* a write that failed before the last one has left its mark, not its cause */
    if (!fflush(stdout) && !ferror(stdout)) return status;
    fprintf(stderr, "%s: cannot write to stdout: %s\n", program, errno ? strerror(errno) : "not all of it was");
    return status ? status : 1;
}

#endif
