/* Posts a request and polls its completion, so many times.
 *
 *   pairs COUNT KIND
 *
 *   write    a WRITE with a completion: the same request again and again
 *   recv     a receive and its completion
 *   mixed    a WRITE and a WRITE with immediate in turns
 *   shared   WRITEs on two queue pairs in turns, which share the completion queue
 *   batch    a list of 16 WRITEs, of which the last has a completion; counted for each
 */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char memory[4096];

static void expect(int holds)
{
	if (!holds)
		exit(1);
}

__attribute__((noinline)) void pairs(struct ibv_qp *qps[2], struct ibv_cq *cq, struct ibv_send_wr *wrs, long count)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	for (long i = 0; i < count; i++) {
		struct ibv_send_wr *wr = &wrs[i & 1];
		wr->wr_id = i;
		expect(!ibv_post_send(qps[i & 1], wr, &bad) && ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == (uint64_t)i);
	}
}

__attribute__((noinline)) void receives(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_recv_wr *wr, long count)
{
	struct ibv_recv_wr *bad;
	struct ibv_wc wc;
	for (long i = 0; i < count; i++) {
		wr->wr_id = i;
		expect(!ibv_post_recv(qp, wr, &bad) && ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == (uint64_t)i);
	}
}

int main(int argc, char **argv)
{
	long count = argc == 3 ? atol(argv[1]) : 0;
	const char *kind = argc == 3 ? argv[2] : "";
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 512, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 512, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qps[2] = { ibv_create_qp(pd, &init) };
	qps[1] = strcmp(kind, "shared") ? qps[0] : ibv_create_qp(pd, &init);
	struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { 0x1000, 7 } };
	struct ibv_send_wr wrs[16] = { wr, wr };
	if (!strcmp(kind, "recv")) {
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 };
		receives(qps[0], cq, &recv, count);
	} else if (!strcmp(kind, "batch")) {
		for (int i = 0; i < 16; i++) {
			wrs[i] = wr;
			wrs[i].send_flags = i == 15 ? IBV_SEND_SIGNALED : 0;
			wrs[i].next = i == 15 ? NULL : &wrs[i + 1];
		}
		struct ibv_send_wr heads[2] = { wrs[0], wrs[0] };
		pairs(qps, cq, heads, count / 16);
	} else {
		if (!strcmp(kind, "mixed"))
			wrs[1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		pairs(qps, cq, wrs, count);
	}
	if (qps[1] != qps[0])
		ibv_destroy_qp(qps[1]);
	ibv_destroy_qp(qps[0]);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	return ibv_close_device(context);
}
