// The page as a whole: unpack the index, show the view the address asks for, listen to the keyboard.

const VIEWS = { "": overviewView, episodes: episodesView, discussion: discussionView, compare: compareView };
const TABS = [["", "Overview", "o"], ["episodes", "Discussions", "e"], ["compare", "Compare", "m"]];
const SHORTCUTS = [["o, e, m", "overview, discussions, compare"], ["/", "search discussions"], ["j, k", "next, previous round"],
  ["n, p", "next, previous discussion"], ["b", "branches on or off"], ["c", "private clues on or off"], ["?", "this help"]];

const data = await unpack("index");
const main = document.getElementById("main");
let current = null;
let turn = 0;
let searchNext = false;

function address() {
  const [view, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: view in VIEWS ? view : "", parameters: new URLSearchParams(query) };
}

async function show() {
  const mine = ++turn;
  const { view, parameters } = address();
  const runIndex = Math.min(Math.max(0, Number(parameters.get("run")) || 0), data.runs.length - 1);
  const run = data.runs[runIndex];
  drawNavigation(view, runIndex);
  const content = await VIEWS[view]({ data, run, runIndex, parameters });
  if (mine !== turn) return;
  current = content;
  main.replaceChildren(content);
  document.title = `${content.querySelector("h1")?.textContent ?? ""} · ${data.title}`;
  if (!parameters.get("round")) window.scrollTo(0, 0);
  if (searchNext) document.getElementById("search")?.focus();
  searchNext = false;
}

function drawNavigation(view, runIndex) {
  const tabs = TABS.map(([name, text, key]) => el("a", {
    href: link(name, { run: runIndex || "" }), title: `Keyboard: ${key}`,
    "aria-current": view === name || (view === "discussion" && name === "episodes") ? "page" : null,
  }, text));
  document.getElementById("nav").replaceChildren(...tabs);
  const names = data.runs.map((run, i) => [String(i), run.name]);
  const chooser = choice("Run", names, String(runIndex), (run) => {
    location.hash = link(view === "discussion" ? "episodes" : view, { run });
  });
  document.getElementById("run-choice").replaceChildren(...(data.runs.length > 1 ? [chooser] : []));
}

function drawHelp() {
  const help = document.getElementById("help");
  help.replaceChildren(el("h2", {}, "Keyboard"),
    el("dl.keys", {}, SHORTCUTS.map(([keys, meaning]) => [el("dt", {}, el("kbd", {}, keys)), el("dd", {}, meaning)])),
    el("button", { type: "button", onclick: () => help.close() }, "Close"));
  return help;
}

function pressed(event) {
  const typing = event.target.closest?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const run = new URLSearchParams(location.hash.split("?")[1]).get("run") ?? "";
  const goto = (view) => () => { location.hash = link(view, { run }); };
  const keys = {
    o: goto(""), e: goto("episodes"), m: goto("compare"), "?": () => drawHelp().showModal(),
    "/": () => {
      searchNext = address().view !== "episodes";
      if (searchNext) goto("episodes")();
      else document.getElementById("search").focus();
    },
    ...current?.shortcuts,
  };
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
}

let width = document.documentElement.clientWidth;
addEventListener("hashchange", show);
addEventListener("keydown", pressed);
addEventListener("resize", () => {
  if (address().view === "" && Math.abs(document.documentElement.clientWidth - width) > 40) show();
  width = document.documentElement.clientWidth;
});
document.getElementById("help-button").addEventListener("click", () => drawHelp().showModal());
await show();
document.documentElement.dataset.ready = "true";
