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

#include "gradwire/backend/backend.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/reduce_op.h"
#include "gradwire/process_group/work.h"

namespace gradwire {

// Options of the calls: plain structs with defaults. `timeout` 0 means the group's. `async` false runs the call at once
// on the calling thread where the group can and nothing of the group is under way, and returns a completed Work; true
// returns at once.
struct CollectiveOptions {
  bool async = true;
  Milliseconds timeout{0};
  CallTag tag = {};  // what DDP knows of the call; part of the fingerprint that ranks compare
};
struct BroadcastOptions : CollectiveOptions {
  int root = 0;         // the rank whose tensors go out
  int root_tensor = 0;  // for PyTorch's signature; must be 0
};
struct AllReduceOptions : CollectiveOptions {
  ReduceOp op = ReduceOp::sum();
};
struct ReduceOptions : CollectiveOptions {
  ReduceOp op = ReduceOp::sum();
  int root = 0;
  int root_tensor = 0;
};
struct AllGatherOptions : CollectiveOptions {};
struct GatherOptions : CollectiveOptions {
  int root = 0;
};
struct ScatterOptions : CollectiveOptions {
  int root = 0;
};
struct ReduceScatterOptions : CollectiveOptions {
  ReduceOp op = ReduceOp::sum();
};
struct AllToAllOptions : CollectiveOptions {};
struct BarrierOptions : CollectiveOptions {
  std::vector<int> device_ids;
};

using Tensors = std::vector<at::Tensor>;

// The base class of every group, ours and yours. Public methods are not virtual: they validate arguments, run on a lane
// what is called on a lane, lead a group that a hook captured to the lane's duplicate, and then call the protected
// virtual of the same name with `do_` before it. Derive and override only what you need; what is not overridden throws
// UnsupportedError with the names of the group and of the operation. DDP works over a group that has just broadcast,
// all_gather and all_reduce. Some defaults are made of others: all_gather_into_tensor of all_gather,
// reduce_scatter_tensor of reduce_scatter, all_to_all_single of all_to_all, barrier of an all_reduce of one byte,
// monitored_barrier of send and recv, the coalesced forms of the plain ones.
//
// Tensors: dense, on a device the group serves, any strides (a group copies what it cannot use). All ranks pass the
// same number of elements and dtype. Outputs are written in place. Groups are held by shared_ptr; thread-safe.
// Ordering: collectives of one group are ordered as they were called on each rank, and all ranks must call the same
// ones in the same order.
//
// Errors of the collective itself come out of Work::wait(), those of its arguments (InvalidArgument) out of the call.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  ProcessGroup(int rank, int size);
  virtual ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return get_rank(); }
  int size() const { return get_size(); }
  std::string name() const { return get_backend_name(); }  // the backend's name
  std::string group_name() const { return get_group_name(); }
  void set_group_name(const std::string& name) { do_set_group_name(name); }
  std::string group_desc() const { return get_group_desc(); }
  void set_group_desc(const std::string& desc) { do_set_group_desc(desc); }
  // What calls without a timeout of their own use.
  Milliseconds timeout() const;
  void set_timeout(Milliseconds timeout);

  // The bytes that this rank's collectives so far have to send by the textbook algorithm, whatever the group's engine
  // did (shared memory sends nothing): with B bytes in a call's tensors and N ranks, all_reduce 2 B (N-1)/N (ring),
  // reduce_scatter B (N-1)/N of all its inputs, all_gather (N-1) B of its input, all_to_all what goes to other ranks,
  // broadcast and scatter (N-1) B on the root, reduce and gather B off the root, barrier nothing. Point to point
  // messages are not counted.
  std::uint64_t payload_bytes() const noexcept;

  std::shared_ptr<Work> broadcast(Tensors tensors, const BroadcastOptions& options = {});
  // Each tensor of the list is reduced with the tensors in its place on the other ranks, never with others of the list
  // (PyTorch's Gloo also adds up the list). The same holds for every collective that takes a list.
  std::shared_ptr<Work> all_reduce(Tensors tensors, const AllReduceOptions& options = {});
  std::shared_ptr<Work> all_reduce_coalesced(Tensors tensors, const AllReduceOptions& options = {});
  std::shared_ptr<Work> reduce(Tensors tensors, const ReduceOptions& options = {});
  // outputs: one list a tensor of `inputs`, each with size() tensors.
  std::shared_ptr<Work> all_gather(std::vector<Tensors> outputs, Tensors inputs, const AllGatherOptions& options = {});
  std::shared_ptr<Work> all_gather_into_tensor(at::Tensor output, at::Tensor input,
                                               const AllGatherOptions& options = {});
  std::shared_ptr<Work> all_gather_into_tensor_coalesced(Tensors outputs, Tensors inputs,
                                                         const AllGatherOptions& options = {});
  std::shared_ptr<Work> gather(std::vector<Tensors> outputs, Tensors inputs, const GatherOptions& options = {});
  std::shared_ptr<Work> scatter(Tensors outputs, std::vector<Tensors> inputs, const ScatterOptions& options = {});
  std::shared_ptr<Work> reduce_scatter(Tensors outputs, std::vector<Tensors> inputs,
                                       const ReduceScatterOptions& options = {});
  std::shared_ptr<Work> reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                                              const ReduceScatterOptions& options = {});
  std::shared_ptr<Work> reduce_scatter_tensor_coalesced(Tensors outputs, Tensors inputs,
                                                        const ReduceScatterOptions& options = {});
  std::shared_ptr<Work> all_to_all(Tensors outputs, Tensors inputs, const AllToAllOptions& options = {});
  // Splits along dimension 0; empty: even.
  std::shared_ptr<Work> all_to_all_single(at::Tensor output, at::Tensor input,
                                          std::vector<std::int64_t> output_splits = {},
                                          std::vector<std::int64_t> input_splits = {},
                                          const AllToAllOptions& options = {});
  std::shared_ptr<Work> barrier(const BarrierOptions& options = {});
  // Rank 0 waits for every rank and throws a TimeoutError (or PeerError) that names those that did not come; with
  // `wait_all` it names them all, else the first. The others wait for rank 0 to have seen all, and get a TimeoutError
  // otherwise. The group goes on after a TimeoutError. Needs send and recv.
  void monitored_barrier(Milliseconds timeout, bool wait_all = false);

  // Point to point: never behind collectives. Both ranks may send first and receive after. Each tensor is one message;
  // `tag` is in [0, 2^30). Messages of one sender with one tag arrive in order. A message whose length is not that of
  // the receiving tensor is a MismatchError at the receiver. The time-out is the group's.
  std::shared_ptr<Work> send(Tensors tensors, int destination, int tag = 0);
  std::shared_ptr<Work> recv(Tensors tensors, int source, int tag = 0);
  std::shared_ptr<Work> recv_anysource(Tensors tensors, int tag = 0);

  // A group of the same ranks with an ordered sequence of its own (MPI_Comm_dup); collective. Null where the group has
  // none: DDP then runs without lanes. Default: null.
  std::shared_ptr<ProcessGroup> dup();
  // Groups of the ranks with the same color, ordered by key, then by rank; collective. A negative color gives null.
  // Default: UnsupportedError.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0, std::optional<std::string> desc = std::nullopt);

  // Zeroed 1-D memory of `numel` elements that this group communicates fastest with (on shm: in place); collective.
  // Default: private memory.
  at::Tensor allocate(std::int64_t numel, at::ScalarType dtype);

  // Whether collectives work on tensors of this kind of device. Default: CPU alone.
  virtual bool supports(c10::DeviceType device) const;

  // Ends the group on this rank: waiting calls and every later one throw `reason`; the other ranks fail with it too
  // where the group can tell them. Default: nothing.
  virtual void abort(const std::string& reason = "abort() was called");
  // Ends the group well: waits for what is under way and lets go. Default: nothing.
  virtual void shutdown();

 protected:
  virtual int get_rank() const { return rank_; }
  virtual int get_size() const { return size_; }
  virtual std::string get_backend_name() const;  // default: "user"
  virtual std::string get_group_name() const;
  virtual void do_set_group_name(const std::string& name);
  virtual std::string get_group_desc() const;
  virtual void do_set_group_desc(const std::string& desc);

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

 private:
  template <class Options, class Call>
  std::shared_ptr<Work> enter(const char* operation, const Options& options, std::uint64_t payload, const Call& call);
  template <class Call>
  std::shared_ptr<Work> enter(const char* operation, const Call& call);
  ProcessGroup& here();
  std::uint32_t next_barrier();  // the number of a monitored barrier
  [[noreturn]] void unsupported(const char* operation) const;

  const int rank_;
  const int size_;
  struct Names;
  std::unique_ptr<Names> names_;  // group name, description, timeout and counters, with their lock
};

}  // namespace gradwire
