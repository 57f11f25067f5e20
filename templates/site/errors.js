// The rows that lines of an error text find: as validate/hints.py looks, the first row of each line.
"use strict";

(() => {
  const box = document.getElementById("paste");
  const told = document.getElementById("told");
  const rows = [...document.querySelectorAll("[data-pattern]")];
  const patterns = rows.map((row) => new RegExp(row.dataset.pattern, "i"));
  const fixes = rows.map((row) => row.querySelector(".fix"));
  const shown = rows.map((row) => {
    const line = document.createElement("p");
    row.querySelector("h2").after(line);
    return line.appendChild(document.createElement("code"));
  });
  const plain = fixes.map((fix) => fix.textContent);
  const names = fixes.map((fix) => JSON.parse(fix.dataset.names ?? "{}"));

  function look() {
    const lines = box.value.replace(/\x1b\[[0-9;]*m/g, "").split("\n").map((line) => line.trim()).filter(Boolean);
    const found = new Map();
    for (const line of lines) {
      const at = patterns.findIndex((pattern) => pattern.test(line));
      if (at >= 0 && !found.has(at)) found.set(at, line);
    }
    rows.forEach((row, at) => {
      row.hidden = lines.length > 0 && !found.has(at);
      shown[at].parentElement.hidden = !found.has(at);
      shown[at].textContent = found.get(at) ?? "";
      const named = found.has(at) ? names[at][patterns[at].exec(found.get(at))[1]?.toLowerCase()] : "";
      fixes[at].textContent = named ? `${named} ${plain[at]}` : plain[at];
    });
    told.textContent = lines.length ? `Known errors in ${lines.length} lines: ${found.size}` : "";
  }

  box.parentElement.hidden = false;
  box.addEventListener("input", look);
  look();
})();
