// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank that runs collectives of a ProcessGroup.
#include <ATen/Functions.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "bench/collectives_command.h"
#include "bench/group_ranks.h"

namespace gradwire::bench {
namespace {

class CollectiveSubject {
 public:
  explicit CollectiveSubject(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  void prepare(const Measurement& what) {
    const auto numel = static_cast<std::int64_t>(what.bytes / sizeof(float));
    whole_ = at::zeros({numel});
    other_ = at::zeros({numel});
    part_ = at::zeros({numel / group_->size()});
    parts_ = whole_.tensor_split(group_->size());
    run_ = calls_.at(what.variant);
    offers_a_part_ = what.variant == "all_gather" || what.variant == "gather";
  }
  // What a call reads was written by its owner since the last call, as in a training.
  void refill() {
    whole_.zero_();
    if (offers_a_part_) part_.zero_();
  }
  void barrier() { group_->barrier(blocking<BarrierOptions>())->wait(); }
  void run() { run_()->wait(); }

 private:
  // A call that returns when it is done, as the peers' do.
  template <class Options>
  static Options blocking() {
    Options options;
    options.async = false;
    return options;
  }
  template <class Options>
  static Options rooted(int root) {
    auto options = blocking<Options>();
    options.root = root;
    return options;
  }
  // The list that only the root of a gather or scatter has.
  std::vector<Tensors> of_root(int root) const {
    return group_->rank() == root ? std::vector<Tensors>{parts_} : std::vector<Tensors>{};
  }
  std::shared_ptr<Work> send_recv() {
    const int world = group_->size();
    const auto sent = group_->send({whole_}, (group_->rank() + 1) % world);
    group_->recv({other_}, (group_->rank() + world - 1) % world)->wait();
    return sent;
  }

  using Call = std::function<std::shared_ptr<Work>()>;
  const std::shared_ptr<ProcessGroup> group_;
  const int last_ = group_->size() - 1;
  at::Tensor whole_;
  at::Tensor other_;
  at::Tensor part_;
  Tensors parts_;
  Call run_;
  bool offers_a_part_ = false;  // the call reads `part_`, not `whole_`
  const std::map<std::string, Call> calls_{
      {"all_reduce", [this] { return group_->all_reduce({whole_}, blocking<AllReduceOptions>()); }},
      {"broadcast", [this] { return group_->broadcast({whole_}, rooted<BroadcastOptions>(last_)); }},
      {"reduce", [this] { return group_->reduce({whole_}, rooted<ReduceOptions>(0)); }},
      {"all_gather", [this] { return group_->all_gather_into_tensor(whole_, part_, blocking<AllGatherOptions>()); }},
      {"gather", [this] { return group_->gather(of_root(0), {part_}, rooted<GatherOptions>(0)); }},
      {"scatter", [this] { return group_->scatter({part_}, of_root(last_), rooted<ScatterOptions>(last_)); }},
      {"reduce_scatter",
       [this] { return group_->reduce_scatter_tensor(part_, whole_, blocking<ReduceScatterOptions>()); }},
      {"all_to_all", [this] { return group_->all_to_all_single(other_, whole_, {}, {}, blocking<AllToAllOptions>()); }},
      {"send_recv", [this] { return send_recv(); }},
      {"barrier", [this] { return group_->barrier(blocking<BarrierOptions>()); }}};
};

}  // namespace

void run_collective_worker(const RankOptions& options) { serve_subjects_of_groups<CollectiveSubject>(options); }

}  // namespace gradwire::bench
