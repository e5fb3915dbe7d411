/*
 * An owner of peer objects (fi_peer(3)) for tests: a queue, a counter and a list of receives, to
 * which a provider reports, and pairs of endpoints that use them.
 *
 * Providers are not compiled with a sanitizer. So all that a provider gets a pointer to ends where
 * its page ends, and is out of reach once it is freed: a provider that reads too much or too late
 * ends the program.
 */
#ifndef OWNER_H
#define OWNER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_peer.h>

#define CHECK(condition) \
	((condition) ? (void) 0 : fail(__FILE__, __LINE__, #condition))
#define EQUAL(value, expected) equal(__FILE__, __LINE__, #value, (value), (expected))

void fail(const char *file, int line, const char *what) __attribute__((noreturn));
void equal(const char *file, int line, const char *what, long long value, long long expected);

/* Memory that ends where its page ends, zeroed. */
void *guarded(size_t size);
void *guarded_copy(const void *of, size_t size);
/* Nobody may read it any more. The address is not used again. */
void release(void *memory, size_t size);

enum callback { GET, QUEUE, FREE, WRITE, WRITE_ERROR, COUNT, UPDATE };

enum rx_state {
	POSTED,   /* a receive that waits for a message */
	OFFERED,  /* handed out for a message without a receive, not queued yet */
	QUEUED,   /* stands for a message that waits for a receive */
	STARTED,  /* the provider's, with a receive */
};

/* The owner's own part of an entry. */
struct rx {
	struct fi_peer_rx_entry *entry;
	struct iovec *iov; /* of a receive: one buffer */
	enum rx_state state;
	bool tagged;
	fi_addr_t src;
	uint64_t ignore;
	struct rx *next;
};

/* An entry that a provider has written to the queue. */
struct done {
	uintptr_t context;
	uint64_t flags, data, tag;
	size_t len, olen;
	fi_addr_t src;
	int err;
};

struct owner {
	struct fid_peer_srx *srx;
	struct fid_peer_cq *cq;
	struct fid_peer_cntr *cntr;
	pthread_mutex_t lock; /* of the fields up to "within" */
	struct rx *first;
	struct done done[4096];
	size_t done_count, freed, discarded, queued, updates;
	uint64_t counted, failed;
	int refused_gets, refused_queues, refused_writes; /* so many calls fail */
	int refusal;                                      /* by this result */
	int queue_answer; /* not 0: the result of a call that has queued an entry */
	bool repeats;     /* a get returns an entry that the provider has, by the result "refusal" */
	fi_addr_t (*get_addr)(struct fi_peer_rx_entry *); /* the provider's, once it is known */
	/* Called in each function of the owner's, without the lock. */
	void (*within)(struct owner *owner, enum callback callback, struct fi_peer_rx_entry *entry);
	void *test;
};

struct owner *owner_new(void);
/* All entries have come back; frees the objects, which a provider must not use any more. */
void owner_free(struct owner *owner);

struct receive {
	bool tagged;
	fi_addr_t src;
	uint64_t tag, ignore;
	void *buf;
	size_t len;
	uintptr_t context;
};

/* Posts a receive, or starts the first message in the queue that it takes. One that the provider
 * does not start is in the queue again. */
int owner_receive(struct owner *owner, struct receive receive);
/* The entries in a state, and the first of them. */
size_t owner_entries(struct owner *owner, enum rx_state state);
struct fi_peer_rx_entry *owner_first(struct owner *owner, enum rx_state state);
/* Drops the oldest message in the queue. */
int owner_discard(struct owner *owner);
/* The owner drops an entry from its list, and frees it. */
void owner_forget(struct owner *owner, struct fi_peer_rx_entry *entry);
/* Takes the oldest completion out; false: there is none. */
bool owner_next(struct owner *owner, struct done *done);

/* An endpoint with its objects. */
struct side {
	struct owner *owner;
	struct fid_ep *ep, *srx;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct side *peer;
	fi_addr_t to; /* the peer */
};

struct world {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain[2]; /* the same twice, where a domain is for all threads */
	struct side a, b;
};

/* FERRO_TEST_PROVIDER and FERRO_TEST_DOMAIN name the provider and its domain. */
void world_open(struct world *world);
/* All but the bindings. */
void side_open_unbound(struct side *side, struct world *world, struct fid_domain *domain);
void side_bind(struct side *side);
/* The endpoint may be closed, and NULL. */
void side_close(struct side *side);
/* Introduces the first to the second, by an ID (FI_AV_USER_ID) or without one. */
void side_insert(struct side *side, struct side *peer, const fi_addr_t *id);
void world_close(struct world *world);

/* Drives both ends. */
void world_drive(struct world *world);
/* Sends with and without a tag; the sender has the completion. */
void side_send(struct world *world, struct side *side, bool tagged, const void *buf, size_t len,
	       uint64_t tag, uint64_t data);
/* Drives both ends until there is a completion. */
struct done world_next(struct world *world, struct owner *owner);
/* Drives both ends until so many entries have the state. */
void world_until(struct world *world, struct owner *owner, enum rx_state state, size_t count);

/* The scenario that the command line names, of those that are listed. */
struct scenario { const char *name; void (*run)(void); };
int run_scenario(int argc, char **argv, const struct scenario *scenarios);

#endif
