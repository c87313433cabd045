// The horizontal axis that all charts share: what it shows, zoom and pan, ticks, colours, and the pointer on a chart.

/** What the charts show now; whoever changes it calls changed(). */
const view = {
  axis: data.runDurationMs !== null && axes.time.useful ? "time" : "step",
  from: 0,
  to: 1,
  rows: "load",
  sort: "name",
  /** Pods whose rows are not as `rows` says. */
  flipped: new Set(),
  /** Where the pointer is, in units of the axis. */
  at: null,
  hovered: null,
  selected: null,
  matches: null,
};
view.to = axes[view.axis].end;

const drawers = [];
let scheduled = false;
/** Draws everything in the next frame. */
function changed() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(drawAll);
}
function drawAll() {
  scheduled = false;
  for (const draw of drawers) draw();
}

/** Shows [from, to], kept within the axis and not narrower than a few units. */
function zoomTo(from, to) {
  const { end } = axes[view.axis];
  const narrowest = Math.min(end, view.axis === "time" ? Math.max(20, end / 20000) : 5);
  const width = Math.min(Math.max(to - from, narrowest), end);
  view.from = Math.min(Math.max(from, 0), end - width);
  view.to = view.from + width;
  changed();
}
const zoomBy = (factor, around = (view.from + view.to) / 2) => zoomTo(around - (around - view.from) * factor, around + (view.to - around) * factor);
const panBy = part => zoomTo(view.from + (view.to - view.from) * part, view.to + (view.to - view.from) * part);
function setAxis(axis) {
  view.axis = axis;
  view.at = null;
  zoomTo(0, axes[axis].end);
}

const TIME_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1.5e4, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];
/** Round values between from and to, about so many. */
function ticks(from, to, about) {
  const rough = (to - from) / Math.max(about, 1);
  let step = view.axis === "time" ? TIME_STEPS.find(candidate => candidate >= rough) : undefined;
  if (!step) {
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
    step = [1, 2, 5, 10].map(n => n * power).find(candidate => candidate >= rough);
    if (view.axis === "step") step = Math.max(1, step);
  }
  const list = [];
  for (let x = Math.ceil(from / step) * step; x <= to + step * 1e-9; x += step) list.push(x);
  return list;
}

let colours = {};
/** The tokens of the style sheet, for canvases. */
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["bg", "surface", "sunk", "text", "muted", "line", "strong", "accent", "bar", "bar-alt", "held", "load", "full", "slot", "mark", "only", "find", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
  colours = Object.fromEntries(names.map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
}
const FONT = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

/** Makes a canvas as sharp as the screen; answers its context and size in CSS pixels. */
function sharpen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = FONT;
  g.textBaseline = "middle";
  return g;
}

/** From units of the axis to pixels, between left and right. */
const scale = (left, right) => ({
  x: value => left + ((value - view.from) / (view.to - view.from)) * (right - left),
  value: x => view.from + ((x - left) / (right - left)) * (view.to - view.from),
});

/** Names the ticks and draws their lines. */
function drawAxis(g, left, right, top, bottom, labelY) {
  const { x } = scale(left, right);
  g.strokeStyle = colours.line;
  g.lineWidth = 1;
  g.textAlign = "center";
  let free = -Infinity;
  for (const tick of ticks(view.from, view.to, (right - left) / 80)) {
    const at = Math.round(x(tick)) + 0.5;
    g.beginPath();
    g.moveTo(at, top);
    g.lineTo(at, bottom);
    g.stroke();
    const label = axes[view.axis].format(tick);
    const half = g.measureText(label).width / 2;
    const centre = Math.min(Math.max(at, left + half), right - half);
    if (centre - half < free) continue;
    free = centre + half + 8;
    g.fillStyle = colours.muted;
    g.fillText(label, centre, labelY);
  }
}

/** The line under the pointer, in every chart. */
function drawPointer(g, left, right, top, bottom) {
  if (view.at === null || view.at < view.from || view.at > view.to) return;
  const at = Math.round(scale(left, right).x(view.at)) + 0.5;
  g.strokeStyle = colours.muted;
  g.setLineDash([3, 3]);
  g.beginPath();
  g.moveTo(at, top);
  g.lineTo(at, bottom);
  g.stroke();
  g.setLineDash([]);
}

/** Cuts a text with … so that it fits; names differ at their ends, so these stay. */
function fit(g, label, width) {
  if (g.measureText(label).width <= width) return label;
  let low = 0;
  let high = label.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(`…${label.slice(-middle)}`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `…${label.slice(-low)}` : "";
}

const tip = document.getElementById("tip");
/** Shows lines beside the pointer, the first one bold; nothing hides it. */
function showTip(event, lines) {
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.filter(Boolean).map((line, i) => element(i === 0 ? "b" : "i", {}, line)));
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 16 + width > window.innerWidth ? event.clientX - 14 - width : event.clientX + 16;
  const top = event.clientY + 18 + height > window.innerHeight ? event.clientY - 12 - height : event.clientY + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

/** Pointer, wheel and keys on a chart. `plot()` says where the axis is; `hover` tells the tip; `click` is a press without a drag. */
function listen(canvas, keyTarget, plot, hover, click) {
  let pressed = null;
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const value = x => {
    const { left, right } = plot();
    return scale(left, right).value(Math.min(Math.max(x, left), right));
  };
  canvas.addEventListener("pointermove", event => {
    const { x, y } = place(event);
    const { left, right } = plot();
    view.at = x < left || x > right ? null : value(x);
    if (pressed && Math.abs(x - pressed.x) > 4 && pressed.x >= left && event.pointerType === "mouse") {
      pressed.drag = true;
      view.range = [pressed.at, value(x)].sort((a, b) => a - b);
      showTip(event, [`${axes[view.axis].format(view.range[0])} to ${axes[view.axis].format(view.range[1])}`, "let go to zoom in"]);
    } else showTip(event, hover(x, y));
    changed();
  });
  canvas.addEventListener("pointerleave", event => {
    if (pressed) return;
    [view.at, view.hovered] = [null, null];
    showTip(event, null);
    changed();
  });
  canvas.addEventListener("pointerdown", event => {
    if (event.button !== 0) return;
    const { x, y } = place(event);
    pressed = { x, y, at: value(x), drag: false };
    if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
  });
  const release = event => {
    const was = pressed;
    const { range } = view;
    [pressed, view.range] = [null, null];
    if (!was || event.type === "pointercancel") return changed();
    if (was.drag && range && range[1] > range[0]) zoomTo(...range);
    else if (!was.drag) click?.(was.x, was.y);
    changed();
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("dblclick", event => {
    if (place(event).x >= plot().left) zoomTo(0, axes[view.axis].end);
  });
  canvas.addEventListener("wheel", event => {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (event.ctrlKey || event.metaKey) zoomBy(Math.exp(Math.min(Math.max(event.deltaY, -100), 100) * 0.004), value(place(event).x));
    else if (sideways) panBy(sideways / 900);
    else return;
    event.preventDefault();
  }, { passive: false });
  keyTarget.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { ArrowLeft: () => panBy(-0.15), ArrowRight: () => panBy(0.15), "+": () => zoomBy(0.7), "=": () => zoomBy(0.7), "-": () => zoomBy(1 / 0.7), 0: () => zoomTo(0, axes[view.axis].end) }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** The range that is being dragged. */
function drawRange(g, left, right, top, bottom) {
  if (!view.range) return;
  const { x } = scale(left, right);
  g.fillStyle = colours.accent;
  g.globalAlpha = 0.16;
  g.fillRect(x(view.range[0]), top, x(view.range[1]) - x(view.range[0]), bottom - top);
  g.globalAlpha = 1;
}
