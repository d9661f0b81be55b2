"""From arrays to rows: the recorder that writes what a rollout produces into a run directory.

Rows of a discussion are written once it is over, its episode row last, so that a crash leaves either the
whole discussion or none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sim.arrays import Floats, Ints, take
from sim.discussion.actions import ACTION_NAMES, NOBODY, VOTE
from sim.discussion.ending import ABSTAIN, decide
from sim.discussion.inputs import state_vector
from sim.discussion.public import PublicView, path_texts, step_code, step_text
from sim.records.rows import FULL_INFORMATION, OPENING, BranchRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.store import RunStore
from sim.studies.rollout import Ending, Policy, Step
from sim.worlds.protocol import Episodes


@dataclass
class RowRecorder:
    """Writes one batch under one condition; `on_episodes(n)` is told of every n discussions that end.

    `branches` and `decisions` say whether those rows are written too; the outcomes always are.
    """

    store: RunStore
    stage: str
    policy: Policy
    episodes: Episodes
    branches: bool = True
    decisions: bool = True
    on_episodes: Callable[[int], None] = lambda n: None
    _branches: dict[int, list[BranchRow]] = field(default_factory=dict)
    _decisions: dict[int, list[DecisionRow]] = field(default_factory=dict)
    _malformed: Ints = field(init=False)
    _evaluated: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._malformed = np.zeros(self.episodes.size, np.int64)
        self._evaluated = np.zeros(self.episodes.size, np.int64)
        self._branches = {row: [] for row in range(self.episodes.size)}
        self._decisions = {row: [] for row in range(self.episodes.size)}

    def opened(self, view: PublicView) -> None:
        """Start every discussion with its opening row."""
        root = FULL_INFORMATION if self.policy.full_information else ""
        opening = _branch_rows(
            view, self._names(np.arange(view.size)), [root] * view.size, [OPENING] * view.size
        )
        for row, branch in enumerate(opening):
            self._branches[row].append(branch)

    def stepped(self, step: Step) -> None:
        """Keep the rows of one round until their discussions are over."""
        each = np.arange(len(step.running))
        np.add.at(self._malformed, step.running, step.malformed)
        np.add.at(self._evaluated, step.running, step.candidates.admissible.sum(1))
        if self.decisions:
            for row, decision in zip(step.running.tolist(), self._decision_rows(step), strict=True):
                self._decisions[row].append(decision)
        if self.branches:
            width = step.candidates.actions.shape[1]
            parents = np.repeat(each, width)[step.candidates.admissible.reshape(-1)]
            for parent, branch in zip(
                step.running[parents].tolist(), self._evaluated_rows(step, parents), strict=True
            ):
                self._branches[parent].append(branch)

    def ended(self, ending: Ending) -> None:
        """Write the discussions that are over."""
        choices = ending.votes.choice.tolist()
        decisions = decide(ending.votes, ending.view.key, self.policy.decision).tolist()
        objectives = ending.objective.tolist()
        outcomes = [
            self.episode_row(
                row,
                ending.view,
                at,
                self._ending(ending.view, at),
                objectives[at],
                decisions[at],
                choices[at],
            )
            for at, row in enumerate(ending.rows.tolist())
        ]
        self.write(ending.rows, self.vote_rows(ending), outcomes)

    def vote_rows(self, ending: Ending) -> list[VoteRow]:
        """The final votes of some discussions, a row each."""
        root = FULL_INFORMATION if self.policy.full_information else ""
        columns = zip(
            self._names(ending.rows),
            path_texts(ending.view),
            ending.votes.choice.tolist(),
            ending.votes.beliefs.tolist(),
            strict=True,
        )
        return [
            VoteRow(task, seed, path or root, choice, beliefs)
            for (task, seed), path, choice, beliefs in columns
        ]

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """Write discussions that the world gave up on, as failed, with the error."""
        nobody = [[ABSTAIN] * self.episodes.tasks[row].n_agents for row in rows.tolist()]
        failures = [
            self.episode_row(row, view, at, "failed", None, ABSTAIN, nobody[at], error)
            for at, row in enumerate(rows.tolist())
        ]
        self.write(rows, [], failures)

    def write(self, rows: Ints, votes: list[VoteRow], outcomes: list[EpisodeRow]) -> None:
        """Write everything kept of some discussions, their episode rows last."""
        listed = rows.tolist()
        if self.branches:
            self.store.append([branch for row in listed for branch in self._branches.pop(row, [])])
            self.store.append(votes)
        self.store.append([decision for row in listed for decision in self._decisions.pop(row, [])])
        self.store.append(outcomes)
        self.on_episodes(len(listed))

    def _names(self, rows: Ints) -> list[tuple[str, int]]:
        seeds = self.episodes.seeds
        return [(self.episodes.tasks[row].id, int(seeds[row])) for row in rows.tolist()]

    def _evaluated_rows(self, step: Step, parents: Ints) -> list[BranchRow]:
        flat = np.flatnonzero(step.candidates.admissible.reshape(-1))
        branches = take(step.branches, flat)
        actions = [ACTION_NAMES[action] for action in step.candidates.actions.reshape(-1)[flat].tolist()]
        return _branch_rows(branches, self._names(step.running[parents]), path_texts(branches), actions)

    def _decision_rows(self, step: Step) -> list[DecisionRow]:
        decision = step.decision
        codes = step_code(step.candidates.actions, step.candidates.speakers, step.candidates.draws)
        labels = {code: step_text(code) for code in np.unique(codes).tolist()}
        columns = zip(
            self._names(step.running),
            path_texts(step.view),
            codes.tolist(),
            step.objective.tolist(),
            _nullable(step.objectives),
            _nullable(step.regrets),
            step.proposal.tolist(),
            step.malformed.tolist(),
            decision.executed.tolist(),
            decision.replaced.tolist(),
            _nullable(decision.threshold[:, None]),
            decision.certified.tolist(),
            decision.admissible_set.tolist(),
            state_vector(step.view, step.features, step.candidates).tolist(),
            strict=True,
        )
        round_number = int(step.view.rounds[0]) + 1
        return [
            DecisionRow(
                self.stage, self.policy.name, task, seed, round_number, path,
                [labels[code] for code in options], objective, objectives, regrets, proposal, malformed,
                executed, replaced, threshold[0], certified, within, state,
            )
            for (task, seed), path, options, objective, objectives, regrets, proposal, malformed, executed,
                replaced, threshold, certified, within, state in columns
        ]  # fmt: skip

    def episode_row(
        self,
        row: int,
        view: PublicView | None,
        at: int,
        ending: str,
        objective: float | None,
        decision: int,
        votes: list[int],
        error: str = "",
    ) -> EpisodeRow:
        """The outcome of discussion `row` of the batch; `at` is its place in `view`, if it was ever opened."""
        task = self.episodes.tasks[row]
        last = None if view is None else take(view, np.array([at]))
        rounds = 0 if last is None else int(last.rounds[0])
        return EpisodeRow(
            stage=self.stage,
            condition=self.policy.name,
            task=task.id,
            family=task.family,
            seed=int(self.episodes.seeds[row]),
            n_agents=task.n_agents,
            n_options=task.n_options,
            answer=task.answer_index,
            decision=decision,
            votes=votes,
            rounds=rounds,
            messages=rounds if last is None else rounds - int(last.voted[0]),
            words=0.0 if last is None else float(last.words.sum()),
            path="" if last is None else path_texts(last)[0],
            ending=ending,
            final_objective=objective,
            malformed=int(self._malformed[row]),
            branches_evaluated=int(self._evaluated[row]),
            error=error,
        )

    def _ending(self, view: PublicView, at: int) -> str:
        if not self.policy.discuss:
            return "no_discussion"
        if view.voted[at]:
            return ACTION_NAMES[VOTE]
        return "horizon" if view.rounds[at] >= view.horizon else "agreement"


def _nullable(numbers: Floats) -> list[list[float | None]]:
    """Lists of rows with null for +inf, which JSON cannot spell."""
    return [[None if value == np.inf else value for value in row] for row in numbers.tolist()]


def _branch_rows(
    view: PublicView,
    names: list[tuple[str, int]],
    paths: list[str],
    actions: list[str],
) -> list[BranchRow]:
    texts = [heard[-1].text if heard else "" for heard in view.transcripts] or [""] * view.size
    steps = view.path[np.arange(view.size), np.maximum(view.rounds - 1, 0)]
    columns = zip(
        names, paths, view.rounds.tolist(), actions, steps.tolist(), view.last_words.tolist(),
        view.novelty.tolist(), view.overlap.tolist(), view.beliefs.tolist(), view.stale.tolist(), texts,
        strict=True,
    )  # fmt: skip
    return [
        BranchRow(task, seed, path, number, action, *_speaker_and_draw(step), said, novelty, overlap, beliefs,
                  stale, text)
        for (task, seed), path, number, action, step, said, novelty, overlap, beliefs, stale, text in columns
    ]  # fmt: skip


def _speaker_and_draw(step: int) -> tuple[int, int]:
    return (NOBODY, 0) if step < 0 else (step // 64 % 64 - 1, step % 64)
