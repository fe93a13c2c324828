// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The logging data of a DistributedDataParallel: PyTorch's _get_ddp_logging_data() with types.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gradwire {

// The times of one synchronized iteration, or their means over all synchronized iterations.
struct DdpTimes {
  // From the beginning of forward() to the beginning of the backward pass. Includes the computation of the loss.
  std::chrono::nanoseconds forward_compute{0};
  // From the beginning of the backward pass to its last gradient.
  std::chrono::nanoseconds backward_compute{0};
  // From the launch of the first bucket to the end of the last one's reduction.
  std::chrono::nanoseconds backward_comm{0};
  // The part of backward_comm before the last gradient: communication that is hidden behind the backward pass.
  std::chrono::nanoseconds backward_compute_comm_overlap{0};
};

// A snapshot; see DdpCore::logging_data().
struct DdpLoggingData {
  int rank = 0;              // of this process in the group
  int world_size = 0;        // the size of the group
  std::string backend_name;  // ProcessGroup::name()
  std::string module_name;   // the name of the module's class
  std::string comm_hook;     // the name of the hook; empty: plain averaging without a hook
  int lanes = 0;             // the number of lanes that run the hook; 0: the thread of the backward pass runs it

  // The options.
  bool broadcast_buffers = false;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool mixed_precision = false;
  bool join_uneven_inputs = false;              // true: the object has been in a Join
  std::vector<std::size_t> bucket_cap_bytes;    // the caps of the first buckets; the last one holds for all later ones
  std::vector<std::string> ignored_parameters;  // parameters_and_buffers_to_ignore

  // The gradients.
  std::size_t num_parameter_tensors = 0;
  std::size_t total_parameter_size_bytes = 0;
  std::vector<std::string> dtypes;  // the dtypes of the trained parameters, each once
  // The bytes of each bucket, in the order of launch. The bucket of a sparse gradient counts the bytes of the
  // parameter. `bucket_sizes` holds the sizes before the rebuild of the buckets, `rebuilt_bucket_sizes` the sizes after
  // it (empty before the rebuild).
  std::vector<std::size_t> bucket_sizes;
  std::vector<std::size_t> rebuilt_bucket_sizes;
  bool has_rebuilt_buckets = false;
  std::vector<std::vector<std::string>> bucket_parameters;  // the names of the parameters in each present bucket
  std::vector<std::string> bucket_order;                    // DdpCore::bucket_order()
  // The last synchronized iteration on this rank: the names of the parameters in the order in which their gradients
  // became ready, and the names of the parameters that got no gradient.
  std::vector<std::string> prev_iteration_grad_ready_order;
  std::vector<std::string> unused_parameters;
  std::size_t unused_parameter_size_bytes = 0;

  // The iterations.
  std::uint32_t num_iterations = 0;  // the number of synchronized iterations
  std::uint64_t payload_bytes = 0;   // DdpCore::payload_bytes()
  DdpTimes last;
  DdpTimes average;
  std::string error;  // the error that ended the DDP object; empty: no error

  // Returns the same data as a flat map, under PyTorch's names where PyTorch has the entry. Lists are joined by ", ",
  // times are in nanoseconds, and truth values are 0 or 1.
  std::map<std::string, std::string> as_map() const;
};

}  // namespace gradwire
