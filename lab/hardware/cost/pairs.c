/* Posts a WRITE and polls its completion, so many times.
 *
 *   pairs COUNT
 */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char memory[4096];

__attribute__((noinline)) void pairs(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_send_wr *wr, long count)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	for (long i = 0; i < count; i++) {
		wr->wr_id = i;
		if (ibv_post_send(qp, wr, &bad) || ibv_poll_cq(cq, 1, &wc) != 1 || wc.wr_id != (uint64_t)i)
			exit(1);
	}
}

int main(int argc, char **argv)
{
	long count = argc == 2 ? atol(argv[1]) : 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 512, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 512, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { 0x1000, 7 } };
	pairs(qp, cq, &wr, count);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	return ibv_close_device(context);
}
