// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a DistributedDataParallel knows of itself: PyTorch's _get_ddp_logging_data(), typed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gradwire {

// Of one synchronized iteration, or the mean over all.
struct DdpTimes {
  // From the beginning of forward() to that of the backward pass, the user's loss included.
  std::chrono::nanoseconds forward_compute{0};
  // From the beginning of the backward pass to its last gradient.
  std::chrono::nanoseconds backward_compute{0};
  // From the launch of the first bucket to the end of the last one's reduction.
  std::chrono::nanoseconds backward_comm{0};
  // The part of backward_comm before the last gradient: what is hidden behind the backward pass.
  std::chrono::nanoseconds backward_compute_comm_overlap{0};
};

struct DdpLoggingData {
  int rank = 0;
  int world_size = 0;
  std::string backend_name;
  std::string module_name;  // the class of the module
  std::string comm_hook;    // empty: plain averaging
  int lanes = 0;

  // What was asked for.
  bool broadcast_buffers = false;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool mixed_precision = false;
  bool join_uneven_inputs = false;              // whether it ever was in a Join
  std::vector<std::size_t> bucket_cap_bytes;    // of the first bucket, of the later ones
  std::vector<std::string> ignored_parameters;  // parameters_and_buffers_to_ignore

  // The gradients.
  std::size_t num_parameter_tensors = 0;
  std::size_t total_parameter_size_bytes = 0;
  std::vector<std::string> dtypes;  // of the parameters that are trained, each once
  // Bytes of each bucket in the order of launch (of a sparse gradient: of its parameter), before and after the rebuild;
  // the second is empty until then.
  std::vector<std::size_t> bucket_sizes;
  std::vector<std::size_t> rebuilt_bucket_sizes;
  bool has_rebuilt_buckets = false;
  std::vector<std::vector<std::string>> bucket_parameters;  // their names, bucket by bucket, now
  std::vector<std::string> bucket_order;                    // DdpCore::bucket_order()
  // Of the last synchronized iteration: names in the order in which this rank's gradients became ready, and those that
  // brought none.
  std::vector<std::string> prev_iteration_grad_ready_order;
  std::vector<std::string> unused_parameters;
  std::size_t unused_parameter_size_bytes = 0;

  // The iterations.
  std::uint32_t num_iterations = 0;  // synchronized ones
  std::uint64_t payload_bytes = 0;   // DdpCore::payload_bytes()
  DdpTimes last;
  DdpTimes average;
  std::string error;  // why this object is at its end; empty while it is not

  // The same, flat: PyTorch's names where it has the thing; lists joined by ", ", times in nanoseconds, truth as 0
  // or 1.
  std::map<std::string, std::string> as_map() const;
};

}  // namespace gradwire
