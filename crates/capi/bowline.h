/* Bowline for C programs: see docs/bindings.md. Link with `pkg-config --libs bowline`. */

#ifndef BOWLINE_H
#define BOWLINE_H

/* Made by cbindgen: run `cargo test -p bowline-capi --test header` with BOWLINE_BLESS=1. */

#include <stddef.h>
#include <stdint.h>

// Success.
#define BOWLINE_OK 0

// An argument, or an order of calls, that cannot work.
#define BOWLINE_E_CALLER 1

// The other end refused, broke the protocol, or has left.
#define BOWLINE_E_PEER 2

// This machine: a limit, a permission, an address in use.
#define BOWLINE_E_RESOURCE 3

// No answer from the other end within the time allowed.
#define BOWLINE_E_PATH 4

// Not over within the time that was given to wait. The operation goes on.
#define BOWLINE_E_TIMEOUT 5

// A bug in Bowline.
#define BOWLINE_E_INTERNAL 6

// Elements of IEEE 754 binary32.
#define BOWLINE_F32 0

// Elements of IEEE 754 binary64.
#define BOWLINE_F64 1

// Elements of IEEE 754 binary16.
#define BOWLINE_F16 2

// Elements of the upper half of a binary32.
#define BOWLINE_BF16 3

// Signed elements of 8 bits.
#define BOWLINE_I8 4

// Unsigned elements of 8 bits.
#define BOWLINE_U8 5

// Signed elements of 32 bits.
#define BOWLINE_I32 6

// Unsigned elements of 32 bits.
#define BOWLINE_U32 7

// Signed elements of 64 bits.
#define BOWLINE_I64 8

// Unsigned elements of 64 bits.
#define BOWLINE_U64 9

// The sum; integers wrap.
#define BOWLINE_SUM 0

// The product; integers wrap.
#define BOWLINE_PRODUCT 1

// The smallest.
#define BOWLINE_MIN 2

// The largest.
#define BOWLINE_MAX 3

// The sum divided by the number of ranks.
#define BOWLINE_AVERAGE 4

// A group of programs that do collective operations together. All ranks must call the same operations in the
// same order, with the same counts and types.
typedef struct bowline_comm bowline_comm;

// A collective operation that is going on. It goes on whether somebody waits or not; its memory is the
// operation's until it is over.
typedef struct bowline_work bowline_work;

// How to make a communicator. Zeros, and NULL in its place, are the defaults. All ranks need the same, but
// for the device.
typedef struct bowline_comm_options {
  // Address of this rank's NIC, e.g. "10.0.0.7" [BOWLINE_DEVICE, or the one that reaches rank 0 or
  // MASTER_ADDR, or else one of loopback: all ranks are on one host].
  const char *device;
  // Seconds that an operation may take [300].
  double timeout_s;
  // Seconds that making the communicator may take [60].
  double setup_timeout_s;
  // Bytes of a message at most [128 KiB].
  uint32_t chunk_bytes;
} bowline_comm_options;

// Gathers `len` bytes of every rank into `all`, in the order of ranks: `MPI_Allgather` does. Returns 0 for
// success.
typedef int (*bowline_gather_fn)(void *context, const void *mine, size_t len, void *all);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Meets the other ranks where the environment says: the variables of torchrun, Open MPI, MPICH or Slurm give
// rank and size; `BOWLINE_STORE`, or `MASTER_ADDR` and `MASTER_PORT`, the place.
//
// # Safety
// `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_from_env(const struct bowline_comm_options *options,
                              struct bowline_comm **comm);

// Meets the other ranks of a job in a store, e.g. "file:///shared/dir" or "redis://host".
//
// # Safety
// `url` and `job` are strings; `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_in_store(const char *url,
                              const char *job,
                              uint32_t rank,
                              uint32_t ranks,
                              const struct bowline_comm_options *options,
                              struct bowline_comm **comm);

// Meets the other ranks at rank 0, which listens at a TCP address, e.g. "10.0.0.7:29500".
//
// # Safety
// `address` is a string; `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_at_address(const char *address,
                                uint32_t rank,
                                uint32_t ranks,
                                const struct bowline_comm_options *options,
                                struct bowline_comm **comm);

// Meets the other ranks by an all-gather of the program's own, which is called twice.
//
// # Safety
// `gather` may be called with `context` during this call; `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_by_gather(bowline_gather_fn gather,
                               void *context,
                               uint32_t rank,
                               uint32_t ranks,
                               const struct bowline_comm_options *options,
                               struct bowline_comm **comm);

// Makes a communicator of the ranks that give the same color, ordered by their keys. All ranks must call
// it. With a negative color a rank gets none: `*out` is NULL.
//
// # Safety
// `comm` has not been freed; `out` may be written.
int32_t bowline_comm_split(const struct bowline_comm *comm,
                           int64_t color,
                           uint32_t key,
                           struct bowline_comm **out);

// Makes a communicator of the same ranks, whose operations go on beside those of the first. All ranks must
// call it.
//
// # Safety
// `comm` has not been freed; `out` may be written.
int32_t bowline_comm_duplicate(const struct bowline_comm *comm,
                               struct bowline_comm **out);

// The number of this rank.
//
// # Safety
// `comm` has not been freed.
uint32_t bowline_comm_rank(const struct bowline_comm *comm);

// How many ranks there are.
//
// # Safety
// `comm` has not been freed.
uint32_t bowline_comm_size(const struct bowline_comm *comm);

// Leaves a communicator, and frees it once all its operations have been freed. NULL is nothing.
//
// # Safety
// `comm` is NULL or has not been freed, and nobody uses it.
void bowline_comm_free(struct bowline_comm *comm);

// Why the last call of this thread that failed did so. The text lasts until the next one fails; empty if
// none has.
const char *bowline_error_message(void);

// The rank at fault in the last call of this thread that failed; -1 if it was no rank's.
int64_t bowline_error_rank(void);

// The release, e.g. `0.1.0`.
const char *bowline_version(void);

// All ranks get the reduction of `count` elements of all ranks. Without an input it is in place.
//
// # Safety
// Of all operations: `comm` has not been freed. Input and output have the elements that the operation reads
// and writes, and do not overlap. They are not touched before the operation is over: when the call returns,
// or with a place for a handle in `work` when `bowline_work_wait` or `bowline_work_free` does.
int32_t bowline_allreduce(const struct bowline_comm *comm,
                          const void *input,
                          void *output,
                          size_t count,
                          uint32_t dtype,
                          uint32_t op,
                          struct bowline_work **work);

// Rank r gets the r-th block of `count` elements of the reduction. In place the output holds the blocks of
// all ranks, and the result is at the place of this rank's.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_reduce_scatter(const struct bowline_comm *comm,
                               const void *input,
                               void *output,
                               size_t count,
                               uint32_t dtype,
                               uint32_t op,
                               struct bowline_work **work);

// All ranks get the blocks of `count` elements of all ranks. In place that of this rank is at its place in the
// output.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_allgather(const struct bowline_comm *comm,
                          const void *input,
                          void *output,
                          size_t count,
                          uint32_t dtype,
                          struct bowline_work **work);

// Rank r gets the r-th block of `count` elements of all ranks.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_all_to_all(const struct bowline_comm *comm,
                           const void *input,
                           void *output,
                           size_t count,
                           uint32_t dtype,
                           struct bowline_work **work);

// Rank r gets the r-th block of all ranks, where blocks have lengths of their own: `send_counts[r]` elements
// for rank r, `recv_counts[r]` from it, one after the other.
//
// # Safety
// As for `bowline_allreduce`; both lists have a count for each rank.
int32_t bowline_all_to_all_counts(const struct bowline_comm *comm,
                                  const void *input,
                                  const size_t *send_counts,
                                  void *output,
                                  const size_t *recv_counts,
                                  uint32_t dtype,
                                  struct bowline_work **work);

// All ranks get the root's `count` elements, in place.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_broadcast(const struct bowline_comm *comm,
                          void *data,
                          size_t count,
                          uint32_t dtype,
                          uint32_t root,
                          struct bowline_work **work);

// The root gets the reduction of `count` elements of all ranks. Without an input it is in place, and the
// elements of the others stay; with one, only the root needs an output.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_reduce(const struct bowline_comm *comm,
                       const void *input,
                       void *output,
                       size_t count,
                       uint32_t dtype,
                       uint32_t op,
                       uint32_t root,
                       struct bowline_work **work);

// The root gets the blocks of `count` elements of all ranks. Only the root needs an output.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_gather(const struct bowline_comm *comm,
                       const void *input,
                       void *output,
                       size_t count,
                       uint32_t dtype,
                       uint32_t root,
                       struct bowline_work **work);

// Rank r gets the r-th block of `count` elements of the root. Only the root needs an input.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_scatter(const struct bowline_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        uint32_t dtype,
                        uint32_t root,
                        struct bowline_work **work);

// Is over when all ranks have come here.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_barrier(const struct bowline_comm *comm, struct bowline_work **work);

// Sends `count` elements to a rank, which must receive as many of the same type.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_send(const struct bowline_comm *comm,
                     const void *data,
                     size_t count,
                     uint32_t dtype,
                     uint32_t to,
                     struct bowline_work **work);

// Receives `count` elements from a rank. Sends and receives run beside each other, those between two ranks in
// order.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_recv(const struct bowline_comm *comm,
                     void *data,
                     size_t count,
                     uint32_t dtype,
                     uint32_t from,
                     struct bowline_work **work);

// Waits until an operation is over, and says whether it has succeeded. It may be asked again.
//
// # Safety
// `work` is one that has not been freed.
int32_t bowline_work_wait(const struct bowline_work *work);

// Waits no longer than `seconds`: 0 to look. Returns BOWLINE_E_TIMEOUT if the operation is not over then.
//
// # Safety
// `work` is one that has not been freed.
int32_t bowline_work_wait_for(const struct bowline_work *work,
                              double seconds);

// Frees the handle of an operation. Waits for it if it is not over: its memory is the program's afterwards.
// NULL is nothing.
//
// # Safety
// `work` is NULL or one that has not been freed, and nobody waits for it.
void bowline_work_free(struct bowline_work *work);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BOWLINE_H */
