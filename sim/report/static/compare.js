// Runs side by side, and any two conditions on the same tasks and seeds: where they agree and where they differ.

const METRICS = ["task_accuracy", "vote_accuracy", "integration_gain", "gap_to_full", "rounds", "mean_regret",
  "mean_normalised_regret", "acceptance_rate", "accuracy_per_1k_committed_tokens"];
const ACROSS = {
  by_model: "Accuracy by model and condition",
  benchmarks: "Means over models, and models at or above full information",
  changes: "Every run against the first",
  all_contrasts: "Contrasts of every run",
  all_draws: "Draws of the training tasks, every run",
  all_efficiency: "What accuracy cost, every run",
};
const compareState = { metric: "task_accuracy", sides: null, outcome: "differ" };

function compareView({ data }) {
  const root = el("div.compare");
  const draw = () => root.replaceChildren(...compareParts(data, draw).filter(Boolean));
  draw();
  return root;
}

function compareParts(data, draw) {
  return [el("h1", {}, "Compare"), data.runs.length > 1 && cellSection(data), data.runs.length > 1 && metricSection(data, draw),
    pairSection(data, draw)];
}

function cellSection(data) {
  const cells = records(data.comparison.cells);
  const failed = cells.filter((cell) => cell.state !== "finished" && cell.traceback);
  return section("Runs", `${plural(cells.length, "run")}, ${failed.length} failed.`,
    dataTable(data.comparison.cells, { hide: ["traceback"] }),
    failed.map((cell) => el("details.failure", { open: failed.length === 1 },
      el("summary", {}, `${cell.run} failed: ${cell.error}`), el("pre", {}, cell.traceback))));
}

/** One table with a column per run. */
function metricSection(data, draw) {
  const tables = data.runs.map((run) => records(run.tables.accuracy));
  const conditions = [...new Set(tables.flatMap((rows) => rows.map((row) => row.condition)))];
  const columns = ["condition", ...data.runs.map((run) => run.name)];
  const rows = conditions.map((name) => [name, ...tables.map((table) => metricText(table, name))]);
  const offered = METRICS.filter((name) => tables.some((rows) => rows.some((row) => typeof row[name] === "number")));
  return section("One column per run", "",
    choice("Metric", offered.map((name) => [name, name.replaceAll("_", " ")]), compareState.metric, (metric) => {
      compareState.metric = metric;
      draw();
    }),
    dataTable({ columns, rows }),
    foldedTable("Summary over runs", data.comparison.summary),
    Object.entries(ACROSS).map(([name, title]) => foldedTable(title, data.comparison[name])));
}

/** A condition's value of the chosen metric in one run, with its interval where it has one. */
function metricText(rows, condition) {
  const row = rows.find((one) => one.condition === condition);
  const { metric } = compareState;
  if (typeof row?.[metric] !== "number") return "–";
  const [low, high] = [row[`${metric}_low`], row[`${metric}_high`]];
  return cellText(metric, row[metric]) + (typeof low === "number" ? ` [${num(low, 2)}, ${num(high, 2)}]` : "");
}

function pairSection(data, draw) {
  const all = data.runs.flatMap((run, i) => run.episodes.conditions.map((condition) => ({ run: i, condition })));
  if (all.length < 2) return null;
  compareState.sides ??= defaultSides(data, all);
  const names = all.map((side, i) => [String(i), (data.runs.length > 1 ? `${data.runs[side.run].name}: ` : "") + side.condition]);
  const pick = (place) => (value) => {
    compareState.sides[place] = Number(value);
    draw();
  };
  const [left, right] = compareState.sides.map((i) => all[i]);
  return section("Two conditions, discussion by discussion", "Paired by task and seed.",
    el("div.controls", {}, choice("A", names, String(compareState.sides[0]), pick(0)), choice("B", names, String(compareState.sides[1]), pick(1))),
    ...pairParts(data, left, right, draw));
}

/** The reference against the first controller; across runs, the same condition in the first two. */
function defaultSides(data, all) {
  const at = (run, condition) => all.findIndex((side) => side.run === run && side.condition === condition);
  const preferred = data.runs[0].episodes.conditions.find((name) => !BASELINES.includes(name)) ?? all[0].condition;
  if (data.runs.length > 1 && at(1, preferred) >= 0) return [at(0, preferred), at(1, preferred)];
  const reference = at(0, "hidden_post");
  return [Math.max(0, reference), Math.max(1, at(0, preferred))];
}

function pairParts(data, left, right, draw) {
  const [a, b] = [left, right].map((side) => keyedByTask(data.runs[side.run].episodes, side.condition));
  const pairs = [...a].filter(([key]) => b.has(key)).map(([key, episode]) => [episode, b.get(key)]);
  if (!pairs.length) return [el("p.warning", {}, "These two share no task and seed.")];
  const kinds = {
    differ: ["they differ", ([x, y]) => x.correct !== y.correct],
    onlyA: ["only A is right", ([x, y]) => x.correct && !y.correct],
    onlyB: ["only B is right", ([x, y]) => !x.correct && y.correct],
    both: ["both are right", ([x, y]) => x.correct && y.correct],
    neither: ["neither is right", ([x, y]) => !x.correct && !y.correct],
  };
  const tally = Object.entries(kinds).filter(([key]) => key !== "differ").map(([key, [text, test]]) =>
    el("button.tally-box", { type: "button", "aria-pressed": String(compareState.outcome === key), onclick: () => {
      compareState.outcome = compareState.outcome === key ? "differ" : key;
      draw();
    } }, el("b", {}, count(pairs.filter(test).length)), text));
  const [text, test] = kinds[compareState.outcome];
  const shown = pairs.filter(test);
  return [el("div.tally-boxes", {}, tally), el("p.count", { role: "status" }, `${plural(shown.length, "pair")} where ${text}; ${count(pairs.length)} pairs in all`),
    pairTable(shown.slice(0, 200), left, right), shown.length > 200 && el("p.muted", {}, "The first 200 are shown.")];
}

/** Episodes of a condition by task name in the records and seed, so that runs can be paired. */
function keyedByTask(episodes, condition) {
  return new Map([...episodesOf(episodes, condition).values()].map((one) => [`${one.task} ${one.seed}`, one]));
}

function pairTable(pairs, left, right) {
  const open = (side, episode) => el("a", { href: discussionLink(side.run, episode) }, outcomeMark(episode), ` ${plural(episode.rounds, "round")}`);
  return el("div.scroll", {}, el("table.list", {},
    el("thead", {}, el("tr", {}, ["task", "seed", "A", "B"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, pairs.map(([x, y]) => el("tr", {},
      el("td", {}, x.name), el("td.number", {}, String(x.seed)), el("td", {}, open(left, x)), el("td", {}, open(right, y)))))));
}
