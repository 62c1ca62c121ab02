// Charts: the values of a point by pointer, touch and the arrow keys, a dragged range that opens its jobs, and lines at midnight.
// One area is moved to the point or range that is read. Its link leads to the jobs there.
"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const pad = (number) => String(number).padStart(2, "0");
  const clock = (at) => `${at.toLocaleDateString("en", { weekday: "short" })} ${pad(at.getHours())}:${pad(at.getMinutes())}`;
  const stamp = (at) => `${at.toISOString().slice(0, 16).replace("T", " ")}Z`;
  const WIDE = 1000;  // as charts.py
  const read = new WeakMap();  // by chart: the first and the last point of the range, in the order in which they were chosen
  let first = -1;  // where a drag began, in the chart `dragging`
  let dragging = null;

  const said = (svg) => svg.dataset.said.split("|");
  const begins = (svg, place) => new Date(Date.parse(svg.dataset.since) + 1000 * svg.dataset.point * place);

  function show(svg, from, to = from) {
    const values = said(svg);
    const wide = WIDE / values.length;
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    const area = svg.querySelector(".hit");
    area.setAttribute("x", low * wide);
    area.setAttribute("width", (high - low + 1) * wide);
    area.classList.toggle("chosen", low < high);
    const text = low < high ? `${clock(begins(svg, low))} to ${clock(begins(svg, high + 1))}` : `${clock(begins(svg, low))}: ${values[low]}`;
    svg.closest("figure").querySelector(".reading").textContent = text;
    const { jobs, leads } = svg.dataset;
    if (jobs && (low < high || leads[low] === "1")) {
      area.parentNode.setAttribute("href", `${jobs}&${new URLSearchParams({ since: stamp(begins(svg, low)), until: stamp(begins(svg, high + 1)) })}`);
    } else area.parentNode.removeAttribute("href");
    read.set(svg, [from, to]);
  }
  function open(svg) {
    const to = svg.querySelector("a").getAttribute("href");
    if (to) location.assign(to);
  }

  // -- pointer ------------------------------------------------------------------------------------------------------------
  const chartOf = (event) => event.target.closest?.("svg[data-said]");
  function placeOf(svg, event) {
    const box = svg.getBoundingClientRect();
    const many = said(svg).length;
    return Math.min(many - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * many)));
  }

  document.addEventListener("pointermove", (event) => {
    const svg = chartOf(event);
    if (dragging && event.buttons === 1 && svg === dragging) show(svg, first, placeOf(svg, event));
    else if (svg && event.pointerType === "mouse") show(svg, placeOf(svg, event));
  });
  document.addEventListener("pointerdown", (event) => {
    const svg = chartOf(event);
    if (!svg) return;
    const place = placeOf(svg, event);
    show(svg, place);
    if (event.pointerType === "mouse" && event.button === 0 && svg.dataset.jobs) [dragging, first] = [svg, place];
  });
  document.addEventListener("pointerup", () => {
    if (dragging?.querySelector(".chosen")) open(dragging);
  });
  document.addEventListener("dragstart", (event) => { if (chartOf(event)) event.preventDefault(); });
  document.addEventListener("click", (event) => {  // the end of a drag is not a click on a point
    if (dragging?.querySelector(".chosen")) event.preventDefault();
    dragging = null;
  }, true);

  // -- keys: the arrows read, with Shift they choose a range, Enter opens its jobs ------------------------------------------------
  document.addEventListener("keydown", (event) => {
    const svg = event.target.closest(".chart[tabindex]")?.querySelector("svg[data-said]");
    if (!svg || !["ArrowLeft", "ArrowRight", "Enter", "Escape"].includes(event.key)) return;
    if (event.key === "Enter") { open(svg); return; }
    const many = said(svg).length;
    const [from, at] = read.get(svg) || [many - 1, many];
    const step = { ArrowLeft: -1, ArrowRight: 1, Escape: 0 }[event.key];  // Escape gives up the range
    const to = Math.min(many - 1, Math.max(0, at + step));
    show(svg, event.shiftKey ? from : to, to);
    event.preventDefault();
  });

  // -- midnight in the viewer's zone ------------------------------------------------------------------------------------------
  function update(from) {
    for (const svg of all("svg[data-said]", from)) {
      const days = said(svg).map((_, place) => begins(svg, place).getDate());
      const lines = days.flatMap((day, place) => (place && day !== days[place - 1] ? [`M${(place * WIDE) / days.length} 0V100`] : []));
      svg.querySelector(".midnight").setAttribute("d", lines.join(""));
      if (read.has(svg)) show(svg, ...read.get(svg));
    }
  }
  document.addEventListener("jobherd:updated", (event) => update(event.target));
  addEventListener("DOMContentLoaded", () => update(document));
})();
