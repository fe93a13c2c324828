// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Trains one module on several ranks: each rank computes gradients on its own data, and all ranks step with the
// average.
//
//   gradwire::init_process_group();
//   auto net = Net();                                  // a torch::nn::Module, the same on every rank
//   gradwire::DistributedDataParallel ddp(net);
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);
//   for (auto& [x, target] : loader) {
//     optimizer.zero_grad();
//     loss_of(ddp(x), target).backward();              // gradients are averaged over the ranks by its end
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

// What does not depend on the type of the module. Use DistributedDataParallel.
class DdpCore final : public Joinable {
 public:
  // Collective in the group, unless init_sync is false. Throws InvalidArgument (no parameter needs a gradient, a device
  // the group does not serve, an option out of range), UnsupportedError (an option of a later version), MismatchError
  // on all ranks (modules or options differ), ResourceError.
  DdpCore(std::shared_ptr<torch::nn::Module> module, DdpOptions options);
  ~DdpCore() override;
  DdpCore(const DdpCore&) = delete;
  DdpCore& operator=(const DdpCore&) = delete;

  const DdpOptions& options() const noexcept;
  const std::shared_ptr<ProcessGroup>& process_group() const noexcept;
  torch::nn::Module& module() const noexcept;

  void register_comm_hook(std::shared_ptr<CommHook> hook);
  void replace_comm_hook(std::shared_ptr<CommHook> hook);
  bool set_sync(bool sync) noexcept;  // returns what it was

  // Around the module's forward(); abandon_forward() instead of after_forward() where that throws. before_forward()
  // throws InvalidArgument when a hook of this object calls it, after destroy_process_group(), and when the module has
  // parameters to train that it was not wrapped with.
  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  void abandon_forward() noexcept;

  // For a module that is not torch::nn::Module's: its buffers as they are now, by name, to be used instead of those of
  // module() from now on.
  void set_buffers(const std::vector<std::pair<std::string, at::Tensor>>& buffers);

  // The module's. Throw InvalidArgument while its parameters are of a lower precision (DdpOptions::mixed_precision).
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  // `tensor` on this rank's device, in the type of MixedPrecision::param_dtype.
  at::Tensor to_device(at::Tensor tensor) const;
  bool moves_inputs() const noexcept;

  // In a Join (see join.h) a rank that has joined takes part in the others' iterations with zeros: buffers, buckets,
  // the hook, the exchange of used parameters. So its .grad holds the averages too, and hooks that step an optimizer do
  // so. Buffers come from the highest rank that has not joined; at the end all take over the last joiner's model.
  std::unique_ptr<JoinHook> join_hook(const JoinOptions& options) override;
  c10::Device join_device() const override;
  std::shared_ptr<ProcessGroup> join_process_group() const override { return process_group(); }

  // Which parameters share a bucket decides what a compressor makes of them, and DDP finds the order of the buckets in
  // its first iteration. So a run that goes on from a checkpoint with the same bits saves the order, and gives it back
  // before its first synchronized forward, on all ranks alike. Names of parameters; empty before the second
  // synchronized forward, and where one rank is alone without a hook. set_bucket_order() throws InvalidArgument for
  // names that are not the parameters', and when training has begun.
  std::vector<std::string> bucket_order() const;
  void set_bucket_order(const std::vector<std::string>& names);

  // Questions, these and those above, may be asked at any time, also by a hook.
  // The parameters' numbers in each bucket, in the order of launch; synchronized iterations so far. For tests and logs.
  std::vector<std::vector<std::size_t>> bucket_plan() const;
  std::uint32_t iterations() const;
  // What this object's collectives had to send from this rank so far, hooks and buffers included; see
  // network_payload_bytes(). Over a group without duplicates: all that the group sent.
  std::uint64_t payload_bytes() const;
  DdpLoggingData logging_data() const;

 private:
  struct Parts;
  class Shadow;
  std::unique_ptr<Parts> parts_;
};

// While it lives, forward passes are local: their gradients only accumulate. Restores what held before.
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

// How a module is held: a class derived from torch::nn::Module by shared_ptr; a shared_ptr or a holder of TORCH_MODULE
// as it is.
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

// before_forward() now; after_forward() in finish(), or abandon_forward() at the end of the scope.
class ForwardPass {
 public:
  explicit ForwardPass(DdpCore& core) : core_(&core) { core.before_forward(); }
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

// `Module`: a class derived from torch::nn::Module, its shared_ptr, or the holder that TORCH_MODULE makes of it.
// forward() may have any signature and return type; DDP looks for tensors in what it returns as output_tensors.h says.
// It needs them to notice the beginning of a backward pass, and a second one after one forward. A type that it cannot
// look into is fine but where an option says otherwise (find_unused_parameters, mixed_precision).
//
// A backward pass is synchronized when a forward() of this object with gradients on, outside no_sync(), came before it.
// One that enters through the inner module alone is local. Gradients are averaged over the ranks, whatever accumulated
// in .grad before included. All ranks run the same number of synchronized passes, and in each every parameter that
// needs a gradient gets one, unless find_unused_parameters or static_graph says otherwise. Which parameters need one is
// settled when the module is wrapped; to freeze some later, set find_unused_parameters.
//
// The weight of a torch::nn::Embedding or EmbeddingBag with sparse = true has a bucket to itself, which hooks do not
// get: the ranks' entries are gathered, summed and divided, and .grad is sparse.
//
// After any error of a synchronized backward pass, in a hook, in the user's code or of a peer, this object is at its
// end on every rank: each throws, the others a PeerError that quotes the first, and so does every later forward().
// Gradients are indeterminate then, in memory of their own.
//
// Lives at one place (not movable); used from one thread at a time. Destroy it before the process group it uses.
template <class Module>
class DistributedDataParallel {
 public:
  using Holder = typename internal::HeldModule<Module>::Holder;

  explicit DistributedDataParallel(Holder module, DdpOptions options = {})
      : module_(std::move(module)), core_(internal::base_of(module_), std::move(options)) {}

  // The module's forward(), between what DDP does before and after.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    using Result = decltype(module_->forward(std::forward<Args>(args)...));
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
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // Gradients of forward passes while the returned guard lives only accumulate:
  //   { auto guard = ddp.no_sync(); loss(ddp(x1)).backward(); }   loss(ddp(x2)).backward();   // averages the sum of
  //   both
  NoSync no_sync() { return NoSync(core_); }

  // One hook, before the first synchronized backward pass. Collective in the groups that the hook names. Throws
  // InvalidArgument.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { core_.register_comm_hook(std::move(hook)); }
  // The same for a callable (state, bucket) or (bucket) that returns a tensor or a Future; see comm_hook.h.
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

  // Another hook, or plain averaging for null, from the next synchronized forward on, whether there was one or not; as
  // often as wanted, also back to a hook that was there before (which has kept its memory, and goes on counting
  // iterations as bucket.iteration() does). Buckets and gradients stay where they are.
  //
  // All ranks must call it between the same two iterations: a rank that does not, or calls it more often, gets a
  // MismatchError in its next backward pass, as do all others (over a user's group without fingerprints: whatever the
  // differing collectives make of it). That forward is collective in the groups that the hook names, but for those that
  // an earlier hook named. Throws InvalidArgument within a backward pass, also from a hook, and for a null group; the
  // forward throws UnsupportedError, and ends this object, where a named group cannot be duplicated.
  void replace_comm_hook(std::shared_ptr<CommHook> hook) { core_.replace_comm_hook(std::move(hook)); }

  // Training with a different number of batches on each rank; see join.h. For several joinables make the Join yourself.
  [[nodiscard]] Join join(JoinOptions options = {}) { return Join({core_}, options); }
  // For Join({ddp, ...}).
  operator Joinable&() noexcept { return core_; }

  // torch::save(ddp, ...) and torch::load() see the inner module's names. After a load, into this object or the module,
  // training goes on from the values that were loaded: load on all ranks, or only on rank 0 before wrapping.
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

  DdpLoggingData logging_data() const { return core_.logging_data(); }
  const Holder& module() const noexcept { return module_; }
  std::vector<at::Tensor> parameters() const { return core_.module().parameters(); }
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
