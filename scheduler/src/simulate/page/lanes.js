// A row per Pod: its load over time, or every Run on it, one track per slot. Rows scroll natively; only what is visible is drawn.

const HEAD = 24;
const LOAD_ROW = 22;
const GROUP_ROW = 26;
const TRACK_MAX = 15;
const ROW_MAX = 150;
const LABELLED = 11;

/** The rows, the same on all sides so that they can scroll together: groups of Pods, and Pods. */
const lanes = {
  rows: [],
  top: new Float64Array(1),
  /** Tracks of each Pod: those in use on any side, or its slots if there are not many. */
  tracks: data.pods.map((pod, i) => Math.max(1, ...data.sides.map(side => side.tracks[i]), Math.min(pod.capacity.runs ?? 0, SLOTS_MAX))),
  scrollers: [],
};
const isOpen = pod => (view.rows === "runs") !== view.flipped.has(pod);
const trackHeight = pod => Math.min(TRACK_MAX, Math.max(2, (isFewPods ? ROW_MAX * 2 : ROW_MAX) / lanes.tracks[pod]));
const isFewPods = data.pods.length <= 6;
const rowHeight = row => (row.group ? GROUP_ROW : isOpen(row.pod) ? Math.max(LOAD_ROW, lanes.tracks[row.pod] * trackHeight(row.pod) + 7) : LOAD_ROW);
const bodyHeight = () => lanes.top[lanes.rows.length];

function layOutRows() {
  const groups = new Map();
  data.pods.forEach((pod, index) => {
    const group = `${pod.namespace} · ${pod.runtime}`;
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(index);
  });
  const mean = pod => meanLoad(data.sides[0], pod);
  const order = view.sort === "load" ? (a, b) => mean(b) - mean(a) || byName.compare(data.pods[a].name, data.pods[b].name) : (a, b) => byName.compare(data.pods[a].name, data.pods[b].name);
  lanes.rows = [];
  for (const [group, pods] of [...groups].sort(([a], [b]) => byName.compare(a, b))) {
    if (groups.size > 1) lanes.rows.push({ group, pods: pods.length });
    for (const pod of pods.sort(order)) lanes.rows.push({ pod });
  }
  lanes.top = new Float64Array(lanes.rows.length + 1);
  lanes.rows.forEach((row, i) => (lanes.top[i + 1] = lanes.top[i] + rowHeight(row)));
}

/** Mean share over the whole axis. */
function meanLoad(side, pod) {
  const { end } = axes[view.axis];
  const load = loadOf(side, pod, view.axis);
  return load.reduce((sum, [x, share], i) => sum + share * ((load[i + 1]?.[0] ?? end) - x), 0) / end;
}

/** Does what changes the rows, and keeps the first Pod in view where it is. */
function keepingPlace(change) {
  const [first] = lanes.scrollers;
  const top = first?.scroller.scrollTop ?? 0;
  const pod = top > 0 ? lanes.rows[lastBefore(lanes.rows.length, i => lanes.top[i], top)]?.pod : undefined;
  change();
  layOutRows();
  if (pod === undefined) return;
  first.resize();
  first.scroller.scrollTop = lanes.top[lanes.rows.findIndex(row => row.pod === pod)];
}

/** Where nothing is left at the end, the end says little of a Pod. */
const showsMean = () => view.at === null && A.load.of === "overTime";

/** Opens a Run's Pod and scrolls there. */
function reveal(run) {
  const side = data.sides.find(candidate => candidate.runs.pod[run] >= 0);
  if (!side) return;
  const pods = data.sides.map(each => each.runs.pod[run]).filter(pod => pod >= 0);
  for (const pod of pods) if (!isOpen(pod)) view.flipped.has(pod) ? view.flipped.delete(pod) : view.flipped.add(pod);
  layOutRows();
  revealRow(pods[0]);
  const axis = axes[view.axis];
  const start = axis.start(side, run);
  if (start < view.from || start > view.to) zoomTo(start - (view.to - view.from) / 3, start + ((view.to - view.from) * 2) / 3);
  changed();
}
function revealRow(pod) {
  const row = lanes.rows.findIndex(candidate => candidate.pod === pod);
  for (const { scroller, resize } of lanes.scrollers) {
    resize();
    const room = scroller.clientHeight - HEAD;
    if (lanes.top[row] < scroller.scrollTop || lanes.top[row + 1] > scroller.scrollTop + room) scroller.scrollTop = lanes.top[row] - Math.max(0, (room - rowHeight(lanes.rows[row])) / 2);
  }
}

/** The rows of one side. */
function laneChart(side, gutter) {
  const canvas = element("canvas", { role: "img" });
  const spacer = element("div");
  const scroller = element("div", { class: "lane-scroll", tabIndex: 0, role: "group", "aria-label": "Pods; arrow keys scroll and pan, plus and minus zoom. The table below has the same Runs." }, canvas, spacer);
  const legend = element("ul", { class: "legend" });
  const panel = element("div", { class: "panel lanes" }, element("div", { class: "panel-head" }, element("h3", {}, "Pods"), legend), scroller);
  const swatch = (colour, label) => {
    const box = element("span", { class: "swatch" });
    box.style.background = `var(--${colour})`;
    return element("li", {}, box, label);
  };
  if (data.pods.length === 0) {
    scroller.replaceWith(element("p", { class: "empty" }, "There is no Runtime Pod in the input: no Pod has a label runtime."));
    return panel;
  }
  const plot = () => ({ left: gutter(), right: canvas.clientWidth - 12 });
  let height = 0;
  const resize = () => {
    const room = Math.max(320, Math.min(Math.round(window.innerHeight * 0.66), 720));
    height = Math.min(HEAD + bodyHeight() + 6, view.printing ? 560 : room);
    scroller.style.height = `${height + 1}px`;
    canvas.style.height = `${height}px`;
    spacer.style.height = `${Math.max(0, HEAD + bodyHeight() + 6 - height)}px`;
  };
  lanes.scrollers.push({ scroller, resize });
  scroller.addEventListener("scroll", () => {
    for (const other of lanes.scrollers) if (other.scroller !== scroller && other.scroller.scrollTop !== scroller.scrollTop) other.scroller.scrollTop = scroller.scrollTop;
    changed();
  });

  const rowAtY = y => {
    if (y < HEAD) return -1;
    const at = y - HEAD + scroller.scrollTop;
    return at < bodyHeight() ? lastBefore(lanes.rows.length, i => lanes.top[i], at) : -1;
  };
  const runAt = (x, y) => {
    const index = rowAtY(y);
    const pod = lanes.rows[index]?.pod;
    const { left, right } = plot();
    if (pod === undefined || !isOpen(pod) || x < left || x > right) return null;
    const track = Math.floor((y - HEAD + scroller.scrollTop - lanes.top[index] - 3) / trackHeight(pod));
    const { x: toX, value } = scale(left, right);
    const at = value(x);
    // A Run is at least a pixel or two wide.
    const slack = Math.abs(value(left + 2) - value(left));
    let best = null;
    for (const run of side.onPod[pod]) {
      if (track < side.track[run] || track >= side.track[run] + slotsOf(run)) continue;
      const [from, to] = extent(side, run);
      if (at >= from && at < Math.max(to, from + slack)) best = run;
    }
    return best;
  };
  const podTip = (pod, x) => {
    const { left } = plot();
    const facts = data.pods[pod];
    const capacity = Object.entries(facts.capacity).map(([resource, n]) => `${count(n)} ${resource}`).join(", ");
    const lines = [podKey(pod), `runtime ${facts.runtime}${capacity ? `, capacity ${capacity}` : ""}`, facts.note];
    if (view.at !== null) {
      const load = loadOf(side, pod, view.axis);
      const [, share, runs] = load[lastBefore(load.length, i => load[i][0], view.at)];
      lines.push(`${plural(runs, "Run")}, ${percent(share)} full, ${axes[view.axis].long(view.at)}`);
    }
    if (x < left) lines.push(isOpen(pod) ? "click to close" : "click to see its Runs");
    return lines;
  };
  const hover = (x, y) => {
    view.hovered = runAt(x, y);
    const row = lanes.rows[rowAtY(y)];
    canvas.style.cursor = view.hovered !== null || (row && x < plot().left) ? "pointer" : "crosshair";
    if (view.hovered !== null) return runTip(side, view.hovered);
    return row?.pod === undefined ? null : podTip(row.pod, x);
  };
  listen(canvas, scroller, plot, hover, (x, y) => {
    const run = runAt(x, y);
    const pod = lanes.rows[rowAtY(y)]?.pod;
    if (run !== null) return select(run);
    if (pod === undefined || (x >= plot().left && isOpen(pod))) return;
    view.flipped.has(pod) ? view.flipped.delete(pod) : view.flipped.add(pod);
    layOutRows();
  });

  drawers.push(() => {
    legend.replaceChildren(...(view.rows === "load"
      ? [swatch("load", "load"), swatch("full", "full")]
      : [swatch("bar", "Run"), side.runs.held.includes(1) ? swatch("held", "was there before") : "", comparing ? swatch("mark", "on another Pod in the other") : "", comparing ? swatch(side === A ? "only" : "c7", "only here") : "", swatch("slot", "free slot")].filter(Boolean)));
    resize();
    const g = sharpen(canvas, canvas.clientWidth, height);
    const { left, right } = plot();
    const scrolled = scroller.scrollTop;
    drawAxis(g, left, right, HEAD - 4, height, HEAD / 2);
    g.textAlign = "right";
    g.fillText(showsMean() ? "mean load" : view.at === null ? "at the end" : "Runs", left - 8, HEAD / 2);
    g.save();
    g.beginPath();
    g.rect(0, HEAD, canvas.clientWidth, height - HEAD);
    g.clip();
    for (let i = Math.max(0, lastBefore(lanes.rows.length, n => lanes.top[n], scrolled)); i < lanes.rows.length && lanes.top[i] < scrolled + height; i++) {
      drawRow(g, side, lanes.rows[i], HEAD + lanes.top[i] - scrolled, rowHeight(lanes.rows[i]), left, right);
    }
    drawRange(g, left, right, HEAD, height);
    g.restore();
    drawPointer(g, left, right, HEAD, height);
    const placed = side.summary.placed;
    canvas.setAttribute("aria-label", `${plural(placed, "Run")} placed on ${plural(data.pods.length, "Pod")} over ${view.axis === "time" ? "time" : "decisions"}; mean load ${side.load.mean} %.`);
  });
  return panel;
}

/** From where to where a Run is on its Pod. */
function extent(side, run) {
  const axis = axes[view.axis];
  const stop = axis.stop(side, run);
  return [axis.start(side, run), stop < 0 ? axis.end : stop];
}

function runTip(side, run) {
  const { runs } = side;
  const lines = [keyOf(run)];
  if (runs.held[run]) lines.push("was on this Pod when the clock started");
  else lines.push(`placed ${axes.time.long(runs.placedMs[run])}, by decision ${count(runs.placedStep[run])}`);
  lines.push(runs.endedMs[run] >= 0 ? `ended ${axes.time.long(runs.endedMs[run])}` : "there until the end");
  if (!runs.held[run]) lines.push(whyOf(side, run) && `score ${whyOf(side, run)}`);
  if (differs(run)) lines.push(changeOf(run) === "different" ? `under ${sideName(1 - data.sides.indexOf(side))} on ${data.pods[data.sides[1 - data.sides.indexOf(side)].runs.pod[run]].name}` : CHANGES[changeOf(run)].toLowerCase());
  return lines;
}

function drawRow(g, side, row, y, rowH, left, right) {
  g.strokeStyle = colours.line;
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(0, Math.round(y + rowH) - 0.5);
  g.lineTo(right + 12, Math.round(y + rowH) - 0.5);
  g.stroke();
  g.textAlign = "left";
  if (row.group) {
    g.fillStyle = colours.sunk;
    g.fillRect(0, y, right + 12, rowH - 1);
    g.fillStyle = colours.muted;
    g.fillText(fit(g, `${row.group} — ${plural(row.pods, "Pod")}`, right - 20), 12, y + rowH / 2);
    return;
  }
  const { pod } = row;
  const facts = data.pods[pod];
  const open = isOpen(pod);
  const load = loadOf(side, pod, view.axis);
  const [, share, runs] = load[lastBefore(load.length, i => load[i][0], view.at ?? axes[view.axis].end)];
  const capacity = facts.capacity.runs;
  const state = showsMean() ? percent(meanLoad(side, pod)) : capacity === undefined ? count(runs) : `${count(runs)}/${count(capacity)}`;
  const middle = open ? y + Math.min(rowH / 2, 13) : y + rowH / 2;
  g.fillStyle = colours.muted;
  g.textAlign = "right";
  g.fillText(state, left - 8, middle);
  const room = left - 8 - g.measureText(state).width - 10 - 23;
  g.textAlign = "left";
  g.fillText(open ? "▾" : "▸", 9, middle);
  g.fillStyle = facts.note ? colours.muted : colours.text;
  g.fillText(fit(g, facts.name, room), 23, middle);
  if (facts.note && rowH > 36) {
    g.fillStyle = colours.muted;
    g.fillText(fit(g, facts.note, left - 32), 23, middle + 15);
  }
  g.save();
  g.beginPath();
  g.rect(left, y, right - left, rowH);
  g.clip();
  if (open) drawRuns(g, side, pod, y + 3, left, right);
  else drawLoad(g, side, load, share, y + 2, rowH - 4, left, right);
  g.restore();
}

function drawLoad(g, side, load, _, y, h, left, right) {
  const { x } = scale(left, right);
  for (let i = Math.max(0, lastBefore(load.length, n => load[n][0], view.from)); i < load.length && load[i][0] <= view.to; i++) {
    const [at, share] = load[i];
    if (share <= 0) continue;
    const end = load[i + 1]?.[0] ?? axes[view.axis].end;
    const high = Math.max(1.5, Math.min(share, 1) * h);
    g.fillStyle = share >= 0.999 ? colours.full : colours.load;
    const start = Math.round(x(at));
    g.fillRect(start, y + h - high, Math.max(1, Math.round(x(end)) - start), high);
  }
}

function drawRuns(g, side, pod, y, left, right) {
  const { x } = scale(left, right);
  const h = trackHeight(pod);
  const gap = h >= 4 ? 1 : h >= 3 ? 0.5 : 0;
  const slots = Math.min(data.pods[pod].capacity.runs ?? 0, SLOTS_MAX);
  g.fillStyle = colours.slot;
  if (h >= 4) for (let track = 0; track < slots; track++) g.fillRect(left, y + track * h, right - left, h - gap);
  else g.fillRect(left, y, right - left, slots * h);
  const { matches } = view;
  const strong = [];
  for (const run of side.onPod[pod]) {
    const [from, to] = extent(side, run);
    if (from > view.to || to < view.from) continue;
    const top = y + side.track[run] * h;
    const tall = slotsOf(run) * h - gap;
    const start = Math.max(x(from), left - 4);
    const width = Math.max(Math.min(x(to), right + 4) - start - (x(to) - x(from) > 3 ? 1 : 0), 1);
    const change = changeOf(run);
    g.globalAlpha = matches && !matches.set.has(run) ? 0.28 : 1;
    g.fillStyle = colours[matches?.set.has(run) ? "find" : side.runs.held[run] ? "held" : change === "different" ? "mark" : change === "onlyA" ? "only" : change === "onlyB" ? "c7" : side.shade[run] ? "bar-alt" : "bar"];
    g.fillRect(start, top, width, tall);
    if (tall >= LABELLED && width > 34 && g.globalAlpha === 1) {
      g.fillStyle = matches?.set.has(run) ? "#1a1a1a" : readable(g.fillStyle);
      g.textAlign = "left";
      g.fillText(fit(g, nameOf(run), width - 10), Math.max(start, left) + 5, top + tall / 2 + 1);
    }
    if (run === view.selected || run === view.hovered) strong.push([run, start, top, width, tall]);
  }
  g.globalAlpha = 1;
  for (const [run, start, top, width, tall] of strong) {
    const { placedMs } = side.runs;
    if (run === view.selected && view.axis === "time" && placedMs[run] > 0) {
      // How long it had waited.
      g.strokeStyle = colours.text;
      g.setLineDash([2, 3]);
      g.beginPath();
      g.moveTo(x(0), top + tall / 2);
      g.lineTo(start, top + tall / 2);
      g.stroke();
      g.setLineDash([]);
    }
    g.strokeStyle = colours.text;
    g.lineWidth = run === view.selected ? 2 : 1;
    g.strokeRect(start, top - 0.5, Math.max(width, 2), tall + 1);
    g.lineWidth = 1;
  }
}

/** Black or white, whichever is readable on a colour. */
function readable(colour) {
  const [r, g, b] = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16) / 255).map(c => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#10151c" : "#ffffff";
}
