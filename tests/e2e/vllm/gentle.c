/* Several servers share few cores here. vLLM's workers wait by spinning on sched_yield, and a yielding thread starves
 * beside a busy one: a short sleep instead makes runs steady. For tests alone. */
#define _GNU_SOURCE
#include <time.h>

int sched_yield(void) {
    const struct timespec pause = {0, 50000};
    nanosleep(&pause, 0);
    return 0;
}
