"""HiddenBench (arXiv 2505.11556, MIT): its form read strictly from a path, or from the hub at one revision.

The data are never shipped. Tasks that share facts become one family, since no split may divide them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sim.errors import UserError, shown
from sim.tasks.files import HIDDENBENCH_FIELDS, build_tasks, read_records
from sim.tasks.task import HiddenProfileTask

REPOSITORY = "YuxuanLi1225/HiddenBench"
FILE = "data/benchmark.json"


def load_hiddenbench(path: str | Path) -> tuple[HiddenProfileTask, ...]:
    """Tasks of a file in HiddenBench's form: exactly its seven fields, ids as text, families by shared facts.

    Raises UserError naming file, task, field and value.
    """
    return build_tasks(path, read_records(path), required=HIDDENBENCH_FIELDS)


def fetch_hiddenbench(
    revision: str, cache_dir: str | Path | None = None, endpoint: str | None = None
) -> tuple[HiddenProfileTask, ...]:
    """HiddenBench's tasks at one commit of the hub's repository, from the local cache where they are there.

    `endpoint` is a mirror's address; without it the hub library's own default holds. Raises UserError if the
    revision is not a full commit hash, or the hub cannot give the file.
    """
    if re.fullmatch("[0-9a-f]{40}", revision) is None:
        raise UserError(
            f"{REPOSITORY}: field 'revision': {shown(revision)} is no fixed version; give the 40-digit "
            "hash of a commit, as listed in the dataset's history"
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path = hf_hub_download(
            REPOSITORY, FILE, repo_type="dataset", revision=revision, cache_dir=cache_dir, endpoint=endpoint
        )
    except (OSError, EntryNotFoundError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{REPOSITORY}: {FILE} at revision {revision} cannot be fetched "
            f"({type(error).__name__}: {reason}); "
            "check network and revision, or download the file elsewhere and give its path"
        ) from error
    return load_hiddenbench(path)


def position_baselines(tasks: Sequence[HiddenProfileTask]) -> dict[str, float]:
    """Accuracy of always answering the option listed first, or last: baselines of every accuracy table."""
    if not tasks:
        raise UserError("position baselines of 0 tasks are undefined; give at least one task")
    first = sum(task.answer_index == 0 for task in tasks)
    last = sum(task.answer_index == task.n_options - 1 for task in tasks)
    return {"always_first": first / len(tasks), "always_last": last / len(tasks)}
