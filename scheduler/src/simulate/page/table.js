// The table of Runs: every Run, filtered and sorted; only the rows in view are in the document.

const ROW = 34;
const PRINTED_MAX = 300;
const tableScroll = document.getElementById("table-scroll");
const [tableHead, tableBody] = [document.querySelector("#table thead"), document.querySelector("#table tbody")];

const list = { filter: "all", sort: null, down: false, rows: [], first: -1, last: -1 };
const [A, B] = data.sides;
const waited = (side, run) => (side.runs.placedMs[run] >= 0 ? side.runs.placedMs[run] : side.runs.state[run] === "waiting" ? Infinity : -1);
const waitedText = (side, run) => {
  const ms = waited(side, run);
  return ms === Infinity ? "still waits" : ms < 0 ? "" : duration(ms);
};
const podName = (side, run) => (side.runs.pod[run] < 0 ? "" : data.pods[side.runs.pod[run]].name);
const total = (side, run) => side.runs.scores[run][0]?.[1] ?? -1;
const state = (kind, label) => element("span", { class: `state ${kind}` }, label);
const link = run => element("button", { class: "link", type: "button", title: keyOf(run) }, element("span", { class: "ns" }, `${namespaceOf(run)}/`), nameOf(run));
const placeOf = (side, run) => podName(side, run) || state(side.runs.state[run], stateOf(side, run));

/** Title, width, what a cell shows, what it sorts by. */
const columns = comparing
  ? [
      { title: "Run", width: "20%", cell: link, by: run => run },
      { title: "Placement", width: "125px", cell: run => state(changeOf(run), CHANGES[changeOf(run)]), by: run => Object.keys(CHANGES).indexOf(changeOf(run)) },
      { title: "Under A", width: "14%", cell: run => placeOf(A, run), by: run => podName(A, run) || "~" },
      { title: "Waited", width: "92px", number: true, wide: true, cell: run => waitedText(A, run), by: run => waited(A, run) },
      { title: "Why under A", wide: true, why: true, cell: run => whyOf(A, run), by: run => whyOf(A, run) },
      { title: "Under B", width: "14%", cell: run => placeOf(B, run), by: run => podName(B, run) || "~" },
      { title: "Waited", width: "92px", number: true, wide: true, cell: run => waitedText(B, run), by: run => waited(B, run) },
      { title: "Why under B", wide: true, why: true, cell: run => whyOf(B, run), by: run => whyOf(B, run) },
    ]
  : [
      { title: "Run", width: "24%", cell: link, by: run => run },
      { title: "Result", width: "110px", cell: run => state(A.runs.state[run], stateOf(A, run)), by: run => stateOf(A, run) },
      { title: "Pod", width: "15%", cell: run => podName(A, run), by: run => podName(A, run) || "~" },
      { title: "Waited", width: "100px", number: true, cell: run => waitedText(A, run), by: run => waited(A, run) },
      { title: "Decision", width: "86px", number: true, wide: true, cell: run => (A.runs.placedStep[run] < 0 ? "" : count(A.runs.placedStep[run])), by: run => A.runs.placedStep[run] },
      { title: "Tries", width: "66px", number: true, wide: true, cell: run => count(A.runs.attempts[run]), by: run => A.runs.attempts[run] },
      { title: "Score or reason", why: true, wide: true, cell: run => whyOf(A, run), by: run => total(A, run) },
    ];

const FILTERS = comparing
  ? { all: ["All", () => true], differ: ["Differing", differs], same: ["Same", run => changeOf(run) === "same"], neither: ["Neither", run => changeOf(run) === "neither"] }
  : {
      all: ["All", () => true],
      placed: ["Placed", run => A.runs.placedMs[run] >= 0],
      waiting: ["Waiting", run => A.runs.state[run] === "waiting"],
      failed: ["Failed", run => ["failed", "cancelled"].includes(A.runs.state[run])],
    };

function drawHead() {
  const cells = columns.map((column, i) => {
    const sorted = list.sort === i ? (list.down ? "descending" : "ascending") : "none";
    const mark = { none: "", ascending: " ▴", descending: " ▾" }[sorted];
    const button = element("button", { type: "button" }, `${column.title}${mark}`);
    button.addEventListener("click", () => {
      // Up, down, as in the input.
      if (list.sort !== i) [list.sort, list.down] = [i, false];
      else if (!list.down) list.down = true;
      else list.sort = null;
      listRuns();
      tableHead.querySelectorAll("button")[i].focus();
    });
    const cell = element("th", { scope: "col", class: `${column.number ? "number" : ""} ${column.wide ? "wide" : ""}`, "aria-sort": sorted }, button);
    if (column.width) cell.style.width = column.width;
    return cell;
  });
  tableHead.replaceChildren(element("tr", {}, ...cells));
}

/** Chooses and orders the Runs that are listed. */
function listRuns() {
  const wanted = FILTERS[list.filter][1];
  const found = view.matches;
  list.rows = [];
  for (let run = 0; run < runCount; run++) if (wanted(run) && (!found || found.set.has(run))) list.rows.push(run);
  if (list.sort !== null) {
    const { by } = columns[list.sort];
    const keyed = list.rows.map(run => [by(run), run]);
    const compare = (a, b) => (typeof a === "number" ? (a < b ? -1 : a > b ? 1 : 0) : byName.compare(a, b));
    keyed.sort((a, b) => (list.down ? -1 : 1) * compare(a[0], b[0]) || a[1] - b[1]);
    list.rows = keyed.map(([, run]) => run);
  }
  document.getElementById("shown").textContent = list.rows.length === runCount ? plural(runCount, "Run") : `${count(list.rows.length)} of ${plural(runCount, "Run")}`;
  const empty = document.getElementById("table-empty");
  empty.hidden = list.rows.length > 0;
  tableScroll.hidden = list.rows.length === 0;
  empty.textContent = runCount === 0 ? "There is no Run in the input. Give `berth simulate` manifests or a dump with Runs, and this page shows where they go." : found ? "No Run has such a name or Pod here." : "No Run is like that.";
  drawHead();
  list.first = -1;
  drawTable();
}

function drawTable() {
  const room = Math.ceil(tableScroll.clientHeight / ROW) || 18;
  const first = view.printing ? 0 : Math.max(0, Math.floor(tableScroll.scrollTop / ROW) - 8);
  const last = Math.min(list.rows.length, view.printing ? PRINTED_MAX : first + room + 16);
  if (first === list.first && last === list.last) return;
  [list.first, list.last] = [first, last];
  const focused = document.activeElement?.closest?.("tr.row")?.dataset.run;
  const space = rows => {
    const cell = element("td", { colspan: columns.length });
    cell.style.height = `${rows * ROW}px`;
    return element("tr", { class: "space", "aria-hidden": "true" }, cell);
  };
  const rows = list.rows.slice(first, last).map((run, i) => {
    const cells = columns.map(column => {
      const shown = column.cell(run);
      const cell = element("td", { class: `${column.number ? "number" : ""} ${column.wide ? "wide" : ""} ${column.why ? "why" : ""}` }, shown);
      if (typeof shown === "string" && shown) cell.title = shown;
      return cell;
    });
    const row = element("tr", { class: run === view.selected ? "row selected" : "row", "aria-rowindex": first + i + 2 }, ...cells);
    row.dataset.run = run;
    return row;
  });
  const after = list.rows.length - last;
  tableBody.replaceChildren(...(first ? [space(first)] : []), ...rows, ...(after > 0 && !view.printing ? [space(after)] : []));
  if (view.printing && after > 0) tableBody.append(element("tr", {}, element("td", { colspan: columns.length }, `and ${plural(after, "more Run")}`)));
  document.getElementById("table").setAttribute("aria-rowcount", list.rows.length + 1);
  if (focused !== undefined) tableBody.querySelector(`[data-run="${focused}"] .link`)?.focus({ preventScroll: true });
}

/** Marks the selected Run and brings it into view. */
function markRow(run) {
  const at = list.rows.indexOf(run);
  if (at >= 0 && (at * ROW < tableScroll.scrollTop || (at + 2) * ROW > tableScroll.scrollTop + tableScroll.clientHeight)) tableScroll.scrollTop = Math.max(0, at * ROW - tableScroll.clientHeight / 2);
  list.first = -1;
  drawTable();
}

tableScroll.addEventListener("scroll", drawTable);
tableBody.addEventListener("click", event => {
  const row = event.target.closest("tr.row");
  if (row) select(Number(row.dataset.run));
});

function drawFilters() {
  const buttons = Object.entries(FILTERS).map(([name, [label, wanted]]) => {
    let n = 0;
    for (let run = 0; run < runCount; run++) n += wanted(run) ? 1 : 0;
    const button = element("button", { type: "button", "aria-pressed": String(list.filter === name) }, `${label} ${count(n)}`);
    button.addEventListener("click", () => {
      list.filter = name;
      tableScroll.scrollTop = 0;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      listRuns();
    });
    return button;
  });
  document.getElementById("filters").replaceChildren(...buttons);
}
