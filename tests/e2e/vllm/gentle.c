/* Several servers share few cores here. vLLM's workers wait by spinning on sched_yield, and a yielding thread starves
 * beside a busy one: a short sleep instead makes runs steady. NIXL's progress thread spins on poll with no time to wait
 * (NixlConnector has one in every worker), and pins to cores put several spinning threads onto one: such a poll waits a
 * millisecond, and nobody is pinned. For tests alone; every connector that is compared gets the same help. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <time.h>

int sched_yield(void) {
    const struct timespec pause = {0, 50000};
    nanosleep(&pause, 0);
    return 0;
}

int sched_setaffinity(pid_t process, size_t size, const cpu_set_t *cores) {
    (void)process, (void)size, (void)cores;
    return 0;
}

static int from_nixl(const void *caller) {
    Dl_info found;
    return dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, "libplugin_UCX");
}

int poll(struct pollfd *watched, nfds_t count, int milliseconds) {
    const struct timespec wait = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    const struct timespec short_wait = {0, 1000000};
    if (milliseconds == 0 && from_nixl(__builtin_return_address(0))) return ppoll(watched, count, &short_wait, 0);
    return ppoll(watched, count, milliseconds < 0 ? 0 : &wait, 0);
}
