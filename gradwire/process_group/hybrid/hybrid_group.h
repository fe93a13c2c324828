// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts as one group, made of a group on each host (shared memory) and a group that crosses hosts.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/device_stager.h"

namespace gradwire {

namespace internal {
class OrderedCalls;
struct Outputs;
}  // namespace internal

// Sends over the network only the bytes that have to cross hosts. With B bytes in a call's tensors and H hosts of L
// ranks:
//   all_reduce                 three steps: sum within the host; each rank reduces its 1/L of the sums with the ranks
//                              of the same number on the other hosts; the host's ranks share the results. A host sends
//                              2 B (H-1)/H, once, not once for each rank.
//   broadcast, reduce          one rank of each host sends and receives for the host
//   all_gather, reduce_scatter a rank's part crosses to each other host once
//   barrier                    the ranks of each host, then one rank of each host
//   gather, scatter, all_to_all, messages
//                              run on the group that crosses hosts; before the first three, ranks meet as in a barrier
// A large all-reduce goes in pieces, so that the network does not wait for the sums within the host. Small all-reduces
// go through one rank of each host, and so do all all-reduces where hosts have different numbers of ranks. On such
// hosts all_gather and reduce_scatter run on the group that crosses hosts, as gather does.
//
// Ranks that call different collectives, or one with different arguments, are told, as far as the groups below tell
// their ranks: all calls go through these groups in one order. A broadcast may return before on ranks of the root's
// host; their next call fails then.
//
// The ranks of a host need not be consecutive. A reduction combines the ranks of each host in their order, then the
// hosts in the order of their lowest ranks. All ranks hold the same bits where both groups promise this; the bits may
// differ from those of a group without levels, because half types are rounded once a level. avg is the sum over both
// levels, divided by the number of ranks.
//
// Order, deadlines and Works are as in gradwire's other groups: one sequence of calls, on one worker thread or at once
// on the calling thread. After an error in a call the group is at its end on this rank: it aborts the groups below with
// the error, so that the other ranks get the error too where those groups can tell them, and every later call fails
// with it. An InvalidArgument, an UnsupportedError of a reduction, and a ResourceError that all ranks throw do not end
// the group: that of allocate(), dup() and split(), and of a call that runs on the group that crosses hosts. peers() of
// a PeerError or TimeoutError are ranks of this group, and only ranks at fault: other ranks pass them on unchanged.
// Thread-safe.
class HybridGroup final : public CallGroup, public Closable, public DeviceStager {
 public:
  // Makes the group. Collective over `everyone`, a group of all ranks whose engine crosses hosts. `local` is the group
  // of the ranks of this rank's host, in the order that they have in `everyone`. The groups between hosts come from
  // everyone->split(). The new group takes both groups over: only hooks may call them, by local(). The caller owns the
  // result. Throws InvalidArgument when a group is null, and on all ranks when a `local` is not in order;
  // UnsupportedError where `everyone` has no split(); and the errors of collectives over both groups.
  // An error of `local` names no ranks: their numbers in the new group are not known yet.
  static std::shared_ptr<HybridGroup> make(std::shared_ptr<ProcessGroup> everyone, std::shared_ptr<ProcessGroup> local);
  // The same where all ranks know who is on which host: ranks have the same number in `hosts`, by rank, where they are
  // on one host, and `local` is in order. Any numbers will do. Throws InvalidArgument when a group is null, or its size
  // is another one than `hosts` says; and the errors of everyone->split().
  static std::shared_ptr<HybridGroup> make(std::shared_ptr<ProcessGroup> everyone, std::shared_ptr<ProcessGroup> local,
                                           const std::vector<int>& hosts);
  ~HybridGroup() override;

  // The number of hosts, and the number of the host of `rank`. Hosts are numbered in the order of their lowest ranks.
  int hosts() const noexcept { return static_cast<int>(ranks_of_.size()); }
  int host_of(int rank) const { return host_of_.at(static_cast<std::size_t>(rank)); }

  // local() is the group of this host's ranks. cross() is the group of the ranks with this rank's number on every host,
  // host by host; where hosts have different numbers of ranks, cross() is null on all but the first rank of each host.
  // A hook that does one thing within a host and another between hosts calls these groups instead of this group, in the
  // same order on all ranks, within run_on_local() and run_on_cross(). This group owns them.
  const std::shared_ptr<ProcessGroup>& local() const noexcept { return groups_.local; }
  const std::shared_ptr<ProcessGroup>& cross() const noexcept { return groups_.cross; }
  // Runs `step`, which calls local() or cross() and waits. An error of `step` that tells of other ranks ends this
  // group, as an error in one of its own calls does, and is thrown with peers() as ranks of this group.
  void run_on_local(const std::function<void()>& step) const { run_on(ranks_of(host()), step); }
  void run_on_cross(const std::function<void()>& step) const { run_on(cross_ranks_, step); }
  // Returns whether this rank is the first of its host.
  bool is_leader() const { return groups_.local->rank() == 0; }

  bool supports(c10::DeviceType device) const override;
  bool stages_devices() const override;
  bool multiplies_as_it_sums() const override { return true; }  // within the host
  void abort(const std::string& reason) override;
  // As end_of() and abort_because() say.
  std::exception_ptr end() const;
  void abort_because(const std::exception_ptr& error, const std::string& reason);
  void shutdown() override;
  bool is_open() const override;
  void before_next_call(const Tensors& inputs, std::function<void()> copy) override;

 protected:
  std::string get_backend_name() const override { return "hybrid"; }
  std::shared_ptr<Work> do_call(GroupCall& call) override;
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  struct Groups {
    std::shared_ptr<ProcessGroup> everyone;
    std::shared_ptr<ProcessGroup> local;
    std::shared_ptr<ProcessGroup> cross;
  };
  class Call;  // one collective, as its steps see it
  // What ranks ask for in split().
  struct Part;
  // What the machine refused this rank in a call.
  struct Refusal;
  struct Piece;
  using Body = std::function<void(Call& call)>;

  HybridGroup(Groups groups, std::vector<int> host_of);

  const std::vector<int>& ranks_of(int host) const { return ranks_of_[static_cast<std::size_t>(host)]; }
  int host() const { return host_of(rank()); }
  // The number of `rank` among the ranks of its host.
  int local_rank_of(int rank) const;

  std::shared_ptr<Work> do_call_on_cpu(GroupCall& call);
  // Refuses what the engine between hosts does not reduce, on all ranks and before anything is sent. Throws
  // UnsupportedError.
  void require_reduction(const char* operation, const std::vector<at::Tensor>& tensors, ReduceOp op) const;
  Part part_of(Call& call, int color, int key) const;
  // One for each kind of call.
  template <class Given>
  std::shared_ptr<Work> run(Given& given);

  // The steps of the collectives, on memory in order.
  void reduce_through_leader(Call& call, const at::Tensor& row, ReduceOp op);
  void reduce_by_shares(Call& call, const at::Tensor& row, ReduceOp op);
  static Piece begin_piece(Call& call, const at::Tensor& row, ReduceOp op);
  static void end_piece(Call& call, const Piece& piece);
  void gather_rows(Call& call, const at::Tensor& rows, const at::Tensor& part) const;
  void reduce_rows(Call& call, const at::Tensor& part, const at::Tensor& rows, ReduceOp op);

  std::shared_ptr<Work> ordered(const char* operation, const CollectiveOptions& options, internal::Outputs outputs,
                                Body body);
  void in_turn(const char* operation, const Body& body);
  // Collective. Throws ResourceError on all ranks where one has been refused something; the group goes on then.
  void require_granted(Call& call, const char* operation, const Refusal& refusal) const;
  void require_alive() const;
  // Ends the group with `error`, and tells the other ranks, through the groups below, which ranks are at fault.
  void fail(const std::exception_ptr& error, const std::string& reason) const;
  // An error of a group below, with peers() in the numbers of this group: the ranks that another rank named when it
  // failed, else the ranks that the group below names. `members`: its ranks, in the numbers of this group; null where
  // they are the same.
  std::exception_ptr in_own_ranks(const std::exception_ptr& error, const std::vector<int>* members) const;
  // Ends the group with the exception under way, `problem`, and throws it as in_own_ranks() has it. `context` opens the
  // reason that the other ranks hear.
  [[noreturn]] void fail_and_throw(const std::exception& problem, const std::vector<int>* members,
                                   const std::string& context) const;
  void run_on(const std::vector<int>& members, const std::function<void()>& step) const;
  std::string describe(const char* operation) const;
  // `message`, a Work of the group of all ranks, with the errors of this group.
  std::shared_ptr<Work> own_message(std::shared_ptr<Work> message) const;

  const Groups groups_;
  const std::vector<int> host_of_;                // by rank
  const std::vector<std::vector<int>> ranks_of_;  // by host
  const std::vector<int> cross_ranks_;            // of Groups::cross, in its order
  const bool even_;  // every host has the same number of ranks, so that each rank of a host can speak for a part
  struct State;
  const std::shared_ptr<State> state_;                   // the first error, duplicates; messages know it too
  const std::unique_ptr<internal::OrderedCalls> calls_;  // goes first: its worker uses the groups
};

// Returns the error with which `group` has ended, where it is a HybridGroup; null where it has not ended, and for any
// other group.
std::exception_ptr end_of(const ProcessGroup& group);

// Ends `group`, as ProcessGroup::abort(), because of `error`, whose peers() are ranks of `group`. Where the group is a
// HybridGroup, and `error` names ranks at fault, the other ranks get these ranks in their errors, and not this rank.
void abort_because(ProcessGroup& group, const std::exception_ptr& error, const std::string& reason);

}  // namespace gradwire
