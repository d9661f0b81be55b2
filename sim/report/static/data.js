// The page's data: unpacking, and small questions about runs, tables and episodes. Draws nothing.

/** The JSON inside a packed script element. */
async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const chunkCache = new Map();

/** What is recorded of one task in a run; null if the page was too large to hold it. */
async function taskDocument(runIndex, episodes, task) {
  const chunk = episodes.chunks[episodes.tasks.indexOf(task)];
  if (chunk === null || chunk === undefined) return null;
  const id = `chunk-${runIndex}-${chunk}`;
  if (!chunkCache.has(id)) chunkCache.set(id, unpack(id));
  return (await chunkCache.get(id))[task];
}

/** The rows of a table as objects. */
function records(table) {
  return table.rows.map((row) => Object.fromEntries(table.columns.map((name, i) => [name, row[i]])));
}

/** One episode of the columns, as an object. */
function episodeAt(episodes, i) {
  const task = episodes.task[i];
  return {
    index: i,
    condition: episodes.conditions[episodes.condition[i]],
    task: episodes.tasks[task],
    name: episodes.names[task],
    seed: episodes.seed[i],
    answer: episodes.answer[i],
    decision: episodes.decision[i],
    correct: episodes.correct[i] === 1,
    rounds: episodes.rounds[i],
    words: episodes.words[i],
    ending: episodes.ending[i],
    regret: episodes.regret[i],
    replaced: episodes.replaced[i],
  };
}

/** Episodes of one condition by "task seed". */
function episodesOf(episodes, condition) {
  const code = episodes.conditions.indexOf(condition);
  const found = new Map();
  episodes.condition.forEach((value, i) => {
    if (value === code) found.set(`${episodes.task[i]} ${episodes.seed[i]}`, episodeAt(episodes, i));
  });
  return found;
}

function discussionLink(run, episode, round = "") {
  const { condition, task, seed } = episode;
  return link("discussion", { run, condition, task, seed, round });
}

/** What comes after a path. */
function joined(path, step) {
  return path ? `${path}/${step}` : step;
}

/** Action, speaker and draw of a candidate's name such as "route@2" or "free@0#3". */
function parsedStep(step) {
  const [, action, speaker, draw] = step.match(/^([^@#]+)(?:@(\d+))?(?:#(\d+))?$/);
  return { action, speaker: speaker === undefined ? -1 : Number(speaker), draw: Number(draw ?? 0) };
}
