// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/job_store.h"

#include <charconv>
#include <utility>

#include "gradwire/base/address.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/patient_store.h"
#include "gradwire/membership/records.h"
#include "gradwire/membership/stored_values.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/secret.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::membership {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr const char* kPart = "elastic";

}  // namespace

std::shared_ptr<Store> job_part(std::shared_ptr<Store> whole) {
  return std::make_shared<PrefixStore>(kPart, std::move(whole));
}

std::string key_in_whole(const std::string& key) { return concat(kPart, "/", key); }

std::string name_of_job_store(Store& job) { return value_of(job, kStoreKey).value_or(""); }

std::string job_place(const std::string& host, std::uint16_t port) { return concat(kTcp, host_and_port(host, port)); }

std::shared_ptr<Store> open_job_store(const std::string& place, Milliseconds patience) {
  if (!place.starts_with(kTcp)) return job_part(std::make_shared<FileStore>(place));
  const std::string address = place.substr(kTcp.size());
  const auto colon = address.rfind(':');
  TcpStoreOptions options;
  const char* const end = address.data() + address.size();
  const char* const begin = colon == std::string::npos ? end : address.data() + colon + 1;
  const auto [rest, problem] = std::from_chars(begin, end, options.port);
  if (colon == std::string::npos || colon == 0 || problem != std::errc() || rest != end) {
    throw InvalidArgument(concat("the store of an elastic job is '", place,
                                 "'; it must read tcp://HOST:PORT, or be the "
                                 "path of a file"));
  }
  options.host = address.substr(0, colon);
  if (options.host.size() > 2 && options.host.front() == '[')
    options.host = options.host.substr(1, options.host.size() - 2);
  options.secret = secret_from_environment([](const char* name) { return environment(name); });
  auto store = job_part(std::make_shared<TcpStore>(options));
  if (patience.count() == 0) return store;
  return std::make_shared<PatientStore>(std::move(store), patience);
}

}  // namespace gradwire::membership
