#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/check_pkg_config.sh PREFIX   compiles tests/outside/core with what pkg-config says of gradwire-core in PREFIX, and runs it.
set -euo pipefail
source="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/tests/outside/core/outside_core.cc"
prefix="$1"

folder="$(dirname "$(find "$prefix" -name gradwire-core.pc | head -n 1)")"
program="$(mktemp)"
trap 'rm -f "$program"' EXIT
flags() { PKG_CONFIG_PATH="$folder" pkg-config "$@" gradwire-core; }
# shellcheck disable=SC2046  # the words of pkg-config are arguments
g++ -std=c++20 "$source" $(flags --cflags --libs) -o "$program"
LD_LIBRARY_PATH="$(flags --variable=libdir)" timeout 120 "$program"
echo "pkg-config: gradwire-core $(flags --modversion)"
