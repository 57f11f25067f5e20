// Before the first paint: the theme that was chosen here before. Without one, the system decides.
"use strict";
try {
  const kept = localStorage.getItem("truetag-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // storage is switched off: the system decides
}
