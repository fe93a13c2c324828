// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a DilocoAverager consists of.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/optim/diloco.h"
#include "gradwire/optim/diloco_fragment_internal.h"
#include "gradwire/optim/diloco_meeting_internal.h"

namespace gradwire::internal {

struct DilocoParts {
  // Fragments of one number are exchanged at the same steps; there is one for each dtype and device.
  struct Scheduled {
    std::int64_t number;
    std::unique_ptr<DilocoFragment> fragment;
  };

  // What a meeting found out, until it is applied.
  struct Met {
    DilocoPlan plan;
    std::string state;  // the donor's, on receivers
  };

  DilocoParts(std::vector<at::Tensor> all, DilocoOptions chosen);
  ~DilocoParts();
  void make_fragments();
  // Text with what must be the same on all ranks, and in a checkpoint.
  std::string identity() const;
  // Whether an exchange begins when `count` steps have ended.
  bool begins_at(std::int64_t count) const;
  // The count of steps, modulo inner_steps, at which fragments of this number are exchanged.
  std::int64_t turn_of(std::int64_t number) const {
    return (number + 1) * options.inner_steps / options.fragments % options.inner_steps;
  }
  // Throws InvalidArgument where this worker has left an elastic job.
  void require_in_group() const;
  // Does what is due when `count` steps have ended: ends exchanges and begins others. Nothing when it was done.
  void do_what_is_due(std::int64_t count);

  const std::vector<at::Tensor> parameters;
  const DilocoOptions options;
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<ProcessGroup> channel;  // a duplicate of the group, or the group itself
  std::vector<Scheduled> fragments;
  std::string outer_optimizer;  // as the factory made it
  std::unique_ptr<Lane> lane;   // with overlap; goes before the fragments that its jobs use
  std::int64_t steps = 0;
  bool is_elastic = false;
  bool is_in_group = true;
  std::optional<Met> meeting;
  const int exceptions = std::uncaught_exceptions();  // on their way when this object was made

 private:
  void finish_what_is_due(std::int64_t count);
};

}  // namespace gradwire::internal
