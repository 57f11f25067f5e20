// The chooser's rules, as images/chooser/choose.py has them; tests/browser/test_chooser.py holds the two against each other.
"use strict";

const truetag = (() => {
  const NEAREST = 4;

  // --- versions and ranges: PEP 440 ---------------------------------------------------------------------------------

  const VERSION = new RegExp(
    String.raw`^\s*v?(?:(\d+)!)?(\d+(?:\.\d+)*)` +
    String.raw`(?:[-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?(\d+)?)?` +
    String.raw`(?:-(\d+)|[-_.]?(post|rev|r)[-_.]?(\d+)?)?` +
    String.raw`(?:[-_.]?(dev)[-_.]?(\d+)?)?` +
    String.raw`(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*$`, "i");
  const PRE = { alpha: "a", a: "a", beta: "b", b: "b", preview: "rc", pre: "rc", c: "rc", rc: "rc" };

  function version(text) {
    const found = VERSION.exec(text);
    if (!found) return null;
    const [, epoch, release, preKind, pre, bare, postKind, post, dev, devNumber, local] = found;
    return {
      epoch: Number(epoch || 0),
      release: release.split(".").map(Number),
      pre: preKind ? [PRE[preKind.toLowerCase()], Number(pre || 0)] : null,
      post: bare !== undefined ? Number(bare) : postKind ? Number(post || 0) : null,
      dev: dev ? Number(devNumber || 0) : null,
      local: local ? local.toLowerCase().split(/[-_.]/).map((part) => (/^\d+$/.test(part) ? Number(part) : part)) : null,
    };
  }

  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  function orderAll(a, b) {
    for (let at = 0; at < Math.max(a.length, b.length); at += 1) {
      const found = order(a[at] ?? 0, b[at] ?? 0);
      if (found) return found;
    }
    return 0;
  }

  // 1.0.dev1 < 1.0a1.dev1 < 1.0a1 < 1.0 < 1.0.post1
  function preKey(it) {
    if (it.pre === null && it.post === null && it.dev !== null) return ["", 0];
    return it.pre === null ? ["~", 0] : it.pre;
  }

  function orderLocal(a, b) {
    if (a === null || b === null) return order(a !== null, b !== null);
    for (let at = 0; at < Math.max(a.length, b.length); at += 1) {
      if (at >= a.length || at >= b.length) return order(a.length, b.length);
      const numbers = order(typeof a[at] === "number", typeof b[at] === "number");
      const found = numbers || order(a[at], b[at]);
      if (found) return found;
    }
    return 0;
  }

  function compare(a, b) {
    const last = Number.POSITIVE_INFINITY;
    return order(a.epoch, b.epoch) || orderAll(a.release, b.release) || orderAll(preKey(a), preKey(b)) ||
      order(a.post ?? -1, b.post ?? -1) || order(a.dev ?? last, b.dev ?? last) || orderLocal(a.local, b.local);
  }

  const publicOf = (it) => ({ ...it, local: null });
  const isPre = (it) => it.pre !== null || it.dev !== null;
  const atLeast = (a, b) => compare(version(a), version(b)) >= 0;

  function startsWith(it, prefix) {
    const wanted = prefix.release;
    return it.epoch === prefix.epoch && wanted.every((part, at) => part === (it.release[at] ?? 0));
  }

  const OPERATORS = {
    "==": (it, wanted) => compare(wanted.local ? it : publicOf(it), wanted) === 0,
    "!=": (it, wanted) => !OPERATORS["=="](it, wanted),
    "<=": (it, wanted) => compare(publicOf(it), wanted) <= 0,
    ">=": (it, wanted) => compare(publicOf(it), wanted) >= 0,
    "<": (it, wanted) => compare(it, wanted) < 0 &&
      !(isPre(it) && !isPre(wanted) && compare({ ...it, pre: null, dev: null, local: null }, wanted) === 0),
    ">": (it, wanted) => compare(publicOf(it), wanted) > 0 &&
      !(it.post !== null && wanted.post === null && compare({ ...it, post: null, dev: null, local: null }, wanted) === 0),
    "~=": (it, wanted) => compare(publicOf(it), wanted) >= 0 &&
      startsWith(it, { epoch: wanted.epoch, release: wanted.release.slice(0, -1) }),
  };

  function specifier(text) {
    const found = /^(===|~=|==|!=|<=|>=|<|>)\s*(\S.*)$/.exec(text.trim());
    if (!found) return null;
    const [, operator, wanted] = found;
    const written = `${operator}${wanted.trim()}`;
    if (operator === "===") {
      const exact = wanted.trim().toLowerCase();
      return /[\s;)]/.test(exact) ? null : { written, holds: (_it, asked) => asked.toLowerCase() === exact };
    }
    const prefix = /^(.*)\.\*$/.exec(wanted.trim());
    const parsed = version(prefix ? prefix[1] : wanted);
    if (!parsed || (parsed.local && !["==", "!="].includes(operator))) return null;
    if (operator === "~=" && (prefix || parsed.release.length < 2)) return null;
    if (!prefix) return { written, holds: (it) => OPERATORS[operator](it, parsed) };
    if (!["==", "!="].includes(operator) || parsed.local || parsed.dev !== null) return null;
    if (parsed.pre !== null || parsed.post !== null) return null; // 2.8rc1.*: nobody asks for it
    return { written, holds: (it) => startsWith(it, parsed) === (operator === "==") };
  }

  // `>=2.7`, `<2.9,>=2.7`, `2.8`; null where it is no range.
  function torchRange(text) {
    const whole = /^\d+(\.\d+)?$/.test(text) ? `==${text}.*` : text;
    const parts = whole.split(",").map((part) => part.trim()).filter(Boolean).map(specifier);
    if (parts.includes(null)) return null;
    const written = [...new Set(parts.map((part) => part.written))].sort().join(",");
    return { written, contains: (asked) => parts.every((part) => part.holds(version(asked), asked)) };
  }

  // --- the machine ----------------------------------------------------------------------------------------------------

  function arch(text) {
    const found = /^sm_?(\d{1,2})(\d)$/.exec(text) || /^(\d{1,2})\.(\d)$/.exec(text);
    return found && { major: Number(found[1]), minor: Number(found[2]) };
  }

  const sm = (one) => `sm_${one.major}${one.minor}`;
  const same = (a, b) => a.major === b.major && a.minor === b.minor;
  const notAbove = (a, b) => orderAll([a.major, a.minor], [b.major, b.minor]) <= 0;

  function words(text, brands) {
    const spaced = text.toLowerCase().replace(/(?<=rtx|gtx)(?=\d)|(?<=\d)(?=ti\b)/g, " ");
    return new Set((spaced.match(/[a-z0-9]+/g) || []).filter((word) => !brands.includes(word)));
  }

  // The model that a name means: all its words are there, and what else is there names a brand or a variant.
  function model(data, text) {
    const variants = new RegExp(`^(?:${data.variants})$`);
    const asked = words(text, data.brands);
    let best = null;
    for (const row of data.models) {
      const own = words(row.name, data.brands);
      const fits = own.size && [...own].every((word) => asked.has(word)) &&
        [...asked].every((word) => own.has(word) || variants.test(word));
      if (fits && (!best || own.size > best.size)) best = { row, size: own.size };
    }
    return best && best.row;
  }

  // Models whose names share most with what was written, for a person who wrote none that is known.
  function near(data, text) {
    const asked = [...words(text, data.brands)];
    const shared = (row) => [...words(row.name, data.brands)].filter((own) => asked.includes(own)).length;
    return data.models.filter(shared).sort((a, b) => shared(b) - shared(a)).slice(0, 3).map((row) => row.name);
  }

  // {machine} or {error}: what a person wrote of a GPU (a model, or sm_89) and a driver.
  function machine(data, gpu, driver) {
    if (driver && !version(driver)) return { error: `driver ${driver}: is no version; write it as nvidia-smi does: 550.90.07` };
    const direct = arch(gpu);
    if (direct) {
      return { machine: { gpus: [sm(direct)], archs: [direct], driver, arm: data.arm_alone.includes(sm(direct)) } };
    }
    const row = model(data, gpu);
    if (row) return { machine: { gpus: [row.name], archs: [arch(row.capability)], driver, arm: row.arm } };
    const close = near(data, gpu);
    const hint = close.length ? `; nearest: ${close.join(", ")}` : "";
    return { error: `${gpu}: is no GPU that is known here${hint}; or write its architecture: sm_89` };
  }

  const described = (it) => `${it.gpus.join(", ")} (${it.archs.map(sm).join(", ")}), ` +
    (it.driver ? `driver ${it.driver}` : "driver not known");

  // --- the rules ------------------------------------------------------------------------------------------------------

  // The architectures whose code of this kind a GPU runs. `runs_on` has the ranges of validate/compute_capability.py.
  function running(image, code, gpu) {
    const fits = (range) => range.code === code && notAbove(arch(range.first), gpu) &&
      (range.last === null || notAbove(gpu, arch(range.last)));
    return image.runs_on.filter(fits).map((range) => arch(range.first));
  }

  function fit(image, gpu) {
    return ["cubin", "ptx"].find((code) => running(image, code, gpu).length) || "no";
  }

  function through(image, gpu) {
    const best = running(image, "cubin", gpu).reduce((a, b) => (notAbove(a, b) ? b : a));
    return same(best, gpu) ? "" : ` through ${sm(best)}, of the same major`;
  }

  function unwanted(image, wish) {
    const found = image.locked ? [] : ["has no lock: it can't be built before `nox -s lock` has made one"];
    if (image.profile !== wish.profile) {
      found.push(image.profile ? `is for the profile ${image.profile}` : `has no profile ${wish.profile}`);
    }
    if (!wish.torch.contains(image.torch)) found.push(`torch ${image.torch} is not ${wish.torch.written}`);
    if (wish.python && image.python !== wish.python) found.push(`Python ${image.python} is not ${wish.python}`);
    if (!wish.python && !image.default_python) {
      found.push(`Python ${image.python} was not asked for (--python ${image.python})`);
    }
    if (image.devel !== wish.devel) {
      found.push(image.devel ? "has a devel toolkit, which was not asked for (--devel)" : "has no devel toolkit");
    }
    return found;
  }

  // Graphics cards that no board has: in an ARM server they run what they run elsewhere.
  const CARDS = ["sm_86", "sm_89"];

  function wrongArch(image, it, fits) {
    const forArm = image.name.endsWith("-arm64");
    if (it.arm && !forArm) return ["is for x86-64, and this GPU's host processor is ARM"];
    if (forArm && !it.arm) return ["is for ARM processors"];
    const has = image.archs.map((own) => sm(arch(own))).join(" ");
    // Boards' GPUs run code of their family only where somebody has seen it: those an image names.
    const named = (one) => image.archs.some((own) => same(arch(own), one));
    const unseen = (one) => it.arm && !CARDS.includes(sm(one)) && !named(one);
    return it.archs.filter((one, at) => fits[at] === "no" || unseen(one)).map((one) => `has no code for ${sm(one)} (it has ${has})`);
  }

  // Minor version compatibility holds for machine code; PTX needs a driver of its own CUDA.
  function wrongDriver(image, it, worst) {
    if (!it.driver) return [];
    if (!atLeast(it.driver, image.min_driver)) {
      return [`CUDA ${image.wheel_cuda.split(".")[0]} needs driver ${image.min_driver} or newer`];
    }
    if (worst === "ptx" && !atLeast(it.driver, image.native_driver)) {
      return [`PTX of CUDA ${image.wheel_cuda} needs driver ${image.native_driver} or newer`];
    }
    return [];
  }

  function driverReason(image, it, native) {
    if (!it.driver) return `needs driver ${image.min_driver} or newer`;
    if (native) return `driver ${it.driver} knows CUDA ${image.wheel_cuda} (${image.native_driver} is its first)`;
    return `driver ${it.driver} is older than CUDA ${image.wheel_cuda}'s own ${image.native_driver}, new enough by minor ` +
      `version compatibility (${image.min_driver})`;
  }

  const WORSE = ["cubin", "ptx", "no"];

  function answer(image, it, wish) {
    const fits = it.archs.map((one) => fit(image, one));
    const worst = fits.reduce((a, b) => (WORSE.indexOf(b) > WORSE.indexOf(a) ? b : a));
    const native = !it.driver || atLeast(it.driver, image.native_driver);
    const against = [...unwanted(image, wish), ...wrongArch(image, it, fits), ...wrongDriver(image, it, worst)];
    const of = (kind, say) => it.archs.filter((_one, at) => fits[at] === kind).map(say);
    const code = of("cubin", (one) => `machine code for ${sm(one)}${through(image, one)}`);
    const ptx = of("ptx", (one) => `only PTX for ${sm(one)}: compiled at the first run, and by torch alone`);
    const reasons = [`torch ${image.torch}`, ...code, ...ptx, driverReason(image, it, native)];
    return { image, native, name: image.name, torch: image.torch, fits: !against.length, code: worst, reasons, against };
  }

  const minor = (text) => text.split(".").map(Number);

  // Greater is better: machine code before PTX, newest torch, a CUDA that the driver knows, newest CUDA, an arch image.
  function byRank(a, b) {
    return order(a.code === "cubin", b.code === "cubin") || compare(version(a.torch), version(b.torch)) ||
      order(a.native, b.native) || orderAll(minor(a.image.wheel_cuda), minor(b.image.wheel_cuda)) ||
      orderAll(minor(a.image.toolkit_cuda), minor(b.image.toolkit_cuda)) ||
      order(a.image.arch !== null, b.image.arch !== null);
  }

  const plain = ({ name, torch, fits, code, reasons, against }) => ({ name, torch, fits, code, reasons, against });

  // wish: {profile: name or null, torch: torchRange(...), python: "" or "3.13", devel: bool}
  function choose(images, it, wish) {
    const answers = images.map((image) => answer(image, it, wish));
    const fitting = answers.filter((one) => one.fits).sort((a, b) => byRank(b, a));
    const failing = answers.filter((one) => !one.fits)
      .sort((a, b) => a.against.length - b.against.length || byRank(b, a));
    const grouped = new Map();
    for (const one of failing) {
      if (one.image.profile !== wish.profile || one.image.devel !== wish.devel) continue;
      const key = JSON.stringify(one.against);
      grouped.set(key, [...(grouped.get(key) || []), one.name]);
    }
    const others = [...grouped].slice(0, NEAREST).map(([key, names]) => ({ names, against: JSON.parse(key) }));
    return { fitting: fitting.map(plain), others };
  }

  return { choose, described, machine, torchRange, version, compare };
})();

if (typeof module !== "undefined") module.exports = truetag;
