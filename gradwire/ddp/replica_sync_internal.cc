// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/replica_sync_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/process_group/flat_tensors_internal.h"

namespace gradwire::internal {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::size_t kMaxSettings = 12;
constexpr std::size_t kDescribedDims = 8;  // dimensions that a message shows
constexpr std::size_t kNameLength = 160;   // characters of a name that a message shows
// The description of the first differing parameter on one rank: its number, whether the rank has it, dtype,
// requires_grad, dim, sizes, strides.
constexpr std::size_t kDifferenceLength = 4 + 2 * kDescribedDims;

at::Tensor tensor_of_numbers(Numbers& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kLong);
}

enum class GradientKind { none, dense, sparse };
constexpr std::int64_t kGradientKinds = 3;

Numbers signature_of(const NamedTensor& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const GradientKind gradient = !tensor.requires_grad() ? GradientKind::none
                                : parameter.sparse      ? GradientKind::sparse
                                                        : GradientKind::dense;
  Numbers numbers{
      kGradientKinds * static_cast<std::int64_t>(tensor.scalar_type()) + static_cast<std::int64_t>(gradient),
      tensor.dim()};
  numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  numbers.insert(numbers.end(), tensor.strides().begin(), tensor.strides().end());
  return numbers;
}

// Reads one parameter's signature from the front of `numbers`.
std::span<const std::int64_t> take_signature(std::span<const std::int64_t>& numbers) {
  if (numbers.size() < 2 || numbers[1] < 0) return {};
  const std::size_t length = 2 + 2 * static_cast<std::size_t>(numbers[1]);
  if (length > numbers.size()) return {};
  const auto taken = numbers.first(length);
  numbers = numbers.subspan(length);
  return taken;
}

Numbers difference_of(std::int64_t index, std::span<const std::int64_t> signature) {
  Numbers difference(kDifferenceLength, 0);
  difference[0] = index;
  if (signature.empty()) return difference;
  difference[1] = 1;
  difference[2] = signature[0];
  difference[3] = signature[1];
  const auto dim = static_cast<std::size_t>(signature[1]);
  for (std::size_t i = 0; i < std::min(dim, kDescribedDims); ++i) {
    difference[4 + i] = signature[2 + i];
    difference[4 + kDescribedDims + i] = signature[2 + dim + i];
  }
  return difference;
}

bool is_there(const Numbers& difference) { return difference[1] != 0; }

std::string describe_difference(const Numbers& difference) {
  const auto dim = std::min<std::size_t>(static_cast<std::size_t>(difference[3]), kDescribedDims);
  const std::int64_t* first = difference.data() + 4;
  const auto gradient = static_cast<GradientKind>(difference[2] % kGradientKinds);
  return concat(static_cast<at::ScalarType>(difference[2] / kGradientKinds), " of sizes ", at::IntArrayRef(first, dim),
                " and strides ", at::IntArrayRef(first + kDescribedDims, dim),
                gradient == GradientKind::none     ? " without gradient"
                : gradient == GradientKind::sparse ? " with a sparse gradient"
                                                   : "");
}

// The names of every rank's parameter with the number `index`, by rank; empty where a rank has none. Collective.
std::vector<std::string> gather_names(ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                                      std::size_t index) {
  Numbers mine(kNameLength, 0);
  if (index < parameters.size()) {
    const std::string& name = parameters[index].name;
    std::copy_n(name.begin(), std::min(name.size(), kNameLength), mine.begin());
  }
  std::vector<std::string> names;
  for (const Numbers& numbers : gather_integers(group, std::move(mine))) {
    const auto end = std::find(numbers.begin(), numbers.end(), 0);
    std::string& name = names.emplace_back();
    std::transform(numbers.begin(), end, std::back_inserter(name), [](auto code) { return static_cast<char>(code); });
  }
  return names;
}

// What rank 0 and another rank have in one place, and how many parameters and buffers each has.
struct Side {
  std::size_t rank = 0;
  std::int64_t count = 0;
  std::string name;
  Numbers difference;
};

std::string describe_sides(const Side& zero, const Side& other) {
  if (!is_there(zero.difference) || !is_there(other.difference)) {
    const Side& with = is_there(zero.difference) ? zero : other;
    const Side& without = is_there(zero.difference) ? other : zero;
    return concat("rank ", with.rank, " has ", with.count, " parameters and buffers, rank ", without.rank, " has ",
                  without.count, ": '", with.name, "' on rank ", with.rank, " (", describe_difference(with.difference),
                  ") has no counterpart on rank ", without.rank);
  }
  const std::string other_name = zero.name == other.name ? "" : concat("'", other.name, "', ");
  return concat("'", zero.name, "' is ", describe_difference(zero.difference), " on rank 0, and ", other_name,
                describe_difference(other.difference), " on rank ", other.rank);
}

// The first parameter whose signature differs from rank 0's; -1 when there is none.
std::int64_t first_difference(const Numbers& mine, const Numbers& reference) {
  std::span<const std::int64_t> own(mine);
  std::span<const std::int64_t> other(reference);
  for (std::int64_t index = 0;; ++index) {
    if (own.empty() && other.empty()) return -1;
    const auto a = take_signature(own);
    const auto b = take_signature(other);
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end()) || a.empty()) return index;
  }
}

std::span<const std::int64_t> signature_at(const Numbers& numbers, std::int64_t index) {
  std::span<const std::int64_t> rest(numbers);
  std::span<const std::int64_t> signature;
  for (std::int64_t i = 0; i <= index; ++i) signature = take_signature(rest);
  return signature;
}

std::string name_in_one_alone(std::vector<std::string> here, std::vector<std::string> there) {
  std::sort(here.begin(), here.end());
  std::sort(there.begin(), there.end());
  std::vector<std::string> alone;
  std::set_difference(here.begin(), here.end(), there.begin(), there.end(), std::back_inserter(alone));
  return alone.empty() ? std::string() : alone.front();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// What two ranks have in a list of names. Collective.
std::string describe_lists(ProcessGroup& group, const std::vector<std::string>& mine, std::size_t other) {
  const std::string text = join(mine, "\n");
  const auto zero = lines_of(broadcast_bytes(group, text, 0));
  const auto one = lines_of(broadcast_bytes(group, text, static_cast<int>(other)));
  const std::string in_zero = name_in_one_alone(zero, one);
  if (!in_zero.empty()) return concat("'", in_zero, "' is named on rank 0 and not on rank ", other);
  const std::string in_one = name_in_one_alone(one, zero);
  if (!in_one.empty()) return concat("'", in_one, "' is named on rank ", other, " and not on rank 0");
  return concat("the names are in another order on rank ", other, " than on rank 0");
}

// Collective where a list differs.
void require_equal_lists(ProcessGroup& group, const std::vector<Numbers>& headers,
                         const std::vector<NamedSetting>& settings) {
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].list == nullptr) continue;
    for (std::size_t rank = 1; rank < headers.size(); ++rank) {
      if (headers[rank][3 + i] == headers[0][3 + i]) continue;
      throw MismatchError(concat("DistributedDataParallel was made with ", settings[i].list,
                                 " that differ: ", describe_lists(group, settings[i].names, rank),
                                 "; all ranks must pass the same options."));
    }
  }
}

void require_equal_settings(const std::vector<Numbers>& headers, const std::vector<NamedSetting>& settings) {
  for (std::size_t rank = 1; rank < headers.size(); ++rank) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      if (headers[rank][3 + i] == headers[0][3 + i]) continue;
      throw MismatchError(concat("DistributedDataParallel was made with ", settings[i].describe(headers[0][3 + i]),
                                 " on rank 0, and with ", settings[i].describe(headers[rank][3 + i]), " on rank ", rank,
                                 "; all ranks must pass the same options."));
    }
  }
}

}  // namespace

void verify_replicas(ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                     const std::vector<NamedSetting>& settings) {
  GRADWIRE_CHECK(settings.size() <= kMaxSettings);
  Numbers mine;
  for (const NamedTensor& parameter : parameters) {
    const Numbers signature = signature_of(parameter);
    mine.insert(mine.end(), signature.begin(), signature.end());
  }
  Numbers header(3 + kMaxSettings, 0);
  header[0] = static_cast<std::int64_t>(parameters.size());
  header[1] = static_cast<std::int64_t>(mine.size());
  header[2] = static_cast<std::int64_t>(stable_hash(mine));
  for (std::size_t i = 0; i < settings.size(); ++i) header[3 + i] = settings[i].value;

  const std::vector<Numbers> headers = gather_integers(group, header);
  if (std::all_of(headers.begin(), headers.end(), [&](const Numbers& other) { return other == headers[0]; })) return;

  require_equal_lists(group, headers, settings);
  // A rank differs: exchange the descriptions, so that every rank can name the difference.
  Numbers reference = group.rank() == 0 ? mine : Numbers(static_cast<std::size_t>(headers[0][1]));
  reference = broadcast_integers(group, std::move(reference));
  const std::int64_t index = first_difference(mine, reference);
  const auto own = index < 0 ? std::span<const std::int64_t>{} : signature_at(mine, index);
  const std::vector<Numbers> differences = gather_integers(group, difference_of(index, own));
  for (std::size_t rank = 1; rank < differences.size(); ++rank) {
    const std::int64_t at = differences[rank][0];
    if (at < 0) continue;
    const auto names = gather_names(group, parameters, static_cast<std::size_t>(at));
    const Side zero{0, headers[0][0], names[0], difference_of(at, signature_at(reference, at))};
    const Side other{rank, headers[rank][0], names[rank], differences[rank]};
    throw MismatchError(concat("The modules given to DistributedDataParallel differ: ", describe_sides(zero, other),
                               ". Build the same module on every rank."));
  }
  require_equal_settings(headers, settings);
}

std::vector<Numbers> gather_integers(ProcessGroup& group, Numbers mine) {
  std::vector<Numbers> all(static_cast<std::size_t>(group.size()), Numbers(mine.size()));
  std::vector<at::Tensor> outputs;
  for (Numbers& numbers : all) outputs.push_back(tensor_of_numbers(numbers));
  AllGatherOptions options;
  options.async = false;
  group.all_gather({outputs}, {tensor_of_numbers(mine)}, options)->wait();
  return all;
}

std::vector<std::int64_t> broadcast_integers(ProcessGroup& group, std::vector<std::int64_t> values) {
  BroadcastOptions options;
  options.async = false;
  group.broadcast({tensor_of_numbers(values)}, options)->wait();
  return values;
}

namespace {

// Tensors start at multiples of this within a message, so that each can be viewed with its own dtype.
constexpr std::int64_t kAlignment = 16;

std::int64_t padded_bytes(const at::Tensor& tensor) {
  return (static_cast<std::int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor slice_for(const at::Tensor& message, std::int64_t offset, const at::Tensor& tensor) {
  return message.narrow(0, offset, static_cast<std::int64_t>(tensor.nbytes()))
      .view(tensor.scalar_type())
      .view(tensor.sizes());
}

void broadcast_message(ProcessGroup& group, std::span<const at::Tensor> tensors, int root) {
  BroadcastOptions options;
  options.async = false;
  options.root = root;
  if (tensors.size() == 1 && tensors[0].is_contiguous()) {
    group.broadcast({tensors[0].detach()}, options)->wait();
    return;
  }
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += padded_bytes(tensor);
  at::Tensor message =
      at::zeros({bytes}, tensors[0].options().dtype(at::kByte).requires_grad(false).memory_format(std::nullopt));
  std::int64_t offset = 0;
  if (group.rank() == root) {
    for (const at::Tensor& tensor : tensors) {
      slice_for(message, offset, tensor).copy_(tensor);
      offset += padded_bytes(tensor);
    }
  }
  group.broadcast({message}, options)->wait();
  if (group.rank() == root) return;
  for (at::Tensor tensor : tensors) {
    tensor.copy_(slice_for(message, offset, tensor));
    offset += padded_bytes(tensor);
  }
}

// Tensors of inference mode have none.
std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void set_version(const at::Tensor& tensor, std::uint32_t version) {
  if (tensor.is_inference()) return;
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();  // shared with the tensor
  counter.set_version(version);
}

}  // namespace

KeptVersions::KeptVersions(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) versions_.push_back(version_of(tensor));
}

KeptVersions::~KeptVersions() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) set_version(tensors_[i], versions_[i]);
}

std::uint64_t hash_of_bits(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  return stable_hash_of_bits({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

VersionsOfUnchanged::VersionsOfUnchanged(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) before_.push_back({tensor, version_of(tensor), hash_of_bits(tensor)});
}

VersionsOfUnchanged::~VersionsOfUnchanged() {
  for (const Before& before : before_) {
    try {
      if (hash_of_bits(before.tensor) == before.hash) set_version(before.tensor, before.version);
    } catch (const std::exception& error) {
      log::warn(error.what());  // of a device; the tensor counts as changed
    }
  }
}

void broadcast_values(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root, std::size_t chunk_bytes) {
  const c10::NoGradGuard no_grad;
  std::map<std::pair<c10::DeviceType, int>, std::vector<at::Tensor>> by_device;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) by_device[{tensor.device().type(), tensor.device().index()}].push_back(tensor);
  }
  for (const auto& [device, list] : by_device) {
    for (const auto& run : in_runs_of(list, chunk_bytes, kAlignment)) broadcast_message(group, run, root);
  }
}

}  // namespace gradwire::internal
