/* A client that finds its verbs as NCCL does: dlopen of libibverbs.so.1 and dlvsym by version.
 *
 * It connects two RC queue pairs within one process, writes with immediate data from one to the
 * other, checks the bytes and the completions, and looks at what NCCL looks at besides. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#undef ibv_reg_mr
#undef ibv_query_port

static void *library;

static void *verb(const char *name, const char *version)
{
	void *found = dlvsym(library, name, version);
	if (!found) {
		printf("no %s@%s\n", name, version);
		exit(1);
	}
	return found;
}

#define VERB(name, version) __typeof__(name) *p_##name = verb(#name, version)
#define CHECK(condition)                                                           \
	do {                                                                       \
		if (!(condition)) {                                                \
			printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			return 1;                                                  \
		}                                                                  \
	} while (0)

enum { SIZE = 1 << 20 };

int main(void)
{
	library = dlopen(getenv("NCCL_IBVERBS_LIB") ? getenv("NCCL_IBVERBS_LIB") : "libibverbs.so.1",
			 RTLD_NOW);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	VERB(ibv_get_device_list, "IBVERBS_1.1");
	VERB(ibv_free_device_list, "IBVERBS_1.1");
	VERB(ibv_get_device_name, "IBVERBS_1.1");
	VERB(ibv_open_device, "IBVERBS_1.1");
	VERB(ibv_close_device, "IBVERBS_1.1");
	VERB(ibv_get_async_event, "IBVERBS_1.1");
	VERB(ibv_ack_async_event, "IBVERBS_1.1");
	VERB(ibv_query_device, "IBVERBS_1.1");
	int (*p_ibv_query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *) =
		verb("ibv_query_port", "IBVERBS_1.1");
	VERB(ibv_query_gid, "IBVERBS_1.1");
	VERB(ibv_query_qp, "IBVERBS_1.1");
	VERB(ibv_alloc_pd, "IBVERBS_1.1");
	VERB(ibv_dealloc_pd, "IBVERBS_1.1");
	VERB(ibv_reg_mr, "IBVERBS_1.1");
	VERB(ibv_reg_mr_iova2, "IBVERBS_1.8");
	VERB(ibv_reg_dmabuf_mr, "IBVERBS_1.12");
	VERB(ibv_dereg_mr, "IBVERBS_1.1");
	VERB(ibv_create_cq, "IBVERBS_1.1");
	VERB(ibv_destroy_cq, "IBVERBS_1.1");
	VERB(ibv_create_qp, "IBVERBS_1.1");
	VERB(ibv_modify_qp, "IBVERBS_1.1");
	VERB(ibv_destroy_qp, "IBVERBS_1.1");
	VERB(ibv_fork_init, "IBVERBS_1.1");
	VERB(ibv_event_type_str, "IBVERBS_1.1");
	int (*p_ibv_query_ece)(struct ibv_qp *, struct ibv_ece *) =
		verb("ibv_query_ece", "IBVERBS_1.10");
	verb("ibv_set_ece", "IBVERBS_1.10");

	CHECK(p_ibv_fork_init() == 0);
	int devices = 0;
	struct ibv_device **list = p_ibv_get_device_list(&devices);
	CHECK(list && devices == 2 && !strcmp(p_ibv_get_device_name(list[0]), "bl0"));
	struct ibv_context *ctx[2];
	struct ibv_pd *pd[2];
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	struct ibv_mr *mr[2];
	union ibv_gid gid[2];
	char *memory[2];
	int i;
	for (i = 0; i < 2; i++) {
		CHECK((ctx[i] = p_ibv_open_device(list[i])));
		struct ibv_device_attr device;
		struct ibv_port_attr port;
		CHECK(p_ibv_query_device(ctx[i], &device) == 0 && device.phys_port_cnt == 1);
		memset(&port, 0, sizeof(port));
		CHECK(p_ibv_query_port(ctx[i], 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
		CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET);
		CHECK(p_ibv_query_gid(ctx[i], 1, 0, &gid[i]) == 0);
		CHECK((pd[i] = p_ibv_alloc_pd(ctx[i])));
		memory[i] = aligned_alloc(4096, SIZE);
		int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
		CHECK((mr[i] = p_ibv_reg_mr_iova2(pd[i], memory[i], SIZE, (uintptr_t)memory[i],
						  access)));
		errno = 0;
		CHECK(!p_ibv_reg_dmabuf_mr(pd[i], 0, 4096, 0, 0, access) && errno == EOPNOTSUPP);
		CHECK((cq[i] = p_ibv_create_cq(ctx[i], 256, NULL, NULL, 0)));
		struct ibv_qp_init_attr init = {
			.send_cq = cq[i], .recv_cq = cq[i], .qp_type = IBV_QPT_RC,
			.cap = { 256, 256, 1, 1, 0 },
		};
		CHECK((qp[i] = p_ibv_create_qp(pd[i], &init)));
		struct ibv_ece ece;
		CHECK(p_ibv_query_ece(qp[i], &ece) == EOPNOTSUPP);
	}
	p_ibv_free_device_list(list);
	for (i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
					    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
		CHECK(p_ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				      IBV_QP_ACCESS_FLAGS) == 0);
		memset(&attr, 0, sizeof(attr));
		attr.qp_state = IBV_QPS_RTR;
		attr.path_mtu = IBV_MTU_4096;
		attr.dest_qp_num = qp[!i]->qp_num;
		attr.max_dest_rd_atomic = 1;
		attr.min_rnr_timer = 12;
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.dgid = gid[!i];
		attr.ah_attr.grh.hop_limit = 255;
		attr.ah_attr.port_num = 1;
		CHECK(p_ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				      IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				      IBV_QP_MIN_RNR_TIMER) == 0);
		memset(&attr, 0, sizeof(attr));
		attr.qp_state = IBV_QPS_RTS;
		attr.timeout = 18;
		attr.retry_cnt = 7;
		attr.rnr_retry = 7;
		attr.max_rd_atomic = 1;
		CHECK(p_ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC) == 0);
		struct ibv_qp_init_attr init;
		CHECK(p_ibv_query_qp(qp[i], &attr, IBV_QP_STATE, &init) == 0 &&
		      attr.qp_state == IBV_QPS_RTS);
	}
	for (i = 0; i < SIZE; i++)
		memory[0][i] = (char)(i * 31 + 7);
	/* NCCL posts receives without buffers and writes with immediate data. */
	struct ibv_recv_wr recv = { .wr_id = 7 }, *bad_recv;
	CHECK(ibv_post_recv(qp[1], &recv, &bad_recv) == 0);
	struct ibv_sge sge = { (uintptr_t)memory[0], SIZE, mr[0]->lkey };
	struct ibv_send_wr send = { .wr_id = 9, .sg_list = &sge, .num_sge = 1,
				    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				    .send_flags = IBV_SEND_SIGNALED, .imm_data = 0x01020304 },
			   *bad_send;
	send.wr.rdma.remote_addr = (uintptr_t)memory[1];
	send.wr.rdma.rkey = mr[1]->rkey;
	CHECK(ibv_post_send(qp[0], &send, &bad_send) == 0);
	int got[2] = { 0, 0 };
	while (got[0] + got[1] < 2)
		for (i = 0; i < 2; i++) {
			struct ibv_wc wc;
			int n = ibv_poll_cq(cq[i], 1, &wc);
			CHECK(n >= 0);
			if (!n)
				continue;
			CHECK(wc.status == IBV_WC_SUCCESS);
			CHECK(i == 0 || (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wr_id == 7 &&
					 wc.imm_data == 0x01020304 && wc.byte_len == SIZE));
			got[i]++;
		}
	CHECK(!memcmp(memory[0], memory[1], SIZE));
	/* The thread that waits for asynchronous events is told to stop by closing, or polls. */
	CHECK(fcntl(ctx[0]->async_fd, F_SETFL, O_NONBLOCK) == 0);
	struct ibv_async_event event;
	while (p_ibv_get_async_event(ctx[0], &event) == 0) {
		CHECK(p_ibv_event_type_str(event.event_type));
		p_ibv_ack_async_event(&event);
	}
	CHECK(errno == EAGAIN);
	for (i = 0; i < 2; i++) {
		CHECK(p_ibv_destroy_qp(qp[i]) == 0);
		CHECK(p_ibv_destroy_cq(cq[i]) == 0);
		CHECK(p_ibv_dereg_mr(mr[i]) == 0);
		CHECK(p_ibv_dealloc_pd(pd[i]) == 0);
		CHECK(p_ibv_close_device(ctx[i]) == 0);
	}
	printf("1 MiB written and checked, every verb found by version\n");
	return 0;
}
