/* Receives and messages as they should be, for all hostile owners. */
#ifndef HOSTILE_H
#define HOSTILE_H

#include "owner.h"

static char into[1 << 16];

static inline struct receive receive_of(bool tagged, uint64_t tag, uintptr_t context)
{
	return (struct receive) {
		.tagged = tagged, .src = FI_ADDR_UNSPEC, .tag = tagged ? tag : 0, .ignore = 0, .buf = into,
		.len = sizeof into, .context = context,
	};
}

/* Sends a message, and takes the sender's completion out. */
static inline void send_one(struct world *world, bool tagged, uint64_t tag, size_t len)
{
	static char bytes[sizeof into];
	side_send(world, &world->a, tagged, bytes, len, tagged ? tag : 0, 0);
	EQUAL(world_next(world, world->a.owner).err, 0);
}

/* The next completion at the receiver is this one. */
static inline void check_next(struct world *world, uintptr_t context, size_t len)
{
	struct done done = world_next(world, world->b.owner);
	EQUAL(done.err, 0);
	EQUAL(done.context, context);
	EQUAL(done.len, len);
}

static inline struct fi_ops_srx_peer *peer_ops(struct world *world)
{
	return world->b.owner->srx->peer_ops;
}

/* All contexts are a size and a pointer; all objects end with their table; all tables begin with
 * their size, behind which there are functions alone. */
static inline void check_object(void *parent, int (*open)(void *, void *), void *object,
				size_t table_at)
{
	struct { size_t size; void *object; } *context = guarded(sizeof *context);
	size_t **table = (size_t **) ((char *) object + table_at);
	size_t *whole = *table, size = *whole;

	EQUAL(open(parent, NULL), -FI_EINVAL);
	context->size = sizeof *context;
	EQUAL(open(parent, context), -FI_EINVAL);
	context->object = object;
	EQUAL(open(parent, context), 0);
	context->size++;
	EQUAL(open(parent, context), 0);
	/* Where the size says that there is no more, there is none. */
	size_t *short_one = guarded(sizeof *short_one);
	for (*short_one = 0; *short_one < sizeof *context; ++*short_one)
		EQUAL(open(parent, short_one), -FI_EINVAL);
	for (*short_one = 0; *short_one < size; ++*short_one) {
		*table = short_one;
		EQUAL(open(parent, context), -FI_EINVAL);
	}
	*table = NULL;
	EQUAL(open(parent, context), -FI_EINVAL);
	for (size_t missing = 1; missing < size / sizeof size; missing++) {
		*table = guarded_copy(whole, size);
		(*table)[missing] = 0;
		EQUAL(open(parent, context), -FI_EINVAL);
		release(*table, size);
	}
	*table = whole;
	EQUAL(open(parent, context), 0);
}

#endif
