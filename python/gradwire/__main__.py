# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""python -m gradwire: version, options of the build, and what of gradwire this machine can use. The text is gradwire-run --info's."""
import sys

from gradwire._C import installation_info


def main() -> int:
    sys.stdout.write(installation_info())
    return 0


if __name__ == "__main__":
    sys.exit(main())
