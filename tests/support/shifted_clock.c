// SPDX-License-Identifier: Apache-2.0
// A host whose clock is wrong, for tests: with LD_PRELOAD, the time of day is $SHIFTED_CLOCK_SECONDS later than it is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec* time) {
    static int (*next)(clockid_t, struct timespec*);
    if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "clock_gettime");
    int const result = next(clock, time);
    char const* const shift = getenv("SHIFTED_CLOCK_SECONDS");
    if (result == 0 && clock == CLOCK_REALTIME && shift != NULL) time->tv_sec += atol(shift);
    return result;
}
