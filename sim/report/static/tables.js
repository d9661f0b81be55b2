// Tables as HTML, and what their columns mean.

const MEANING = {
  n_tasks: "tasks evaluated",
  n_episodes: "discussions: tasks × seeds",
  failed: "discussions the engine gave up on; they count as wrong and as not covered",
  task_accuracy: "share of discussions whose plurality decision is correct; every task counts once",
  vote_accuracy: "share of the agents' final votes that are correct",
  rule: "average: share of correct votes; majority: more than half of the votes correct",
  pre: "before any discussion",
  post: "after uncontrolled discussion",
  full: "every clue known to everybody, no discussion",
  belief_accuracy: "share of last beliefs with the answer on top, ties split evenly",
  seat: "place at the table, from 1",
  member: "who plays the seat, by its name in seats.members",
  majority: "share of discussions in which more than half of the agents vote for the answer",
  integration_gain: "task accuracy minus that of hidden_pre, over the same discussions",
  gap_to_full: "task accuracy of full_info minus this one",
  final_objective: "J at the end; not comparable between conditions that stop differently",
  mean_regret: "one-step regret of the proposals, among the branches that were drawn",
  mean_normalised_regret: "regret over the spread of the branches",
  mean_executed_regret: "one-step regret of what was executed",
  acceptance_rate: "share of proposals inside the admissible set",
  set_size: "interventions in the admissible set",
  branches_evaluated: "branches evaluated per discussion",
  malformed: "proposals that had to be mapped to an admissible one",
  accuracy_per_1k_committed_tokens: "task accuracy per 1,000 tokens of the discussion itself",
  p_holm: "p-value corrected for the number of conditions (Holm)",
  unpaired: "discussions without a partner in the reference condition",
  pairs_that_differ: "pairs in which one of the two decides rightly and the other does not",
  lengths_that_differ: "pairs of different numbers of rounds",
  no_gap: "whether the interval lies within ±0.03",
  test_tasks_seen: "tasks of the evaluation that a network was trained on",
  families: "task families trained on, those for early stopping among them",
  vacuous: "share of decisions whose bound is no smaller than the spread of the branches: it says nothing there",
  expected: "what the rank promises exactly: k/(n+1)",
  coverage_tied: "coverage with ties broken at random, as the two-sided test needs it",
  claim: "how the row is tested: two-sided, from below, or not at all",
  bound: "threshold: the calibrated q; bound: max(acceptance, q), stated for a proposal",
  inside: "whether the count lies within the exact 99.9% band",
  no_refusal: "test families in which no proposal exceeded its threshold",
};
const WHOLE = /^(n|n_.*|pairs_that_differ|lengths_that_differ|families|decisions|branches|networks|draws|round|rounds|rounds_gate|messages|words|.*_words|k|covered|failed|malformed|unpaired|seed|seat|certified_rounds|calibration_families|no_refusal|runs|branches_evaluated|.*tokens)$/;
const SIGNED = /^(difference.*|change|.*_difference|integration_gain|gap_to_full)$/;

function cellText(column, value) {
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value === "string" && value !== "inf" && value !== "-inf") return value;
  if (typeof value === "number" && WHOLE.test(column) && !column.startsWith("accuracy"))
    return Number.isInteger(value) ? count(value) : num(value, 1);
  return SIGNED.test(column) ? signed(value) : num(value);
}

/** What a cell shows; an estimate takes its interval with it. */
function cellWithInterval(table, row, name, i) {
  const [low, high] = ["low", "high"].map((end) => table.columns.indexOf(`${name}_${end}`));
  const text = cellText(name, row[i]);
  if (low < 0 || row[low] === null) return text;
  return [text, el("span.span", {}, ` [${num(row[low], 2)}, ${num(row[high], 2)}]`)];
}

/** A table inside a box that scrolls sideways. Columns that hold nothing are left out. */
function dataTable(table, { hide = [], rowClass = () => "" } = {}) {
  const shown = table.columns
    .map((name, i) => [name, i])
    .filter(([name]) => !hide.includes(name))
    .filter(([name]) => !(/_(low|high)$/.test(name) && table.columns.includes(name.replace(/_(low|high)$/, ""))))
    .filter(([, i]) => table.rows.some((row) => row[i] !== null && row[i] !== ""));
  const text = (i) => table.rows.some((row) => typeof row[i] === "string" && !/^-?inf$/.test(row[i]));
  const head = shown.map(([name, i]) =>
    el(text(i) ? "th" : "th.number", { scope: "col", title: MEANING[name] ?? "" }, name.replaceAll("_", " ")));
  const body = table.rows.map((row) => el("tr", { class: rowClass(row) || null }, shown.map(([name, i], place) =>
    el(`${place ? "td" : "th"}${text(i) ? "" : ".number"}`, place ? {} : { scope: "row" }, cellWithInterval(table, row, name, i)))));
  return el("div.scroll", { tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

/** A table that opens on demand. */
function foldedTable(title, table, options) {
  if (!table?.rows.length) return null;
  return el("details", {}, el("summary", {}, title), dataTable(table, options));
}
