// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/checkpoint.h"

#include <torch/serialize.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "examples/char_lm/errors.h"
#include "examples/char_lm/whole_file.h"
#include "gradwire/base/strings.h"

namespace char_lm {
namespace {

using gradwire::concat;

constexpr const char* kFormat = "char_lm checkpoint 2";

// By name, what a checkpoint and the run that resumes it must agree on.
std::vector<std::pair<std::string, std::string>> shared_options(const Options& options) {
  return {{"layers", concat(options.layers)}, {"width", concat(options.width)},     {"heads", concat(options.heads)},
          {"dtype", options.dtype},           {"context", concat(options.context)}, {"seed", concat(options.seed)},
          {"batch", concat(options.batch)},   {"optimizer", options.optimizer}};
}

// An option may be called what a part of the checkpoint is called.
std::string option_key(const std::string& name) { return "option_" + name; }

std::string read_string(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toStringRef();
}

torch::serialize::InputArchive open(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw UserError(concat("the checkpoint ", file, " does not exist"));
  }
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(file);
    if (read_string(archive, "format") == kFormat) {
      return archive;
    }
  } catch (const std::exception&) {
    // libtorch's own message is a page about zip files.
  }
  throw UserError(concat("the file ", file, " is no checkpoint of this program, or a damaged one"));
}

void require_match(torch::serialize::InputArchive& archive, const std::string& file, const Options& options,
                   const Vocabulary& vocabulary) {
  for (const auto& [name, wanted] : shared_options(options)) {
    const std::string found = read_string(archive, option_key(name));
    if (found != wanted) {
      throw UserError(
          concat("the checkpoint ", file, " was made with --", name, " ", found, ", not --", name, " ", wanted));
    }
  }
  if (read_string(archive, "vocabulary") != vocabulary.bytes()) {
    throw UserError(
        concat("the checkpoint ", file, " was trained on a text with other characters; resume with the same --text"));
  }
}

template <class Write>
void write_part(torch::serialize::OutputArchive& archive, const std::string& name, const Write& write) {
  torch::serialize::OutputArchive part(archive.compilation_unit());
  write(part);
  archive.write(name, part);
}

template <class Read>
void read_part(torch::serialize::InputArchive& archive, const std::string& name, const Read& read) {
  torch::serialize::InputArchive part;
  archive.read(name, part);
  read(part);
}

void write_memory(torch::serialize::OutputArchive& archive, const HookMemory& memory) {
  archive.write("hook", c10::IValue(memory.hook));
  archive.write("bucket_order", c10::IValue(memory.bucket_order));
  archive.write("ranks", c10::IValue(static_cast<std::int64_t>(memory.local.size())));
  write_part(archive, "hook_shared", [&](auto& part) { gradwire::save_hook_state(memory.shared, part); });
  for (std::size_t rank = 0; rank < memory.local.size(); ++rank) {
    write_part(archive, concat("hook_rank", rank),
               [&](auto& part) { gradwire::save_hook_state(memory.local[rank], part); });
  }
}

HookMemory read_memory(torch::serialize::InputArchive& archive) {
  HookMemory memory;
  memory.hook = read_string(archive, "hook");
  c10::IValue value;
  archive.read("bucket_order", value);
  memory.bucket_order = value.to<std::vector<std::string>>();
  read_part(archive, "hook_shared", [&](auto& part) { memory.shared = gradwire::load_hook_state(part); });
  archive.read("ranks", value);
  for (std::int64_t rank = 0; rank < value.toInt(); ++rank) {
    read_part(archive, concat("hook_rank", rank),
              [&](auto& part) { memory.local.push_back(gradwire::load_hook_state(part)); });
  }
  return memory;
}

}  // namespace

void save_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary,
                     const Progress& progress, const CharTransformer& model, const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  archive.write("format", c10::IValue(kFormat));
  archive.write("step", c10::IValue(progress.step));
  archive.write("vocabulary", c10::IValue(vocabulary.bytes()));
  for (const auto& [name, value] : shared_options(options)) {
    archive.write(option_key(name), c10::IValue(value));
  }
  write_part(archive, "model", [&](auto& part) { model->save(part); });
  write_part(archive, "optimizer", [&](auto& part) { optimizer.save(part); });
  write_memory(archive, progress.memory);

  WholeFile whole(file);
  archive.save_to([&whole](const void* data, std::size_t bytes) {
    whole.write(data, bytes);
    return bytes;
  });
  whole.finish();
}

Progress load_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary,
                         CharTransformer& model, torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive archive = open(file);
  require_match(archive, file, options, vocabulary);
  c10::IValue step;
  archive.read("step", step);
  if (step.toInt() >= options.steps) {
    throw UserError(
        concat("the checkpoint ", file, " is at step ", step.toInt(), " already; ask for more with --steps"));
  }
  Progress progress{step.toInt(), read_memory(archive)};
  read_part(archive, "model", [&](auto& part) { model->load(part); });
  read_part(archive, "optimizer", [&](auto& part) { optimizer.load(part); });
  return progress;
}

}  // namespace char_lm
