// What could have been done at a round: every evaluated branch, the threshold, and why one was executed.

/** Why the gate did what it did, in a sentence. */
function gateSentence(decision, condition) {
  const { proposal, executed, threshold, regrets } = decision;
  const name = (column) => parsedStep(decision.candidates[column]).action.replaceAll("_", " ");
  const mapped = decision.malformed ? "The proposal was malformed and was mapped by rule. " : "";
  const regret = regrets[proposal];
  if (decision.candidates.length === 1) return [`${mapped}Only this branch was evaluated.`, "open"];
  if (!condition.endsWith("+gate") && threshold === null) return [`${mapped}No gate: the proposal is executed.`, "open"];
  if (threshold === null)
    return [`${mapped}Accepted without a certificate: too few calibration families reached this round.`, "open"];
  const against = `regret ${num(regret)} ${regret <= threshold ? "≤" : ">"} threshold ${num(threshold)}`;
  if (executed !== proposal)
    return [`${mapped}${name(proposal)} was replaced by ${name(executed)}, the branch of lowest objective: ${against}.`, "replaced"];
  if (!decision.admissible[proposal]) return [`${mapped}Flagged but executed: ${against}.`, "replaced"];
  return [`${mapped}Accepted: ${against}${decision.certified ? "" : ", not certified"}.`, "accepted"];
}

function gateLine(decision, condition) {
  const [sentence, kind] = gateSentence(decision, condition);
  return el(`p.gate.${kind}`, {}, sentence);
}

/** Every branch of a decision, lowest objective first, on one scale of regret with the threshold. */
function branchPanel(decision, discussion) {
  const order = decision.candidates.map((_, column) => column)
    .sort((a, b) => (decision.objectives[a] ?? 9) - (decision.objectives[b] ?? 9) || a - b);
  const regrets = decision.regrets.filter((value) => value !== null);
  const finite = decision.threshold !== null;
  const most = Math.max(...regrets, finite ? Math.min(decision.threshold, 2 * Math.max(...regrets, 0.05)) : 0, 0.01) * 1.08;
  return el("div.branches", {},
    el("p.branches-head", {}, `Objective before: ${num(decision.objective)}. `,
      finite ? `The admissible set holds ${decision.admissible.filter(Boolean).length} of ${regrets.length}.` : ""),
    order.map((column) => branchRow(decision, column, most, discussion)));
}

function branchRow(decision, column, most, discussion) {
  const step = parsedStep(decision.candidates[column]);
  const branch = discussion.branchAt(joined(decision.path, decision.candidates[column]));
  const regret = decision.regrets[column];
  const badges = [
    column === decision.executed && el("span.badge.executed", {}, "executed"),
    column === decision.proposal && el("span.badge", {}, "proposed"),
    regret === null && el("span.badge.off", {}, "not admissible"),
    regret !== null && decision.threshold !== null && !decision.admissible[column] && el("span.badge.off", {}, "outside"),
  ];
  return el(`div.branch${column === decision.executed ? ".taken" : ""}`, {},
    el("div.branch-name", {}, actionChip(step.action), " ", el("span.agent", {}, agentName(step.speaker)), " ", badges),
    regretTrack(regret, decision.threshold, most),
    el("div.branch-numbers", {}, `J ${num(decision.objectives[column])}`, el("span.muted", {}, ` regret ${num(regret)}`)),
    branch?.text && column !== decision.executed && messageText(branch, "branch-text"),
    branch && column !== decision.executed && beliefStrip(branch, discussion.options));
}

function regretTrack(regret, threshold, most) {
  const percent = (value) => `${Math.min(100, (100 * value) / most)}%`;
  const beyond = threshold !== null && threshold > most;
  return el("div.regret-track", { title: threshold === null ? null : `threshold ${num(threshold)}` },
    threshold !== null && el("i.allowed", { style: { width: percent(threshold) } }),
    regret !== null && el("i.regret", { style: { width: percent(regret) } }),
    threshold !== null && el(`i.threshold${beyond ? ".beyond" : ""}`, { style: { left: percent(threshold) } }));
}

function actionChip(action) {
  return el(`span.chip.action-${action}`, {}, action.replaceAll("_", " "));
}

/** The words of a message, or what is known of it where agents leave no text. */
function messageText(branch, kind) {
  if (branch.text) return el(`p.${kind}`, {}, branch.text);
  if (branch.action === "vote") return el(`p.${kind}.silent`, {}, "a vote: no message");
  return el(`p.${kind}.silent`, {}, `spoke under ${branch.action.replaceAll("_", " ")}`);
}
