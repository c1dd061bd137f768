/* Preloaded: the time of day jumps by an hour back and forth at every call. The monotonic clock does not:
 * the kernel promises that. */

#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic unsigned calls;

static long jump(void)
{
	return atomic_fetch_add(&calls, 1) % 2 ? 3600 : -3600;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int code = (int)syscall(SYS_clock_gettime, clock, t);
	if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
		t->tv_sec += jump();
	return code;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	(void)zone;
	struct timespec now;
	int code = clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return code;
}

time_t time(time_t *t)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}
