"""Deterministic synthetic weights, inputs and checkpoint files for loader tests.

All random numbers are exact: raw PCG64 words (a stream numpy guarantees to keep) are turned into values by
integer arithmetic and one float64 multiplication, so that every platform produces the same bits.
"""

import json
import os
import zlib

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def _values(tag, shape, step, out_dtype, chunk=1 << 16):
    """step(uint64 words) for one raw word per element, in chunks that stay in the processor's cache."""
    bits = np.random.PCG64(zlib.crc32(tag.encode()))
    out = np.empty(int(np.prod(shape, dtype=np.int64)), out_dtype)
    for i in range(0, out.size, chunk):
        out[i : i + chunk] = step(bits.random_raw(min(chunk, out.size - i)))
    return out.reshape(shape)


def uniform(tag, shape, a=0.0, b=1.0, gain=1.0, dtype=np.float64):
    """gain * (a + b * u), u uniform in [0, 1) with 53 bits."""
    return _values(tag, shape, lambda w: gain * (a + b * ((w >> np.uint64(11)) * 2.0**-53)), dtype)


def normal(tag, shape, std=1.0, dtype=np.float64):
    """std * z, z of mean 0 / variance 1: sum of the four 16-bit fields of a word (Irwin-Hall, |z| < 3.47)."""

    def step(w):
        fields = w.astype("<u8", copy=False).view("<u2")
        s = fields[0::4].astype(np.int32)
        for k in (1, 2, 3):
            s += fields[k::4]
        return std * ((s - 131070) * (3.0**0.5 / 65536))

    return _values(tag, shape, step, dtype)


def _fan_in(kind, shape):
    if kind == "conv":  # (out, in / groups, kh, kw)
        return int(np.prod(shape[1:]))
    if kind == "conv_hwio":  # (kh, kw, in, out)
        return int(np.prod(shape[:-1]))
    return shape[1] if kind == "linear" else shape[0]  # linear: (out, in); dense: (in, out)


def fill_tensor(key, shape, dtype, kind, seed, gain):
    tag, shape = f"{seed}:{key}", tuple(shape)
    if kind in ("conv", "conv_hwio", "linear", "dense"):
        return normal(tag, shape, np.sqrt(gain.get(kind, 1.0) / _fan_in(kind, shape)), dtype)
    if kind == "norm_w":  # weight of BatchNorm / LayerNorm
        return uniform(tag, shape, 0.7, 0.6, gain.get("norm_w", 1.0), dtype)
    if kind == "var":
        return uniform(tag, shape, 0.5, 1.0, 1.0, dtype)
    if kind == "zero" or kind.startswith("const="):  # num_batches_tracked, pointers, counters
        return np.full(shape, float(kind.partition("=")[2] or 0)).astype(dtype)
    # Tokens are class and distillation tokens and embeddings, units are queues, memories and prototypes.
    return normal(tag, shape, {"bias": 0.1, "mean": 0.1, "token": 0.02, "unit": 1.0}[kind], dtype)


def fill(schema, seed, group=None):
    """{key: ndarray} for one tensor group of the schema (default: the group that holds the weights).

    A row is [key, shape, dtype, kind]. A fifth entry is the key whose values are repeated (one array object),
    where the original file holds the same tensor twice.
    """
    g, out = schema["groups"][schema["weights_group"] if group is None else group], {}
    for k, s, d, kind, *source in g["tensors"]:
        src = source[0] if source else k
        same = src in out and out[src].shape == tuple(s)
        out[k] = out[src] if same else fill_tensor(src, s, d, kind, seed, schema.get("gain", {}))
    return out


def make_input(size, seed):
    """(2, 3, size, size) float32, roughly mean 0 / variance 1: random blocks at four scales."""
    x = np.zeros((2, 3, size, size))
    for cells, amp in ((3, 0.7), (7, 0.5), (17, 0.4), (41, 0.3)):
        i = np.arange(size) * cells // size
        x += amp * normal(f"{seed}:input:{cells}", (2, 3, cells, cells))[:, :, i][:, :, :, i]
    return x.astype(np.float32)


def load_index():
    with open(os.path.join(HERE, "index.json")) as f:
        return json.load(f)


def load_schema(model_name):
    with open(os.path.join(HERE, "schema", load_index()[model_name]["schema"])) as f:
        return json.load(f)


def load_golden(model_name, seed, suffix=""):
    return np.load(os.path.join(HERE, f"seed{seed}", model_name + suffix + ".npy"))


def write_checkpoint(model_name, seed, path, variant=None):
    """Write the synthetic file in the authors' layout; returns the path to hand to the loader."""
    from golden import containers

    return containers.write(load_schema(model_name), seed, path, variant)
