"""Tables, figures and the page of recorded runs; with a folder, all its runs side by side."""

from __future__ import annotations

import sys

from sim.report.command import report_command

if __name__ == "__main__":
    sys.exit(report_command(sys.argv[1:]))
