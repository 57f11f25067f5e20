// What every page does: ages, theme, copy buttons, the filter of the matrix. Pages read well without it.
"use strict";

(() => {
  const DAY = 24 * 60 * 60 * 1000;
  const THEMES = ["system", "light", "dark"];
  const root = document.documentElement;
  const staleAfter = Number(root.dataset.staleAfter);

  function ages() {
    for (const time of document.querySelectorAll("time[data-age]")) {
      const days = Math.floor((Date.now() - Date.parse(time.dateTime)) / DAY);
      const stale = days > staleAfter;
      time.title = time.dateTime;
      time.textContent = `${stale ? "stale, " : ""}${days < 1 ? "today" : `${days} d`}`;
      const holder = time.closest("[data-stales]");
      if (stale && holder) {
        holder.classList.add("stale");
        const word = holder.querySelector(".word");
        if (word) word.textContent = "stale";
      }
    }
  }

  function totals() {
    const chips = [...document.querySelectorAll("#images .chip.PASS")];
    if (!chips.length) return;
    const stale = chips.filter((chip) => chip.classList.contains("stale")).length;
    document.querySelector("[data-total=validated]").textContent = chips.length - stale;
    document.querySelector("[data-total=stale]").textContent = stale;
  }

  function theme() {
    const button = document.getElementById("theme");
    const tell = () => { button.textContent = `Theme: ${root.dataset.theme || "system"}`; };
    button.hidden = false;
    tell();
    button.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
      if (next === "system") delete root.dataset.theme;
      else root.dataset.theme = next;
      try {
        localStorage.setItem("truetag-theme", next);
      } catch {
        // storage is switched off: it holds for this page
      }
      tell();
    });
  }

  // navigator.clipboard is there on https and localhost alone; selecting works everywhere.
  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      getSelection().selectAllChildren(code);
      said = document.execCommand("copy") ? "Copied" : "Selected";
    }
    button.textContent = said;
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  function copyButtons() {
    for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-copy]");
      if (button) copy(button);
    });
  }

  function filter() {
    const table = document.getElementById("images");
    if (!table) return;
    const rows = [...table.tBodies[0].rows];
    const [text, judged, shown] = ["filter", "judged", "shown"].map((id) => document.getElementById(id));
    text.closest(".tools").hidden = false;
    // Words are found at their beginnings: 2.8 is torch 2.8, and not CUDA 12.8.
    const plain = (words) => ` ${words.toLowerCase().replaceAll("-", " ")}`;
    const apply = () => {
      const words = text.value.trim().split(/\s+/);
      for (const row of rows) {
        const known = plain(row.dataset.words);
        row.hidden = !words.every((word) => known.includes(plain(word))) || (judged.checked && !("judged" in row.dataset));
      }
      shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    };
    text.addEventListener("input", apply);
    judged.addEventListener("change", apply);
    apply();
  }

  ages();
  totals();
  theme();
  copyButtons();
  filter();
})();
