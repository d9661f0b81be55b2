// One discussion: transcript, interventions, beliefs, branches and clues, and the way to its neighbours.

const viewState = { branches: true, clues: false, round: 0 };

async function discussionView({ data, run, runIndex, parameters }) {
  const wanted = { condition: parameters.get("condition"), task: parameters.get("task"), seed: Number(parameters.get("seed")) };
  const content = await taskDocument(runIndex, run.episodes, wanted.task);
  const episode = content?.episodes.find((one) => one.condition === wanted.condition && one.seed === wanted.seed);
  if (!episode) return missingDiscussion(content, wanted);
  const discussion = assemble(content, episode, run, data.signals);
  const root = el("article.discussion");
  const goto = (round, scroll = true) => gotoRound(root, round, scroll);
  const draw = () => {
    root.replaceChildren(...discussionParts({ run, runIndex, wanted, content, episode, discussion, goto, draw }));
    goto(viewState.round, false);
  };
  viewState.round = Number(parameters.get("round") || 0);
  draw();
  root.dataset.ready = "true";
  root.shortcuts = {
    j: () => goto(Math.min(viewState.round + 1, discussion.moments.length - 1)),
    k: () => goto(Math.max(viewState.round - 1, 0)),
    b: () => flip("branches", draw),
    c: () => flip("clues", draw),
    n: () => openNeighbour(run, runIndex, wanted, 1),
    p: () => openNeighbour(run, runIndex, wanted, -1),
  };
  if (viewState.round) requestAnimationFrame(() => goto(viewState.round));
  return root;
}

function missingDiscussion(content, wanted) {
  const why = content === null
    ? "This page was too large to hold every discussion; build a report of fewer tasks to see it."
    : "There is no such discussion in this run.";
  return el("div", {}, el("h1", {}, `${wanted.condition}, ${wanted.task}`), el("p.warning", {}, why));
}

/** Everything the parts of the view need, gathered once. `moments` are the opening and each committed message. */
function assemble(content, episode, run, signals) {
  const branches = content.branches[String(episode.seed)] ?? {};
  const branchAt = (path) => branches[path] ?? null;
  const steps = episode.path ? episode.path.split("/") : [];
  const moments = [{ round: 0, branch: branchAt(run.openings[episode.condition] ?? "") }];
  steps.forEach((step, i) => {
    const path = steps.slice(0, i + 1).join("/");
    moments.push({ round: i + 1, step: parsedStep(step), branch: branchAt(path), decision: episode.decisions[i] ?? null });
  });
  return { task: content.task, options: content.task.options, episode, moments, votes: episode.votes, branchAt, signals };
}

function discussionParts(context) {
  const { discussion, goto } = context;
  return [
    discussionHead(context),
    el("div.columns", {},
      el("section.rounds", { "aria-label": "Transcript" },
        discussion.moments.map((moment) => roundCard(moment, discussion)), endingCard(discussion)),
      el("aside", {},
        el("section.side", {}, el("h2", {}, "Beliefs over time"),
          optionLegend(discussion.options, discussion.episode.answer), beliefHistory(discussion, goto)),
        viewState.clues && el("section.side", {}, el("h2", {}, "Private clues"), cluePanel(discussion, goto)))),
  ];
}

function discussionHead(context) {
  const { run, runIndex, wanted, content, episode, discussion, draw } = context;
  const { task } = discussion;
  const move = (change) => { location.hash = discussionLink(runIndex, { ...wanted, ...change }); };
  const conditions = content.episodes.filter((one) => one.seed === episode.seed)
    .map((one) => [one.condition, `${one.condition} ${outcomeSign(one)}`]);
  const seeds = [...new Set(content.episodes.map((one) => one.seed))].map((seed) => [String(seed), String(seed)]);
  return el("header.discussion-head", {},
    el("h1", {}, task.name),
    verdict(discussion),
    el("div.controls", {},
      choice("Condition", conditions, episode.condition, (condition) => move({ condition })),
      seeds.length > 1 && choice("Seed", seeds, String(episode.seed), (seed) => move({ seed })),
      el("button", { type: "button", title: "Keyboard: p", onclick: () => openNeighbour(run, runIndex, wanted, -1) }, "‹ previous"),
      el("button", { type: "button", title: "Keyboard: n", onclick: () => openNeighbour(run, runIndex, wanted, 1) }, "next ›"),
      toggle("Branches", "b", viewState.branches, () => flip("branches", draw)),
      toggle("Private clues", "c", viewState.clues, () => flip("clues", draw))),
    task.description && el("details.task-text", {}, el("summary", {}, "The task"),
      el("p", {}, task.description), el("ul", {}, task.shared.map((text) => el("li", {}, text)))));
}

function outcomeSign(episode) {
  return episode.ending === "failed" ? "(failed)" : episode.decision === episode.answer ? "✓" : "✗";
}

function verdict({ episode, options, moments }) {
  if (episode.ending === "failed")
    return el("p.verdict.wrong", {}, el("b", {}, "Failed"), ` in round ${moments.length}: ${episode.error}`);
  const right = episode.decision === episode.answer;
  const decided = episode.decision < 0 ? "nobody answered" : options[episode.decision];
  return el(`p.verdict.${right ? "right" : "wrong"}`, {},
    el("b", {}, right ? "✓ " : "✗ ", decided),
    right ? " is the right decision" : ` was decided; the answer is ${options[episode.answer]}`,
    el("span.muted", {}, ` · ${episode.ending.replaceAll("_", " ")} after ${plural(moments.length - 1, "round")}`));
}

function roundCard(moment, discussion) {
  const { round, branch, step, decision } = moment;
  if (!round) return openingCard(branch, discussion);
  return el("section.card", { "data-round": round, tabindex: -1, "aria-label": `Round ${round}` },
    el("header", {}, el("span.round-number", {}, String(round)), el("b.agent", {}, agentName(step.speaker)),
      actionChip(step.action), branch && messageNumbers(branch)),
    branch ? messageText(branch, "message") : el("p.message.silent", {}, `spoke under ${step.action.replaceAll("_", " ")} (not recorded)`),
    viewState.clues && surfacingNote(discussion, moment),
    branch && beliefStrip(branch, discussion.options),
    decision && gateLine(decision, discussion.episode.condition),
    decision && viewState.branches && decision.candidates.length > 1 && branchPanel(decision, discussion),
    decision && viewState.branches && signalLine(decision, discussion.signals));
}

function openingCard(branch, discussion) {
  return el("section.card.opening", { "data-round": 0, tabindex: -1, "aria-label": "Opening" },
    el("header", {}, el("span.round-number", {}, "0"), el("b", {}, "Before the discussion")),
    branch ? beliefStrip(branch, discussion.options) : el("p.muted", {}, "First beliefs were not recorded."));
}

function endingCard({ episode, options }) {
  if (episode.ending === "failed") return el("section.card.ending", {}, el("p.gate.replaced", {}, `The discussion failed: ${episode.error}`));
  const tally = options.map((_, k) => episode.votes.filter((vote) => vote === k).length);
  const abstained = episode.votes.filter((vote) => vote < 0).length;
  return el("section.card.ending", {}, el("header", {}, el("b", {}, "Final votes")),
    el("ul.tally", {}, options.map((text, k) => el("li", {},
      el("i.swatch", { style: { background: optionColour(k) } }), el("b", {}, String(tally[k])), " ", text,
      k === episode.decision && el("span.badge.executed", {}, "decision"), k === episode.answer && el("b.answer", {}, " ✓ answer"))),
    abstained ? el("li", {}, el("b", {}, String(abstained)), " abstained") : null),
    episode.final_objective !== null && el("p.muted", {}, `Objective at the end: ${num(episode.final_objective)}`));
}

function messageNumbers(branch) {
  const tokens = branch.tokens ? ` · ${count(branch.tokens[0])}+${count(branch.tokens[1])} tokens` : "";
  return el("span.numbers", { title: "share of the message that is new; largest share found in an earlier text" },
    `novelty ${num(branch.novelty, 2)} · overlap ${num(branch.overlap, 2)}${tokens}`);
}

/** The state before the decision, as the objective sees it. */
function signalLine(decision, names) {
  if (!decision.signals) return null;
  return el("ul.signals", {}, names.map((name, i) => el("li", { title: `${name.replaceAll("_", " ")} before this round` },
    el("span", {}, name.replaceAll("_", " ")), el("div.meter", {}, el("i", { style: { width: `${100 * decision.signals[i]}%` } })),
    el("span", {}, num(decision.signals[i], 2)))));
}

function flip(name, draw) {
  viewState[name] = !viewState[name];
  draw();
}

function gotoRound(root, round, scroll = true) {
  viewState.round = round;
  for (const node of root.querySelectorAll("[data-round]"))
    node.classList.toggle("current", Number(node.dataset.round) === round);
  if (!scroll) return;
  const card = root.querySelector(`.card[data-round="${round}"]`);
  card?.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  card?.focus({ preventScroll: true });
}

/** The discussion before or after this one in the list as last filtered and sorted. */
function openNeighbour(run, runIndex, wanted, step) {
  const list = shownEpisodes.length ? shownEpisodes : run.episodes.condition.map((_, i) => episodeAt(run.episodes, i));
  const here = list.findIndex((one) => one.condition === wanted.condition && one.task === wanted.task && one.seed === Number(wanted.seed));
  const next = list[(here + step + list.length) % list.length];
  location.hash = discussionLink(runIndex, next);
}
