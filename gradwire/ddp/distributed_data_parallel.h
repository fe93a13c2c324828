// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Data-parallel training of one module on several ranks. Each rank computes gradients on its own data, and all ranks
// step with the average of the gradients.
//
//   struct Net : torch::nn::Module { ... };
//
//   gradwire::init_process_group();
//   Net net;                                           // the same on every rank; must outlive ddp
//   gradwire::DistributedDataParallel ddp(net);        // or ddp(std::make_shared<Net>()), which ddp then owns too
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);
//   for (auto& [x, target] : loader) {
//     optimizer.zero_grad();
//     loss_of(ddp(x), target).backward();              // at its end the gradients are averaged over the ranks
//     optimizer.step();
//   }
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/ddp_options.h"
#include "gradwire/ddp/join.h"
#include "gradwire/ddp/logging_data.h"
#include "gradwire/ddp/output_tensors.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The part of DistributedDataParallel that does not depend on the type of the module. Use DistributedDataParallel.
//
// Threads: one thread at a time calls a DdpCore, except for the questions at the end, which any thread may ask.
class DdpCore final : public Joinable {
 public:
  // Collective in the group, unless init_sync is false. Shares the ownership of the module. Throws:
  //   InvalidArgument   the module is null, no parameter needs a gradient, the group does not serve a parameter's
  //                     device, or an option is out of range or names no parameter or buffer
  //   UnsupportedError  mixed_precision with sparse gradients
  //   MismatchError     on all ranks: modules or options differ between ranks
  //   ResourceError     the machine refused memory or a thread
  //   and what the collectives throw
  DdpCore(std::shared_ptr<torch::nn::Module> module, DdpOptions options);
  ~DdpCore() override;
  DdpCore(const DdpCore&) = delete;
  DdpCore& operator=(const DdpCore&) = delete;
  // The options and the module of the constructor, and the group that DDP uses.
  const DdpOptions& options() const noexcept;
  const std::shared_ptr<ProcessGroup>& process_group() const noexcept;
  torch::nn::Module& module() const noexcept;
  // The module's parameters, each once, also one that several modules share.
  std::vector<at::Tensor> parameters() const;

  // See DistributedDataParallel.
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  void replace_comm_hook(std::shared_ptr<CommHook> hook);
  // Returns the hook that was registered or that replaced another one last; null for plain averaging.
  const std::shared_ptr<CommHook>& comm_hook() const noexcept;
  // False: the next forwards are local; see NoSync. Returns the value before.
  bool set_sync(bool sync) noexcept;
  // As DdpOptions::forward_sync_buffers, from the next forward on. The same on all ranks, which is not compared.
  void set_forward_sync_buffers(bool sync) noexcept;
  // Whether the next forward is one before which buffers are sent, where it is in training mode and they are sent at
  // all: the training forward before it was synchronized. The setter overrides that, on all ranks alike.
  bool buffers_are_due() const noexcept;
  void set_buffers_due(bool due) noexcept;

  // The caller calls before_forward(), then the module's forward(), then after_forward() with the tensors that
  // forward() returned. When forward() throws, the caller calls abandon_forward() instead of after_forward(). A
  // synchronized before_forward() may be collective (buffers, the buckets' memory and order). before_forward() throws:
  //   the first error of this object, again; where it was no error of gradwire, an AbortedError that quotes it
  //   InvalidArgument   the last reduction did not finish (the message names the parameters that got no gradient), a
  //                     hook of this object calls before_forward(), destroy_process_group() was called, or the module
  //                     has parameters to train that it did not have when it was wrapped
  //   MismatchError     in a Join: the active ranks run forwards of different kinds
  //   and what the collectives throw
  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  void abandon_forward() noexcept;

  // For a module that is no torch::nn::Module: from now on DDP uses `buffers`, by name, instead of module()'s buffers.
  void set_buffers(const std::vector<std::pair<std::string, at::Tensor>>& buffers);

  // Save and load the module. Throw InvalidArgument while the parameters have a lower precision
  // (DdpOptions::mixed_precision).
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  // Returns `tensor` on this rank's device (DdpOptions::device_ids); a floating-point tensor also gets the dtype
  // MixedPrecision::param_dtype. Returns `tensor` itself when there is nothing to change.
  at::Tensor to_device(at::Tensor tensor) const;
  // Whether the arguments of forward() go through to_device().
  bool moves_inputs() const noexcept;

  // A rank that has joined (join.h) takes part in the other ranks' iterations with zeros: in the broadcasts of buffers,
  // in the reductions of buckets through the hook, and in the exchange of used parameters. So the .grad of this rank
  // holds the averages too, and a hook that steps an optimizer also steps it on this rank. The .grad of a parameter
  // that no rank used is that of the highest active rank until the Join ends. Buffers come from the highest active
  // rank. At the end all ranks take over the model of the last joiner. Throws UnsupportedError with
  // delay_all_reduce_named_params over a group that cannot be duplicated.
  std::unique_ptr<JoinHook> join_hook(const JoinOptions& options) override;
  c10::Device join_device() const override;
  std::shared_ptr<ProcessGroup> join_process_group() const override { return process_group(); }

  // For a group whose ranks change (gradwire/elastic/elastic_group.h), also after an error of this object: goes on over
  // the ranks that the group has after the change. Call leave_group() before the change and enter_group() after it, on
  // all ranks, not within a backward pass. Between them the methods that need ranks throw InvalidArgument. The module,
  // its gradients (whose values are indeterminate after an error), the hook and the hook's state stay. Counts begin
  // anew (iterations(), payload_bytes(), bucket.iteration()), and so does the search for the order of the buckets,
  // unless `order` (as in set_bucket_order()) is not empty; `order` is the same on all ranks. The replicas must be
  // equal on all ranks before the next forward; these methods do not make them equal, and do not communicate.
  void leave_group();
  void enter_group(const std::vector<std::string>& order = {});

  // The names of the parameters in the order of their buckets. DDP finds this order in its first iteration. A
  // compressor's result depends on which parameters share a bucket. So a run that continues from a checkpoint with the
  // same bits saves bucket_order(), and passes it to set_bucket_order() on all ranks before the first synchronized
  // forward. bucket_order() is empty before the second synchronized forward, with find_unused_parameters, and on a
  // group of one rank without a hook; set_bucket_order() of an empty list changes nothing. It throws InvalidArgument
  // when other `names` are not those of the parameters that need a gradient, each once, and after the first backward
  // pass began.
  std::vector<std::string> bucket_order() const;
  void set_bucket_order(const std::vector<std::string>& names);
  // As bucket_order(), but not empty where this rank knows which order the next synchronized forward brings: on all
  // ranks after set_bucket_order(), and on rank 0 after the first iteration. A run that may save at any time saves this
  // order of rank 0, as save_checkpoint() does.
  std::vector<std::string> next_bucket_order() const;

  // Throws the error with which this object has ended (a synchronized backward pass failed); does nothing where there
  // is none, and between leave_group() and enter_group(). For loops that must not go on after an error that the user's
  // code has caught. Any thread.
  void require_well() const;

  // Questions, for tests and logs. Any thread, and also a hook, may ask these, bucket_order(), next_bucket_order(),
  // options(), process_group() and module() at any time.
  //
  // The numbers of the parameters in each bucket, in the order of launch.
  std::vector<std::vector<std::size_t>> bucket_plan() const;
  // The number of synchronized iterations that have ended.
  std::uint32_t iterations() const;
  // The bytes that this object's collectives, hooks and buffers included, have sent from this rank, as
  // network_payload_bytes() counts them. Over a group that cannot be duplicated: all bytes that the group sent.
  std::uint64_t payload_bytes() const;
  DdpLoggingData logging_data() const;

 private:
  struct Parts;
  class Shadow;
  std::unique_ptr<Parts> parts_;
};

// While a NoSync lives, gradients of forward passes accumulate on this rank and are not reduced. Nothing is sent but
// buffers, before the first of these passes (DdpOptions::broadcast_buffers). The
// destructor restores the mode before. Scopes nest. `core` must outlive the NoSync.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(DdpCore& core) : core_(&core), before_(core.set_sync(false)) {}
  NoSync(NoSync&& other) noexcept : core_(std::exchange(other.core_, nullptr)), before_(other.before_) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (core_ != nullptr) core_->set_sync(before_);
  }

 private:
  DdpCore* core_;
  bool before_;
};

namespace internal {

// The type that holds the module: a shared_ptr for a class derived from torch::nn::Module; for a shared_ptr, or for a
// holder that TORCH_MODULE made, the same type.
template <class M>
struct HeldModule {
  using Holder = M;
};
template <class M>
requires std::is_base_of_v<torch::nn::Module, M>
struct HeldModule<M> {
  using Holder = std::shared_ptr<M>;
};
template <class M>
std::shared_ptr<torch::nn::Module> base_of(const std::shared_ptr<M>& module) {
  return module;
}
template <class Holder>
requires requires(const Holder& holder) { holder.ptr(); }
std::shared_ptr<torch::nn::Module> base_of(const Holder& holder) { return holder.ptr(); }

// Calls before_forward() in the constructor and after_forward() in finish(). Without finish(), the destructor calls
// abandon_forward().
class ForwardPass {
 public:
  [[gnu::always_inline]] explicit ForwardPass(DdpCore& core) : core_(&core) { core.before_forward(); }
  ~ForwardPass() {
    if (core_ != nullptr) core_->abandon_forward();
  }
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;
  void finish(const std::vector<at::Tensor>& outputs) {
    core_->after_forward(outputs);
    core_ = nullptr;
  }

 private:
  DdpCore* core_;
};

}  // namespace internal

// `Module` is a class derived from torch::nn::Module, a shared_ptr to such a class, or the holder that TORCH_MODULE
// makes. C++20 is needed, as for all of gradwire. forward() may have any signature and any return type. DDP looks for
// tensors in the result as output_tensors.h says: with these tensors DDP notices the beginning of a backward pass, and
// a second backward pass after one forward. A result in which DDP finds no tensors is no error; find_unused_parameters
// and mixed_precision (ddp_options.h) then have limits.
//
// A backward pass is synchronized when a forward() of this object with gradients on, outside no_sync(), came before the
// pass. A pass that begins with the inner module alone is local. A synchronized pass averages .grad over the ranks,
// together with the gradients that had accumulated there. All ranks run the same number of synchronized passes. In each
// of them every parameter that needs a gradient gets exactly one, unless find_unused_parameters or static_graph is set.
// DDP determines which parameters need a gradient when the module is wrapped; to freeze parameters later, set
// find_unused_parameters.
//
// The weight of a torch::nn::Embedding or EmbeddingBag with sparse = true has a bucket of its own. Hooks do not get
// this bucket: DDP gathers the entries of all ranks, sums and divides them, and .grad is sparse.
//
// After an error in a synchronized backward pass (in a hook, in the user's code or on another rank) this object is at
// its end on every rank. The rank of the error throws that error; the other ranks throw a PeerError that quotes the
// error. Every later forward() throws the same again, or an AbortedError that quotes it where it was no error of
// gradwire. The values of the gradients are then indeterminate; the gradients lie in memory of their own. DDP does not
// see an exception of the user's code before the first gradient reaches an output of forward() or a parameter, between
// the passes for example: the other ranks wait, or go on without this one. A rank that goes on after such an exception
// ends the group first (abort()), or the process.
//
// The object cannot be moved. One thread at a time may use it. Destroy the object before its process group.
template <class Module>
class DistributedDataParallel {
 public:
  using Holder = typename internal::HeldModule<Module>::Holder;  // what owns the module

  // Collective, and throws, as DdpCore::DdpCore() says. Shares the ownership of `module`.
  explicit DistributedDataParallel(Holder module, DdpOptions options = {})
      : module_(std::move(module)), core_(internal::base_of(module_), std::move(options)) {}
  // The same for a module that is no holder. The first refers to `module`, which must outlive this object; the second
  // moves `module` into this object.
  explicit DistributedDataParallel(Module& module,
                                   DdpOptions options = {}) requires std::is_base_of_v<torch::nn::Module, Module>
      : DistributedDataParallel(Holder(std::shared_ptr<void>(), &module), std::move(options)) {}
  explicit DistributedDataParallel(Module&& module,
                                   DdpOptions options = {}) requires std::is_base_of_v<torch::nn::Module, Module>
      : DistributedDataParallel(std::make_shared<Module>(std::move(module)), std::move(options)) {}

  // Calls the module's forward() and returns the result; a reference to tensors becomes a copy of the value that holds
  // them, because it may refer to an argument that DDP has moved. Throws what DdpCore::before_forward() and the module
  // throw. Always inlined, so that the flight recorder finds the caller's line in builds without optimization, too.
  template <class... Args>
  [[gnu::always_inline]] decltype(auto) forward(Args&&... args) {
    using Result = internal::ForwardResult<decltype(module_->forward(std::forward<Args>(args)...))>;
    internal::ForwardPass pass(core_);
    if constexpr (std::is_void_v<Result>) {
      call<Result>(std::forward<Args>(args)...);
      pass.finish({});
    } else {
      Result result = call<Result>(std::forward<Args>(args)...);
      pass.finish(internal::tensors_in(result));
      return result;
    }
  }
  template <class... Args>
  [[gnu::always_inline]] decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // While the returned guard lives, the gradients of forward passes only accumulate on this rank, as NoSync says. The
  // next synchronized backward pass averages the sum:
  //   { auto guard = ddp.no_sync(); loss(ddp(x1)).backward(); }
  //   loss(ddp(x2)).backward();
  NoSync no_sync() { return NoSync(core_); }

  // Registers the hook that reduces the buckets. Collective in the groups that the hook names (HookTraits::groups).
  // Throws InvalidArgument for a null hook or a null group, when there is a hook already, and after the first
  // synchronized backward pass has begun; throws UnsupportedError when a group that the hook names cannot be
  // duplicated.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { core_.register_comm_hook(std::move(hook)); }
  // The same for a callable (state, bucket) or (bucket) that returns a tensor or a Future; see make_comm_hook().
  template <class State, class Callable>
  requires std::is_invocable_v<Callable&, State&, GradBucket&>
  void register_comm_hook(State state, Callable callable, HookTraits traits = {}) {
    register_comm_hook(make_comm_hook(std::move(state), std::move(callable), std::move(traits)));
  }
  template <class Callable>
  requires std::is_invocable_v<Callable&, GradBucket&>
  void register_comm_hook(Callable callable, HookTraits traits = {}) {
    register_comm_hook(make_comm_hook(std::move(callable), std::move(traits)));
  }

  // Uses `hook`, or plain averaging when `hook` is null, from the next synchronized forward on. DDP may have had a hook
  // before or not. The hook may be replaced any number of times, also by a hook that was used before: such a hook has
  // kept its state, and bucket.iteration() has gone on counting. Buckets and gradients stay where they are.
  //
  // All ranks must make the same calls between the same two iterations. Otherwise the next backward pass throws a
  // MismatchError on all ranks. (A user's group that does not compare calls finds no mismatch: the result is
  // undefined.) The next synchronized forward is collective in the groups that the hook names and that no earlier hook
  // named.
  //
  // Throws InvalidArgument within a backward pass, also when a hook calls it, and when the hook names a null group.
  // When a named group cannot be duplicated, the next forward throws an UnsupportedError, and this object is at its
  // end.
  void replace_comm_hook(std::shared_ptr<CommHook> hook) { core_.replace_comm_hook(std::move(hook)); }

  // Returns a Join of this object alone, for a different number of batches on each rank (join.h). For several
  // joinables, construct the Join directly. Collective; this object must outlive the Join.
  [[nodiscard]] Join join(JoinOptions options = {}) { return Join({core_}, options); }
  // For Join({ddp, optimizer}).
  operator Joinable&() noexcept { return core_; }

  // torch::save(ddp, ...) and torch::load(ddp, ...) use the names of the inner module. After a load into this object or
  // into the module, training goes on from the loaded values. Load on all ranks, or only on rank 0 before the module is
  // wrapped. Throw as DdpCore::save() and DdpCore::load() do.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const DistributedDataParallel& ddp) {
    ddp.core_.save(archive);
    return archive;
  }
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                    DistributedDataParallel& ddp) {
    ddp.core_.load(archive);
    return archive;
  }

  // As DdpCore::logging_data().
  DdpLoggingData logging_data() const { return core_.logging_data(); }
  const Holder& module() const noexcept { return module_; }
  // Each once, also one that several modules share.
  std::vector<at::Tensor> parameters() const { return core_.parameters(); }
  auto named_parameters() const { return core_.module().named_parameters(); }
  std::vector<at::Tensor> buffers() const { return core_.module().buffers(); }
  void train(bool on = true) { core_.module().train(on); }
  void eval() { train(false); }
  void zero_grad(bool set_to_none = true) { core_.module().zero_grad(set_to_none); }
  DdpCore& core() noexcept { return core_; }

 private:
  template <class Result, class... Args>
  Result call(Args&&... args) {
    if (!core_.moves_inputs()) return module_->forward(std::forward<Args>(args)...);
    std::tuple<internal::MovedArgument<Args>...> moved(std::forward<Args>(args)...);
    const auto move = [this](at::Tensor& tensor) { tensor = core_.to_device(tensor); };
    const internal::TensorVisitor visit(move);
    return std::apply(
        [&](auto&... arguments) -> Result {
          (internal::visit_moved(arguments, visit), ...);
          return module_->forward(static_cast<Args&&>(arguments)...);
        },
        moved);
  }

  Holder module_;
  DdpCore core_;
};

template <class Module>
DistributedDataParallel(Module) -> DistributedDataParallel<Module>;
template <class Module>
DistributedDataParallel(Module, DdpOptions) -> DistributedDataParallel<Module>;

}  // namespace gradwire
