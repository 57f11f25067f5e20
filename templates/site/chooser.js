// Looks an answer up in the table that images/planning/chooser.py made (`table`), and shows it. The form is kept in the address.
"use strict";

(() => {
  const SHOWN = 4;
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("chooser");
  const answer = document.getElementById("answer");
  const ignored = new RegExp(data.ignored);

  // An element of these classes with these children; text is only ever text.
  function make(tag, classes, ...children) {
    const element = document.createElement(tag);
    if (classes) element.className = classes;
    element.append(...children);
    return element;
  }

  function link(image) {
    const found = make("a", "", image.name);
    found.href = image.page;
    return found;
  }

  function list(images) {
    const more = images.length > SHOWN ? ` and ${images.length - SHOWN} more` : "";
    return [...images.slice(0, SHOWN).flatMap((one, at) => (at ? [", ", link(one)] : [link(one)])), more];
  }

  // [name, kind] of a model as drivers and people write it, or of an architecture: of the models that have all its words, the
  // one whose words all others of them have too. Undefined where there is none.
  function gpuOf(text) {
    const arch = /^(?:sm_?)?(\d{1,2})\.?(\d)$/.exec(text.trim().toLowerCase());
    if (arch) {
      const sm = `sm_${arch[1]}${arch[2]}`;
      const kind = [sm, `${sm} arm`].find((one) => one in data.answers);
      return kind && [sm, kind];
    }
    const spaced = text.toLowerCase().replace(/(?<=rtx|gtx)(?=\d)|(?<=\d)(?=ti\b)/g, " ");
    const words = new Set((spaced.match(/[a-z0-9]+/g) || []).filter((word) => !ignored.test(word)));
    const has = (key, all) => all.every((word) => key.split(" ").includes(word));
    const wider = words.size ? Object.keys(data.models).filter((key) => has(key, [...words])) : [];
    const least = wider.filter((key) => !wider.some((one) => one !== key && has(key, one.split(" "))));
    return least.length === 1 ? data.models[least[0]] : undefined;
  }

  const numbers = (version) => version.split(".").map(Number);

  function notBefore(a, b) {
    const at = numbers(b).findIndex((part, index) => part !== (numbers(a)[index] ?? 0));
    return at < 0 || (numbers(a)[at] ?? 0) > numbers(b)[at];
  }

  // Where the row of a driver stands (0: not known, 1: older than all).
  const rowOf = (driver) => (driver ? 1 + data.drivers.filter((one) => notBefore(driver, one)).length : 0);

  function wanted(image) {
    const [profile, torch, python] = ["profile", "torch", "python"].map((name) => form.elements[name].value);
    return (image.profile || "") === profile && image.devel === form.elements.devel.checked &&
      (torch === "" || image.torch.split(".").slice(0, 2).join(".") === torch) &&
      (python === "" ? image.default_python : image.python === python);
  }

  function choices(rows) {
    return rows.map(([at, texts]) => ({ image: data.images[at], texts: texts.map((text) => data.texts[text]) }))
      .filter((one) => wanted(one.image));
  }

  function show([name, kind], driver) {
    const [untried, others] = data.rows[data.answers[kind][rowOf(driver)]].map(choices);
    // Those that passed on this very model stand first.
    const fitting = [true, false].flatMap((first) => untried.filter((one) => one.image.on.includes(name) === first));
    const arch = kind.replace(" arm", "");
    const parts = [make("p", "soft", `${name} (${arch}), ${driver ? `driver ${driver}` : "driver not known"}`)];
    if (fitting.length) {
      const [{ image, texts }, ...rest] = fitting;
      const copy = make("button", "", "Copy");
      Object.assign(copy, { type: "button" }).dataset.copy = image.get;
      const reasons = texts.map((text) => text.replace("driver {} ", `driver ${driver} `));
      parts.push(
        make("h2", "", "Take ", link(image)),
        make("div", "command", make("code", "", image.get), copy),
        make("ul", "why", ...reasons.map((reason) => make("li", "", reason))),
        make("p", "panel", image.sentence),
      );
      const images = rest.map((one) => one.image);
      if (images.length) parts.push(make("p", "", "These fit too: ", ...list(images)));
      const ran = [image, ...images].find((one) => one.ran);
      if (ran && ran !== image) {
        parts.push(make("p", "", "The first of them whose gpu tier passed: ", link(ran), `. ${ran.sentence}`));
      }
    } else {
      parts.push(make("h2", "", "No image fits."));
    }
    const grouped = new Map();
    for (const { image, texts } of others) {
      const why = texts.join("; ");
      grouped.set(why, [...(grouped.get(why) || []), image]);
    }
    const rows = [...grouped].slice(0, SHOWN).map(([why, images]) => make("li", "", ...list(images), ": ", why));
    if (rows.length) parts.push(make("h3", "", "Why not the others"), make("ul", "why", ...rows));
    answer.replaceChildren(...parts);
  }

  function ask() {
    const [gpu, driver] = ["gpu", "driver"].map((name) => form.elements[name].value.trim());
    const found = gpuOf(gpu);
    if (found && /^(\d{3,}(\.\d+)*)?$/.test(driver)) return show(found, driver);
    const told = make("p", "panel warning", found
      ? `driver ${driver}: is no version of a driver; write it as nvidia-smi does: 550.90.07`
      : `${gpu}: is no one GPU that is known here; take one of the list, or write its architecture: sm_89`);
    told.setAttribute("role", "alert");
    return answer.replaceChildren(told);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    history.replaceState(null, "", `?${asked}`);
    ask();
  });

  const asked = new URLSearchParams(location.search);
  for (const [name, value] of asked) {
    const element = form.elements[name];
    if (!element) continue;
    if (element.type === "checkbox") element.checked = true;
    else element.value = value;
  }
  if (asked.get("gpu")) ask();
})();
