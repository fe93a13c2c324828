// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/checkpoint_file_internal.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/whole_file.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/optim/file_sum_internal.h"

namespace gradwire::internal {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
using Texts = std::vector<std::string>;

constexpr const char* kFormat = "gradwire checkpoint 1";

template <class Write>
void write_part(OutputArchive& archive, const std::string& name, const Write& write) {
  OutputArchive part(archive.compilation_unit());
  write(part);
  archive.write(name, part);
}

void write_archive(const std::string& file, OutputArchive& archive) {
  WholeFile whole(file);
  FileSum sum;
  archive.save_to([&](const void* data, std::size_t bytes) {
    whole.write(data, bytes);
    sum.add({static_cast<const char*>(data), bytes});
    return bytes;
  });
  const std::string line = sum_line(sum);
  whole.write(line.data(), line.size());
  whole.finish();
}

}  // namespace

void write_checkpoint(const std::string& file, const CheckpointContents& contents, const DdpCore& ddp,
                      const torch::optim::Optimizer& optimizer) {
  OutputArchive archive;
  archive.write("format", c10::IValue(kFormat));
  archive.write("tensors", c10::IValue(contents.tensors));
  archive.write("optimizer_class", c10::IValue(contents.optimizer_class));
  archive.write("hook", c10::IValue(contents.hook));
  archive.write("bucket_order", c10::IValue(contents.bucket_order));
  archive.write("ranks", c10::IValue(static_cast<std::int64_t>(contents.local.size())));
  archive.write("memory_of", c10::IValue(contents.memory_of));
  write_part(archive, "values", [&](auto& part) { save_hook_state(contents.values, part); });
  write_part(archive, "hook_shared", [&](auto& part) { save_hook_state(contents.shared, part); });
  for (std::size_t rank = 0; rank < contents.local.size(); ++rank)
    write_part(archive, concat("hook_rank", rank), [&](auto& part) { save_hook_state(contents.local[rank], part); });
  write_part(archive, "model", [&](auto& part) { ddp.save(part); });
  write_part(archive, "optimizer", [&](auto& part) { optimizer.save(part); });
  write_archive(file, archive);
}

std::string read_checkpoint_file(const std::string& file, std::string& bytes) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return concat("the checkpoint ", file, " does not exist, or cannot be read: ", std::strerror(errno));
  try {
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  } catch (const std::exception& error) {
    return concat("the checkpoint ", file, " could not be read: ", error.what());
  }
  const auto whole = without_sum(bytes);
  if (!whole) return concat("the checkpoint ", file, " is damaged: its bytes are not those that were written");
  bytes.resize(whole->size());
  return "";
}

CheckpointContents read_contents(const std::string& bytes) {
  InputArchive archive = read_archive(bytes);
  const auto value = [&archive](const std::string& key) {
    c10::IValue found;
    archive.read(key, found);
    return found;
  };
  const auto state = [&archive](const std::string& key) {
    InputArchive part;
    archive.read(key, part);
    return load_hook_state(part);
  };
  if (value("format").toStringRef() != kFormat) throw InvalidArgument("another format");
  CheckpointContents contents{.tensors = value("tensors").to<Texts>(),
                              .optimizer_class = value("optimizer_class").toStringRef(),
                              .hook = value("hook").toStringRef(),
                              .bucket_order = value("bucket_order").to<Texts>(),
                              .values = state("values"),
                              .shared = state("hook_shared"),
                              .local = {},
                              .memory_of = {}};
  const std::int64_t ranks = value("ranks").toInt();
  for (std::int64_t rank = 0; rank < ranks; ++rank) contents.local.push_back(state(concat("hook_rank", rank)));
  contents.memory_of.resize(contents.local.size());
  std::iota(contents.memory_of.begin(), contents.memory_of.end(), std::int64_t{0});
  c10::IValue read;
  if (archive.try_read("memory_of", read)) contents.memory_of = read.to<std::vector<std::int64_t>>();
  for (const std::int64_t rank : contents.memory_of)
    static_cast<void>(contents.local.at(static_cast<std::size_t>(rank)));
  return contents;
}

}  // namespace gradwire::internal
