// Charts: the values of a point by pointer, touch and the arrow keys, a dragged range that opens its jobs, and lines at midnight.
"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const pad = (number) => String(number).padStart(2, "0");
  const clock = (at) => `${at.toLocaleDateString("en", { weekday: "short" })} ${pad(at.getHours())}:${pad(at.getMinutes())}`;
  const SVG = "http://www.w3.org/2000/svg";

  function read(hit) {
    const figure = hit.closest("figure");
    const said = hit.querySelector("title").textContent;
    figure.querySelector(".reading").textContent = `${clock(new Date(hit.dataset.at))}: ${said.slice(said.indexOf(": ") + 2)}`;
    for (const other of all(".hit.read", figure)) other.classList.remove("read");
    hit.classList.add("read");
  }

  // -- a range: drag over a chart of jobs, or hold Shift with the arrow keys and press Enter --------------------------------
  let first = null;  // the point where the range begins, and the chart
  let last = null;
  let dragged = false;

  function mark() {
    const hits = all(".hit[data-at]", first.closest("figure"));
    const [from, to] = [hits.indexOf(first), hits.indexOf(last)].sort((one, other) => one - other);
    hits.forEach((hit, place) => hit.classList.toggle("chosen", from < to && place >= from && place <= to));
    if (from < to) first.closest("figure").querySelector(".reading").textContent = `${clock(new Date(hits[from].dataset.at))} to ${clock(ends(hits, to))}`;
    return [hits, from, to];
  }
  function ends(hits, place) {
    const step = new Date(hits[1].dataset.at) - new Date(hits[0].dataset.at);
    return new Date(+new Date(hits[place].dataset.at) + step);
  }
  function openRange() {
    const [hits, from, to] = mark();
    const jobs = first.closest("svg").dataset.jobs;
    if (!jobs || from >= to) return false;
    const stamp = (at) => `${at.toISOString().slice(0, 16).replace("T", " ")}Z`;
    location.assign(`${jobs}&${new URLSearchParams({ since: stamp(new Date(hits[from].dataset.at)), until: stamp(ends(hits, to)) })}`);
    return true;
  }
  function forget() {
    if (first) for (const hit of all(".hit.chosen", first.closest("figure"))) hit.classList.remove("chosen");
    first = last = null;
  }

  document.addEventListener("pointerover", (event) => {
    const hit = event.target.closest?.(".hit[data-at]");
    if (!hit) return;
    if (first && event.buttons === 1 && hit.closest("svg") === first.closest("svg")) {
      last = hit;
      dragged = true;
      mark();
    } else read(hit);
  });
  document.addEventListener("pointerdown", (event) => {
    const hit = event.target.closest?.(".hit[data-at]");
    if (!hit) return;
    read(hit);
    if (event.pointerType === "mouse" && hit.closest("svg").dataset.jobs) [first, last, dragged] = [hit, hit, false];
  });
  document.addEventListener("pointerup", () => {
    if (first && dragged) openRange();
    if (!dragged) forget();
  });
  document.addEventListener("dragstart", (event) => { if (event.target.closest?.(".chart svg")) event.preventDefault(); });
  document.addEventListener("click", (event) => {  // the end of a drag is not a click on a point
    if (dragged && event.target.closest?.(".chart svg")) event.preventDefault();
    dragged = false;
    forget();
  }, true);

  document.addEventListener("keydown", (event) => {
    const chart = event.target.closest(".chart[tabindex]");
    if (!chart || !["ArrowLeft", "ArrowRight", "Enter", "Escape"].includes(event.key)) return;
    const hits = all(".hit[data-at]", chart);
    const at = hits.findIndex((hit) => hit.classList.contains("read"));
    if (event.key === "Escape") { forget(); return; }
    if (event.key === "Enter") {
      if (first && chart.contains(first) && openRange()) return;
      chart.querySelector("a .hit.read")?.parentNode.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      return;
    }
    if (event.shiftKey && !(first && chart.contains(first))) first = hits[Math.max(0, at)];
    const to = hits[at < 0 ? hits.length - 1 : Math.min(hits.length - 1, Math.max(0, at + (event.key === "ArrowLeft" ? -1 : 1)))];
    read(to);
    if (event.shiftKey) { last = to; mark(); } else forget();
    event.preventDefault();
  });

  // -- midnight in the viewer's zone ------------------------------------------------------------------------------------------
  function markDays(from) {
    for (const svg of all(".chart svg", from)) {
      for (const old of all(".midnight", svg)) old.remove();
      const hits = all(".hit[data-at]", svg);
      hits.forEach((hit, place) => {
        if (!place || new Date(hit.dataset.at).getDate() === new Date(hits[place - 1].dataset.at).getDate()) return;
        const line = document.createElementNS(SVG, "path");
        line.setAttribute("class", "midnight");
        line.setAttribute("d", `M${hit.getAttribute("x")} 0V100`);
        svg.prepend(line);
      });
    }
  }
  document.addEventListener("jobherd:updated", (event) => markDays(event.target));
  addEventListener("DOMContentLoaded", () => markDays(document));
})();
