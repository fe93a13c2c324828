// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/optimizer_text_internal.h"

#include <c10/util/Type.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <typeinfo>

#include "gradwire/base/strings.h"
#include "gradwire/ddp/archive_bytes_internal.h"

namespace gradwire::internal {
namespace {

std::string text_of_value(const c10::IValue& value) {
  return value.isDouble() ? exact(value.toDouble()) : concat(value);
}

std::string text_of_options(const torch::optim::OptimizerOptions& options) {
  torch::serialize::OutputArchive written;
  try {
    options.serialize(written);
  } catch (const c10::Error&) {
    return "";  // a user's class need not be able to
  }
  torch::serialize::InputArchive read = read_archive(archive_bytes(written));
  std::string text;
  for (const std::string& name : read.keys()) {
    c10::IValue value;
    read.read(name, value);
    text += concat(text.empty() ? "" : ", ", name, " = ", text_of_value(value));
  }
  return text;
}

}  // namespace

std::string optimizer_text(const torch::optim::Optimizer& optimizer) {
  std::string text = c10::demangle(typeid(optimizer).name());
  for (const auto& group : optimizer.param_groups())
    text += concat(" (", group.has_options() ? text_of_options(group.options()) : "", ")");
  return text;
}

}  // namespace gradwire::internal
