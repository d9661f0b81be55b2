// The first page: what was compared, how accurate each condition is, whether certificates held, what it cost.

const BASELINES = ["hidden_pre", "hidden_post", "full_info"];

function overviewView({ data, run, runIndex }) {
  const tables = run.tables;
  return el("div.overview", {},
    el("h1", {}, run.name),
    run.unfinished && unfinishedNote(run),
    factsOf(run),
    accuracySection(run, runIndex),
    contrastSection(tables),
    gateSection(tables),
    coverageSection(tables),
    regretSection(tables),
    learningSection(run),
    learnerSection(tables),
    costSection(tables),
    baselineSection(tables),
    failureSection(tables),
    provenanceSection(run, data));
}

function unfinishedNote(run) {
  return el("div.failure", { role: "alert" },
    el("strong", {}, run.unfinished), run.traceback && el("pre", {}, run.traceback));
}

function factsOf(run) {
  const { episodes } = run;
  const seeds = new Set(episodes.seed).size;
  const facts = [
    [count(episodes.tasks.length), "test tasks"],
    [count(episodes.condition.length), "discussions"],
    [count(episodes.conditions.length), "conditions"],
    [count(seeds), seeds === 1 ? "seed" : "seeds"],
  ];
  return el("ul.facts", {}, facts.map(([value, name]) => el("li", {}, el("b", {}, value), " ", name)));
}

function accuracySection(run, runIndex) {
  const rows = records(run.tables.accuracy);
  if (!rows.length) return section("Accuracy", "No discussion was evaluated.");
  const marks = records(run.tables.baselines);
  const reference = run.tables.paired.rows.length ? records(run.tables.paired)[0].reference : null;
  const differences = new Map(records(run.tables.paired)
    .filter((row) => row.metric === "task_accuracy").map((row) => [row.condition, row]));
  const kind = (name) => BASELINES.includes(name) ? "baseline" : name.endsWith("+gate") ? "gate" : "plain";
  const list = rows.map((row) => el("a.condition", {
    href: link("episodes", { run: runIndex, condition: row.condition }),
    title: `${row.condition}: open its discussions`,
  },
  el("span.name", {}, row.condition),
  intervalTrack({ value: row.task_accuracy, low: row.task_accuracy_low, high: row.task_accuracy_high,
    kind: kind(row.condition), marks: marks.map((mark) => mark.task_accuracy) }),
  el("span.value", {}, num(row.task_accuracy, 2)),
  el("span.change", {}, changeText(differences.get(row.condition)))));
  const dotted = marks.map((mark) => `${mark.baseline.replaceAll("_", " ")} ${num(mark.task_accuracy, 2)}`).join(", ");
  return section("Accuracy by condition",
    "Share of discussions that end in the right decision, with 95% intervals clustered by task"
      + (reference ? `; at the right, the paired difference to ${reference}.` : "."),
    el("div.conditions", {}, list, axisRow()),
    el("p.muted", {}, `Dotted lines: ${dotted}.`),
    foldedTable("All metrics", run.tables.accuracy),
    foldedTable("As HiddenBench publishes it", run.tables.hiddenbench),
    foldedTable("By member of the group", run.tables.members),
    foldedTable("By seat", run.tables.seats),
    foldedTable(`Paired differences to ${reference}`, run.tables.paired));
}

function axisRow() {
  const labels = [0, 0.25, 0.5, 0.75, 1].map((x) => el("span", { style: { left: `${100 * x}%` } }, num(x, 2)));
  return el("div.condition.axis", { "aria-hidden": "true" }, el("span.name"), el("div.scale", {}, labels));
}

function changeText(row) {
  if (!row) return "";
  return `${signed(row.difference, 2)} [${num(row.difference_low, 2)}, ${num(row.difference_high, 2)}]`;
}

function contrastSection(tables) {
  if (!tables.contrasts.rows.length) return null;
  return section("Contrasts",
    "The comparisons this study was made for: task accuracy of a condition minus that of another, paired by task and "
      + "seed, p-values corrected for their number.",
    dataTable(tables.contrasts),
    foldedTable("How many tasks and seeds it takes", tables.power));
}

function gateSection(tables) {
  if (!tables.gates.rows.length) return null;
  return section("With and without the gate",
    "Each controller as it proposes, and behind its calibrated gate, on the same tasks and seeds.",
    dataTable(tables.gates));
}

function coverageSection(tables) {
  const certificates = records(tables.certificates);
  if (!certificates.length) return null;
  const missing = certificates.filter((row) => row.mode === "missing");
  const rows = records(tables.coverage).filter((row) => row.bound === "threshold" && row.n > 0);
  const names = [...new Set(rows.map((row) => row.condition))];
  const floor = Math.min(0.8, ...rows.flatMap((row) => [row.coverage ?? 1, row.band_low ?? 1])) - 0.04;
  const panels = names.map((name) => coveragePanel(name, rows.filter((row) => row.condition === name), certificates,
    Math.max(0, floor)));
  return section("Coverage by round",
    "Share of the task families reaching a round whose proposal stays within the threshold. Shaded: the exact 99.9% "
      + "band; dashed: 1 − α; crosses: coverage "
      + "with ties broken at random, where it differs. A certificate concerns the proposal: what is executed never exceeds the bound it was accepted at.",
    missing.map((row) => el("p.warning", {}, `${row.condition}: its certificate is missing; nothing is certified.`)),
    el("div.panels", {}, panels),
    foldedTable("Coverage, every round", tables.coverage, { rowClass: outsideClass(tables.coverage) }),
    foldedTable("Certificates: what they promise, and under which assumptions", tables.certificates));
}

function outsideClass(table) {
  const column = table.columns.indexOf("inside");
  return (row) => (row[column] === false ? "outside" : "");
}

function coveragePanel(name, rows, certificates, low) {
  const certificate = certificates.find((row) => row.condition === name);
  const outside = rows.filter((row) => row.inside === false).map((row) => row.round);
  const tested = rows.filter((row) => row.inside !== null).length;
  const verdict = outside.length
    ? el("span.bad", {}, `outside the band at round ${outside.join(", ")}`)
    : el("span.muted", {}, tested ? `inside the band at all ${plural(tested, "round")}` : "nothing is claimed by round");
  return el("figure.panel", {},
    el("figcaption", {}, el("b", {}, name), ` ${certificate.mode}, α = ${num(certificate.alpha, 2)} · `, verdict),
    coverageChart(rows, { width: 340, height: 200, label: `Coverage by round of ${name}`, low }),
    el("p.muted", {}, `vacuous in ${num(100 * (certificate.vacuous ?? 0), 0)}% of decisions`
      + simultaneous(certificate)));
}

function simultaneous(row) {
  if (typeof row.no_refusal !== "number") return "";
  return `; no proposal refused in ${row.no_refusal} of ${row.n} families (promised ${num(row.expected, 2)})`;
}

function regretSection(tables) {
  const rows = records(tables.regret_by_round);
  const names = [...new Set(rows.map((row) => row.condition))].filter((name) => !name.endsWith("+gate"));
  const all = names.map((name) => ({
    name,
    points: rows.filter((row) => row.condition === name).map((row) => ({
      round: row.round, value: row.mean_regret, low: row.mean_regret_low, high: row.mean_regret_high,
    })),
  }));
  const series = all.filter((one) => one.points.some((point) => point.value > 0));
  if (!series.length) return null;
  const zero = all.filter((one) => !series.includes(one)).map((one) => one.name);
  return section("Regret by round",
    "Mean one-step regret of the proposals: how much lower the objective of the best branch was. It is regret among "
      + "the branches drawn, not expected regret.",
    legend(series.map((one) => one.name)),
    lineChart(series, { width: chartWidth(900), height: 280, label: "Mean regret by round and controller" }),
    zero.length ? el("p.muted", {}, `Zero by construction: ${zero.join(", ")}.`) : null,
    foldedTable("Regret by round, all conditions", tables.regret_by_round));
}

function learningSection(run) {
  const series = Object.entries(run.curves).flatMap(([name, curve]) => [["training", "train_loss"],
    ["validation", "validation_loss"]].map(([kind, column]) => ({
    name: `${name}, ${kind}`, points: curve.map((point) => ({ round: point.epoch, value: point[column] })),
  })));
  if (!series.length) return null;
  return section("Learning curve", "Loss of the trained controllers by epoch.", legend(series.map((one) => one.name)),
    lineChart(series, { width: chartWidth(900), height: 240, label: "Loss by epoch", axis: "epoch" }));
}

function learnerSection(tables) {
  if (!tables.learners.rows.length) return null;
  return section("What was learned from what",
    "Means over the networks of a condition. Validation regret is one-step, on task families held out of training.",
    dataTable(tables.learners),
    tables.draws.rows.length ? el("p", {}, "Over draws of the training tasks:") : null,
    tables.draws.rows.length ? dataTable(tables.draws) : null);
}

function costSection(tables) {
  const rows = records(tables.accuracy);
  const tokens = tables.accuracy.columns.includes("committed_prompt_tokens");
  const parts = tokens
    ? [["committed_prompt_tokens", "committed prompt"], ["committed_completion_tokens", "committed completion"],
      ["counterfactual_prompt_tokens", "counterfactual prompt"], ["counterfactual_completion_tokens", "counterfactual completion"]]
    : [["words", "words spoken"], ["counterfactual_words", "words of branches not taken"]];
  const sum = (row) => parts.reduce((total, [column]) => total + (row[column] ?? 0), 0);
  const most = Math.max(...rows.map(sum));
  if (!rows.length || !most) return null;
  const bars = rows.filter((row) => sum(row) > 0).map((row) => el("div.condition", {},
    el("span.name", {}, row.condition),
    stackedBar(parts.map(([column, name], i) => ({ value: row[column] ?? 0, kind: `part-${tokens ? i : 2 * i}`,
      title: `${name}: ${tokens ? count(row[column]) : num(row[column], 1)}` })), most),
    el("span.value", {}, tokens ? count(sum(row)) : num(sum(row), 1)),
    el("span.change", {}, tokens ? `${num(row.accuracy_per_1k_committed_tokens)} accuracy per 1k` : "")));
  return section(tokens ? "Tokens per discussion" : "Words per discussion",
    tokens ? "Committed tokens are those of the discussion itself; counterfactual ones were spent on branches not taken."
      : "Synthetic agents use no tokens; words are in units of a full message.",
    el("ul.legend", {}, parts.map(([, name], i) => el("li", {}, el(`i.swatch.part-${tokens ? i : 2 * i}`), name))),
    el("div.conditions", {}, bars));
}

function baselineSection(tables) {
  if (!tables.positions.rows.length) return null;
  return section("Position baselines",
    "What always giving the first or the last option would score, and where votes fall: in the published order, and in the order each voter was shown (chance: without position bias).",
    dataTable(tables.baselines), foldedTable("Votes by position", tables.positions));
}

function failureSection(tables) {
  if (!tables.failures.rows.length) return null;
  return section("Failed discussions", "Counted as wrong and as not covered.", dataTable(tables.failures));
}

function provenanceSection(run) {
  const entries = Object.entries({ ...run.settings, ...run.provenance });
  if (!entries.length) return null;
  const text = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));
  return section("Provenance", "", el("details", {}, el("summary", {}, "What made this result"),
    el("dl.facts-list", {}, entries.map(([key, value]) => [el("dt", {}, key), el("dd", {}, text(value))]))));
}
