// The model: reads the data of the page into typed columns and answers questions about Runs, Pods and loads.

const data = JSON.parse(document.getElementById("data").textContent);
const text = index => (index < 0 ? "" : data.strings[index]);
const runCount = data.runs.name.length;
const nameOf = run => data.runs.name[run];
const namespaceOf = run => text(data.runs.namespace[run]);
const keyOf = run => `${namespaceOf(run)}/${nameOf(run)}`;
const keys = Array.from({ length: runCount }, (_, run) => keyOf(run).toLowerCase());
const podKey = pod => `${data.pods[pod].namespace}/${data.pods[pod].name}`;
const comparing = data.sides.length === 2;
/** The file without its folders, unless both are called the same. */
function shortLabel(side) {
  const short = data.sides.map(({ label }) => label.split("/").at(-1));
  return new Set(short).size < short.length ? side.label : short[data.sides.indexOf(side)];
}
const sideName = side => (comparing ? "AB"[side] : "");

const byName = new Intl.Collator("en", { numeric: true });
const numbers = new Intl.NumberFormat("en");
const count = n => numbers.format(n);
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
const percent = share => `${Math.round(share * 100)} %`;

/** 75000 becomes "1 min 15 s". */
function duration(ms) {
  if (ms < 1000) return ms === 0 ? "0 s" : `${Math.round(ms)} ms`;
  if (ms < 10000) return `${+(ms / 1000).toFixed(1)} s`;
  let rest = Math.round(ms / 1000);
  const parts = [];
  for (const [unit, seconds] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const n = Math.floor(rest / seconds);
    rest -= n * seconds;
    if (n > 0) parts.push(`${n} ${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

const clockAt = ms => new Date(data.startMs + ms).toISOString().replace("T", " ").replace(/\.000Z$/, " UTC").replace("Z", " UTC");

/** What came of the last event needs some room. */
const withTail = last => last + Math.max(1, Math.round(last * 0.025));

/** What the axis can be: virtual time, or the order of decisions. Without --run-duration nothing ends, so time says little. */
const axes = {
  time: {
    end: withTail(Math.max(...data.sides.map(side => side.elapsedMs), 1)),
    start: (side, run) => (side.runs.held[run] ? 0 : side.runs.placedMs[run]),
    stop: (side, run) => side.runs.endedMs[run],
    waiting: side => side.waitingByTime,
    format: duration,
    long: ms => `${duration(ms)} after the start`,
    useful: data.sides.some(side => side.runs.placedMs.some(ms => ms > 0) || side.runs.endedMs.some(ms => ms > 0)),
  },
  step: {
    end: withTail(Math.max(...data.sides.map(side => side.steps), 1)),
    start: (side, run) => (side.runs.held[run] ? 0 : side.runs.placedStep[run] - 1),
    stop: (side, run) => side.runs.endedStep[run],
    waiting: side => side.waitingByStep,
    format: step => count(Math.round(step)),
    long: step => `after ${plural(Math.floor(step), "decision")}`,
    useful: true,
  },
};

const requestsOf = run => (data.runs.requests[run] < 0 ? [] : data.requests[data.runs.requests[run]]);
const slotsOf = run => Math.max(1, Math.min(SLOTS_MAX, requestsOf(run).find(([resource]) => resource === "runs")?.[1] ?? 1));
const SLOTS_MAX = 64;

/** Puts the Runs of each Pod onto tracks, one per slot they hold, so that none overlap. */
function pack(side) {
  const { pod, held } = side.runs;
  const onPod = data.pods.map(() => []);
  for (let run = 0; run < runCount; run++) if (pod[run] >= 0) onPod[pod[run]].push(run);
  const track = new Int32Array(runCount);
  // Neighbours on a track differ in shade.
  const shade = new Uint8Array(runCount);
  const tracks = onPod.map(runs => {
    runs.sort((a, b) => axes.step.start(side, a) - axes.step.start(side, b) || held[b] - held[a] || a - b);
    const freeAt = [];
    const passed = [];
    for (const run of runs) {
      const start = axes.step.start(side, run);
      const stop = axes.step.stop(side, run);
      const want = slotsOf(run);
      let first = 0;
      for (let i = 0; i < want; i++) if ((freeAt[first + i] ?? -1) > start) { first += i + 1; i = -1; }
      for (let i = 0; i < want; i++) freeAt[first + i] = stop < 0 ? Infinity : stop;
      track[run] = first;
      shade[run] = passed[first] = (passed[first] ?? 1) ^ 1;
    }
    return freeAt.length;
  });
  return { onPod, track, tracks, shade };
}
for (const side of data.sides) Object.assign(side, pack(side));

/** How full a Pod is from each moment on: [x, share of its fullest resource, Runs]. */
function loadOf(side, pod, axis) {
  const cache = (side.loads ??= { time: [], step: [] })[axis];
  if (cache[pod]) return cache[pod];
  const events = [];
  for (const run of side.onPod[pod]) {
    const stop = axes[axis].stop(side, run);
    events.push([axes[axis].start(side, run), run, 1]);
    if (stop >= 0) events.push([stop, run, -1]);
  }
  // At one moment ends come first.
  events.sort((a, b) => a[0] - b[0] || a[2] - b[2]);
  const capacity = data.pods[pod].capacity;
  const used = {};
  const load = [[0, 0, 0]];
  let runs = 0;
  for (const [x, run, sign] of events) {
    runs += sign;
    for (const [resource, amount] of requestsOf(run)) used[resource] = (used[resource] ?? 0) + sign * amount;
    const share = Object.entries(used).reduce((most, [resource, n]) => Math.max(most, capacity[resource] > 0 ? n / capacity[resource] : n > 0 ? 1 : 0), 0);
    const last = load[load.length - 1];
    if (last[0] === x) [last[1], last[2]] = [share, runs];
    else load.push([x, share, runs]);
  }
  return (cache[pod] = load);
}

/** The last of `list` whose `at` is not after x. */
function lastBefore(length, at, x) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle) <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

const causeName = ({ plugin, code }) => {
  const words = code.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return plugin ? `${words} (${plugin})` : words;
};

const STATES = { placed: "Placed", waiting: "Waiting", failed: "Failed", cancelled: "Cancelled", untouched: "As it was" };
const CHANGES = { different: "Another Pod", onlyA: "Only under A", onlyB: "Only under B", same: "Same Pod", neither: "Neither", notTried: "Not tried" };
const changeOf = run => data.changes[run] ?? "";
const differs = run => comparing && ["different", "onlyA", "onlyB"].includes(data.changes[run]);

/** "placed", and "finished" once it ended there. */
function stateOf(side, run) {
  const state = side.runs.state[run];
  return state === "placed" && side.runs.endedMs[run] >= 0 ? "Finished" : state === "untouched" ? text(side.runs.phase[run]) || STATES[state] : STATES[state];
}

const weightOf = (side, run, plugin) => side.weights[text(data.runs.runtime[run])]?.[plugin] ?? 1;
const score = thousandths => numbers.format(Math.round(thousandths) / 1000);

/** Why a Run is where it is, in one line. */
function whyOf(side, run) {
  const [chosen] = side.runs.scores[run];
  if (side.runs.pod[run] >= 0 && chosen) {
    const parts = [];
    for (let i = 2; i < chosen.length; i += 2) {
      // Who adds nothing explains nothing.
      if (chosen[i + 1] === 0 && chosen[1] !== 0) continue;
      const plugin = side.plugins[chosen[i]];
      const weight = weightOf(side, run, plugin);
      parts.push(`${plugin} ${weight === 1 ? "" : `${count(weight)}×`}${score(chosen[i + 1])}`);
    }
    return parts.length ? `${score(chosen[1])} = ${parts.join(" + ")}` : "";
  }
  const message = text(side.runs.message[run]).replace("waiting for available runtime pods: ", "");
  const reason = text(side.runs.reason[run]);
  return message && reason ? `${reason}: ${message}` : message || (reason === "Assigned" ? "" : reason);
}

/** An element with properties and children; texts become text nodes, never markup. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.includes("-") || name === "role" || name === "scope" || name === "colspan") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return made;
}
