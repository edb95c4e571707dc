"""Writers for the file layouts of the original checkpoints: torch, TorchScript, TF bundle, dill pickle."""

import argparse
import collections
import io
import pickle
import struct

import google_crc32c
import numpy as np
import torch

from golden.rules import fill


def write(schema, seed, path, variant=None):
    spec = dict(schema["container"], **(schema.get("variants", {}).get(variant, {}) if variant else {}))
    writers = {"torch": write_torch, "torchscript": write_torchscript, "tf_bundle": write_tf_bundle}
    return writers.get(spec["type"], write_byol_pickle)(schema, spec, seed, str(path))


# ---- torch


def _decode(v):
    """JSON description of the non-tensor members -> Python objects."""
    if not isinstance(v, dict):
        return [_decode(x) for x in v] if isinstance(v, list) else v
    kind, value = next(iter(v.items()), ("", None))
    if kind == "@namespace":
        return argparse.Namespace(**_decode(value))
    if kind == "@numpy":
        return np.dtype(value[0]).type(value[1])
    if kind == "@tensor":
        return torch.zeros(*value[1], dtype=getattr(torch, value[0]))
    if kind == "@intkeys":
        return {int(k): _decode(x) for k, x in value.items()}
    return {k: _decode(x) for k, x in v.items()}


def _state_dict(arrays):
    cache = {}  # aliased arrays share one storage, as in the original
    return {k: cache.setdefault(id(a), torch.from_numpy(a)) for k, a in arrays.items()}


def torch_object(schema, spec, seed):
    obj = _decode(spec.get("extras", {}))
    for name, g in schema["groups"].items():
        sd = collections.OrderedDict(_state_dict(fill(schema, seed, name)))
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
    data = torch_object(schema, spec, seed)
    torch.save(data, path, _use_new_zipfile_serialization=spec["zip"])
    if not spec["zip"] and "numpy_module" not in spec:
        # numpy 2 writes a new module name; the originals hold the one of numpy 1.
        new, old = b"cnumpy._core.multiarray\nscalar\n", b"cnumpy.core.multiarray\nscalar\n"
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(content.replace(new, old, 1))
    return path


def write_torchscript(schema, spec, seed, path):
    """TorchScript archive: nested modules without code that own the parameters and buffers."""

    class Holder(torch.nn.Module):
        pass

    root = Holder()
    for k, a in fill(schema, seed).items():
        *where, leaf = k.split(".")
        module = root
        for part in where:
            if part not in module._modules:
                module.add_module(part, Holder())
            module = module._modules[part]
        t = torch.from_numpy(a)
        if a.dtype.kind == "f" and not leaf.startswith("running_"):
            module.register_parameter(leaf, torch.nn.Parameter(t, requires_grad=False))
        else:
            module.register_buffer(leaf, t)
    torch.jit.save(torch.jit.script(root.eval()), path)
    return path


# ---- TensorFlow checkpoint V2


def _masked(data):
    c = google_crc32c.value(bytes(data))
    return struct.pack("<I", (((c >> 15) | (c << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


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
    items = [(b"", _field(1, 1) + _field(3, _field(1, 1)))]  # header: one shard, producer version 1
    with open(path + ".data-00000-of-00001", "wb") as f:
        for k in sorted(arrays, key=str.encode):
            raw = np.ascontiguousarray(arrays[k]).tobytes()
            shape = b"".join(_field(2, _field(1, d)) for d in arrays[k].shape)
            entry = _field(1, codes[arrays[k].dtype.name]) + _field(2, shape)
            entry += _field(4, f.tell()) + _field(5, len(raw)) + b"\x35" + _masked(raw)
            items.append((k.encode(), entry))
            f.write(raw)
    with open(path + ".index", "wb") as f:

        def put(block):
            h = _varint(f.tell()) + _varint(len(block))
            f.write(block + b"\0" + _masked(block + b"\0"))
            return h

        per = spec.get("entries_per_block", 200)
        parts = [items[i : i + per] for i in range(0, len(items), per)]
        index = [(part[-1][0], put(_block(part))) for part in parts]
        foot = put(_block([])) + put(_block(index, restart=1))
        f.write(foot.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
    return path


# ---- BYOL (dill protocol 2, Haiku mappings)


def _create_namedtuple():
    """Stands for dill's function of this name; so do the next two."""


def _create_array():
    pass


def _mapping():
    pass


def write_byol_pickle(schema, spec, seed, path):
    class Tree(dict):
        pass

    # the class is re-created on loading, its instances are written with NEWOBJ
    State = collections.namedtuple(spec["tuple_name"], spec["tuple_fields"])
    reconstruct = np.zeros(0).__reduce__()[0]

    class P(pickle.Pickler):
        def reducer_override(self, o):
            if isinstance(o, np.ndarray):
                state, empty = (1, o.shape, o.dtype, False, o.tobytes()), (np.ndarray, (0,), b"b")
                if spec["array_style"] == "dill":
                    return _create_array, (reconstruct, empty, state, None)
                return reconstruct, empty, state
            if isinstance(o, Tree):
                return _mapping, (dict(o),)
            if o is State:
                names = tuple(spec["tuple_fields"])
                return _create_namedtuple, (spec["tuple_name"], names, spec["tuple_module"])
            return NotImplemented

    def tree(group):
        out = {}
        for k, a in fill(schema, seed, group).items():
            mod, _, leaf = k.partition("::")[2].rpartition("/")
            out.setdefault(mod, Tree())[leaf] = a
        return Tree(out)

    values = {f: tree(f) if f in schema["groups"] else {"trace": Tree()} for f in spec["tuple_fields"]}
    buffer = io.BytesIO()
    P(buffer, 2).dump(
        {"experiment_state": State(**values), "step": 300000, "rng": np.array([0, 42], np.uint32)}
    )
    written = {"dill._dill _create_namedtuple": _create_namedtuple, "dill._dill _create_array": _create_array}
    written |= {" ".join(spec["mapping_class"].rsplit(".", 1)): _mapping}
    written |= {f"{spec['numpy_module']} _reconstruct": reconstruct}
    content = buffer.getvalue()
    for name, ours in written.items():
        line = f"c{ours.__module__}\n{ours.__name__}\n".encode()
        content = content.replace(line, f"c{name}\n".replace(" ", "\n").encode())
    with open(path, "wb") as f:
        f.write(content)
    return path
