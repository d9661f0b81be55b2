"""What `scripts/bench.py` measures, in which sizes, and where it writes; the root of `conf/bench.yaml`."""

from __future__ import annotations

import msgspec

from sim.errors import UserError

BENCHES = ("cognitive", "records", "certificates", "screening", "training", "viewer", "startup", "language")


class LanguageBench(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of the language bench; `task_file` null takes generated tasks in HiddenBench's form.

    `model_cores` compute in the server (null: all of this machine's). `tasks` discussions of `rounds` rounds are in
    flight at once. Belief modes and the plain sequential runner, which take several times as long, are measured on
    `few_tasks` and `few_rounds`.
    """

    python: str
    model_cores: int | None
    task_file: str | None
    tasks: int
    rounds: int
    max_tokens: int
    in_flight: int
    repetitions: int
    few_tasks: int
    few_rounds: int

    def __post_init__(self) -> None:
        for name in ("tasks", "rounds", "max_tokens", "in_flight", "repetitions", "few_tasks", "few_rounds"):
            if getattr(self, name) < 1:
                raise UserError(f"language.{name} is {getattr(self, name)}; it must be at least 1")

    def reduced(self) -> LanguageBench:
        """The same in about three minutes on two cores."""
        return msgspec.structs.replace(
            self,
            tasks=min(self.tasks, 6),
            rounds=min(self.rounds, 2),
            repetitions=1,
            few_tasks=2,
            few_rounds=1,
        )


class BenchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole bench."""

    only: tuple[str, ...]
    reduced: bool
    output: str
    language: LanguageBench

    def __post_init__(self) -> None:
        unknown = [name for name in self.only if name not in BENCHES]
        if unknown:
            raise UserError(f"only: {unknown[0]!r} is unknown; give some of {', '.join(BENCHES)}")
