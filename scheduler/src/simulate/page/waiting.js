// Waiting causes over time: how many Runs wait for what, stacked.

const WAITING_HEIGHT = 150;
const CAUSES_SHOWN_MAX = 7;

/** One order and colour of causes for all sides: "not tried yet" first, then those that kept most Runs waiting. */
const causes = (() => {
  const found = new Map();
  for (const side of data.sides) {
    side.causes.forEach((cause, index) => {
      const known = found.get(causeName(cause)) ?? { name: causeName(cause), queued: cause.code === "NotTriedYet", weight: 0 };
      for (const samples of [side.waitingByTime, side.waitingByStep]) for (const row of samples.counts) known.weight += row[index] ?? 0;
      found.set(known.name, known);
    });
  }
  const list = [...found.values()].sort((a, b) => b.queued - a.queued || b.weight - a.weight);
  list.forEach((cause, i) => (cause.colour = `c${Math.min(i, CAUSES_SHOWN_MAX)}`));
  return list;
})();

/** The waiting chart of one side; `top()` is the highest count that any side shows. */
function waitingChart(side, gutter) {
  const order = causes.map(cause => side.causes.findIndex(own => causeName(own) === cause.name));
  const canvas = element("canvas", { role: "img" });
  const legend = element("ul", { class: "legend" });
  const empty = element("p", { class: "empty", hidden: true });
  const chart = element("div", { tabIndex: 0, role: "group", "aria-label": "Waiting Runs by cause; arrow keys pan, plus and minus zoom" }, canvas);
  const panel = element("div", { class: "panel waiting" }, element("div", { class: "panel-head" }, element("h3", {}, "Waiting Runs, by cause"), legend), chart, empty);
  const values = causes.map(() => element("b"));
  const items = causes.map((cause, i) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = `var(--${cause.colour})`;
    return element("li", {}, swatch, cause.name, values[i]);
  });

  const samples = () => axes[view.axis].waiting(side);
  const rowAt = x => samples().counts[lastBefore(samples().at.length, i => samples().at[i], x)] ?? [];
  const total = row => row.reduce((sum, n) => sum + n, 0);
  // As wide as the rows below, which may have a scroll bar.
  const bar = () => { const rows = panel.parentElement?.querySelector(".lane-scroll"); return rows ? rows.offsetWidth - rows.clientWidth : 0; };
  const plot = () => ({ left: gutter(), right: canvas.clientWidth - 12 - bar() });

  listen(canvas, chart, plot, () => {
    if (view.at === null) return null;
    const row = rowAt(view.at);
    const lines = causes.map((cause, i) => (row[order[i]] ? `${count(row[order[i]])} ${cause.name}` : "")).filter(Boolean);
    return [`${plural(total(row), "Run waits", "Runs wait")}, ${axes[view.axis].long(view.at)}`, ...lines];
  });

  drawers.push(() => {
    const { at, counts } = samples();
    const used = causes.map((_, i) => order[i] >= 0 && counts.some(row => row[order[i]] > 0));
    const nothing = !used.includes(true);
    chart.hidden = legend.hidden = nothing;
    empty.hidden = !nothing;
    if (nothing) {
      empty.textContent = runCount === 0 ? "There is no Run that could wait." : side.summary.placed ? "Nothing waited: every Run found a Pod at once." : "No Run waited for a Pod.";
      return;
    }
    // The same on all sides, so that they stay level.
    legend.replaceChildren(...items.filter((_, i) => usedAnywhere(causes[i].name)));
    const shown = view.at === null ? null : rowAt(view.at);
    causes.forEach((_, i) => (values[i].textContent = shown ? count(shown[order[i]] ?? 0) : `up to ${count(counts.reduce((most, row) => Math.max(most, row[order[i]] ?? 0), 0))}`));
    const most = Math.max(1, ...data.sides.map(other => highest(axes[view.axis].waiting(other))));
    const width = canvas.clientWidth;
    const g = sharpen(canvas, width, WAITING_HEIGHT);
    const { left, right } = plot();
    const [top, bottom] = [8, WAITING_HEIGHT - 22];
    drawAxis(g, left, right, top, bottom, WAITING_HEIGHT - 9);
    const { x } = scale(left, right);
    const y = n => bottom - (n / most) * (bottom - top);
    g.textAlign = "right";
    g.fillStyle = colours.muted;
    for (const n of new Set([0, Math.round(most / 2), most])) g.fillText(count(n), left - 8, Math.max(top + 4, y(n)));
    g.save();
    g.beginPath();
    g.rect(left, top - 1, right - left, bottom - top + 1);
    g.clip();
    const first = Math.max(0, lastBefore(at.length, i => at[i], view.from));
    const base = new Float64Array(at.length);
    causes.forEach((cause, i) => {
      if (!used[i]) return;
      g.beginPath();
      const points = [];
      for (let s = first; s < at.length && at[s] <= view.to; s++) {
        const end = s + 1 < at.length ? at[s + 1] : axes[view.axis].end;
        const low = base[s];
        const high = low + (counts[s][order[i]] ?? 0);
        base[s] = high;
        points.push([x(at[s]), x(end), y(low), y(high)]);
      }
      for (const [from, to, , high] of points) { g.lineTo(from, high); g.lineTo(to, high); }
      for (const [from, to, low] of points.reverse()) { g.lineTo(to, low); g.lineTo(from, low); }
      g.closePath();
      g.fillStyle = colours[cause.colour];
      g.fill();
      // A gap between layers, so that they are told apart without their colours.
      g.strokeStyle = colours.surface;
      g.lineWidth = 0.75;
      g.stroke();
    });
    g.restore();
    g.strokeStyle = colours.strong;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(left, bottom + 0.5);
    g.lineTo(right, bottom + 0.5);
    g.stroke();
    drawRange(g, left, right, top, bottom);
    drawPointer(g, left, right, top, bottom);
    const peak = highest(samples());
    canvas.setAttribute("aria-label", `Waiting Runs by cause: at most ${count(peak)} at once, ${count(total(rowAt(axes[view.axis].end)))} at the end.`);
  });
  return panel;
}

/** Whether Runs of any side wait for it on the axis of now. */
function usedAnywhere(name) {
  return data.sides.some(side => {
    const index = side.causes.findIndex(cause => causeName(cause) === name);
    return index >= 0 && axes[view.axis].waiting(side).counts.some(row => row[index] > 0);
  });
}

function highest(samples) {
  return (samples.highest ??= samples.counts.reduce((most, row) => Math.max(most, row.reduce((sum, n) => sum + n, 0)), 0));
}
