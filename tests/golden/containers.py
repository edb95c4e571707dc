"""Writers for the file layouts of the original checkpoints: torch, TorchScript, TF bundle, dill pickle."""

import argparse
import collections
import contextlib
import io
import pickle
import struct
import sys
import types

import numpy as np

from golden.rules import fill


def write(schema, seed, path, variant=None):
    spec = dict(schema["container"], **(schema.get("variants", {}).get(variant, {}) if variant else {}))
    return {
        "torch": write_torch,
        "torchscript": write_torchscript,
        "tf_bundle": write_tf_bundle,
        "dill_pickle": write_byol_pickle,
    }[spec["type"]](schema, spec, seed, str(path))


# ------------------------------------------------------------------ torch
def _decode(v):
    """JSON description of the non-tensor members -> Python objects."""
    if isinstance(v, dict):
        if set(v) == {"@namespace"}:
            return argparse.Namespace(**_decode(v["@namespace"]))
        if set(v) == {"@numpy"}:
            return np.dtype(v["@numpy"][0]).type(v["@numpy"][1])
        if set(v) == {"@tensor"}:
            import torch

            return torch.zeros(*v["@tensor"][1], dtype=getattr(torch, v["@tensor"][0]))
        if set(v) == {"@intkeys"}:
            return {int(k): _decode(x) for k, x in v["@intkeys"].items()}
        return {k: _decode(x) for k, x in v.items()}
    return [_decode(x) for x in v] if isinstance(v, list) else v


def _state_dict(arrays, metadata):
    """OrderedDict as nn.Module.state_dict() returns it, with _metadata unless the file predates it."""
    import torch

    cache = {}  # aliased arrays share one storage, as in the original
    sd = collections.OrderedDict((k, cache.setdefault(id(a), torch.from_numpy(a))) for k, a in arrays.items())
    if metadata:
        meta = collections.OrderedDict({"": {"version": 1}})
        for k in sd:
            p = k.split(".")
            for i in range(1, len(p)):
                meta.setdefault(".".join(p[:i]), {"version": 1})
            if p[-1] == "num_batches_tracked":
                meta[".".join(p[:-1])] = {"version": 2}
        sd._metadata = meta
    return sd


def torch_object(schema, spec, seed):
    obj = _decode(spec.get("extras", {}))
    for name, g in schema["groups"].items():
        sd = _state_dict(fill(schema, seed, name), spec.get("metadata", True))
        where = [spec["wrap"]] if "wrap" in spec else g["path"]
        if not where:
            return sd
        d = obj
        for k in where[:-1]:
            d = d.setdefault(k, {})
        d[where[-1]] = sd
    order = spec.get("order", [])
    return {k: obj[k] for k in [*order, *[k for k in obj if k not in order]]}


def write_torch(schema, spec, seed, path):
    import torch

    if spec["zip"]:
        torch.save(torch_object(schema, spec, seed), path)
        return path
    b = io.BytesIO()
    torch.save(torch_object(schema, spec, seed), b, _use_new_zipfile_serialization=False)
    with open(path, "wb") as f:  # numpy 2 writes a new module name; the originals hold the one of numpy 1
        f.write(
            b.getbuffer()
            if "numpy_module" in spec
            else b.getvalue().replace(
                b"cnumpy._core.multiarray\nscalar\n", b"cnumpy.core.multiarray\nscalar\n", 1
            )
        )
    return path


def write_torchscript(schema, spec, seed, path):
    """TorchScript archive: nested modules without code that own the parameters and buffers."""
    import torch

    class Holder(torch.nn.Module):
        pass

    root = Holder()
    for k, a in fill(schema, seed).items():
        m, *rest = [root], *k.split(".")
        for p in rest[:-1]:
            if p not in m[0]._modules:
                m[0].add_module(p, Holder())
            m[0] = m[0]._modules[p]
        t = torch.from_numpy(a)
        if a.dtype.kind == "f" and not rest[-1].startswith("running_"):
            m[0].register_parameter(rest[-1], torch.nn.Parameter(t, requires_grad=False))
        else:
            m[0].register_buffer(rest[-1], t)
    torch.jit.save(torch.jit.script(root.eval()), path)
    return path


# ------------------------------------------------------------------ TensorFlow checkpoint V2
def _table(poly=0x82F63B78):
    t = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        t = np.where(t & 1, (t >> 1) ^ np.uint32(poly), t >> 1).astype(np.uint32)
    return t


_T = _table()


def _shift(crc, nbytes):
    """CRC registers after nbytes further zero bytes (linear map applied by columns)."""
    cols = np.uint32(1) << np.arange(32, dtype=np.uint32)
    sq = (cols >> np.uint32(8)) ^ _T[cols & 255]  # one byte
    while nbytes:
        if nbytes & 1:
            crc = np.bitwise_xor.reduce(
                np.where((crc[:, None] >> np.arange(32, dtype=np.uint32)) & 1, sq, 0), axis=1
            )
        sq = np.bitwise_xor.reduce(
            np.where((sq[:, None] >> np.arange(32, dtype=np.uint32)) & 1, sq, 0), axis=1
        )
        nbytes >>= 1
    return crc.astype(np.uint32)


def crc32c(data):
    b = np.frombuffer(data, np.uint8)
    lanes = 1
    while lanes < 65536 and len(b) // (2 * lanes) >= 256:
        lanes *= 2
    step = len(b) // lanes
    crc = np.zeros(lanes, np.uint32)
    crc[0] = 0xFFFFFFFF
    for col in np.ascontiguousarray(b[: lanes * step].reshape(lanes, step).T):
        crc = _T[(crc ^ col) & 255] ^ (crc >> np.uint32(8))
    while len(crc) > 1:  # join neighbouring lanes
        crc, step = _shift(crc[0::2], step) ^ crc[1::2], 2 * step
    c = int(crc[0])
    for v in b[step:].tolist():
        c = int(_T[(c ^ v) & 255]) ^ (c >> 8)
    return c ^ 0xFFFFFFFF


def _masked(data):
    c = crc32c(data)
    return (((c >> 15) | (c << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def _field(no, value):
    if isinstance(value, bytes):
        return _varint(no << 3 | 2) + _varint(len(value)) + value
    return _varint(no << 3) + _varint(value) if value else b""


def _block(items, restart=16):
    out, restarts, last = bytearray(), [], b""
    for n, (k, v) in enumerate(items):
        shared = 0
        if n % restart == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(k), len(last)) and k[shared] == last[shared]:
                shared += 1
        out += _varint(shared) + _varint(len(k) - shared) + _varint(len(v)) + k[shared:] + v
        last = k
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def write_tf_bundle(schema, spec, seed, path):
    """`path` is the checkpoint prefix; writes .index and .data-00000-of-00001 (plus nothing else)."""
    arrays = fill(schema, seed)
    codes = {"float32": 1, "int64": 9, "int32": 3}
    items, offset = (
        [(b"", _field(1, 1) + _field(3, _field(1, 1)))],
        0,
    )  # header: one shard, producer version 1
    with open(path + ".data-00000-of-00001", "wb") as f:
        for k in sorted(arrays, key=str.encode):
            a = arrays[k]
            raw = np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<")).tobytes()
            shape = b"".join(_field(2, _field(1, d)) for d in a.shape)
            entry = (
                _field(1, codes[a.dtype.name]) + _field(2, shape) + _field(4, offset) + _field(5, len(raw))
            )
            items.append((k.encode(), entry + b"\x35" + struct.pack("<I", _masked(raw))))
            f.write(raw)
            offset += len(raw)
    with open(path + ".index", "wb") as f:

        def put(block):
            h = _varint(f.tell()) + _varint(len(block))
            f.write(block + b"\0" + struct.pack("<I", _masked(block + b"\0")))
            return h

        per = spec.get("entries_per_block", 200)
        index = [
            (items[i : i + per][-1][0], put(_block(items[i : i + per]))) for i in range(0, len(items), per)
        ]
        meta = put(_block([]))
        foot = meta + put(_block(index, restart=1))
        f.write(foot.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
    return path


# ------------------------------------------------------------------ BYOL (dill protocol 2, haiku mappings)
@contextlib.contextmanager
def _fake_modules(names):
    """Temporarily provide modules with stub globals so that pickle writes the original module paths."""
    saved, stubs = dict(sys.modules), {}
    try:
        for module, name, base in names:
            parts = module.split(".")
            for i in range(1, len(parts) + 1):
                m = ".".join(parts[:i])
                if m not in sys.modules or (i == len(parts) and m not in {x.split(":")[0] for x in stubs}):
                    sys.modules[m] = types.ModuleType(m)
            stub = type(name, (base,), {"__module__": module, "__qualname__": name})
            setattr(sys.modules[module], name, stub)
            stubs[f"{module}:{name}"] = stub
        yield stubs
    finally:
        for k in [k for k in sys.modules if k not in saved]:
            del sys.modules[k]
        sys.modules.update(saved)


def write_byol_pickle(schema, spec, seed, path):
    mapping, npm = spec["mapping_class"], spec["numpy_module"]
    with _fake_modules(
        [
            ("dill._dill", "_create_namedtuple", object),
            ("dill._dill", "_create_array", object),
            (mapping.rpartition(".")[0], mapping.rpartition(".")[2], object),
            (npm, "_reconstruct", object),
            (npm, "scalar", object),
        ]
    ) as s:
        nt, ca = s["dill._dill:_create_namedtuple"], s["dill._dill:_create_array"]
        fm, rec = (
            s[mapping.replace("." + mapping.rpartition(".")[2], ":" + mapping.rpartition(".")[2])],
            s[npm + ":_reconstruct"],
        )

        class Tree(dict):
            pass

        # the class is re-created on loading, its instances are written with NEWOBJ
        State = collections.namedtuple(spec["tuple_name"], spec["tuple_fields"])

        class P(pickle.Pickler):
            def reducer_override(self, o):
                if isinstance(o, np.ndarray):
                    state = (1, o.shape, o.dtype, False, o.tobytes())
                    if spec["array_style"] == "dill":
                        return ca, (rec, (np.ndarray, (0,), b"b"), state, None)
                    return rec, (np.ndarray, (0,), b"b"), state
                if isinstance(o, Tree):
                    return fm, (dict(o),)
                if o is State:
                    return nt, (spec["tuple_name"], tuple(spec["tuple_fields"]), spec["tuple_module"])
                return NotImplemented

        def tree(group):
            out = {}
            for k, a in fill(schema, seed, group).items():
                mod, _, leaf = k.partition("::")[2].rpartition("/")
                out.setdefault(mod, Tree())[leaf] = a
            return Tree(out)

        values = {f: tree(f) if f in schema["groups"] else {"trace": Tree()} for f in spec["tuple_fields"]}
        with open(path, "wb") as f:
            P(f, 2).dump(
                {"experiment_state": State(**values), "step": 300000, "rng": np.array([0, 42], np.uint32)}
            )
    return path
