// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The use of parameters in an iteration, when not every parameter gets exactly one gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

enum class GraphKind {
  every_parameter,  // each parameter gets one gradient in each iteration
  searched,         // find_unused_parameters: each parameter that the pass goes through gets one gradient
  fixed,            // static_graph: each parameter gets as many gradients as in the first iteration, none or several
};

// A parameter is absent when this rank's backward pass brings it no gradient. Its slot then takes part with what .grad
// holds, or with zeros. When no rank used a parameter since the iteration before, its .grad stays unchanged. The ranks
// find such parameters with the map, one integer for each parameter, which they all-reduce (searched: in each
// iteration; fixed: in the first iteration). Not thread-safe: the Reducer's lock guards the object.
class ParameterUse {
 public:
  ParameterUse(GraphKind kind, std::size_t parameters);

  GraphKind kind() const noexcept { return kind_; }
  // Whether this is the first iteration of a fixed graph. Gradients are counted then, and are reduced only at the end
  // of the pass.
  bool learning() const noexcept { return kind_ == GraphKind::fixed && !learnt_; }

  // Searched: `reached` says for each parameter whether the beginning pass brings it a gradient.
  void expect(std::vector<bool> reached) { reached_ = std::move(reached); }
  // The parameters to which the beginning pass brings no gradient.
  std::vector<std::size_t> absent() const;

  // A gradient of `parameter` was accumulated, in a synchronized or a local pass. `defined`: .grad is defined.
  void touch(std::size_t parameter, bool defined);
  // In a synchronized pass, after touch(): whether this was the last expected gradient of `parameter`, or one too many.
  bool complete(std::size_t parameter);
  // Fixed: whether the parameter got a gradient in the first iteration.
  bool fired(std::size_t parameter) const { return expected_[parameter] > 0; }
  // Learning: all parameters in the order of their last gradients, then the parameters without a gradient.
  std::vector<std::size_t> order_of_completion() const;

  // Fixed: a rank takes part for the first time. The map is exchanged once more, and added to the known map.
  void expect_new_rank() { map_known_ = false; }

  // Keeps .grad as it is, for restore().
  void keep(std::size_t parameter, const at::Tensor& grad);
  // Whether restore() may give the kept .grad back to `parameter`. Asked when the bucket of `parameter` is complete.
  bool may_be_unused(std::size_t parameter) const {
    return kind_ != GraphKind::every_parameter && kept_.contains(parameter) && !touched_[parameter];
  }
  // Starts the all-reduce of the map, unless the map is known. Called after the last bucket was launched. Collective.
  void share(ProcessGroup& group);
  // Waits for that all-reduce, and gives the kept .grad back to every parameter that no rank used. `parameters`: all
  // parameters, by number.
  void restore(const std::vector<at::Tensor>& parameters);
  // Instead of share() and restore() where no gradients are reduced, because this rank is alone: returns the parameters
  // that the pass brought no gradient, and that count as used all the same.
  std::vector<std::size_t> settle_alone();
  // After restore(): the parameters that no rank used. The same on all ranks.
  std::vector<std::size_t> unused_anywhere() const;
  // Ends the iteration. `joined`: this rank took part without a backward pass, and has not seen the fixed graph.
  void end_iteration(bool joined = false);
  // The parameters that got no gradient on this rank in the last iteration that ended.
  const std::vector<std::size_t>& unused() const noexcept { return unused_; }

 private:
  bool needs_map() const { return kind_ == GraphKind::searched || (kind_ == GraphKind::fixed && !map_known_); }
  template <class Used>
  void learn_map(const Used& used);

  const GraphKind kind_;
  bool learnt_ = false;
  bool map_known_ = false;  // fixed: the map was exchanged with all ranks that have taken part
  bool map_seen_ = false;   // the map was exchanged at least once
  std::uint64_t firings_ = 0;
  std::vector<std::uint64_t> last_firing_;  // learning: by parameter; 0: no gradient yet
  std::vector<int> expected_, left_;        // fixed: by parameter, the gradients of an iteration
  std::vector<bool> reached_;               // searched: by parameter
  std::vector<bool> touched_;
  std::vector<bool> used_somewhere_;
  std::vector<std::size_t> unused_;
  std::map<std::size_t, at::Tensor> kept_;
  at::Tensor map_;
  std::shared_ptr<Work> sharing_;
};

}  // namespace gradwire::internal
