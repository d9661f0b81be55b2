"""Controllers: who proposes the next intervention. Reads public records only; importing it loads no torch."""

from controllers.protocol import BEST, Controller
from controllers.references import Best, Fixed, Random
from controllers.rules import NoisyRules, Rules, Stubborn

__all__ = ["BEST", "Best", "Controller", "Fixed", "NoisyRules", "Random", "Rules", "Stubborn"]
