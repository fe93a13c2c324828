// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/error.h"

#include "gradwire/base/strings.h"

namespace gradwire {

std::string describe(const std::exception& error) {
  const char* kind = "error";
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) kind = "InvalidArgument";
  if (dynamic_cast<const UnsupportedError*>(&error) != nullptr) kind = "UnsupportedError";
  if (dynamic_cast<const MismatchError*>(&error) != nullptr) kind = "MismatchError";
  if (dynamic_cast<const AbortedError*>(&error) != nullptr) kind = "AbortedError";
  if (dynamic_cast<const ResourceError*>(&error) != nullptr) kind = "ResourceError";
  if (dynamic_cast<const StoreError*>(&error) != nullptr) kind = "StoreError";
  if (dynamic_cast<const InternalError*>(&error) != nullptr) kind = "InternalError";
  if (dynamic_cast<const PeerError*>(&error) != nullptr) kind = "PeerError";
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) kind = "TimeoutError";
  return concat(kind, ": ", error.what());
}

std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return describe(exception);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void invariant_failed(const char* expression, const char* file, int line) {
  throw InternalError(concat("broken invariant '", expression, "' at ", file, ":", line,
                             "; this is a bug in gradwire, please report it"));
}

}  // namespace gradwire
