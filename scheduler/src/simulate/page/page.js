// The page as a whole: summary, controls, search, theme, printing; starts everything.

const by = id => document.getElementById(id);
const [NARROW, WIDE] = [128, 190];
const gutter = () => (window.innerWidth < 760 || (comparing && window.innerWidth < 1500) ? NARROW : WIDE);

// ---- summary -----------------------------------------------------------------------------------

const shareOf = (n, all) => (all > 0 ? `${percent(n / all)} of ${count(all)}` : "");
const refusedRuns = data.runs.runtime.filter(runtime => runtime < 0).length;

function tile(title, value, more) {
  const body = comparing
    ? element("div", { class: "pair" }, ...data.sides.flatMap((side, i) => [element("span", { class: "tag" }, sideName(i)), element("div", {}, element("div", { class: "value" }, value(side)), element("div", { class: "more" }, more(side)))]))
    : element("div", {}, element("div", { class: "value" }, value(A)), element("div", { class: "more" }, more(A)));
  return element("dl", { class: "tile" }, element("dt", {}, title), element("dd", {}, body));
}

function drawSummary() {
  const tried = side => side.summary.placed + side.summary.pending + side.summary.failed + side.summary.cancelled;
  const over = A.load.of === "overTime" ? "over time" : "at the end";
  by("summary").replaceChildren(
    tile("Runs placed", side => count(side.summary.placed), side => shareOf(side.summary.placed, tried(side))),
    tile("Still waiting", side => count(side.summary.pending), side => (side.summary.pending ? topCause(side) : "none")),
    tile("Median wait", side => duration(side.waited.p50), side => (side.summary.placed ? `99 % no longer than ${duration(side.waited.p99)}` : "none was placed")),
    tile(`Mean load ${over}`, side => `${side.load.mean} %`, side => (side.load.busiest ? `busiest ${side.load.busiest.load} %` : "no Pod")),
    tile("Imbalance of Pods", side => `${side.load.imbalance} pts`, side => `standard deviation, ${plural(side.load.pods, "Pod")}`),
    ...(data.sides.some(side => side.summary.failed + side.summary.cancelled + refusedRuns)
      ? [tile("Failed or cancelled", side => count(side.summary.failed + side.summary.cancelled + refusedRuns), () => (refusedRuns ? `${count(refusedRuns)} refused by the API` : ""))]
      : [tile("Decisions", side => count(side.steps), side => (side.steps ? `half within ${side.summary.decision.p50_us} µs` : ""))]),
  );
}

function topCause(side) {
  const waiting = new Map();
  side.runs.state.forEach((state, run) => {
    if (state === "waiting") waiting.set(side.runs.cause[run], (waiting.get(side.runs.cause[run]) ?? 0) + 1);
  });
  const [top] = [...waiting].sort((a, b) => b[1] - a[1]);
  return top ? causeName(side.causes[top[0]]) : "";
}

function drawAgreement() {
  if (!comparing) return;
  const { counts } = data;
  const parts = [["same", "bar", "on the same Pod"], ["different", "mark", "on another Pod"], ["onlyA", "only", "placed only under A"], ["onlyB", "c7", "placed only under B"], ["neither", "held", "placed by neither"], ["notTried", "strong", "not to be placed"]];
  const swatch = colour => {
    const box = element("span", { class: "swatch" });
    box.style.background = `var(--${colour})`;
    return box;
  };
  by("agreement").hidden = false;
  by("agreement-bar").replaceChildren(...parts.filter(([name]) => counts[name]).map(([name, colour, label]) => {
    const part = element("i", { title: `${count(counts[name])} ${label}` });
    part.style.cssText = `flex-grow: ${counts[name]}; background: var(--${colour})`;
    return part;
  }));
  by("agreement-legend").replaceChildren(...parts.filter(([name], i) => counts[name] || i < 4).map(([name, colour, label]) => element("li", {}, swatch(colour), element("b", {}, count(counts[name])), label)));
}

function drawTexts() {
  const what = [plural(runCount, "Run"), plural(data.pods.length, "Pod")];
  if (data.workspaces) what.push(plural(data.workspaces, "workspace"));
  what.push(comparing ? `A = ${shortLabel(A)}, B = ${shortLabel(B)}` : `configuration ${shortLabel(A)}`);
  by("subtitle").textContent = by("subtitle").title = what.join(" · ");
  document.title = `Berth simulation: ${what.slice(0, 2).join(", ")}`;
  const leftAlone = Object.entries(data.leftAlone).map(([kind, n]) => `${count(n)} ${kind}`).join(", ");
  const clock = `The clock started at ${data.start} (${data.why}) and went ${data.sides.map(side => duration(side.elapsedMs)).join(" under A, ")}${comparing ? " under B" : ""} of virtual time.`;
  by("footer").textContent = [clock, data.runDurationMs === null ? "" : `Placed Runs last ${duration(data.runDurationMs)}.`, leftAlone && `Left alone: ${leftAlone}.`, "Written by berth simulate --html."].filter(Boolean).join(" ");
}

// ---- controls ----------------------------------------------------------------------------------

function press(group) {
  for (const [id, pressed] of Object.entries(group)) by(id).setAttribute("aria-pressed", String(pressed));
}

function drawControls() {
  press({ "by-time": view.axis === "time", "by-step": view.axis === "step", "rows-load": view.rows === "load", "rows-runs": view.rows === "runs" });
  by("by-time").disabled = !axes.time.useful;
  const whole = view.from <= 0 && view.to >= axes[view.axis].end;
  for (const id of ["zoom-reset", "zoom-out", "pan-left", "pan-right"]) by(id).disabled = whole;
  by("axis-note").textContent = runCount === 0 ? "" : view.axis === "time"
    ? `Virtual time since the clock's start, ${clockAt(0)}.`
    : data.runDurationMs === null
      ? "Without --run-duration Runs never end, so this shows the order in which decisions were made, not time."
      : "Decisions in their order: each attempt to place a Run takes one step.";
}

function setRows(rows) {
  keepingPlace(() => {
    view.rows = rows;
    view.flipped.clear();
  });
  drawControls();
  changed();
}

const actions = {
  "by-time": () => setAxis("time"),
  "by-step": () => setAxis("step"),
  "rows-load": () => setRows("load"),
  "rows-runs": () => setRows("runs"),
  "zoom-in": () => zoomBy(0.5),
  "zoom-out": () => zoomBy(2),
  "pan-left": () => panBy(-0.4),
  "pan-right": () => panBy(0.4),
  "zoom-reset": () => zoomTo(0, axes[view.axis].end),
  previous: () => step(-1),
  next: () => step(1),
  theme: nextTheme,
};
for (const [id, act] of Object.entries(actions)) by(id).addEventListener("click", act);
by("sort").addEventListener("change", event => {
  view.sort = event.target.value;
  layOutRows();
  changed();
});

// ---- search ------------------------------------------------------------------------------------

/** Finds Runs by their own name and by that of their Pod. */
function search(query) {
  const wanted = query.trim().toLowerCase();
  const had = view.matches !== null;
  view.matches = null;
  if (wanted) {
    const pods = data.pods.map((_, pod) => podKey(pod).toLowerCase().includes(wanted));
    const runs = [];
    for (let run = 0; run < runCount; run++) if (keys[run].includes(wanted) || data.sides.some(side => pods[side.runs.pod[run]])) runs.push(run);
    view.matches = { runs, set: new Set(runs), pod: pods.indexOf(true), at: -1 };
  }
  tableScroll.scrollTop = 0;
  if (had || view.matches) listRuns();
  // Whoever is named in full is meant.
  const exact = view.matches?.runs.find(run => keys[run] === wanted || nameOf(run).toLowerCase() === wanted);
  if (exact !== undefined) {
    view.matches.at = view.matches.runs.indexOf(exact);
    reveal(exact);
  } else if (view.matches?.pod >= 0) revealRow(view.matches.pod);
  else if (view.matches?.runs.length) reveal(view.matches.runs[0]);
  tellFound();
  changed();
}

function tellFound() {
  const { matches } = view;
  by("previous").hidden = by("next").hidden = !matches || matches.runs.length === 0;
  by("found").textContent = !matches ? "" : matches.runs.length ? `${matches.at >= 0 ? `${count(matches.at + 1)} of ` : ""}${count(matches.runs.length)}` : matches.pod >= 0 ? "a Pod" : "none";
}

function step(by) {
  const { matches } = view;
  if (!matches?.runs.length) return;
  matches.at = matches.at < 0 ? (by > 0 ? 0 : matches.runs.length - 1) : (matches.at + by + matches.runs.length) % matches.runs.length;
  select(matches.runs[matches.at], { open: !comparing || window.innerWidth > 760 });
  tellFound();
}

let typing = 0;
by("search").addEventListener("input", event => {
  clearTimeout(typing);
  typing = setTimeout(() => search(event.target.value), 60);
});
by("search").addEventListener("keydown", event => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  step(event.shiftKey ? -1 : 1);
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") {
    if (!details.hidden) closeDetails();
    else if (by("search").value) {
      by("search").value = "";
      search("");
    }
  } else if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "")) {
    event.preventDefault();
    by("search").focus();
  }
});

// ---- theme and printing ------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
// A page from a file may have no storage.
try {
  theme = THEMES.find(known => known === localStorage.getItem("berth-theme")) ?? "auto";
} catch {}

function applyTheme() {
  document.documentElement.dataset.theme = view.printing ? "light" : theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  by("theme").textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[theme];
  by("theme").setAttribute("aria-label", `Colours: ${theme}; change`);
  readColours();
  changed();
}
function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try {
    localStorage.setItem("berth-theme", theme);
  } catch {}
  applyTheme();
}
dark.addEventListener("change", applyTheme);

for (const [event, printing] of [["beforeprint", true], ["afterprint", false]]) {
  window.addEventListener(event, () => {
    view.printing = printing;
    applyTheme();
    list.first = -1;
    drawTable();
    drawAll();
  });
}

// ---- start -------------------------------------------------------------------------------------

for (const bar of document.querySelectorAll("#timeline .group, #timeline .select, #timeline .hint")) bar.hidden = runCount + data.pods.length === 0;
by("filters").hidden = runCount === 0;
by("sides").classList.toggle("two", comparing);
by("sides").replaceChildren(...data.sides.map((side, i) => {
  const title = comparing ? element("h3", { class: "side-title", title: side.label }, element("span", { class: "tag" }, sideName(i)), shortLabel(side)) : "";
  return element("div", { class: "card side" }, title, waitingChart(side, gutter), laneChart(side, gutter));
}));
// Every Run at once where that is not too much to look at.
layOutRows();
setRows("runs");
if (bodyHeight() > 2400) setRows("load");
drawers.push(drawControls);
drawSummary();
drawAgreement();
drawTexts();
drawFilters();
applyTheme();
if (comparing && data.counts.different + data.counts.onlyA + data.counts.onlyB > 0) list.filter = "differ";
drawFilters();
listRuns();
drawAll();
new ResizeObserver(() => {
  changed();
  list.first = -1;
  drawTable();
}).observe(document.body);
document.documentElement.dataset.readyMs = Math.round(performance.now());
