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
    const printed = box.value.replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))/g, "");
    const pasted = printed.replace(/[\u2018\u2019]/g, "'").replace(/[\u201c\u201d]/g, '"').replaceAll("\xa0", " ");
    const lines = pasted.split("\n").map((line) => line.replace(/^[\s│┃]+|[\s│┃]+$/g, "")).filter(Boolean);
    const found = new Map();
    for (const line of lines) {
      const spelt = [line, line.replace(/["`]([\w./-]+)["`]/g, "'$1'"), line.replaceAll("`", "")];
      const at = patterns.findIndex((pattern) => spelt.some((one) => pattern.test(one)));
      if (at >= 0 && !found.has(at)) found.set(at, { line, text: spelt.find((one) => patterns[at].test(one)) });
    }
    rows.forEach((row, at) => {
      row.hidden = lines.length > 0 && !found.has(at);
      shown[at].parentElement.hidden = !found.has(at);
      shown[at].textContent = found.get(at)?.line ?? "";
      const name = found.has(at) && patterns[at].exec(found.get(at).text)[1]?.toLowerCase();
      const named = Object.keys(names[at]).find((text) => names[at][text].split("\n").includes(name));
      fixes[at].textContent = named ? `${named} ${plain[at]}` : plain[at];
    });
    told.textContent = lines.length ? `Known errors in ${lines.length} lines: ${found.size}` : "";
  }

  box.parentElement.hidden = false;
  box.addEventListener("input", look);
  look();
})();
