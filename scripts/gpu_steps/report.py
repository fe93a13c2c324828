# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The report of all calls."""
import json


def table(rows):
    """Rows of a step as a table of Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = lambda value: f"{value:.6g}" if isinstance(value, float) else str(value)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(text(row.get(name, "")) for name in names) + " |" for row in rows]


def write_report(folder, results, steps):
    """Writes both files from the results of all calls. `steps`: the functions of the steps by name, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_check.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = ["# gpu_check", ""]
    for name, step in steps.items():
        if name not in results:
            continue
        result = results[name]
        lines += [f"## {name}: {result['state']} ({result['seconds']} s)", "", step.__doc__, ""]
        lines += [f"- {key}: {value}" for key, value in result.get("found", {}).items() if key != "rows"]
        if result.get("found", {}).get("rows"):
            lines += [""] + table(result["found"]["rows"])
        if "problem" in result:
            lines += ["```", result["problem"], "```"]
        lines.append("")
    (folder / "gpu_check.md").write_text("\n".join(lines), encoding="utf-8")
