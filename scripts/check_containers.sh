#!/usr/bin/env bash
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# scripts/check_containers.sh   checks the workflow file, the container files and the development container, without building them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=.venv-package/bin
"$tools/hadolint" --failure-threshold warning Containerfile .devcontainer/Containerfile
"$tools/yamllint" --strict -d '{extends: default, rules: {line-length: {max: 120}, truthy: disable, document-start: disable}}' .github/workflows
"$tools/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*.yml
"$tools/python" - <<'PYTHON'
import json
import pathlib

settings = json.loads(pathlib.Path(".devcontainer/devcontainer.json").read_text())
file = pathlib.Path(".devcontainer", settings["build"]["dockerfile"])
assert file.exists(), f"{file} is not there"
assert settings["remoteUser"] in file.read_text(), f"{file} makes no user {settings['remoteUser']}"
print("containers: the workflow, two container files and the development container are well formed")
PYTHON
