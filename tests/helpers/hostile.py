"""Files that would run code, each in one of the containers that the scripts read.

Every payload creates the file ``canary`` when an unrestricted reader opens the file; a control test in
``test_safe_load.py`` verifies this for each of them.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
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


def _unframed(content: bytes) -> bytes:
    """Return a pickle without FRAME opcodes, whose lengths would no longer be right."""
    kept, positions = [], [(op.name, pos) for op, _, pos in pickletools.genops(content)]
    for (name, start), end in zip(positions, [pos for _, pos in positions[1:]] + [len(content)]):
        if name != "FRAME":
            kept.append(content[start:end])
    return b"".join(kept)


def _text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def _call(module: str, name: str, *arguments) -> bytes:
    """A pickle that calls ``module.name(*arguments)``."""
    body = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + body + b"R."


def _array(shape, dtype: str, content, *, more: bytes = b"") -> bytes:
    """A pickle of an array whose state is as given; ``more`` follows the state."""
    parts = (
        _unframed(pickle.dumps(value, protocol=3))[2:-1] for value in (shape, (dtype, False, True), content)
    )
    its_shape, its_dtype, its_content = parts
    return (
        b"\x80\x04" + _EMPTY_ARRAY + b"(K\x01" + its_shape + b"cnumpy\ndtype\n" + its_dtype + b"R" + _DTYPE_STATE
        + b"\x89" + its_content + b"tb" + more + b"."
    )  # fmt: skip


_EMPTY_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
#: Flags of a type without references: an array of objects would take its contents for addresses.
_DTYPE_STATE = b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
_SYSTEM = b"cos\nsystem\n" + _text("touch CANARY")
_STATE = b"N}X\x05\x00\x00\x00value" + _SYSTEM + b"\x85Rs\x86"  # (None, {"value": os.system(...)})
_PLAIN_STATE = b"N}X\x05\x00\x00\x00valueX\x05\x00\x00\x00rot13s\x86"
NESTED = b"K\x01\x85" + b"2\x86" * 60

#: Names that no file of data needs.
NAMES = """
builtins:eval builtins:exec builtins:getattr builtins:setattr builtins:__import__ builtins:open builtins:type
builtins:object builtins:map builtins:property os:system posix:system subprocess:Popen numpy:load numpy:memmap
numpy:frombuffer numpy:dtype.__class__ numpy:vectorize numpy.core.multiarray:_reconstruct.__globals__
numpy._core.multiarray:fromfile numpy.ma.core:_mareconstruct numpy.testing:rundocs pickle:loads pickle:Unpickler
torch:load torch.storage:_load_from_bytes collections:namedtuple functools:partial functools:reduce
cog.runtime.safe_load:_dtype cog.runtime.safe_load:Sealed copyreg:add_extension copy_reg:_reconstructor
copyreg:_reconstructor copyreg:__newobj__ copyreg:dispatch_table operator:attrgetter operator:methodcaller
types:CodeType types:FunctionType codecs:open _codecs:decode importlib:import_module runpy:run_path
"""

#: Pickles that are refused in one line. The text CANARY stands for the path of a file that must not appear.
BYTES = {
    **{f"name {name}": _call(*name.split(":"), "touch CANARY") for name in NAMES.split()},
    "name, protocol 4": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + _text("touch CANARY") + b"\x85R.",
    "name of a method": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93.",
    "attribute of an admitted name": b"\x80\x04\x8c\x08builtins\x8c\x10dict.__class__.x\x93.",
    "module that is no text": b"\x80\x04K\x01K\x02\x93.",
    "extension registry": b"\x80\x02\x82\x07" + _text("touch CANARY") + b"\x85R.",
    "extension registry, 2 bytes": b"\x80\x02\x83\x07\x00" + _text("touch CANARY") + b"\x85R.",
    "extension registry, 4 bytes": b"\x80\x02\x84\x07\x00\x00\x00" + _text("touch CANARY") + b"\x85R.",
    "keyword arguments": b"\x80\x04ccollections\nOrderedDict\n)}\x92.",
    "out of band buffer": b"\x80\x05\x97.",
    "read-only buffer": b"\x80\x05C\x01a\x98.",
    "persistent id": b"\x80\x02K\x01Q.",
    "persistent id, a call": b"\x80\x02" + _SYSTEM + b"\x85RQ.",
    "persistent id, text": b"P1\n.",
    "call of a list": b"\x80\x02])R.",
    "call of a class": b"\x80\x02cbuiltins\nint\nK\x01\x85R.",
    "call of an array type": b"\x80\x02cnumpy\nndarray\nK\x01\x85\x85R.",
    "new object of an admitted function": b"\x80\x02cbuiltins\nset\n)\x81.",
    "new object of text": b"\x80\x02" + _text("a") + b")\x81.",
    "instance of an admitted function": b"(ibuiltins\nset\n.",
    "instance, protocol 1": b"(cbuiltins\nset\no.",
    "state of a function": b"\x80\x02c_codecs\nencode\n" + _PLAIN_STATE + b"b.",
    "state of a type": b"\x80\x02cbuiltins\nset\n" + _PLAIN_STATE + b"b.",
    "state of a name": b"\x80\x02cnumpy\nndarray\n" + _PLAIN_STATE + b"b.",
    "state of a made dict": b"\x80\x02ccollections\nOrderedDict\n)R" + _PLAIN_STATE + b"b.",
    "state of a list": b"\x80\x02]" + _PLAIN_STATE + b"b.",
    "state with a call": b"\x80\x02]" + _STATE + b"b.",
    "state of a type of numpy": b"\x80\x02cnumpy\ndtype\n"
    + _text("f8")
    + b"\x85R"
    + _PLAIN_STATE
    + b"bK\x01b.",
    "state of an array, twice": b"\x80\x02"
    + pickle.dumps(np.arange(3), protocol=2)[2:-1]
    + _PLAIN_STATE
    + b"b.",
    "items of an array": pickle.dumps(np.arange(3), protocol=2)[:-1] + b"K\x00K\x01s.",
    "items of a list": b"\x80\x02]K\x00a(K\x00K\x01u.",
    "items of a name": b"\x80\x02cbuiltins\nset\n(K\x01e.",
    "array of itself": b"\x80\x04"
    + _EMPTY_ARRAY
    + b"q\x00(K\x01K\x01\x85cnumpy\ndtype\n("
    + _text("O")
    + b"K\x00K\x01tR\x89]h\x00atb.",
    "array of calls": _array((1,), "O", [1]),
    "array of bytes objects": _array((1,), "O", [b"a"]),
    "array of addresses": _array((8,), "O", b"\0" * 64),
    "array of a memory map": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nmemmap\nK\x00\x85C\x01btR.",
    "array of a class": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cbuiltins\nint\nK\x00\x85C\x01btR.",
    "array in a buffer, of objects": b"\x80\x05cnumpy.core.numeric\n_frombuffer\n("
    + b"C\x08"
    + bytes(8)
    + b"cnumpy\ndtype\n"
    + _text("O")
    + b"\x85RK\x01\x85"
    + _text("C")
    + b"tR.",
    "scalar that is an object": b"\x80\x02cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n("
    + _text("O")
    + b"K\x00K\x01tR]tR.",
    **{
        f"array that lies: {shape}, {dtype}": _array(shape, dtype, content)
        for shape, dtype, content in (
            ((2**62, 2**62), "f8", b""),
            ((4,), "f8", b"\0" * 31),
            ((-1,), "f8", b"\0" * 8),
            ((1.5,), "f8", b"\0" * 8),
            (1, "f8", b"\0" * 8),
            ((3,), "O", ["a", "b"]),
            ((1,), "U999999999", b"abcd"),
            ((1,), "f8,O", b"\0" * 16),
            ((2,), "V8", b"\0" * 16),
            ((2,), "M8[s]", b"\0" * 16),
            ((2,), "(2,)O", b"\0" * 32),
        )
    },
    "encoding": _call("_codecs", "encode", "abc", "rot13"),
    "encoding of a module": _call("_codecs", "encode", "abc", "os.system"),
    "bytearray of a length": _call("builtins", "bytearray", 10**11),
    "bytes of a length": _call("builtins", "bytes", 10**11),
    "bytes beyond the file": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.",
    "bytearray beyond the file": b"\x80\x05\x96" + (2**36).to_bytes(8, "little") + b"abc.",
    "text beyond the file": b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"abc.",
    "frame beyond the file": b"\x80\x04\x95" + (2**63 - 1).to_bytes(8, "little") + b"]",
    "number of 100,000 digits": b"I" + b"9" * 100_000 + b"\n.",
    # Hashing these keys would visit 2 ** 60 tuples, or end the process.
    "nested tuples as a key": b"\x80\x02}(" + NESTED + b"K\x01u.",
    "nested tuples as the key of an item": b"\x80\x02}" + NESTED + b"K\x01s.",
    "nested tuples as the key of a dict": b"(" + NESTED + b"K\x01d.",
    "nested tuples in a set": b"\x80\x04\x8f(" + NESTED + b"\x90.",
    "nested tuples in a frozenset": b"\x80\x04(" + NESTED + b"\x91.",
    "nested tuples in a set that is called for": b"\x80\x02cbuiltins\nset\n]" + NESTED + b"a\x85R.",
    "nested tuples in a dict that is called for": b"\x80\x02cbuiltins\ndict\n]" + NESTED + b"N\x86a\x85R.",
    "deep tuples as a key": b"\x80\x02}(N" + b"\x85" * 300_000 + b"Nu.",
}

#: More names that no file of data needs.
MORE_NAMES = """
builtins:compile builtins:delattr builtins:vars builtins:globals builtins:breakpoint builtins:super builtins:memoryview
copyreg:pickle copyreg:__newobj_ex__ copyreg:_slotnames copyreg:_extension_cache.update shutil:rmtree ctypes:CDLL
numpy:fromfile numpy:save numpy.lib.format:read_array numpy.core.multiarray:fromfile torch._utils:_rebuild_tensor
torch.jit:load torch.hub:load cog.runtime.safe_load:_Function cog.runtime.safe_load:_ADMITTED.clear
cog.runtime.files:write_text timeit:timeit code:InteractiveInterpreter.runsource logging.config:listen pdb:run
uuid:_get_command_stdout webbrowser:open multiprocessing.connection:Client
"""

_ARRAY = pickle.dumps(np.arange(3), protocol=2)[2:-1]

#: More pickles; those that only make strange data may be read.
MORE = {
    **{f"name {name}": _call(*name.split(":"), "touch CANARY") for name in MORE_NAMES.split()},
    "extension registry, cached": b"\x80\x02\x82\x09" + _text("touch CANARY") + b"\x85R.",
    "reconstructor of copyreg": b"\x80\x02ccopyreg\n_reconstructor\n(cbuiltins\nset\ncbuiltins\nobject\nNtR.",
    "slots of a function": b"\x80\x02cbuiltins\nset\n" + _STATE + b"b.",
    "slots of an array": b"\x80\x02" + _ARRAY + _STATE + b"b.",
    "slots of a dtype": b"\x80\x02cnumpy\ndtype\n" + _text("f8") + b"\x85R" + _STATE + b"b.",
    "state of a class of numpy": b"\x80\x02cnumpy\nndarray\n(K\x01K\x02K\x03tb.",
    "dtype with metadata": b"\x80\x02cnumpy\ndtype\n"
    + _text("f8")
    + b"\x85R(K\x04"
    + _text("|")
    + b"NNNK\x08K\x08K\x3f}"
    + _text("m")
    + _SYSTEM
    + b"\x85Rstb.",
    "dtype of a dtype": b"\x80\x02cnumpy\ndtype\ncnumpy\ndtype\n" + _text("f8") + b"\x85R\x85R.",
    "object array of calls": b"\x80\x04"
    + _EMPTY_ARRAY
    + b"(K\x01K\x01\x85cnumpy\ndtype\n("
    + _text("O")
    + b"K\x00K\x01tR\x89]"
    + _SYSTEM
    + b"\x85Ra tb.",
    "persistent id, a list": b"\x80\x02]K\x01aQ.",
    "persistent id in an array": b"\x80\x04" + _EMPTY_ARRAY + b"K\x01Qb.",
    "buffer of a huge shape": b"\x80\x05cnumpy.core.numeric\n_frombuffer\n(C\x00cnumpy\ndtype\n"
    + _text("f8")
    + b"\x85R\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x10\x85"
    + _text("C")
    + b"tR.",
    "new object of an array type": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "new object with keywords": b"\x80\x04cnumpy\nndarray\n)}" + _text("shape") + b"K\x01s\x92.",
    "factory of a dict": b"\x80\x02ccollections\ndefaultdict\ncos\nsystem\n\x85R.",
    "set of lists": b"\x80\x04\x8f(]\x90.",
    "items for text": b"\x80\x02" + _text("a") + b"(K\x00K\x01u.",
    "elements for an array": b"\x80\x02" + _ARRAY + b"(K\x00e.",
    "memo that is not there": b"\x80\x02j\xff\xff\xff\xff.",
    "memo far away": b"\x80\x02]r\xff\xff\xff\xff.",
    "number of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f\x00.",
    "number of a negative length": b"\x80\x02\x8b\xff\xff\xff\xff\x00.",
    "mark that is not there": b"\x80\x02K\x01t.",
    "protocol of the future": b"\x80\xff].",
}


def _safetensors(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def _described(shape, offsets, dtype="F32", **more) -> bytes:
    return json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}} | more).encode()


#: Files of safetensors with lying headers.
SAFETENSORS = {
    "longer header than the file": _safetensors(b"{}", length=2**40),
    "header of a negative length": _safetensors(b"{}", length=2**64 - 1),
    "header that is no JSON": _safetensors(b"{nothing"),
    "deep header": _safetensors(b'{"a":' * 100_000),
    "data beyond the file": _safetensors(_described([4], [0, 16])),
    "shape beyond the data": _safetensors(_described([2**40], [0, 4]), bytes(4)),
    "product of sizes that overflows": _safetensors(_described([2**32, 2**32, 2], [0, 4]), bytes(4)),
    "offsets in the other order": _safetensors(_described([1], [4, 0]), bytes(4)),
    "gap before the data": _safetensors(_described([1], [4, 8]), bytes(8)),
    "negative shape": _safetensors(_described([-1], [0, 4]), bytes(4)),
    "unknown type": _safetensors(_described([1], [0, 4], "OBJECT"), bytes(4)),
    "data after the tensors": _safetensors(_described([1], [0, 4]), bytes(64)),
    "two tensors in one place": _safetensors(
        _described([1], [0, 4], v={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}), bytes(4)
    ),
    "offsets beyond 64 bits": _safetensors(_described([1], [0, 2**70]), bytes(4)),
    "negative offset": _safetensors(_described([1], [-4, 4]), bytes(4)),
    "half an offset": _safetensors(_described([1], [0, 4.5]), bytes(4)),
    "metadata that calls": _safetensors(_described([1], [0, 4], __metadata__={"a": ["os.system"]}), bytes(4)),
    "tensor that is text": _safetensors(b'{"w": "F32"}', bytes(4)),
    "header of blanks": _safetensors(b" " * 64),
    "header of 90 MB": _safetensors(b" " * (90 << 20)),
}
