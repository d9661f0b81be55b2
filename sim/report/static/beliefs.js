// Beliefs as stacked bars: every agent's over the whole discussion, and all agents' at one round.

/** Option swatches; the answer is marked. */
function optionLegend(options, answer) {
  return el("ul.legend.options", {}, options.map((text, i) => el("li", {},
    el("i.swatch", { style: { background: optionColour(i) } }), text,
    i === answer && el("b.answer", { title: "the correct option" }, " ✓ answer"))));
}

function beliefTitle(who, belief, options) {
  return `${who}: ${belief.map((p, k) => `${options[k]} ${num(p / 1000, 2)}`).join(", ")}`;
}

/** One belief as a vertical stack. */
function beliefColumn(belief, title, attributes) {
  return el("button.belief-column", { type: "button", title, ...attributes },
    belief.map((p, k) => el("i", { style: { height: `${p / 10}%`, background: optionColour(k) } })));
}

/** One belief as a horizontal bar. */
function beliefBar(belief, title) {
  return el("div.belief-bar", { title, role: "img", "aria-label": title },
    belief.map((p, k) => el("i", { style: { width: `${p / 10}%`, background: optionColour(k) } })));
}

/** Every agent's beliefs from the opening on: a row per agent, a column per round, final votes last. */
function beliefHistory(discussion, goto) {
  const { options, moments, votes } = discussion;
  const known = moments.filter((moment) => moment.branch);
  if (!known.length) return el("p.muted", {}, "Beliefs were not recorded for this discussion.");
  const agents = known[0].branch.beliefs.length;
  const rows = Array.from({ length: agents }, (_, agent) => el("div.belief-row", {},
    el("span.agent", {}, agentName(agent)),
    el("div.belief-columns", {}, known.map((moment) => beliefColumn(
      moment.branch.beliefs[agent],
      beliefTitle(`${moment.round ? `Round ${moment.round}` : "Opening"}, ${agentName(agent)}`,
        moment.branch.beliefs[agent], options),
      { "data-round": moment.round, onclick: () => goto(moment.round) },
    ))),
    voteMark(votes[agent], options)));
  const numbers = el("div.belief-row.numbers", { "aria-hidden": "true" }, el("span.agent"),
    el("div.belief-columns", {}, known.map((moment) => el("span", {}, moment.round ? String(moment.round) : "0"))),
    el("span.vote", {}, "vote"));
  return el("div.belief-history", {}, rows, numbers);
}

function voteMark(vote, options) {
  if (vote === undefined) return el("span.vote");
  if (vote < 0) return el("span.vote", { title: "abstained" }, "–");
  return el("span.vote", { title: `final vote: ${options[vote]}` },
    el("i.swatch.big", { style: { background: optionColour(vote) } }));
}

/** All agents' beliefs after one message. */
function beliefStrip(branch, options) {
  const stale = new Set(branch.stale ?? []);
  return el("div.belief-strip", {}, branch.beliefs.map((belief, agent) => el("div", {},
    el("span.agent", { title: stale.has(agent) ? "no readable report: the last belief is repeated" : null },
      agentName(agent), stale.has(agent) ? " *" : ""),
    beliefBar(belief, beliefTitle(agentName(agent), belief, options)))));
}
