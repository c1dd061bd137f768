/* Makes what has no counterpart on a second device, twice each, and uses it: all of it works as the provider has it.
 *
 * With OPENED it is a program that is not linked to libibverbs and finds its functions by dlopen, as NCCL does. It ends
 * without ending well: what is to be said of it must be said before. The run script looks at what is said meanwhile.
 */

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

#ifdef OPENED
int main(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(library);
	struct ibv_device **(*list)(int *) = dlsym(library, "ibv_get_device_list");
	struct ibv_context *(*open)(struct ibv_device *) = dlsym(library, "ibv_open_device");
	int (*close)(struct ibv_context *) = dlsym(library, "ibv_close_device");
	CHECK(list && open && close);
	struct ibv_context *context = open(list(NULL)[0]);
	CHECK(context);
	_exit(close(context));
}
#else
static uint64_t memory[512];

/* A request goes, and its completion comes. */
static void use(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 5 && wc.qp_num == qp->qp_num);
}

static void shared_receives(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	CHECK(srq);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_recv_wr wr = { .wr_id = 3 }, *bad;
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	use(qp, cq, mr);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq));
}

static void extended_queue(struct ibv_context *context, struct ibv_pd *pd, struct ibv_mr *mr)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	CHECK(cq);
	struct ibv_qp_init_attr init = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq),
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 16, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	use(qp, ibv_cq_ex_to_cq(cq), mr);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

static void extended_pair(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE, .cap = { .max_send_wr = 16, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp);
	use(qp, cq, mr);
	CHECK(!ibv_destroy_qp(qp));
}

static void windows(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_mw mw = { .context = pd->context, .pd = pd, .type = IBV_MW_TYPE_1 };
	struct ibv_mw_bind bind = { .wr_id = 9, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;
	CHECK(!ibv_bind_mw(qp, &mw, &bind));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 9);
	use(qp, cq, mr);
	CHECK(!ibv_destroy_qp(qp));
}

static void changed(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr)
{
	CHECK(!ibv_resize_cq(cq, 64));
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, pd, memory, 128, 0) && mr->length == 128);
}

int main(void)
{
	struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
	CHECK(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	CHECK(pd && mr && cq);
	for (int i = 0; i < 2; i++) {
		shared_receives(pd, cq, mr);
		extended_queue(context, pd, mr);
		extended_pair(context, pd, cq, mr);
		windows(pd, cq, mr);
		changed(pd, cq, mr);
	}
	CHECK(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	return ibv_close_device(context);
}
#endif
