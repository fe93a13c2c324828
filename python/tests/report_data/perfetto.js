// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs in Perfetto's page: waits for the trace, asks Perfetto's trace processor for /queries.json, and posts the answers.
"use strict";

(async () => {
  const answer = {};
  try {
    const queries = await (await fetch("/queries.json")).json();
    while (!(window.app && window.app.trace && window.app.trace.engine)) await new Promise((go) => setTimeout(go, 50));
    answer.title = window.app.trace.traceInfo.traceTitle;
    answer.rows = {};
    for (const [name, sql] of Object.entries(queries)) {
      const result = await window.app.trace.engine.query(sql);
      const columns = result.columns();
      const rows = [];
      for (const each = result.iter({}); each.valid(); each.next()) {
        rows.push(columns.map((column) => (typeof each.get(column) === "bigint" ? Number(each.get(column)) : each.get(column))));
      }
      answer.rows[name] = rows;
    }
  } catch (problem) {
    answer.problem = String(problem);
  }
  await fetch("/answer", { method: "POST", body: JSON.stringify(answer) });
})();
