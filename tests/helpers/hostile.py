"""Files that would run code, each in one of the containers that the scripts read.

Every payload creates the file ``canary`` when an unrestricted reader opens the file; a control test in
``test_safe_load.py`` verifies this for each of them.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np


class Payload:
    """An object that runs a shell command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch '{self.canary}'",)


class EvalPayload(Payload):
    """An object that evaluates Python code when it is unpickled; its pickle names only builtins."""

    def __reduce__(self):
        return eval, (f"__import__('pathlib').Path({str(self.canary)!r}).touch()",)


def _plain(canary):
    return pickle.dumps(Payload(canary))


def _protocol_0(canary):
    return pickle.dumps(EvalPayload(canary), protocol=0)


def _in_a_dict(canary):
    return pickle.dumps({"train/loss": [1.0], "test/top1": [50.0], "test/top5": [Payload(canary)]})


def _in_an_object_array(canary):
    return pickle.dumps(
        {"n01440764": {"train": np.array([Payload(canary)], dtype=object), "test": np.array(["a"])}}
    )


def _as_a_dict_key(canary):
    return pickle.dumps({(Payload(canary),): 1})


def _inst_opcode(canary):
    return b"(S" + repr(f"touch '{canary}'").encode() + b"\nios\nsystem\n."


def _obj_opcode(canary):
    command = f"touch '{canary}'".encode()
    return b"(cos\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"o."


def _build_opcode(canary):
    inner = pickle.dumps(Payload(canary), protocol=2)[2:-1]  # without PROTO and STOP
    return b"\x80\x02ccollections\nOrderedDict\n)R" + inner + b"b."


PICKLES = {
    "os.system": _plain,
    "eval, protocol 0": _protocol_0,
    "inside a list of a dict": _in_a_dict,
    "inside a numpy object array": _in_an_object_array,
    "as a dict key": _as_a_dict_key,
    "INST opcode": _inst_opcode,
    "OBJ opcode": _obj_opcode,
    "as BUILD state": _build_opcode,
}


def _torch_file(data, **kwargs) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(data, buffer, **kwargs)
    return buffer.getvalue()


def _torch_zip(canary):
    return _torch_file({"weight": Payload(canary)})


def _torch_legacy(canary):
    return _torch_file({"weight": Payload(canary)}, _use_new_zipfile_serialization=False)


def _torch_beside_tensors(canary):
    import torch

    return _torch_file(
        {"X": torch.zeros(4, 2), "Y": torch.arange(4), "name": Payload(canary)},
    )


def _torch_object_array(canary):
    return _torch_file(OrderedDict(weight=np.array([Payload(canary)], dtype=object)))


def _torch_bare_pickle(canary):
    return pickle.dumps(Payload(canary), protocol=2)


TORCH_FILES = {
    "zip container": _torch_zip,
    "legacy container": _torch_legacy,
    "beside tensors": _torch_beside_tensors,
    "numpy object array": _torch_object_array,
    "bare pickle": _torch_bare_pickle,
}
