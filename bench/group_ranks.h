// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Worker processes whose ranks use a process group.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <memory>

#include "bench/local_ranks.h"
#include "bench/worker.h"
#include "gradwire/process_group/init.h"

namespace gradwire::bench {

// Runs `body` for each rank of `options` (see serve_local_ranks), with the default group and with one thread of
// libtorch. Destroys the group afterwards.
inline void serve_group_ranks(const RankOptions& options,
                              const std::function<void(const std::shared_ptr<ProcessGroup>& group)>& body) {
  serve_local_ranks(options, [&](const std::shared_ptr<Store>& store, int rank) {
    if (options.pin) pin_to_processor(rank);
    at::set_num_threads(1);
    InitOptions init;
    init.backend = options.backend;
    init.store = store;
    init.rank = rank;
    init.world_size = options.world;
    body(init_process_group(init));
    destroy_process_group();
  });
}

// Serves the coordinator on the ranks of `options`, without gradients: each rank has an Object, made of its group, for
// a subject (see subject_of).
template <class Object>
void serve_subjects_of_groups(const RankOptions& options) {
  serve_group_ranks(options, [&](const std::shared_ptr<ProcessGroup>& group) {
    const c10::NoGradGuard no_grad;
    Object object(group);
    serve(options.socket, "gradwire", group->rank(), subject_of(object));
  });
}

}  // namespace gradwire::bench
