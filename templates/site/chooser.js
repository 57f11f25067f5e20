// The page around the chooser's rules: reads the form, keeps it in the address, shows the answer.
"use strict";

(() => {
  const SHOWN = 4;
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("chooser");
  const answer = document.getElementById("answer");
  const images = new Map(data.images.map((image) => [image.name, image]));

  // An element of these classes with these children; text is only ever text.
  function make(tag, classes, ...children) {
    const element = document.createElement(tag);
    if (classes) element.className = classes;
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  function link(name) {
    const found = make("a", "", name);
    found.href = images.get(name).page;
    return found;
  }

  function list(names) {
    const more = names.length > SHOWN ? ` and ${names.length - SHOWN} more` : "";
    return [...names.slice(0, SHOWN).flatMap((name, at) => (at ? [", ", link(name)] : [link(name)])), more];
  }

  function command(text) {
    const button = make("button", "", "Copy");
    button.type = "button";
    button.dataset.copy = text;
    return make("div", "command", make("code", "", text), button);
  }

  function showChoice(choice, machine) {
    const parts = [make("p", "soft", truetag.described(machine))];
    const [best, ...rest] = choice.fitting;
    if (best) {
      const image = images.get(best.name);
      parts.push(
        make("h2", "", "Take ", link(best.name)),
        command(image.get),
        make("ul", "why", ...best.reasons.map((reason) => make("li", "", reason))),
        make("p", "panel", image.sentence),
      );
    } else {
      parts.push(make("h2", "", "No image fits."));
    }
    const judged = rest.map((one) => one.name).filter((name) => images.get(name).validation !== "never");
    if (judged.length) parts.push(make("p", "", "Others with validation runs: ", ...list(judged)));
    if (rest.length) parts.push(make("p", "", "These fit too: ", ...list(rest.map((one) => one.name))));
    if (choice.others.length) {
      const rows = choice.others.map((one) => make("li", "", ...list(one.names), ": ", one.against.join("; ")));
      parts.push(make("h3", "", "Why not the nearest others"), make("ul", "why", ...rows));
    }
    answer.replaceChildren(...parts);
  }

  function showError(text) {
    const told = make("p", "panel warning", text);
    told.setAttribute("role", "alert");
    answer.replaceChildren(told);
  }

  const field = (name) => form.elements[name].value.trim();

  function ask() {
    const torch = truetag.torchRange(field("torch"));
    const { machine, error } = truetag.machine(data, field("gpu"), field("driver"));
    if (error) return showError(error);
    if (!torch) return showError(`torch ${field("torch")}: is no range of versions; write >=2.7, <2.9 or 2.8`);
    const wish = { profile: field("profile") || null, torch, python: field("python"), devel: form.elements.devel.checked };
    return showChoice(truetag.choose(data.images, machine, wish), machine);
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
