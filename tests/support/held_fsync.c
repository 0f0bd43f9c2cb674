// SPDX-License-Identifier: Apache-2.0
// A disk that hangs, for tests: with LD_PRELOAD, fsync of a file whose path holds the text $HELD_FSYNC_PATH does not return
// while the file $HELD_FSYNC_FILE exists; $HELD_FSYNC_FILE.entered appears when the first call waits.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int fd) {
    char const* const hold = getenv("HELD_FSYNC_FILE");
    char const* const part = getenv("HELD_FSYNC_PATH");
    char link[64], path[4096], entered[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t const length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    if (hold != NULL && part != NULL && strstr(path, part) != NULL && access(hold, F_OK) == 0) {
        snprintf(entered, sizeof entered, "%s.entered", hold);
        close(open(entered, O_WRONLY | O_CREAT, 0666));
        while (access(hold, F_OK) == 0) usleep(10000);
    }
    int (*next)(int);
    *(void**)&next = dlsym(RTLD_NEXT, "fsync");
    return next(fd);
}
