"""The forward pass of a trained network in numpy, so that a proposal needs no torch. Knows only arrays."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from controllers.dataset import Numbers, Singles
from sim.arrays import Floats, Ints

BLOCK = 64
"""Rows per matrix product. Every product has this one shape, whatever the batch, because its last bits depend
on the shape: a discussion gets the same outputs alone and among thousands."""


@dataclass(frozen=True)
class Network:
    """A multilayer perceptron with ReLU between layers, on some standardised columns of its input.

    columns (d,): which inputs are read; mean and scale (d,); weights[l] (in, out) and biases[l] (out,).
    """

    columns: Ints
    mean: Floats
    scale: Floats
    weights: tuple[Singles, ...]
    biases: tuple[Singles, ...]

    def __call__(self, x: Floats) -> Floats:
        """Outputs (B, A) for inputs (B, D), in double precision."""
        size = len(x)
        blocks = -(-size // BLOCK)
        padded = np.zeros((blocks * BLOCK, len(self.columns)))
        padded[:size] = (x[:, self.columns] - self.mean) / self.scale
        layer: Numbers = padded.reshape(blocks, BLOCK, -1)
        last = len(self.weights) - 1
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            layer = layer @ weight.astype(np.float64) + bias
            if depth < last:
                np.maximum(layer, 0.0, out=layer)
        outputs: Floats = layer.reshape(blocks * BLOCK, -1)[:size]
        return outputs

    def tensors(self) -> dict[str, Singles]:
        """The parameters by name, as stored."""
        named = {}
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"{depth}.weight"] = weight
            named[f"{depth}.bias"] = bias
        return named

    def digest(self) -> str:
        """SHA-256 over everything that decides an output: columns, standardisation, weights and biases."""
        content = hashlib.sha256()
        arrays: tuple[Numbers, ...] = (self.columns, self.mean, self.scale, *self.weights, *self.biases)
        for array in arrays:
            content.update(str((array.dtype.str, array.shape)).encode())
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()
