// The list of discussions: filter, sort, open. The order shown is the order the discussion page steps through.

const PAGE = 100;
const EPISODE_COLUMNS = [
  ["correct", "right", "whether the decision was right"],
  ["condition", "condition", ""],
  ["name", "task", ""],
  ["seed", "seed", "", "number"],
  ["rounds", "rounds", "rounds decided", "number"],
  ["replaced", "replaced", "proposals the gate replaced", "number"],
  ["regret", "mean regret", "of the proposals", "number"],
  ["words", "words", "words spoken", "number"],
  ["ending", "ending", "what ended the discussion"],
];
const listState = { filters: { text: "", condition: "", outcome: "", ending: "", replaced: false }, sort: ["", 1] };
let shownEpisodes = [];

function episodesView({ run, runIndex, parameters }) {
  const { episodes } = run;
  if (parameters.has("condition")) listState.filters.condition = parameters.get("condition");
  if (!episodes.conditions.includes(listState.filters.condition)) listState.filters.condition = "";
  const all = episodes.condition.map((_, i) => episodeAt(episodes, i));
  const counter = el("p.count", { role: "status" });
  const body = el("tbody");
  const more = el("p.muted", {});
  const head = el("thead");
  const draw = () => {
    shownEpisodes = sortedEpisodes(all.filter(passes));
    counter.textContent = `${count(shownEpisodes.length)} of ${plural(all.length, "discussion")}`;
    head.replaceChildren(headRow(draw));
    body.replaceChildren();
    appendRows(body, more, runIndex);
  };
  const watcher = new IntersectionObserver((seen) => {
    if (seen[0].isIntersecting) appendRows(body, more, runIndex);
  }, { rootMargin: "600px" });
  watcher.observe(more);
  draw();
  return el("div.episodes", {}, el("h1", {}, "Discussions"), filterBar(episodes, draw), counter,
    el("div.scroll", {}, el("table.list", {}, head, body)), more);
}

function passes(episode) {
  const { text, condition, outcome, ending, replaced } = listState.filters;
  const needle = text.trim().toLowerCase();
  const failed = episode.ending === "failed";
  return (!condition || episode.condition === condition)
    && (!ending || episode.ending === ending)
    && (!replaced || episode.replaced > 0)
    && (!outcome || outcome === (failed ? "failed" : episode.correct ? "right" : "wrong"))
    && (!needle || `${episode.name} ${episode.task} ${episode.condition}`.toLowerCase().includes(needle));
}

function sortedEpisodes(list) {
  const [column, direction] = listState.sort;
  if (!column) return list;
  const missing = (value) => value === null || value === undefined;
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  return [...list].sort((a, b) => {
    const [left, right] = [a[column], b[column]];
    if (missing(left) || missing(right)) return missing(left) - missing(right);
    return direction * order(left, right) || a.index - b.index;
  });
}

function headRow(draw) {
  const [sorted, direction] = listState.sort;
  return el("tr", {}, EPISODE_COLUMNS.map(([column, label, meaning, kind]) => el("th", {
    scope: "col",
    class: kind,
    "aria-sort": column === sorted ? (direction > 0 ? "ascending" : "descending") : null,
  }, el("button.sort", {
    type: "button",
    title: meaning || `Sort by ${label}`,
    onclick: () => {
      listState.sort = sorted !== column ? [column, 1] : direction > 0 ? [column, -1] : ["", 1];
      draw();
    },
  }, label, column === sorted ? (direction > 0 ? " ▲" : " ▼") : ""))));
}

function appendRows(body, more, runIndex) {
  const from = body.childElementCount;
  body.append(...shownEpisodes.slice(from, from + PAGE).map((episode) => episodeRow(episode, runIndex)));
  const left = shownEpisodes.length - body.childElementCount;
  more.textContent = left ? `${count(left)} more` : shownEpisodes.length ? "" : "No discussion passes these filters.";
}

function episodeRow(episode, runIndex) {
  const href = discussionLink(runIndex, episode);
  return el("tr", { onclick: (event) => { if (!event.target.closest("a")) location.hash = href; } },
    el("td", {}, outcomeMark(episode)),
    el("td.condition-name", {}, episode.condition),
    el("td", {}, el("a", { href }, episode.name)),
    el("td.number", {}, String(episode.seed)),
    el("td.number", {}, String(episode.rounds)),
    el("td.number", {}, episode.replaced ? String(episode.replaced) : "–"),
    el("td.number", {}, num(episode.regret)),
    el("td.number", {}, num(episode.words, 1)),
    el("td.muted", {}, episode.ending.replaceAll("_", " ")));
}

function outcomeMark(episode) {
  if (episode.ending === "failed") return el("span.outcome.failed", { title: "failed" }, "!");
  return episode.correct
    ? el("span.outcome.right", { title: "right decision" }, "✓") : el("span.outcome.wrong", { title: "wrong decision" }, "✗");
}

function filterBar(episodes, draw) {
  const { filters } = listState;
  const set = (name) => (value) => {
    filters[name] = value;
    draw();
  };
  const named = (names, all) => [["", all], ...names.map((name) => [name, name.replaceAll("_", " ")])];
  const conditions = [["", "all conditions"], ...episodes.conditions.map((name) => [name, name])];
  const endings = [...new Set(episodes.ending)].sort();
  return el("form.filters", { role: "search", onsubmit: (event) => event.preventDefault() },
    el("label.choice", {}, el("span", {}, "Search"), el("input", {
      type: "search", id: "search", placeholder: "task or condition  ( / )", value: filters.text,
      oninput: (event) => set("text")(event.target.value),
    })),
    choice("Condition", conditions, filters.condition, set("condition")),
    choice("Outcome", named(["right", "wrong", "failed"], "any outcome"), filters.outcome, set("outcome")),
    choice("Ending", named(endings, "any ending"), filters.ending, set("ending")),
    el("label.check", {}, el("input", {
      type: "checkbox", checked: filters.replaced, onchange: (event) => set("replaced")(event.target.checked),
    }), "with replaced proposals"));
}
