// Who held which private clue and when it came into the open. Shown on request: no agent or controller sees this.

/** The first moment each agent's private clue was stated: a map from agent to {round, speaker}. */
function surfacings(moments) {
  const found = new Map();
  for (const { round, branch } of moments)
    for (const agent of branch?.mentions ?? []) if (!found.has(agent)) found.set(agent, { round, speaker: branch.speaker });
  return found;
}

function cluePanel(discussion, goto) {
  const { hidden, shared } = discussion.task;
  if (!hidden.length) return el("p.muted", {}, "tasks.json does not hold this task's clues.");
  const found = surfacings(discussion.moments);
  const inferred = discussion.moments.some((moment) => moment.round && moment.branch && !moment.branch.text);
  return el("div.clues", {},
    el("ol.clue-list", {}, hidden.map((text, agent) => el("li", {},
      el("b", {}, agentName(agent)), " ", surfacedBadge(found.get(agent), agent, goto), el("p", {}, text)))),
    inferred && el("p.muted", {}, "These agents leave no text: a new piece of evidence is taken to be the speaker's own clue."),
    el("details", {}, el("summary", {}, `Shared by all (${shared.length})`),
      el("ul", {}, shared.map((text) => el("li", {}, text)))));
}

function surfacedBadge(moment, agent, goto) {
  if (!moment) return el("span.badge.off", {}, "never surfaced");
  const by = moment.speaker === agent ? "" : `, by ${agentName(moment.speaker)}`;
  return el("button.badge.executed", { type: "button", onclick: () => goto(moment.round) }, `round ${moment.round}${by}`);
}

/** A line under a message that brings a clue into the open for the first time. */
function surfacingNote(discussion, moment) {
  const fresh = [...surfacings(discussion.moments)].filter(([, first]) => first.round === moment.round);
  if (!fresh.length || !discussion.task.hidden.length) return null;
  return el("div.surfaced", {}, fresh.map(([agent]) => el("p", {},
    el("b", {}, `${agentName(agent)}'s private clue surfaces: `), discussion.task.hidden[agent])));
}
