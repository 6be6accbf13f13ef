// What the pages need beyond htmx: local times, themes, copying, and selecting all jobs of a list.
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

  document.addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    // An update of the page leaves alone what its reader has opened or chosen.
    if (window.Idiomorph) {
      Idiomorph.defaults.ignoreActiveValue = true;
      Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
        !(name === "open" && node.tagName === "DETAILS");
    }
  });
  document.addEventListener("htmx:afterSwap", (event) => localTimes(event.target));
  const status = (text) => {
    const place = document.getElementById("connection");
    if (place && place.textContent !== text) place.textContent = text;
  };
  // The server ends each stream after some minutes; the browser then opens another one within two seconds.
  let lost = 0;
  document.addEventListener("htmx:sseOpen", () => { clearTimeout(lost); lost = 0; status("live"); });
  document.addEventListener("htmx:sseError", () => {
    lost = lost || setTimeout(() => status("reconnecting…"), 4000);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-do]");
    if (!button) return;
    if (button.dataset.do === "theme") {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const now = root.dataset.theme || (dark ? "dark" : "light");
      root.dataset.theme = now === "dark" ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
    } else if (button.dataset.do === "copy") {
      const text = document.getElementById(button.dataset.of).textContent;
      navigator.clipboard.writeText(text).then(() => {
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
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
