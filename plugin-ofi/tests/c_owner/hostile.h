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

#endif
