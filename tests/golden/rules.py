"""Deterministic synthetic weights, inputs and checkpoint files for loader tests: the same bits everywhere.

They come from raw PCG64 words (a stream that numpy guarantees to keep) by integer arithmetic and one float64
multiplication.
"""

import functools
import json
import zlib
from pathlib import Path

import numpy as np

from golden import containers

HERE = Path(__file__).parent


def _values(tag, shape, step, out_dtype, chunk=1 << 16):
    """step(uint64 words) for a raw word per element, in chunks that stay in the processor's cache."""
    bits = np.random.PCG64(zlib.crc32(tag.encode()))
    out = np.empty(int(np.prod(shape, dtype=np.int64)), out_dtype)
    for i in range(0, out.size, chunk):
        out[i : i + chunk] = step(bits.random_raw(min(chunk, out.size - i)))
    return out.reshape(shape)


def normal(tag, shape, std=1.0, dtype=np.float64):
    """std * z, z of mean 0 / variance 1: sum of the four 16-bit fields of a word (Irwin-Hall, |z| < 3.47)."""

    def step(w):
        fields = w.astype("<u8", copy=False).view("<u2")
        s = sum(fields[k::4].astype(np.int32) for k in range(4))
        return std * ((s - 131070) * (3.0**0.5 / 65536))

    return _values(tag, shape, step, dtype)


#: Axes of the inputs: "conv" is (out, in / groups, kh, kw), "linear" (out, in), "dense" (in, out).
_FAN_IN = {"conv": slice(1, 4), "conv_hwio": slice(0, 3), "linear": slice(1, 2), "dense": slice(0, 1)}


def _tensor(tag, shape, dtype, kind, gain):
    if kind in _FAN_IN:
        return normal(tag, shape, np.sqrt(gain / np.prod(shape[_FAN_IN[kind]])), dtype)
    if kind in ("norm_w", "var"):  # uniform, with 53 bits; norm_w: the weight of BatchNorm or LayerNorm
        low, width, gain = (0.7, 0.6, gain) if kind == "norm_w" else (0.5, 1.0, 1.0)
        return _values(tag, shape, lambda w: gain * (low + width * ((w >> np.uint64(11)) * 2.0**-53)), dtype)
    # Tokens are class and distillation tokens and embeddings.
    return normal(tag, shape, {"bias": 0.1, "mean": 0.1, "token": 0.02}[kind], dtype)


def hollow(shape, dtype, value=0.0):
    """Return an array of one number, repeated by strides of 0."""
    return np.lib.stride_tricks.as_strided(np.full((), value).astype(dtype), shape, [0] * len(shape))


def fill(schema, seed, group):
    """{key: ndarray} for one tensor group of the schema; what the feature does not depend on is zero.

    A row is [key, shape, dtype, kind], and the key whose values it repeats where a tensor is there twice.
    """
    out, elsewhere = {}, tuple(schema["not_part_of_the_feature"])
    for key, shape, dtype, kind, *source in schema["groups"][group]["tensors"]:
        own = source[0] if source else key
        if own in out and out[own].shape == tuple(shape):
            out[key] = out[own]
        elif kind in ("zero", "unit") or kind.startswith("const=") or key.startswith(elsewhere or ("\0",)):
            out[key] = hollow(shape, dtype, float(kind.partition("=")[2] or 0))
        else:
            gain = schema.get("gain", {}).get(kind, 1.0)
            out[key] = _tensor(f"{seed}:{own}", tuple(shape), dtype, kind, gain)
    return out


def make_input(size, seed):
    """(2, 3, size, size) float32, roughly mean 0 / variance 1: random blocks at four scales."""
    x = np.zeros((2, 3, size, size))
    for cells, amp in ((3, 0.7), (7, 0.5), (17, 0.4), (41, 0.3)):
        i = np.arange(size) * cells // size
        x += amp * normal(f"{seed}:input:{cells}", (2, 3, cells, cells))[:, :, i][:, :, :, i]
    return x.astype(np.float32)


def load_index():
    return json.loads((HERE / "index.json").read_text())


def load_schema(model_name):
    file = HERE / "schema" / load_index()[model_name]["schema"]
    return json.loads(file.read_text(), object_hook=containers.decoded)


def write_checkpoint(model_name, seed, path):
    """Write the synthetic file in the authors' layout; returns the path to hand to the loader."""
    schema = load_schema(model_name)
    return containers.write(schema, functools.partial(fill, schema, seed), path)
