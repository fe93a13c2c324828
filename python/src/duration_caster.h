// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a timedelta, or a float of seconds, becomes Milliseconds, and back. pybind11's own conversion counts in
// microseconds of 64 bits, in which timedelta.max is negative.
#pragma once

#include <pybind11/chrono.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gradwire/base/deadline.h"

PYBIND11_NAMESPACE_BEGIN(PYBIND11_NAMESPACE)
PYBIND11_NAMESPACE_BEGIN(detail)

// Every timedelta fits. A float that does not fit becomes the longest time; NaN is refused. Milliseconds that no
// timedelta holds become timedelta.max or timedelta.min.
template <>
class type_caster<gradwire::Milliseconds> {
 public:
  PYBIND11_TYPE_CASTER(gradwire::Milliseconds, const_name("datetime.timedelta"));

  bool load(handle source, bool) {
    import_datetime();
    if (!source) return false;
    if (PyDelta_Check(source.ptr())) {
      value = gradwire::Milliseconds(PyDateTime_DELTA_GET_DAYS(source.ptr()) * kOfADay +
                                     PyDateTime_DELTA_GET_SECONDS(source.ptr()) * std::int64_t{1000} +
                                     PyDateTime_DELTA_GET_MICROSECONDS(source.ptr()) / 1000);
      return true;
    }
    if (!PyFloat_Check(source.ptr())) return false;
    const double milliseconds = PyFloat_AsDouble(source.ptr()) * 1000;
    if (std::isnan(milliseconds)) return false;
    constexpr double kBound = 9.2e18;
    value = milliseconds >= kBound    ? gradwire::Milliseconds::max()
            : milliseconds <= -kBound ? gradwire::Milliseconds::min()
                                      : gradwire::Milliseconds(static_cast<std::int64_t>(milliseconds));
    return true;
  }

  static handle cast(gradwire::Milliseconds time, return_value_policy, handle) {
    import_datetime();
    constexpr std::int64_t kMostDays = 999'999'999;
    const std::int64_t most = (kMostDays + 1) * kOfADay - 1;
    const std::int64_t count = std::clamp(time.count(), -kMostDays * kOfADay, most);
    const std::int64_t days = (count - (count < 0 ? kOfADay - 1 : 0)) / kOfADay;
    const std::int64_t rest = count - days * kOfADay;
    return PyDelta_FromDSU(static_cast<int>(days), static_cast<int>(rest / 1000), static_cast<int>(rest % 1000 * 1000));
  }

 private:
  static constexpr std::int64_t kOfADay = 86'400'000;

  static void import_datetime() {
    if (PyDateTimeAPI == nullptr) PyDateTime_IMPORT;
  }
};

PYBIND11_NAMESPACE_END(detail)
PYBIND11_NAMESPACE_END(PYBIND11_NAMESPACE)
