// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group of ranks at the level of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/process_group/collective_options.h"
#include "gradwire/process_group/work.h"

namespace gradwire {

using Tensors = std::vector<at::Tensor>;  // a call's list of tensors

class ProcessGroup;

namespace internal {
// Gives the group its place in the flight recorder now, and not with its first call: so the diagnosis knows the members
// of a group that some of them have not called yet.
void open_record(ProcessGroup& group) noexcept;
}  // namespace internal

// A fixed set of ranks that communicate by tensors: the base class of every group, gradwire's own and yours.
//
// Calls: a public method that is not virtual checks its arguments, and then calls the protected virtual of the same
// name with `do_` before it. On a lane, that is the virtual of the lane's duplicate (lane_scope.h).
//
// Order: all ranks call the same collectives of a group, in the same order, with the same list lengths, dtypes, numbers
// of elements, op, root and tag, where the method does not say otherwise. The group runs its collectives in the order
// in which they were called. dup(), split() and allocate() are collectives too.
//
// Arguments: tensors are dense, on a device that the group supports, with any strides; a group copies what it cannot
// use as it lies. Elements of an output do not share memory, but in all_reduce, reduce and broadcast. A list is not
// empty; entry i of a list is communicated with entry i on the other ranks, and never with other entries. (PyTorch's
// Gloo also adds up the list.)
//
// Success: the call returns a Work, never null. When the Work has ended, the results are in the output tensors, and the
// Work's future holds the output tensors.
//
// Failure: the call itself throws
//   InvalidArgument   before any communication: wrong arguments, a group that was shut down, a forked child, a group
//                     that was not named for the hook that runs on this lane
//   UnsupportedError  the class of the group does not have this operation
// Work::wait() throws the errors of the communication: MismatchError, PeerError, TimeoutError, AbortedError,
// ResourceError. After any of these but ResourceError in a collective, the group is at its end: the Work of every later
// call fails with the first reason. Methods that return no Work throw the same errors themselves. docs/errors.md has
// the details; docs/backends.md lists the errors that each backend detects.
//
// Ownership: a shared_ptr holds every group. Tensors are handles: the Work shares their memory. The caller does not
// write to the tensors of a call, nor read its outputs, until the Work has ended.
//
// Threads: all methods may be called from any thread.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // This rank's number, from 0 to size - 1, and the number of ranks. Throws InvalidArgument when they are out of range.
  ProcessGroup(int rank, int size);
  virtual ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return get_rank(); }  // this process's number in the group, from 0
  int size() const { return get_size(); }  // the number of ranks
  // The name of the backend ("shm"); "user" where the class does not override it.
  std::string name() const { return get_backend_name(); }
  // The name and the description of this group, for messages. Empty until they are set.
  std::string group_name() const { return get_group_name(); }
  void set_group_name(const std::string& name) { do_set_group_name(name); }
  std::string group_desc() const { return get_group_desc(); }
  void set_group_desc(const std::string& desc) { do_set_group_desc(desc); }
  // The timeout of calls that pass none; kDefaultTimeout unless set. set_timeout() holds for later calls, and throws
  // InvalidArgument unless the timeout is positive.
  Milliseconds timeout() const;
  void set_timeout(Milliseconds timeout);

  // Returns the bytes that the textbook algorithms send for this rank's collectives so far, whatever the engine really
  // sent (shared memory sends nothing). With B bytes in a call's tensors and N ranks: all_reduce 2 B (N-1)/N (ring);
  // reduce_scatter B (N-1)/N of all its inputs; all_gather (N-1) B of its input; all_to_all the bytes for other ranks;
  // broadcast and scatter (N-1) B on the root; reduce and gather B on the other ranks; barrier 0. Point-to-point
  // messages are not counted. Calls on a lane count in the lane's duplicate.
  std::uint64_t payload_bytes() const noexcept;

  // Copies each tensor of rank `root` to the tensor in the same place on every other rank.
  std::shared_ptr<Work> broadcast(Tensors tensors, const BroadcastOptions& options = {});

  // Each element becomes `op` of that element over all ranks, on all ranks. Throws InvalidArgument for an `op` that the
  // dtype lacks (ReduceOp), as other reductions do. Sparse COO tensors have sum, and the call is over when it returns.
  // Elements of an expanded tensor get the result of the first, here and in reduce(). The coalesced form is this call.
  std::shared_ptr<Work> all_reduce(Tensors tensors, const AllReduceOptions& options = {});
  std::shared_ptr<Work> all_reduce_coalesced(Tensors tensors, const AllReduceOptions& options = {});

  // all_reduce() whose result only rank `root` gets. On the other ranks the tensors do not change.
  std::shared_ptr<Work> reduce(Tensors tensors, const ReduceOptions& options = {});

  // outputs[i][r] becomes inputs[i] of rank r, on all ranks. `outputs` holds one list for each input; each list holds
  // size() tensors with the dtype and the number of elements of the input.
  std::shared_ptr<Work> all_gather(std::vector<Tensors> outputs, Tensors inputs, const AllGatherOptions& options = {});

  // `output` becomes the inputs of all ranks, one after another in rank order. The output has size() times the elements
  // of the input. The coalesced form makes one such call for each pair of tensors, in order; its Work ends when all of
  // these calls have ended.
  std::shared_ptr<Work> all_gather_into_tensor(at::Tensor output, at::Tensor input,
                                               const AllGatherOptions& options = {});
  std::shared_ptr<Work> all_gather_into_tensor_coalesced(Tensors outputs, Tensors inputs,
                                                         const AllGatherOptions& options = {});

  // all_gather() whose result only rank `root` gets. On the other ranks `outputs` is empty.
  std::shared_ptr<Work> gather(std::vector<Tensors> outputs, Tensors inputs, const GatherOptions& options = {});

  // outputs[i] becomes inputs[i][rank()] of rank `root`. On the root, `inputs` holds one list of size() tensors for
  // each output, with the output's dtype and number of elements. On the other ranks `inputs` is empty.
  std::shared_ptr<Work> scatter(Tensors outputs, std::vector<Tensors> inputs, const ScatterOptions& options = {});

  // outputs[i] becomes `op` over all ranks of their inputs[i][rank()]. `inputs` holds one list of size() tensors for
  // each output, with the output's dtype. inputs[i][r] has the number of elements of rank r's outputs[i], which may
  // differ between ranks.
  std::shared_ptr<Work> reduce_scatter(Tensors outputs, std::vector<Tensors> inputs,
                                       const ReduceScatterOptions& options = {});

  // reduce_scatter() with the inputs one after another in one tensor, which has size() times the elements of the
  // output. The coalesced form makes one such call for each pair of tensors, in order; its Work ends when all of these
  // calls have ended.
  std::shared_ptr<Work> reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                                              const ReduceScatterOptions& options = {});
  std::shared_ptr<Work> reduce_scatter_tensor_coalesced(Tensors outputs, Tensors inputs,
                                                        const ReduceScatterOptions& options = {});

  // outputs[r] becomes inputs[rank()] of rank r. Both lists hold size() tensors of one dtype. Numbers of elements may
  // differ, but rank r sends to rank s as many as s expects from r.
  std::shared_ptr<Work> all_to_all(Tensors outputs, Tensors inputs, const AllToAllOptions& options = {});

  // all_to_all() with the parts one after another along dimension 0 of one tensor: input_splits[r] rows go to rank r,
  // and output_splits[r] rows come from rank r. Empty splits mean equal parts. Where rows differ in shape, elements
  // count, and the output must be contiguous. An input that shares memory with the output is copied first.
  std::shared_ptr<Work> all_to_all_single(at::Tensor output, at::Tensor input,
                                          std::vector<std::int64_t> output_splits = {},
                                          std::vector<std::int64_t> input_splits = {},
                                          const AllToAllOptions& options = {});

  // The Work ends when every rank has called barrier().
  std::shared_ptr<Work> barrier(const BarrierOptions& options = {});

  // Blocks until every rank has called monitored_barrier(). A `timeout` of 0 means timeout(). When ranks are missing
  // after `timeout`, rank 0 throws TimeoutError (PeerError when one of them died) that names all missing ranks with
  // `wait_all`, else the first, and so do the ranks that rank 0 can tell. The others wait for rank 0's report for up to
  // a second longer, and throw TimeoutError that names rank 0. The group goes on after this
  // TimeoutError; a group over a c10d engine does only where it has a store (FromC10dOptions).
  void monitored_barrier(Milliseconds timeout, bool wait_all = false);

  // Sends each tensor as one message to rank `destination`, or receives one message into each tensor, from rank
  // `source` or, with one tensor, from any rank (Work::source_rank() names the rank). Messages never wait for
  // collectives. Two ranks may both send first and receive after. Messages of one sender with one tag arrive in order.
  // `tag` is in [0, 2^30). The deadline is the group's timeout(). Work::wait() of a receive throws MismatchError when
  // the message is not as long as the tensor.
  std::shared_ptr<Work> send(Tensors tensors, int destination, int tag = 0);
  std::shared_ptr<Work> recv(Tensors tensors, int source, int tag = 0);
  std::shared_ptr<Work> recv_anysource(Tensors tensors, int tag = 0);

  // Collective. Returns a group of the same ranks with an ordered sequence of its own (MPI_Comm_dup), which the caller
  // owns. abort() of this group aborts its duplicates; shutdown() does not end them. Returns null, on all ranks, where
  // the group cannot be duplicated; DDP then runs without lanes. Default: null.
  std::shared_ptr<ProcessGroup> dup();

  // Collective. Returns a group of the ranks that pass the same color, ordered by key and then by rank, which the
  // caller owns. Returns null for a negative color. Default: throws UnsupportedError.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0, std::optional<std::string> desc = std::nullopt);

  // Collective. Returns a zeroed tensor of `numel` elements in one dimension, in memory with which this group
  // communicates fastest (shm: in place). The memory lives as long as the last tensor that uses it. Its contents are
  // indeterminate after an error of the group. Throws ResourceError, on all ranks, when one of them is refused memory;
  // the group goes on then. Default: private memory on the CPU.
  at::Tensor allocate(std::int64_t numel, at::ScalarType dtype);

  // Returns, by rank, views of the ranks' memory that corresponds to `tensor`: the same place in what each rank got
  // from the same call of allocate(). A view has the sizes of `tensor`, which is contiguous and lies in memory of
  // allocate() of this group or of one of its duplicates. Every rank may read and write all views; collectives (a
  // barrier) order these accesses, and nothing else does. A view keeps its memory mapped. Empty where ranks do not
  // reach each other's memory or the tensor lies elsewhere: all ranks of a group get views of such a tensor, or none
  // does. Does not communicate. Throws InvalidArgument for an undefined tensor and one that is not contiguous. Default:
  // empty.
  Tensors symmetric_memory(const at::Tensor& tensor);

  // Returns whether collectives work on tensors of this kind of device. Default: CPU only.
  virtual bool supports(c10::DeviceType device) const;

  // Returns whether reductions multiply by the factor of ReduceOp::premul_sum() as they sum, in no further pass over
  // the tensors. DDP then leaves the factor of its averages to the group, else it multiplies the gradients itself; the
  // bits are the same. Default: false.
  virtual bool multiplies_as_it_sums() const { return false; }

  // Ends the group on this rank with a reason: calls under way and all later calls fail with AbortedError. The other
  // ranks fail with a PeerError that quotes the reason, where the group can tell them. Default: nothing.
  virtual void abort(const std::string& reason = "abort() was called");

  // Ends the group without an error: waits until the calls under way have ended. Later calls throw InvalidArgument.
  // When the thread is interrupted meanwhile (gradwire/base/interrupt.h), gradwire's own groups abort these calls, and
  // throw an AbortedError at the end. Default: nothing. In a forked child, abort() and shutdown() of gradwire's own
  // groups do nothing.
  virtual void shutdown();

 protected:
  // For classes of groups. Override what the class supports; DDP needs broadcast, all_gather and all_reduce. A virtual
  // that starts a call gets arguments that were checked: a timeout of 0 still means timeout(), splits are filled in,
  // and tags from 2^30 on are those of monitored barriers. Gradient mode is off. The virtual may move from the lists,
  // writes into the tensors that it is given (it neither replaces nor resizes them), and returns a Work that is not
  // null; otherwise the public method throws InvalidArgument. Any thread may call a virtual, several at once.
  //
  // A default throws UnsupportedError that names the group and the operation, or is made of other virtuals:
  // all_gather_into_tensor of all_gather, reduce_scatter_tensor of reduce_scatter, all_to_all_single of all_to_all,
  // barrier of an all_reduce of one byte, monitored_barrier of send and recv.
  virtual int get_rank() const { return rank_; }
  virtual int get_size() const { return size_; }
  virtual std::string get_backend_name() const;
  virtual std::string get_group_name() const;
  virtual void do_set_group_name(const std::string& name);
  virtual std::string get_group_desc() const;
  virtual void do_set_group_desc(const std::string& desc);
  // The calls. Each stands behind the public method whose name follows "do_".
  virtual std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions& options);
  virtual std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions& options);
  virtual std::shared_ptr<Work> do_reduce(Tensors& tensors, const ReduceOptions& options);
  virtual std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const AllGatherOptions& options);
  virtual std::shared_ptr<Work> do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                          const AllGatherOptions& options);
  virtual std::shared_ptr<Work> do_gather(std::vector<Tensors>& outputs, Tensors& inputs, const GatherOptions& options);
  virtual std::shared_ptr<Work> do_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const ScatterOptions& options);
  virtual std::shared_ptr<Work> do_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const ReduceScatterOptions& options);
  virtual std::shared_ptr<Work> do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                                         const ReduceScatterOptions& options);
  virtual std::shared_ptr<Work> do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options);
  virtual std::shared_ptr<Work> do_all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                     std::vector<std::int64_t>& output_splits,
                                                     std::vector<std::int64_t>& input_splits,
                                                     const AllToAllOptions& options);
  virtual std::shared_ptr<Work> do_barrier(const BarrierOptions& options);
  virtual void do_monitored_barrier(Milliseconds timeout, bool wait_all);
  virtual std::shared_ptr<Work> do_send(Tensors& tensors, int destination, int tag);
  virtual std::shared_ptr<Work> do_recv(Tensors& tensors, int source, int tag);
  virtual std::shared_ptr<Work> do_recv_anysource(Tensors& tensors, int tag);
  virtual std::shared_ptr<ProcessGroup> do_dup();
  virtual std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc);
  virtual at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype);
  virtual Tensors do_symmetric_memory(const at::Tensor& tensor);

 private:
  friend void internal::open_record(ProcessGroup& group) noexcept;

  template <class Options, class Call>
  std::shared_ptr<Work> enter(const char* operation, const Options& options, std::uint64_t payload, const Call& call);
  template <class Call>
  std::shared_ptr<Work> enter(const char* operation, const Call& call);
  ProcessGroup& here();
  std::uint32_t next_barrier();  // the number of a monitored barrier
  void report_arrivals(const std::vector<std::shared_ptr<Work>>& arrivals, const Tensors& report, int tag,
                       bool is_complete, Deadline deadline);
  [[noreturn]] void unsupported(const char* operation) const;

  const int rank_;
  const int size_;
  struct Names;
  std::unique_ptr<Names> names_;  // group name, description, timeout and counters, with their lock
};

}  // namespace gradwire
