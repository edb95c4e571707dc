"""An imitation of CUDA graphs on the CPU: capture and replay, operations that a capture forbids, and failures."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from cog.logreg import engine, graphs, metrics, precision

#: Operations that make the host wait for the device, or that return a tensor of data-dependent size.
_WAITING = ("nonzero", "_local_scalar_dense", "equal", "masked_select", "is_nonzero", "_unique2", "item")

#: Methods of tensors that copy values to the host.
_TO_HOST = ("tolist", "cpu", "numpy", "item", "__bool__", "__float__", "__int__")

#: Steps at which a failure can occur.
FAILURES = ("begin", "step", "end", "first replay", "bits", "later replay")


def _tensors(values):
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


class Graph:
    """A graph: operations that are recorded once and replayed."""

    def __init__(self, cuda):
        self.cuda, self.operations, self.saved, self.n_replays = cuda, [], {}, 0

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.memory, self.is_step = object() if pool is None else pool, pool is not None
        self.cuda.fail("begin" if self.is_step else "")
        self.cuda.graph = self

    def pool(self):
        return self.memory

    def capture_end(self):
        self.cuda.graph = None
        for tensor, values in self.saved.values():  # a real capture executes no operation
            tensor.copy_(values)
        if self.is_step:  # the first graph only keeps the memory
            self.cuda.fail("end")
            self.cuda.graphs.append(self)

    def replay(self):
        self.n_replays += 1
        self.cuda.fail(
            "first replay" if self.n_replays == 1 else "later replay" if self.n_replays > 2 else ""
        )
        with torch.no_grad():
            for function, args, kwargs, outputs in self.operations:
                for old, new in zip(outputs, _tensors(function(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            if self.cuda.failure == "bits" and self.n_replays == 2:  # the second of the two that are compared
                self.cuda.failure = None
                updates = [args for function, args, _, _ in self.operations if "sgd" in function._schema.name]
                updates[0][0][0].view(-1)[0] += 1.0  # a weight


class ImitationCuda(TorchDispatchMode):
    """A context in which the imitation replaces CUDA graphs.

    Args:
        monkeypatch: the fixture of the test.
        failure: step that fails once, one of :data:`FAILURES`; None: no failure.
    """

    def __init__(self, monkeypatch, failure=None):
        super().__init__()
        self.failure, self.graph, self.graphs = failure, None, []
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        for module in (engine, graphs):  # as on a GPU, products change settings of the process
            monkeypatch.setattr(module, "products", self._products)
        monkeypatch.setattr(metrics, "_may_wait", lambda device: False)
        for name in _TO_HOST:
            monkeypatch.setattr(torch.Tensor, name, self._guarded(name, getattr(torch.Tensor, name)))

    @staticmethod
    def _products(device, name):
        return precision.products(torch.device("cuda"), name)

    def _guarded(self, name, method):
        def call(tensor, *args, **kwargs):
            assert self.graph is None, f"{name} while a graph is captured"
            return method(tensor, *args, **kwargs)

        return call

    def fail(self, moment):
        if moment and self.failure == moment:
            self.failure = None
            raise RuntimeError(f"CUDA error: the {moment} failed\nmore lines")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        graph = self.graph
        name = function._schema.name.removeprefix("aten::")
        if graph is None:
            return function(*args, **kwargs)
        assert name not in _WAITING, f"{name} while a graph is captured"
        self.fail("step" if graph.is_step else "")
        for i, argument in enumerate(function._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            for tensor in _tensors(value):
                assert tensor.dtype != torch.bool or name != "index", "a mask while a graph is captured"
                address = tensor.untyped_storage().data_ptr()
                if argument.alias_info is not None and argument.alias_info.is_write:
                    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                    graph.saved.setdefault(address, (whole, whole.clone()))
        result = function(*args, **kwargs)
        graph.operations.append((function, args, kwargs, _tensors(result)))
        return result
