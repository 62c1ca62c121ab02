// What the page does beyond HTML: live updates, times in the viewer's zone, and keys. Everything else works without it.
"use strict";
(() => {
  const script = document.currentScript;
  const $ = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // -- times ------------------------------------------------------------------------------------------------------------
  const pad = (number, width = 2) => String(number).padStart(width, "0");
  const day = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const clock = (at) => `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const weekday = (at) => `${at.toLocaleDateString("en", { weekday: "short" })} ${clock(at).slice(0, 5)}`;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const parts = [["d", 86400], ["h", 3600], ["min", 60]];

  function span(seconds) {
    for (let at = 0; at < parts.length; at += 1) {
      const [unit, length] = parts[at];
      if (seconds >= length) {
        const [less, part] = parts[at + 1] || ["s", 1];
        const rest = Math.floor((seconds % length) / part);
        return `${Math.floor(seconds / length)} ${unit}${rest && seconds < 10 * length ? ` ${rest} ${less}` : ""}`;
      }
    }
    return `${Math.floor(seconds)} s`;
  }

  function ago(at) {
    const seconds = (Date.now() - at) / 1000;
    if (Math.abs(seconds) < 1) return "now";
    return seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  }

  function localise(from) {
    for (const one of all("time[data-as]", from)) {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const exact = `${day(at)} ${clock(at)}`;
      const today = day(at) === day(new Date());
      const style = one.dataset.as;
      const text = style === "ago" ? ago(at) : style === "tick" ? clock(at).slice(0, 5) : style === "day" ? weekday(at) : style === "exact" || !today ? exact : clock(at);
      if (one.textContent !== text) one.textContent = text;
      one.title = `${exact}.${pad(at.getMilliseconds(), 3)} ${zone}`;
    }
  }

  // -- live -------------------------------------------------------------------------------------------------------------
  const kept = { DETAILS: "open", DIALOG: "open", INPUT: "checked" };
  let source = null;
  let again = 0;
  let rest = 0;
  const troubled = new Map();

  function show() {
    const banner = $("#trouble");
    const texts = [...troubled.values()];
    banner.hidden = texts.length === 0;
    if (banner.textContent !== (texts[0] || "")) banner.textContent = texts[0] || "";
  }

  // A list that the user points at or has ticked rows of stays as it is; a button says how many rows are newer.
  let held = null;
  function hold(place, html) {
    const pill = $(`#${place.dataset.hold}`);
    const ids = [...html.matchAll(/<tr id="(job-[0-9]+)"/g)].map((found) => found[1]);
    const more = ids.filter((id) => !document.getElementById(id)).length;
    const keep = $("tbody input:checked", place) || (more && $("table:hover", place));
    held = keep ? [place, html] : null;
    pill.hidden = !(keep && more);
    if (!pill.hidden) $("button", pill).textContent = `${more} newer`;
    return keep;
  }
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#newer") || !held) return;
    const [place, html] = held;
    for (const box of all("tbody input:checked", place)) box.checked = false;
    swap(place, html, true);
    $("#newer").hidden = true;
    choose();
  });

  function swap(place, html, now = false) {
    if (!now && (place.dataset.hold ? hold(place, html) : $("tbody input:checked", place))) return;
    Idiomorph.morph(place, html, {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      callbacks: {
        beforeNodeMorphed: (node) => !node.classList?.contains("reading"),
        beforeAttributeUpdated: (name, node) => name !== "tabindex" && kept[node.nodeName] !== name,
      },
    });
    localise(place);
    place.dispatchEvent(new CustomEvent("jobherd:updated", { bubbles: true }));
  }

  function open() {
    const topics = [...new Set(all("[data-live]:not(script)").map((one) => one.dataset.live))];
    if (source || !topics.length || document.hidden) return;
    source = new EventSource(`${script.dataset.live}?${new URLSearchParams(topics.map((topic) => ["topic", topic]))}`);
    source.addEventListener("open", () => { clearTimeout(again); troubled.delete("stream"); show(); });
    source.addEventListener("fragment", (event) => {
      const said = JSON.parse(event.data);
      for (const place of all("[data-live]:not(script)")) if (place.dataset.live === said.topic) swap(place, said.html);
      troubled.delete("database");
      troubled.delete(said.topic);
      show();
    });
    source.addEventListener("final", (event) => {  // nothing more will come of it: whatever else is live here goes on without
      const said = JSON.parse(event.data);
      for (const place of all("[data-live]:not(script)")) if (place.dataset.live === said.topic) delete place.dataset.live;
      close();
      open();
    });
    source.addEventListener("outage", (event) => {
      const since = new Date(JSON.parse(event.data).since);
      troubled.set("database", `The database has not answered since ${clock(since)}. The page may be out of date; it updates once the database answers.`);
      show();
    });
    source.addEventListener("trouble", (event) => {
      const said = JSON.parse(event.data);
      troubled.set(said.topic, `A part of this page is not up to date: ${said.reason}.`);
      show();
    });
    source.addEventListener("error", () => {
      clearTimeout(again);  // the browser itself comes again, but not after an answer that is no stream
      again = setTimeout(() => {
        troubled.set("stream", "Live updates are interrupted; trying again.");
        show();
        if (source && source.readyState === EventSource.CLOSED) { close(); open(); }
      }, 3000);
    });
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {  // a hidden page requests nothing
    clearTimeout(rest);
    if (document.hidden) rest = setTimeout(close, 5000);
    else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });

  // -- forms ------------------------------------------------------------------------------------------------------------
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const token = $("input[name=csrf]", form);
    if (token && !token.value) token.value = $("meta[name=csrf]").content;
  });
  document.addEventListener("change", (event) => {  // the box in a table's head ticks all of its column
    if (event.target.matches("thead input[type=checkbox]")) {
      for (const box of all("tbody input[type=checkbox]", event.target.closest("table"))) box.checked = event.target.checked;
    }
  });

  function choose() {  // the bar of the selection: how many, and buttons only if there are some
    const form = $("#many");
    if (!form) return;
    const every = $("input[name=all]", form).checked;
    const many = all("tbody input[name=id]:checked").length;
    $("#chosen").textContent = every ? "all that match" : many ? `${many} selected` : "or tick some below";
    for (const button of all("button[name=action]", form)) button.disabled = !every && !many;
  }
  document.addEventListener("change", choose);
  document.addEventListener("jobherd:updated", choose);

  // -- a picker for a field that takes a time: it writes what one may also type --------------------------------------------------
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".timed > button");
    if (!button) return;
    const [field, picker] = all("input", button.parentNode);
    picker.value = /^\d{4}-\d\d-\d\d \d\d:\d\d$/.test(field.value) ? field.value.replace(" ", "T") : "";
    picker.showPicker();
  });
  document.addEventListener("input", (event) => {
    if (event.target.type !== "datetime-local") return;
    const [field] = all("input", event.target.parentNode);
    field.value = event.target.value.replace("T", " ");
  });

  // -- the jobs before and after a job in the list from which it was opened ------------------------------------------------------
  document.addEventListener("click", (event) => {
    const list = event.target.closest("table.jobs");
    if (!list || !event.target.closest("a")) return;
    const jobs = all("tr[id^=job-] a[href]", list).filter((link) => /\/jobs\/[0-9]+$/.test(link.pathname)).map((link) => link.pathname);
    sessionStorage.setItem("jobherd list", JSON.stringify({ from: location.pathname + location.search, jobs }));
  });
  function showPlaceInList() {
    const nav = $("#in-list");
    if (!nav) return;
    let list = null;
    try { list = JSON.parse(sessionStorage.getItem("jobherd list")); } catch { return; }
    const at = list ? list.jobs.indexOf(location.pathname) : -1;
    if (at < 0) return;
    for (const [to, word, rel] of [[list.from, "Back to the list", "up"], [list.jobs[at - 1], "← Previous", "prev"], [list.jobs[at + 1], "Next →", "next"]]) {
      if (!to) continue;
      const link = Object.assign(document.createElement("a"), { href: to, textContent: word, rel, className: "button" });
      nav.append(link);
    }
    nav.hidden = false;
  }

  // -- keys -------------------------------------------------------------------------------------------------------------
  let going = 0;

  function move(by) {
    const rows = all("main tbody tr").filter((row) => $("a[href]", row));
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement.closest("tr"));
    const row = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
    row.tabIndex = -1;
    row.focus();
  }

  const help = $("#help");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    const here = document.activeElement;
    if (here.matches("input:not([type=checkbox], [type=radio]), textarea, select")) {
      if (event.key === "Escape") here.blur();
      return;
    }
    const to = going && event.timeStamp - going < 1500 && $(`header nav a[data-key="${CSS.escape(event.key)}"]`);
    going = 0;
    if (to) {
      to.click();
      event.preventDefault();
      return;
    }
    const row = here.closest("main tbody tr");
    if (event.key === "/") $("#search")?.focus();
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "g") going = event.timeStamp;
    else if (event.key === "?") help.showModal();
    else if (event.key === "Enter" && row && here === row) $("a[href]", row).click();
    else if (event.key === "x" && row) $("input[type=checkbox]", row)?.click();
    else return;
    event.preventDefault();
  });

  document.addEventListener("jobherd:localise", (event) => localise(event.target));
  addEventListener("DOMContentLoaded", () => {
    const button = $("#show-help");
    button.hidden = false;
    button.addEventListener("click", () => help.showModal());
    localise(document);
    for (const here of all("header nav a[aria-current], .tabs a[aria-current]")) here.parentNode.scrollLeft = here.offsetLeft - here.parentNode.offsetLeft - 40;
    choose();
    for (const one of all(".timed > [hidden]")) one.hidden = false;
    showPlaceInList();
    for (const field of all("input[data-zone]")) field.value = zone;
    setInterval(() => localise(document), 10000);  // "3 min ago" grows older
    open();
  });
})();
