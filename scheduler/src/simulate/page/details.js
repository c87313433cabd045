// Everything about one Run: what became of it on each side, and why.

const details = document.getElementById("details");
let opener = null;

/** Selects a Run everywhere and shows its details. */
function select(run, { open = true } = {}) {
  view.selected = run;
  markRow(run);
  reveal(run);
  if (open) showDetails(run);
  else if (!details.hidden) showDetails(run);
  changed();
}

function showDetails(run) {
  if (details.hidden) opener = document.activeElement;
  const close = element("button", { class: "close", type: "button", "aria-label": "Close the details" }, "✕");
  close.addEventListener("click", closeDetails);
  const requests = requestsOf(run).map(([resource, amount]) => `${count(amount)} ${resource}`).join(", ");
  const parts = [
    element("div", { class: "head" }, element("h2", {}, nameOf(run)), close),
    facts([["Namespace", namespaceOf(run)], ["Runtime", text(data.runs.runtime[run])], ["Requests", requests], comparing && ["Placement", state(changeOf(run), CHANGES[changeOf(run)])]]),
    ...data.sides.map(side => underSide(side, run)),
  ];
  details.replaceChildren(...parts);
  details.hidden = false;
  document.body.classList.add("docked");
}

function closeDetails() {
  if (details.hidden) return;
  details.hidden = true;
  document.body.classList.remove("docked");
  view.selected = null;
  list.first = -1;
  drawTable();
  changed();
  opener?.focus?.({ preventScroll: true });
}

function facts(rows) {
  const made = element("dl");
  for (const row of rows) if (row && row[1]) made.append(element("dt", {}, row[0]), element("dd", {}, row[1]));
  return made;
}

function underSide(side, run) {
  const { runs } = side;
  const moment = (ms, step) => (ms < 0 ? "" : `${duration(ms)} after the start (${clockAt(ms)})${step >= 0 ? `, by decision ${count(step)}` : ""}`);
  const cause = side.causes[runs.cause[run]];
  const hadToWait = runs.attempts[run] > 1 || runs.state[run] === "waiting";
  const made = element("section", { class: "under" });
  if (comparing) made.append(element("h3", {}, element("span", { class: "tag" }, sideName(data.sides.indexOf(side))), side.label));
  made.append(facts([
    ["Result", state(runs.state[run], stateOf(side, run))],
    ["Pod", podName(side, run)],
    ["Placed", runs.held[run] ? "before the clock started" : moment(runs.placedMs[run], runs.placedStep[run])],
    ["Ended", moment(runs.endedMs[run], -1)],
    ["Waited", waitedText(side, run)],
    ["Waited for", hadToWait && cause && cause.code !== "NotTriedYet" ? causeName(cause) : ""],
    ["Attempts", runs.attempts[run] ? count(runs.attempts[run]) : ""],
  ]));
  const [reason, message] = [text(runs.reason[run]), text(runs.message[run])];
  if (message) made.append(element("p", { class: "message" }, reason ? `${reason}: ${message}` : message));
  if (runs.scores[run].length) made.append(scoreTable(side, run));
  if (runs.rejections[run].length) made.append(rejectionTable(side, run));
  return made;
}

function scoreTable(side, run) {
  const rows = side.runs.scores[run];
  const plugins = [...new Set(rows.flatMap(row => row.slice(2).filter((_, i) => i % 2 === 0)))];
  const heads = plugins.map(plugin => {
    const weight = weightOf(side, run, side.plugins[plugin]);
    return element("th", { scope: "col", class: "number" }, `${side.plugins[plugin]}${weight === 1 ? "" : ` ×${count(weight)}`}`);
  });
  const head = element("tr", {}, element("th", { scope: "col" }, rows.length > 1 ? "Best Pods" : "Pod"), ...heads, element("th", { scope: "col", class: "number" }, "Score"));
  const body = rows.map((row, i) => {
    const of = plugin => {
      for (let at = 2; at < row.length; at += 2) if (row[at] === plugin) return score(row[at + 1]);
      return "";
    };
    return element("tr", { class: i === 0 ? "chosen" : "" }, element("td", {}, data.pods[row[0]].name), ...plugins.map(plugin => element("td", { class: "number" }, of(plugin))), element("td", { class: "number" }, score(row[1])));
  });
  return element("table", { class: "scores" }, element("thead", {}, head), element("tbody", {}, ...body));
}

function rejectionTable(side, run) {
  const head = element("tr", {}, element("th", { scope: "col" }, "Plugin"), element("th", { scope: "col" }, "Reason"), element("th", { scope: "col", class: "number" }, "Pods"));
  const body = side.runs.rejections[run].map(([plugin, reason, pods]) => element("tr", {}, element("td", {}, text(plugin)), element("td", {}, text(reason)), element("td", { class: "number" }, count(pods))));
  return element("table", { class: "scores" }, element("thead", {}, head), element("tbody", {}, ...body));
}
