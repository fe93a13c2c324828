// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which parameters take part in an iteration, where not every one gets exactly one gradient.
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
  every_parameter,  // each gets one gradient in each iteration
  searched,         // find_unused_parameters: those that the pass goes through get one
  fixed,            // static_graph: each gets as many as in the first iteration, none or several
};

// Not thread-safe: the Reducer's lock guards it. A parameter is absent when this rank's backward pass brings it no
// gradient: its slot then takes part with what .grad holds, or zeros. When no rank used a parameter since the iteration
// before, its .grad stays untouched; ranks learn that from an all-reduced map of one integer a parameter (searched:
// each iteration; fixed: the first one).
class ParameterUse {
 public:
  ParameterUse(GraphKind kind, std::size_t parameters);

  GraphKind kind() const noexcept { return kind_; }
  // The first iteration of a fixed graph, in which gradients are counted and all wait for the end of the pass.
  bool learning() const noexcept { return kind_ == GraphKind::fixed && !learnt_; }

  // Searched: by parameter, whether the pass that begins brings it a gradient.
  void expect(std::vector<bool> reached) { reached_ = std::move(reached); }
  // The parameters that the pass which begins brings no gradient.
  std::vector<std::size_t> absent() const;

  // A gradient was accumulated, in a synchronized pass or a local one.
  void touch(std::size_t parameter, bool defined);
  // In a synchronized pass: whether it was the last one (or one too many) of this parameter.
  bool complete(std::size_t parameter);
  // Fixed: whether the parameter got any in the first iteration.
  bool fired(std::size_t parameter) const { return expected_[parameter] > 0; }
  // Learning: all parameters, in the order of their last gradients, those without one at the end.
  std::vector<std::size_t> order_of_completion() const;

  // Fixed: a rank takes part for the first time, so the map is exchanged once more, and added to what was known.
  void expect_new_rank() { map_known_ = false; }

  // Keeps .grad as it is, for restore().
  void keep(std::size_t parameter, const at::Tensor& grad);
  // Starts the all-reduce of the map unless all is known; after the last bucket was launched.
  void share(ProcessGroup& group);
  // Waits for it and gives the kept .grad back to every parameter (`parameters` by number) that no rank used.
  void restore(const std::vector<at::Tensor>& parameters);
  // `joined`: this rank took part without a pass of its own, and learnt nothing of a fixed graph.
  void end_iteration(bool joined = false);
  // The parameters that got no gradient on this rank in the iteration that ended last.
  const std::vector<std::size_t>& unused() const noexcept { return unused_; }

 private:
  const GraphKind kind_;
  bool learnt_ = false;
  bool map_known_ = false;  // fixed: it was exchanged, with all ranks that ever took part
  bool map_seen_ = false;   // it was exchanged once
  std::uint64_t firings_ = 0;
  std::vector<std::uint64_t> last_firing_;  // by parameter; 0: none yet. While learning.
  std::vector<int> expected_, left_;        // gradients an iteration, fixed
  std::vector<bool> reached_;               // searched
  std::vector<bool> touched_;
  std::vector<bool> used_somewhere_;
  std::vector<std::size_t> unused_;
  std::map<std::size_t, at::Tensor> kept_;
  at::Tensor map_;
  std::shared_ptr<Work> sharing_;
};

}  // namespace gradwire::internal
