/* A libibverbs that does nothing: two devices whose queue pairs take every request and whose completion queues
 * complete it at once. What a program spends with it is the program's own, and what stands between. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct ibv_device devices[2] = {
	{ .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "stub0" },
	{ .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "stub1" },
};

/* One request is outstanding at most: enough for a program that polls after each. Others than the program have
 * queues as well. */
struct queue {
	struct ibv_cq cq;
	unsigned outstanding;
	uint32_t qp_num, opcode;
	uint64_t wr_id;
};
static uint32_t next_number = 1;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct queue *queue = (void *)qp->send_cq;
	(void)bad;
	queue->wr_id = wr->wr_id;
	queue->qp_num = qp->qp_num;
	queue->opcode = IBV_WC_RDMA_WRITE;
	queue->outstanding = 1;
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct queue *queue = (void *)qp->recv_cq;
	(void)bad;
	queue->wr_id = wr->wr_id;
	queue->qp_num = qp->qp_num;
	queue->opcode = IBV_WC_RECV;
	queue->outstanding = 1;
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	struct queue *queue = (void *)cq;
	(void)count;
	if (!queue->outstanding)
		return 0;
	queue->outstanding = 0;
	wc->wr_id = queue->wr_id;
	wc->qp_num = queue->qp_num;
	wc->status = IBV_WC_SUCCESS;
	wc->opcode = queue->opcode;
	return 1;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)srq, (void)wr, (void)bad;
	return 0;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = { .wr_id = bind->wr_id };
	(void)mw;
	return post_send(qp, &wr, NULL);
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *init)
{
	(void)context;
	/* Both begin alike. */
	return (ibv_create_qp)(init->pd, (struct ibv_qp_init_attr *)init);
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *init)
{
	struct queue *queue = calloc(1, sizeof *queue + sizeof(struct ibv_cq_ex));
	queue->cq = (struct ibv_cq){ .context = context, .cqe = init->cqe };
	return (void *)&queue->cq;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq, (void)solicited_only;
	return 0;
}

#undef ibv_get_device_list
struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(3, sizeof *list);
	list[0] = &devices[0];
	list[1] = &devices[1];
	if (count)
		*count = 2;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

/* What providers call when they open a device: whoever stands before it is found first. */
void *_verbs_init_and_alloc_context(struct ibv_device *device, int cmd_fd, size_t size, struct verbs_context *offset,
				    uint32_t driver)
{
	(void)device, (void)cmd_fd, (void)offset, (void)driver;
	return calloc(1, size);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct verbs_context *whole = _verbs_init_and_alloc_context(device, -1, sizeof *whole, NULL, 0);
	if (!whole)
		return NULL;
	whole->sz = sizeof *whole;
	whole->context.device = device;
	whole->context.async_fd = eventfd(0, EFD_CLOEXEC);
	whole->context.ops.post_send = post_send;
	whole->context.ops.post_recv = post_recv;
	whole->context.ops.poll_cq = poll_cq;
	whole->context.ops.req_notify_cq = req_notify_cq;
	whole->context.ops.post_srq_recv = post_srq_recv;
	whole->context.ops.bind_mw = bind_mw;
	whole->create_qp_ex = create_qp_ex;
	whole->create_cq_ex = create_cq_ex;
	whole->context.abi_compat = (void *)-1;
	return &whole->context;
}

int ibv_close_device(struct ibv_context *context)
{
	close(context->async_fd);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	memset(attr, 0, sizeof *attr);
	attr->phys_port_cnt = 1;
	attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = attr->max_ah = 1024;
	attr->max_qp_wr = attr->max_cqe = 1 << 15;
	attr->max_sge = 16;
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	(void)context, (void)port;
	struct ibv_port_attr *attr = (void *)compat;
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
	attr->gid_tbl_len = 1;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t size)
{
	(void)port, (void)flags, (void)size;
	if (index)
		return ENODATA;
	memset(entry, 0, sizeof *entry);
	entry->gid_type = IBV_GID_TYPE_ROCE_V2;
	memcpy(entry->gid.raw, "\0\0\0\0\0\0\0\0\0\0\377\377\300\0\2", 15);
	entry->gid.raw[15] = context->device == &devices[1] ? 2 : 1;
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	(void)context, (void)event;
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
	(void)iova, (void)access;
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	*mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length };
	mr->lkey = mr->rkey = next_number++;
	return mr;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
		mr->addr = addr, mr->length = length;
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *mr) { free(mr); return 0; }

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	(void)attr;
	struct ibv_ah *ah = calloc(1, sizeof *ah);
	ah->context = pd->context;
	return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah) { free(ah); return 0; }

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
	channel->context = context;
	channel->fd = eventfd(0, EFD_CLOEXEC);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int comp_vector)
{
	(void)comp_vector;
	struct queue *queue = calloc(1, sizeof *queue);
	queue->cq = (struct ibv_cq){ .context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe };
	return &queue->cq;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe) { (void)cq, (void)cqe; return 0; }
int ibv_destroy_cq(struct ibv_cq *cq) { free(cq); return 0; }

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	(void)channel, (void)cq, (void)cq_context;
	return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) { (void)cq, (void)count; }

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	struct ibv_srq *srq = calloc(1, sizeof *srq);
	(void)init;
	srq->context = pd->context;
	return srq;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	(void)srq, (void)attr, (void)mask;
	return EOPNOTSUPP;
}

int ibv_destroy_srq(struct ibv_srq *srq) { free(srq); return 0; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct ibv_qp *qp = calloc(1, sizeof *qp);
	qp->context = pd->context;
	qp->pd = pd;
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->qp_type = init->qp_type;
	qp->qp_num = next_number++;
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp, (void)attr, (void)mask;
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)qp, (void)mask, (void)init;
	memset(attr, 0, sizeof *attr);
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp) { free(qp); return 0; }
