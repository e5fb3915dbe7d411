/* Threads of an application in calls of a provider, cancelled by another one. The test hands in the
 * objects, and the functions of their tables with the signatures of libfabric's headers. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct calls {
	void *cq;
	ssize_t (*cq_read)(void *cq, void *buf, size_t count);
	ssize_t (*cq_sread)(void *cq, void *buf, size_t count, const void *cond, int timeout);
	void *eq;
	ssize_t (*eq_sread)(void *eq, uint32_t *event, void *buf, size_t len, int timeout, uint64_t flags);
	void *cntr;
	int (*cntr_wait)(void *cntr, uint64_t threshold, int timeout);
	void *ep;
	ssize_t (*send)(void *ep, const void *buf, size_t len, void *desc, uint64_t to, uint64_t tag, void *context);
	uint64_t to;
	uint64_t tag;
	/* Sends that were posted, and completions that were read, by all threads so far: one at a time
	 * runs, and each is joined before the test looks. */
	uint64_t *posted;
	uint64_t *read;
};

enum { CQ_SREAD, EQ_SREAD, CNTR_WAIT, SEND_AND_READ };

struct thread {
	const struct calls *calls;
	int call;
	_Atomic pid_t id;
	int cleaned;
};

static void clean(void *thread)
{
	((struct thread *) thread)->cleaned++;
}

static void *run(void *argument)
{
	static char sent[8];
	struct thread *thread = argument;
	const struct calls *calls = thread->calls;
	char entry[256];
	uint32_t event;

	pthread_cleanup_push(clean, thread);
	thread->id = syscall(SYS_gettid);
	for (;;) {
		switch (thread->call) {
		case CQ_SREAD:
			if (calls->cq_sread(calls->cq, entry, 1, NULL, -1) > 0)
				++*calls->read;
			break;
		case EQ_SREAD:
			calls->eq_sread(calls->eq, &event, entry, sizeof entry, -1, 0);
			break;
		case CNTR_WAIT:
			calls->cntr_wait(calls->cntr, UINT64_MAX, -1);
			break;
		case SEND_AND_READ:
			/* As deep as its queue: it has to wait now and again. */
			while (!calls->send(calls->ep, sent, sizeof sent, NULL, calls->to, calls->tag, NULL))
				++*calls->posted;
			while (calls->cq_read(calls->cq, entry, 1) > 0)
				++*calls->read;
			break;
		}
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static int is_asleep(pid_t id)
{
	char path[64], text[256] = "";
	FILE *file;
	char *state;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int) id);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (!fgets(text, sizeof text, file))
		text[0] = 0;
	fclose(file);
	state = strrchr(text, ')');
	return state && state[1] && state[2] == 'S';
}

/* Cancels a thread in a call: once it sleeps (pause < 0), or after so many turns of a loop. Returns
 * 0 when it ended by that, with its cleanup handler; else the step that failed. */
int cancel_in(const struct calls *calls, int call, long pause)
{
	struct thread thread = { .calls = calls, .call = call };
	struct timespec until;
	pthread_t handle;
	void *result = NULL;

	if (pthread_create(&handle, NULL, run, &thread))
		return 1;
	while (!thread.id)
		;
	if (pause < 0) {
		while (!is_asleep(thread.id))
			;
	} else {
		for (volatile long i = 0; i < pause; i++)
			;
	}
	if (pthread_cancel(handle))
		return 2;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	if (pthread_timedjoin_np(handle, &result, &until))
		return 3;
	if (result != PTHREAD_CANCELED)
		return 4;
	return thread.cleaned == 1 ? 0 : 5;
}
