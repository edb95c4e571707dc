"""Files that would run code or misuse memory, in the containers that the scripts read.

Payloads create the file ``canary`` (CANARY in the current folder) when an unrestricted reader opens the file.
"""

import io
import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Payload:
    """An object that runs a shell command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch '{self.canary}'",)


def _command(canary: Path) -> bytes:
    return f"touch '{canary}'".encode()


#: Pickles by name, functions of the canary; all run its command where nothing is restricted.
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "os.system": lambda canary: pickle.dumps(Payload(canary)),
    "protocol 0": lambda canary: pickle.dumps(Payload(canary), protocol=0),
    "in a dict": lambda canary: pickle.dumps({"train/loss": [1.0], "test/top5": [Payload(canary)]}),
    "in an object array": lambda canary: pickle.dumps({"n1": np.array([Payload(canary)], dtype=object)}),
    "as a key": lambda canary: pickle.dumps({(Payload(canary),): 1}),
    "INST": lambda canary: b"(S" + repr(_command(canary).decode()).encode() + b"\nios\nsystem\n.",
    "OBJ": lambda canary: b"(cos\nsystem\nS" + repr(_command(canary).decode()).encode() + b"\no.",
    "as a state": lambda canary: (
        b"\x80\x02ccollections\nOrderedDict\n)R" + pickle.dumps(Payload(canary), protocol=2)[2:-1] + b"b."
    ),
}


def _torch(data: Any, **kwargs: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(data, buffer, **kwargs)
    return buffer.getvalue()


TORCH_FILES: dict[str, Callable[[Path], bytes]] = {
    "zip container": lambda canary: _torch({"weight": Payload(canary)}),
    "legacy container": lambda canary: _torch([Payload(canary)], _use_new_zipfile_serialization=False),
    "object array": lambda canary: _torch(OrderedDict(weight=np.array([Payload(canary)], dtype=object))),
    "bare pickle": lambda canary: pickle.dumps(Payload(canary), protocol=2),
}

#: Names that no file of data needs.
NAMES = """
builtins:eval builtins:exec builtins:getattr builtins:__import__ builtins:open builtins:type builtins:object
builtins:map builtins:compile os:system posix:system subprocess:Popen shutil:rmtree ctypes:CDLL numpy:load
numpy:memmap numpy:fromfile numpy:frombuffer numpy:dtype.__class__ numpy._core.multiarray:fromfile
numpy.core.multiarray:_reconstruct.__globals__ numpy.ma.core:_mareconstruct pickle:loads torch:load
torch.storage:_load_from_bytes torch._utils:_rebuild_tensor collections:namedtuple functools:partial
operator:attrgetter types:CodeType codecs:open importlib:import_module runpy:run_path copyreg:add_extension
copy_reg:_reconstructor copyreg:__newobj__ copyreg:_extension_cache.update cog.runtime.safe_load:_dtype
cog.runtime.files:write_text cog.runtime.safe_load:_NAMES.clear logging.config:listen
"""


def _text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def call(name: str, *arguments: Any) -> bytes:
    """Return a pickle that calls ``module:name`` with arguments."""
    name = name.replace(":", "\n")
    return f"\x80\x02c{name}\n".encode("latin-1") + pickle.dumps(arguments, protocol=2)[2:-1] + b"R."


_SYSTEM = b"cos\nsystem\n" + _text("touch CANARY") + b"\x85R"
_STATE = b"}" + _text("value") + _text("rot13") + b"sb."  # sets the attribute "value" of what is before
_SLOTS = b"N}" + _text("__code__") + _text("rot13") + b"s\x86b."
_ARRAY = pickle.dumps(np.arange(3), protocol=2)[2:-1]
_EMPTY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
_OBJECTS = b"cnumpy\ndtype\n(" + _text("O") + b"K\x00K\x01tR"
#: Flags of a type without references: an array of objects would take its contents for addresses.
_FLAGS = b"(K\x03" + _text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def _array(shape: Any, dtype: str, content: Any) -> bytes:
    """Return a pickle of an array whose state is as given, by a type without flags."""
    its_shape, its_dtype, its_content = (
        pickle.dumps(value, protocol=2)[2:-1] for value in (shape, (dtype, False, True), content)
    )
    return b"\x80\x02%b(K\x01%bcnumpy\ndtype\n%bR%b\x89%btb." % (
        _EMPTY,
        its_shape,
        its_dtype,
        _FLAGS,
        its_content,
    )


_LIES = (
    *(((2**62, 2**62), "f8", b""), ((4,), "f8", bytes(31)), ((1.5,), "f8", bytes(8))),
    *(((3,), "O", ["a", "b"]), ((1,), "U1", b"\xff" * 4)),
    *(((1,), "U999999999", b"abcd"), ((1,), "f8,O", bytes(16)), ((2,), "V8", bytes(16)), ((1,), "O", [1])),
    *(((2,), "(2,)O", bytes(32)), ((8,), "O", bytes(64)), ((1,), "O", [b"a"]), ((2,), "M8[s]", bytes(16))),
)

_RECONSTRUCT = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n"
_F8 = b"cnumpy\ndtype\n" + _text("f8") + b"\x85R"
_CANARY = _text("touch CANARY") + b"\x85R."

_LIST = b"](" + b"N" * 50_000 + b"e\x85q\x00"
_OFTEN = b"".join(b"(" + bytes([104, n]) * 300 + b"tq" + bytes([n + 1]) for n in range(5))

#: Pickles that are refused in one line; they would create CANARY.
BYTES = {
    "hash of 300 ** 5 tuples": b"\x80\x02})q\x00" + _OFTEN + b"Ns.",
    "copies of a list": b"\x80\x02](" + _LIST + b"cbuiltins\nlist\nh\x00R" * 3000 + b"e.",
    "bytes that are announced": b"\x80\x05\x96" + (2**30).to_bytes(8, "little") + b"abc.",
    "hash of deep tuples": b"\x80\x04})" + b"\x85" * 20_000 + b"Ns.",
    **{f"name {name}": call(name, "touch CANARY") for name in NAMES.split()},
    **{f"array that lies {n}": _array(*lie) for n, lie in enumerate(_LIES)},
    "name, protocol 4": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + _CANARY,
    "name of a method": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93.",
    "attribute of an admitted name": b"\x80\x04\x8c\x08builtins\x8c\x10dict.__class__.x\x93.",
    "module that is no text": b"\x80\x04K\x01K\x02\x93.",
    "extension registry": b"\x80\x02\x82\x07" + _CANARY,
    "extension registry, cached": b"\x80\x02\x82\x09" + _CANARY,
    "out of band buffer": b"\x80\x05\x97.",
    "persistent id": b"\x80\x02K\x01Q.",
    "persistent id, a call": b"\x80\x02" + _SYSTEM + b"Q.",
    "persistent id, text": b"P1\n.",
    "call of a list": b"\x80\x02])R.",
    "call of a name": b"\x80\x02cnumpy\nndarray\nK\x01\x85\x85R.",
    "new object of a function": b"\x80\x02c_codecs\nencode\n)\x81.",
    "new object with keywords": b"\x80\x04cnumpy\nndarray\n)}" + _text("shape") + b"K\x01s\x92.",
    "state of a function": b"\x80\x02c_codecs\nencode\n" + _STATE,
    "slots of a function": b"\x80\x02c_codecs\nencode\n" + _SLOTS,
    "slots of a type": b"\x80\x02cbuiltins\nset\n" + _SLOTS,
    "state of a dict": b"\x80\x02ccollections\nOrderedDict\n)R" + _STATE,
    "state of a list with a call": b"\x80\x02]" + _SYSTEM + b"b.",
    "state of a dtype": b"\x80\x02" + _F8 + b"K\x01b.",
    "flags of a dtype of objects": _array((8,), "O", bytes(64)),
    "state of an array": b"\x80\x02" + _ARRAY + _STATE,
    "state of an array, twice": b"\x80\x02" + _ARRAY + b"(K\x01K\x03\x85" + _OBJECTS + b"\x89C\x00tb.",
    "array of itself": b"\x80\x04" + _EMPTY + b"q\x00(K\x01K\x01\x85" + _OBJECTS + b"\x89]h\x00atb.",
    "array of an array": b"\x80\x04" + _EMPTY + b"(K\x01K\x03\x85" + _F8 + b"\x89" + _ARRAY + b"tb.",
    "array of a memory map": _RECONSTRUCT + b"(cnumpy\nmemmap\nK\x00\x85tR.",
    "scalar that is an object": call("numpy.core.multiarray:scalar", "O", [1]),
    "encoding": call("_codecs:encode", "abc", "rot13"),
    "bytes of a length": call("builtins:bytes", 10**11),
    "bytes beyond the file": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.",
    "frame beyond the file": b"\x80\x04\x95" + (2**63 - 1).to_bytes(8, "little") + b"]",
    "number of 100,000 digits": b"I" + b"9" * 100_000 + b"\n.",
    "items for text": b"\x80\x02" + _text("a") + b"(K\x00K\x01u.",
    "elements for an array": b"\x80\x02" + _ARRAY + b"(K\x00e.",
    "memo that is not there": b"\x80\x02j\xff\xff\xff\xff.",
    "number of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f\x00.",
    "protocol of the future": b"\x80\xff].",
}


def _safetensors(shape: Any, offsets: Any, data: bytes, dtype: str = "F32", **more: Any) -> bytes:
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}} | more).encode()
    return len(header).to_bytes(8, "little") + header + data


#: Files of safetensors with lying headers.
SAFETENSORS = {
    "longer header than the file": (2**40).to_bytes(8, "little") + b"{}",
    "deep header": (500_000).to_bytes(8, "little") + b'{"a":' * 100_000,
    "data beyond the file": _safetensors([4], [0, 16], b""),
    "shape beyond the data": _safetensors([2**40], [0, 4], bytes(4)),
    "product of sizes that overflows": _safetensors([2**32, 2**32, 2], [0, 4], bytes(4)),
    "gap before the data": _safetensors([1], [4, 8], bytes(8)),
    "unknown type": _safetensors([1], [0, 4], bytes(4), "OBJECT"),
    "metadata that calls": _safetensors([1], [0, 4], bytes(4), __metadata__={"a": ["os.system"]}),
}
