// What the pages need beyond htmx: local times, charts, themes, copying, keys, and selecting all jobs of a list.
"use strict";
(() => {
  const root = document.documentElement;
  const stored = localStorage.getItem("theme");
  if (stored) root.dataset.theme = stored;

  const localTimes = (within) => {
    for (const each of within.querySelectorAll("time")) {
      const at = new Date(each.dateTime);
      const text = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
      if (each.classList.contains("full")) each.textContent = text;
      else if (each.classList.contains("hour")) {
        each.textContent = at.toLocaleTimeString(undefined, { timeStyle: "short" });
      }
      else each.title = text;
    }
  };

  // Charts: an element's `data-plot` has the times and the series, which an update of the page replaces.
  const KINDS = {
    completed: { color: "--bar-strong", fill: "33", points: { show: false } },
    failed: { color: "--red", fill: "33", points: { show: false } },
    waiting: { color: "--blue", scale: "waiting", dash: [5, 4] },
    time: { color: "--blue", fill: "22" },
  };
  const colorOf = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"], [1, "ms"]];
  const duration = (ms) => {
    const [size, unit] = UNITS.find(([size]) => ms >= size) || UNITS[4];
    return `${+(ms / size).toPrecision(3)} ${unit}`;
  };
  const plain = (value) => value.toLocaleString("en");
  const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB", { timeStyle: "short" });
  const plots = new Map();
  const sizeOf = (place) => ({ width: place.clientWidth, height: place.clientHeight - 26 });
  const seriesOf = ([label, kind]) => {
    const { color, fill, ...rest } = KINDS[kind];
    const format = kind === "time" ? duration : plain;
    const paint = fill && (() => colorOf(color) + fill);
    return { label, stroke: () => colorOf(color), fill: paint, width: 1.5, ...rest,
      value: (plot, value, at, place) => {
        const shown = place == null ? plot.data[at].findLast((each) => each != null) : value;
        return shown == null ? "–" : format(shown);
      } };
  };
  const axis = (more) => ({ stroke: () => colorOf("--soft"), grid: { stroke: () => colorOf("--line"), width: 1 },
    ticks: { show: false }, font: "11px system-ui, sans-serif", ...more });
  const drawPlots = () => {
    for (const [place, drawn] of plots) {
      if (!place.isConnected) { drawn.destroy(); plots.delete(place); }
    }
    if (!window.uPlot) return;
    for (const place of document.querySelectorAll(".plot")) {
      const { times, series } = JSON.parse(place.dataset.plot);
      const data = [times, ...series.map((each) => each[2])];
      const drawn = plots.get(place);
      if (drawn && drawn.series.length === data.length) { drawn.setData(data); continue; }
      if (drawn) drawn.destroy();
      const kinds = series.map((each) => each[1]);
      const values = (_, ticks) => ticks.map(kinds[0] === "time" ? duration : plain);
      const from0 = { range: (_, low, high) => [0, Math.max(high, 4) * 1.05] };
      const axes = [axis({ size: 24, values: (_, ticks) => ticks.map(clock) }), axis({ values, size: 56 })];
      if (kinds.includes("waiting")) {
        axes.push(axis({ scale: "waiting", side: 1, values: (_, ticks) => ticks.map(plain), size: 56, grid: { show: false } }));
      }
      plots.set(place, new uPlot({ ...sizeOf(place), axes, series: [{ label: "Time", value: (_, at) => at == null ? "now" : clock(at) }, ...series.map(seriesOf)],
        scales: { y: from0, waiting: from0 }, padding: [8, 8, 0, 0], cursor: { drag: { x: false } } }, data, place));
    }
  };
  addEventListener("resize", () => { for (const [place, drawn] of plots) drawn.setSize(sizeOf(place)); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((each) => each.redraw()));

  document.addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    drawPlots();
    // An update of the page leaves alone what its reader has opened or chosen.
    if (window.Idiomorph) {
      Idiomorph.defaults.ignoreActiveValue = true;
      Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
        !(name === "open" && node.tagName === "DETAILS");
      Idiomorph.defaults.callbacks.beforeNodeRemoved = (node) => !(node.classList && node.classList.contains("uplot"));
    }
  });
  document.addEventListener("htmx:afterSwap", (event) => { localTimes(event.target); drawPlots(); });
  const status = (text) => {
    const place = document.getElementById("connection");
    if (!place || place.textContent === text) return;
    place.textContent = text;
    place.classList.toggle("bad", text !== "live");
  };
  // The server ends each stream after some minutes; the browser then opens another one within two seconds.
  let lost = 0;
  document.addEventListener("htmx:sseOpen", () => { clearTimeout(lost); lost = 0; status("live"); });
  document.addEventListener("htmx:sseError", () => {
    lost = lost || setTimeout(() => status("no connection: these figures are old"), 1500);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-do]");
    if (!button) return;
    if (button.dataset.do === "theme") {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const now = root.dataset.theme || (dark ? "dark" : "light");
      root.dataset.theme = now === "dark" ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
      plots.forEach((each) => each.redraw());
    } else if (button.dataset.do === "copy") {
      const text = document.getElementById(button.dataset.of).textContent;
      navigator.clipboard.writeText(text).then(() => {
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
  });
  // Keys: / goes to the search box, j and k to the next and previous row; enter opens it as any link, x selects it.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    const row = document.activeElement.closest("tbody tr");
    if (event.key === "/") {
      const box = document.querySelector("[data-find]");
      if (box) box.select();
      else location.href = "search";
    } else if (event.key === "j" || event.key === "k") {
      const rows = [...document.querySelectorAll("main tbody tr")].filter((each) => each.querySelector("a") && each.offsetHeight);
      const next = rows[row ? rows.indexOf(row) + (event.key === "j" ? 1 : -1) : 0];
      if (next) next.querySelector("a").focus();
    } else if (event.key === "x" && row) {
      const box = row.querySelector("input[type=checkbox]");
      if (box) box.click();
    } else return;
    event.preventDefault();
  });
  // The browser compares suggestions with the whole text of the box; they are for its last word.
  document.addEventListener("input", (event) => {
    const words = event.target.list;
    if (!words) return;
    const before = event.target.value.replace(/\S*$/, "");
    for (const each of words.options) {
      each.dataset.word ??= each.value;
      each.value = before + each.dataset.word;
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "all") {
      for (const each of document.querySelectorAll("input[name=id]")) each.checked = event.target.checked;
    }
    const form = document.getElementById("selected");
    if (form) {
      const number = document.querySelectorAll("input[name=id]:checked").length;
      document.getElementById("number").textContent = number ? `${number} selected` : "";
    }
  });
})();
