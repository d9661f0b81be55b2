"""Track finished runs with wandb, from their records: offline by default."""

from __future__ import annotations

import sys

from sim.report.track_command import track_command

if __name__ == "__main__":
    sys.exit(track_command(sys.argv[1:]))
