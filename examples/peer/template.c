/*
 * A peer provider of libfabric's to start from (fi_peer(3)). It delivers messages between endpoints
 * of one process, and has no completion queue, counter or receive of its own: an owner, which is
 * another provider, opens each of them here with FI_PEER, and lends an object of its own.
 *
 * - A message arrives: get_msg or get_tag returns an entry of the owner's. If it has a receive (0),
 *   the peer copies, writes the completion to the owner's queue, and calls free_entry.
 * - If it has none (-FI_ENOENT), the peer calls queue_msg or queue_tag: the entry is the owner's.
 *   Once there is a receive the owner calls start_msg or start_tag, and the peer goes on as above.
 *   Or the owner calls discard_msg or discard_tag: the peer drops the message, not the entry.
 * - The source is FI_ADDR_UNSPEC if the sender is not in the address vector. After an insertion the
 *   peer calls foreach_unspec_addr, and the owner inquires about its queued entries by get_addr.
 * - The owner drives the peer by fi_cq_read(cq, NULL, 0) or fi_cntr_read, serializes the calls of a
 *   domain (FI_THREAD_DOMAIN), closes nothing in a function that the peer calls, and starts or
 *   discards all queued entries before it closes the endpoint.
 *
 * A receive entry has the layout of the header that this file is compiled with: take that of the
 * libfabric which loads it.        cc -shared -fPIC -o libtemplate-fi.so template.c -lfabric
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_peer.h>
#include <rdma/providers/fi_prov.h>
#pragma GCC diagnostic ignored "-Wunused-parameter" /* The signatures are libfabric's. */
enum { NAME_SIZE = 64 };

struct object { /* A queue, counter or receive context: libfabric's structure, and the owner's. */
	union { struct fid fid; struct fid_cq cq; struct fid_cntr cntr; struct fid_ep srx; };
	struct fid_domain *domain;
	void *owner; /* struct fid_peer_cq, fid_peer_cntr or fid_peer_srx */
};
struct peer { char name[NAME_SIZE]; fi_addr_t id; }; /* The ID that the owner has chosen. */
struct av { struct fid_av av; size_t count; struct peer *peers; };
struct endpoint {
	struct fid_ep ep;
	struct fid_domain *domain;
	char name[NAME_SIZE];
	struct av *av;
	struct fid_peer_cq *tx_cq, *rx_cq;
	struct fid_peer_cntr *tx_cntr, *rx_cntr;
	struct fid_peer_srx *srx;
	uint64_t tx_flags; /* FI_COMPLETION, unless the queue is bound with FI_SELECTIVE_COMPLETION. */
	struct endpoint *next;
};
struct message {
	struct message *next;
	struct endpoint *to;
	char from[NAME_SIZE];
	uint64_t kind, tag, data, data_flag; /* FI_MSG or FI_TAGGED; 0 or FI_REMOTE_CQ_DATA. */
	size_t len;
	char bytes[];
};
static struct fi_ops object_ops; /* The tables are in provider.h. */
static struct fi_ops_cq cq_ops;
static struct fi_ops_cntr cntr_ops;
static struct fi_ops_msg msg_ops;
static struct fi_ops_tagged tagged_ops;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct endpoint *endpoints; /* Those of the process that are enabled. */
static struct message *messages, **messages_end = &messages; /* Not passed to an owner yet. */

/* ---- Receiving ---------------------------------------------------------------------------- */

static fi_addr_t id_of(const struct av *av, const char *name)
{
	for (size_t i = 0; i < av->count; i++)
		if (!strcmp(av->peers[i].name, name))
			return av->peers[i].id;
	return FI_ADDR_UNSPEC;
}

/* Copies a message into the buffers of an entry, reports it, and gives the entry back. */
static int receive(struct message *msg, struct fi_peer_rx_entry *entry)
{
	struct endpoint *to = msg->to;
	struct fid_peer_cntr *cntr = to->rx_cntr;
	uint64_t flags = (entry->flags & (FI_MSG | FI_TAGGED | FI_RECV | FI_MULTI_RECV)) | msg->data_flag;
	void *buf = entry->count ? entry->iov->iov_base : NULL;
	size_t done = 0;
	for (size_t i = 0; i < entry->count && done < msg->len; i++) {
		size_t left = msg->len - done, room = entry->iov[i].iov_len;
		memcpy(entry->iov[i].iov_base, msg->bytes + done, left < room ? left : room);
		done += left < room ? left : room;
	}
	if (done < msg->len) {
		struct fi_cq_err_entry error = {
			.op_context = entry->context, .flags = flags, .len = done, .buf = buf,
			.data = msg->data, .tag = msg->tag, .olen = msg->len - done, .err = FI_ETRUNC,
			.src_addr = id_of(to->av, msg->from),
		};
		to->rx_cq->owner_ops->writeerr(to->rx_cq, &error);
	} else if (entry->flags & FI_COMPLETION) {
		to->rx_cq->owner_ops->write(to->rx_cq, entry->context, flags, done, buf, msg->data,
					    msg->tag, id_of(to->av, msg->from));
	}
	if (cntr)
		(done < msg->len ? cntr->owner_ops->incerr : cntr->owner_ops->inc)(cntr);
	to->srx->owner_ops->free_entry(entry);
	free(msg);
	return 0;
}

/* Passes a message to the owner. After an error it is not the owner's, and is passed again. */
static int arrive(struct message *msg)
{
	struct fi_ops_srx_owner *owner = msg->to->srx->owner_ops;
	struct fi_peer_match_attr attr = { id_of(msg->to->av, msg->from), msg->len, msg->tag };
	struct fi_peer_rx_entry *entry;
	int is_tagged = msg->kind == FI_TAGGED;
	int ret = (is_tagged ? owner->get_tag : owner->get_msg)(msg->to->srx, &attr, &entry);
	if (ret != -FI_ENOENT)
		return ret ? ret : receive(msg, entry);
	entry->peer_context = msg;
	entry->cq_data = msg->data;
	entry->flags |= msg->data_flag;
	ret = (is_tagged ? owner->queue_tag : owner->queue_msg)(entry);
	if (ret)
		owner->free_entry(entry);
	return ret;
}

/* The owner's calls for an entry in its queue. */
static int start(struct fi_peer_rx_entry *entry) { return receive(entry->peer_context, entry); }
static int discard(struct fi_peer_rx_entry *entry) { free(entry->peer_context); return 0; }
static fi_addr_t get_addr(struct fi_peer_rx_entry *entry)
{
	const struct message *msg = entry->peer_context;
	return id_of(msg->to->av, msg->from);
}
static struct fi_ops_srx_peer peer_ops = { sizeof peer_ops, start, start, discard, discard };

static struct message *take(struct fid_domain *domain)
{
	struct message **at = &messages;
	pthread_mutex_lock(&lock);
	while (*at && (*at)->to->domain != domain)
		at = &(*at)->next;
	struct message *msg = *at;
	if (msg)
		*at = msg->next;
	messages_end = *at ? messages_end : at;
	pthread_mutex_unlock(&lock);
	return msg;
}

/* Passes the messages of a domain on. The owner may send in its functions: no lock is held. */
static void progress(struct fid_domain *domain)
{
	struct message *msg = take(domain);
	while (msg && arrive(msg) == 0)
		msg = take(domain);
	if (!msg)
		return;
	pthread_mutex_lock(&lock); /* An error: it is the first one again. */
	msg->next = messages;
	messages_end = msg->next ? messages_end : &msg->next;
	messages = msg;
	pthread_mutex_unlock(&lock);
}

/* ---- Sending ------------------------------------------------------------------------------ */

/* A send is complete when its bytes are copied. Nothing limits the messages that wait. */
static ssize_t tsendmsg(struct fid_ep *fid, const struct fi_msg_tagged *op, uint64_t flags)
{
	struct endpoint *ep = (struct endpoint *) fid;
	uint64_t kind = flags & FI_MSG ? FI_MSG : FI_TAGGED;
	size_t len = op->iov_count ? op->msg_iov->iov_len : 0; /* iov_limit is 1. */
	if (op->addr >= ep->av->count)
		return -FI_EINVAL;
	struct message *msg = calloc(1, sizeof *msg + len);
	if (!msg)
		return -FI_ENOMEM;
	*msg = (struct message) { .kind = kind, .tag = op->tag, .len = len };
	strcpy(msg->from, ep->name);
	memcpy(msg->bytes, len ? op->msg_iov->iov_base : "", len);
	msg->data_flag = flags & FI_REMOTE_CQ_DATA;
	msg->data = msg->data_flag ? op->data : 0;
	pthread_mutex_lock(&lock);
	for (msg->to = endpoints; msg->to; msg->to = msg->to->next)
		if (!strcmp(msg->to->name, ep->av->peers[op->addr].name))
			break;
	if (!msg->to) {
		pthread_mutex_unlock(&lock);
		free(msg);
		return -FI_EAGAIN;
	}
	*messages_end = msg;
	messages_end = &msg->next;
	pthread_mutex_unlock(&lock);
	if ((flags | ep->tx_flags) & FI_COMPLETION)
		ep->tx_cq->owner_ops->write(ep->tx_cq, op->context, kind | FI_SEND, 0, NULL, 0, 0,
					    FI_ADDR_NOTAVAIL);
	if (ep->tx_cntr)
		ep->tx_cntr->owner_ops->inc(ep->tx_cntr);
	return 0;
}

/* ---- The address vector ------------------------------------------------------------------- */

/* The next endpoint of an address vector. Other domains may change the list meanwhile. */
static struct endpoint *endpoint_of(const struct av *av, struct endpoint *after)
{
	pthread_mutex_lock(&lock);
	struct endpoint *ep = after ? after->next : endpoints;
	while (ep && ep->av != av)
		ep = ep->next;
	pthread_mutex_unlock(&lock);
	return ep;
}

/* Addresses are names, one behind the other. Each is inserted; its endpoint may come later. */
static int av_insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *fi_addr,
		     uint64_t flags, void *context)
{
	struct av *av = (struct av *) fid;
	const char *name = addr;
	struct peer *peers = realloc(av->peers, (av->count + count) * sizeof *peers);
	if (!peers)
		return -FI_ENOMEM;
	av->peers = peers;
	for (size_t i = 0; i < count; i++, name += strlen(name) + 1) {
		snprintf(peers[av->count].name, NAME_SIZE, "%s", name);
		peers[av->count].id = flags & FI_AV_USER_ID ? fi_addr[i] : av->count;
		if (fi_addr)
			fi_addr[i] = av->count;
		av->count++;
	}
	for (struct endpoint *ep = endpoint_of(av, NULL); ep; ep = endpoint_of(av, ep))
		ep->srx->owner_ops->foreach_unspec_addr(ep->srx, get_addr);
	return (int) count;
}

/* ---- Objects that an owner opens with FI_PEER --------------------------------------------- */

/* The context names the owner's object, and is gone after the call. */
static struct object *import(struct fid_domain *domain, uint64_t flags, void *context, size_t class)
{
	struct fi_peer_cq_context of; /* Those of other objects are alike. */
	if (!(flags & FI_PEER) || !context || *(size_t *) context < sizeof of)
		return NULL;
	memcpy(&of, context, sizeof of);
	struct object *object = of.cq ? calloc(1, sizeof *object) : NULL;
	if (object)
		*object = (struct object) { { { class, NULL, &object_ops } }, domain, of.cq };
	return object;
}

static int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
		   void *context)
{
	struct object *object = import(domain, attr->flags, context, FI_CLASS_CQ);
	if (!object)
		return -FI_EINVAL;
	object->cq.ops = &cq_ops;
	*cq = &object->cq;
	return 0;
}

static int cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr,
		     void *context)
{
	struct object *object = import(domain, attr->flags, context, FI_CLASS_CNTR);
	if (!object)
		return -FI_EINVAL;
	object->cntr.ops = &cntr_ops;
	*cntr = &object->cntr;
	return 0;
}

/* Receives are posted at the owner's. The owner gets the functions for its queued entries. */
static int srx_context(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **srx,
		       void *context)
{
	struct object *object = import(domain, attr->op_flags, context, FI_CLASS_SRX_CTX);
	if (!object)
		return -FI_EINVAL;
	((struct fid_peer_srx *) object->owner)->peer_ops = &peer_ops;
	object->srx.msg = &msg_ops;
	object->srx.tagged = &tagged_ops;
	*srx = &object->srx;
	return 0;
}

#include "provider.h"
