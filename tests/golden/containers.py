"""Writers for the file layouts of the original checkpoints: torch, TorchScript, TF bundle, dill pickle."""

import argparse
import collections
import itertools
import pickle
import struct

import google_crc32c
import numpy as np
import torch


def write(schema, fill, path, variant=None):
    """Write a checkpoint of a schema, with the arrays by key that ``fill`` returns for a group of tensors."""
    spec = schema["container"] | schema.get("variants", {}).get(variant, {})
    writers = {"torch": write_torch, "torchscript": write_torchscript, "tf_bundle": write_tf_bundle}
    writers.get(spec["type"], write_byol_pickle)(schema, spec, fill, path)
    return path


# ---- torch


def decoded(v):
    """Return what a dict of JSON describes: a member that is no tensor of the weights."""
    kind, value = next(iter(v.items()), ("", None))
    if kind == "@namespace":
        return argparse.Namespace(**value)
    if kind == "@numpy":
        return np.dtype(value[0]).type(value[1])
    if kind == "@tensor":
        return torch.zeros(*value[1], dtype=getattr(torch, value[0]))
    return {int(k): x for k, x in value.items()} if kind == "@intkeys" else v


def write_torch(schema, spec, fill, path):
    data = collections.OrderedDict(spec.get("extras", {}))
    for name, group in schema["groups"].items():
        cache = {}  # aliased arrays share one storage, as in the original
        state = {k: cache.setdefault(id(a), torch.from_numpy(a)) for k, a in fill(name).items()}
        data |= {group["path"][0]: collections.OrderedDict(state)} if group["path"] else state
    torch.save(data, path, _use_new_zipfile_serialization=spec["zip"])
    if not spec["zip"] and "numpy_module" not in spec:
        # numpy 2 writes a new module name; the originals hold the one of numpy 1.
        new, old = b"cnumpy._core.multiarray\nscalar\n", b"cnumpy.core.multiarray\nscalar\n"
        path.write_bytes(path.read_bytes().replace(new, old, 1))


def write_torchscript(schema, spec, fill, path):
    """TorchScript archive: nested modules without code that own the parameters and buffers."""

    class Holder(torch.nn.Module):
        pass

    root = Holder()
    for k, a in fill(schema["weights_group"]).items():
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


# ---- TensorFlow checkpoint V2


def _masked(data):
    c = google_crc32c.value(bytes(data))
    return struct.pack("<I", (((c >> 15) | (c << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(n):
    return bytes([n & 127 | 128]) + _varint(n >> 7) if n > 127 else bytes([n])


def _field(no, value):
    if isinstance(value, bytes):
        return _varint(no << 3 | 2) + _varint(len(value)) + value
    return _varint(no << 3) + _varint(value) if value else b""


def _block(items):
    """Keys without what they share with the one before; every 16th is whole."""
    out, restarts, last = bytearray(), [0], b""
    for n, (k, v) in enumerate(items):
        if n and n % 16 == 0:
            restarts.append(len(out))
            last = b""
        shared = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(k, last, strict=False))])
        out += _varint(shared) + _varint(len(k) - shared) + _varint(len(v)) + k[shared:] + v
        last = k
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def write_tf_bundle(schema, spec, fill, path):
    """`path` is the checkpoint prefix; writes .index and .data-00000-of-00001 (plus nothing else)."""
    arrays = fill(schema["weights_group"])
    codes = {"float32": 1, "int64": 9, "int32": 3}
    items = [(b"", _field(1, 1) + _field(3, _field(1, 1)))]  # header: one shard, producer version 1
    with open(f"{path}.data-00000-of-00001", "wb") as f:
        for k in sorted(arrays, key=str.encode):
            raw = np.ascontiguousarray(arrays[k]).tobytes()
            shape = b"".join(_field(2, _field(1, d)) for d in arrays[k].shape)
            entry = _field(1, codes[arrays[k].dtype.name]) + _field(2, shape)
            entry += _field(4, f.tell()) + _field(5, len(raw)) + b"\x35" + _masked(raw)
            items.append((k.encode(), entry))
            f.write(raw)
    with open(f"{path}.index", "wb") as f:

        def put(block):
            h = _varint(f.tell()) + _varint(len(block))
            f.write(block + b"\0" + _masked(block + b"\0"))
            return h

        parts = [items[i : i + 200] for i in range(0, len(items), 200)]
        index = [(part[-1][0], put(_block(part))) for part in parts]
        foot = put(_block([])) + put(_block(index))
        f.write(foot.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))


# ---- BYOL (dill protocol 2, Haiku mappings)


# These stand for functions of dill and Haiku, and for Haiku's class of mappings.
def _create_namedtuple(): ...
def _create_array(): ...
def _mapping(): ...


class _Tree(dict): ...


def write_byol_pickle(schema, spec, fill, path):
    fields = spec["tuple_fields"]
    record = collections.namedtuple(spec["tuple_name"], fields)  # re-created on loading
    reconstruct = np.zeros(0).__reduce__()[0]

    def reduced(o):
        if isinstance(o, np.ndarray):
            o = o if any(o.strides) else o[(slice(1),) * o.ndim]  # repeated zeros, which nobody reads
            state, empty = (1, o.shape, o.dtype, False, o.tobytes()), (np.ndarray, (0,), b"b")
            if spec["array_style"] == "dill":
                return _create_array, (reconstruct, empty, state, None)
            return reconstruct, empty, state
        if isinstance(o, _Tree):
            return _mapping, (dict(o),)
        if o is record:
            return _create_namedtuple, (spec["tuple_name"], tuple(fields), spec["tuple_module"])
        return NotImplemented

    values = {field: _Tree(trace=_Tree()) for field in fields}
    for group in schema["groups"]:
        values[group] = _Tree()
        for key, array in fill(group).items():
            module, _, leaf = key.partition("::")[2].rpartition("/")
            values[group].setdefault(module, _Tree())[leaf] = array
    data = {"experiment_state": record(**values), "step": 300000, "rng": np.array([0, 42], np.uint32)}
    pickler = type("Pickler", (pickle.Pickler,), {"reducer_override": lambda _, o: reduced(o)})
    with open(path, "wb") as f:
        pickler(f, 2).dump(data)
    names = {
        "dill._dill\n_create_namedtuple": _create_namedtuple,
        "dill._dill\n_create_array": _create_array,
        "\n".join(spec["mapping_class"].rsplit(".", 1)): _mapping,
        f"{spec['numpy_module']}\n_reconstruct": reconstruct,
    }
    content = path.read_bytes()
    for name, ours in names.items():
        line = f"c{ours.__module__}\n{ours.__name__}\n".encode()
        content = content.replace(line, f"c{name}\n".encode(), 1)
    path.write_bytes(content)
